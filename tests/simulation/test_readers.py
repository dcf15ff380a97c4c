"""Do readers with a profile end in one state, whatever happens? Seeded histories of the whole.

Those by source timestamp know at the end what the caches know; received = in the cache + taken +
lost for all; no bound is exceeded. One seed is one history.
"""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest

from durable_cache.testing.simulation.reader_history import READER_KINDS, ReaderHistory

SMOKE = 60
IN_CI = 2_000
EACH = 485
"""A history takes 30 to 50 ms of a core."""
SHARE_MIN = 5.0
"""In percent of the histories."""


def play(seeds: range, occurred: Counter[str] | None = None) -> dict[str, list[str]]:
    """Play the histories of some seeds; say how to play those again that went wrong."""
    logging.disable(logging.CRITICAL)  # caches say that they were killed
    try:
        wrong = {}
        for seed in seeds:
            history = ReaderHistory(seed)
            if found := history.run():
                again = f"python -m durable_cache.testing.simulation --readers --seed {seed}"
                wrong[again] = found[:3]
            if occurred is not None:
                occurred.update(dict.fromkeys(history.world.occurred, 1))
        return wrong
    finally:
        logging.disable(logging.NOTSET)


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
    """`DURABLE_CACHE_HISTORIES` says how many (20,000), `DURABLE_CACHE_FIRST_SEED` from where."""
    first = int(os.environ.get("DURABLE_CACHE_FIRST_SEED", str(IN_CI)))
    count = int(os.environ.get("DURABLE_CACHE_HISTORIES", "20000"))
    assert play(range(first, first + count)) == {}


def test_a_seed_is_one_history_of_readers() -> None:
    one, two = ReaderHistory(3), ReaderHistory(3)
    assert one.run() == two.run()
    assert one.world.events == two.world.events > 0
    assert one.world.occurred == two.world.occurred
