"""Do readers with a profile end in one state, whatever happens? Seeded histories of the whole.

Those by source timestamp know at the end what the caches know; received = in the cache + taken +
lost for all; no bound is exceeded. One seed is one history.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from durable_cache.testing.simulation.reader_history import READER_KINDS, ReaderHistory
from tests.simulation.playing import nightly_seeds, play_each

SMOKE = 60
IN_CI = 2_000
EACH = 485
"""A history takes 30 to 50 ms of a core."""
SHARE_MIN = 5.0
"""In percent of the histories."""
play = partial(play_each, ReaderHistory, "--readers")


def test_readers_end_in_one_state() -> None:
    occurred: Counter[str] = Counter()
    assert play(range(SMOKE), occurred) == {}
    rare = {kind for kind in READER_KINDS if 100 * occurred[kind] / SMOKE < SHARE_MIN}
    assert not rare, "nothing is known of what hardly any history shows"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SMOKE, IN_CI, EACH))
def test_two_thousand_histories_of_readers_end_in_one_state(first: int) -> None:
    assert play(range(first, first + EACH)) == {}


@pytest.mark.nightly
def test_nightly_histories_of_readers_end_in_one_state() -> None:
    assert play(nightly_seeds(IN_CI, 20_000)) == {}


def test_what_is_missed_is_not_of_a_run_that_published_nothing_yet() -> None:
    """Two runs of a writer declared one epoch, and the first number of the earlier is lost."""
    assert ReaderHistory(20528).run() == []


def test_a_seed_is_one_history_of_readers() -> None:
    one, two = ReaderHistory(3), ReaderHistory(3)
    assert one.run() == two.run()
    assert one.world.events == two.world.events > 0
    assert one.world.occurred == two.world.occurred
