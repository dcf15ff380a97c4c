"""Do all agree after a partition in which both sides went on, whatever the merge policy says?

Seeded histories of the whole: several writers with clocks that differ, deletes, late joiners,
caches that are killed, also the master while it corrects. One seed is one history.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from durable_cache.testing.simulation.split_brain_history import (
    SPLIT_BRAIN_KINDS,
    SplitBrainHistory,
)
from tests.simulation.playing import nightly_seeds, play_each

SMOKE = 40
IN_CI = 120
"""A history takes a quarter of a second of a core."""
SHARE_MIN = 5.0
"""In percent of the histories."""
play = partial(play_each, SplitBrainHistory, "--split-brain")


def test_all_agree_after_a_partition() -> None:
    occurred: Counter[str] = Counter()
    assert play(range(SMOKE), occurred) == {}
    rare = {kind for kind in SPLIT_BRAIN_KINDS if 100 * occurred[kind] / SMOKE < SHARE_MIN}
    assert not rare, "nothing is known of what hardly any history shows"


@pytest.mark.slow
def test_all_agree_after_a_hundred_partitions() -> None:
    assert play(range(SMOKE, IN_CI)) == {}


@pytest.mark.nightly
def test_nightly_partitions() -> None:
    assert play(nightly_seeds(IN_CI, 2_000)) == {}


def test_a_seed_is_one_history_of_a_partition() -> None:
    one, two = SplitBrainHistory(3), SplitBrainHistory(3)
    assert one.run() == two.run()
    assert one.world.events == two.world.events > 0
    assert one.world.occurred == two.world.occurred
