"""Does the histogram of delays count each delay where it belongs?"""

from __future__ import annotations

import pytest

from durable_cache.endpoints.delays import BOUNDS_SECONDS, Delays


@pytest.mark.parametrize("at", range(len(BOUNDS_SECONDS)))
def test_a_delay_of_just_a_bound_is_within_it(at: int) -> None:
    delays = Delays()
    delays.observe(BOUNDS_SECONDS[at], 1)
    assert delays.seen().up_to == (0,) * at + (1,) * (len(BOUNDS_SECONDS) - at)


def test_longer_than_every_bound_counts_in_the_sum_alone() -> None:
    delays = Delays()
    delays.observe(60.0, 2)
    seen = delays.seen()
    assert seen.up_to == (0,) * len(BOUNDS_SECONDS)
    assert (seen.count, seen.total_seconds) == (2, 120.0)


def test_a_clock_set_back_counts_as_no_time() -> None:
    delays = Delays()
    delays.observe(-5.0, 3)
    delays.observe(0.25, 4)
    seen = delays.seen()
    assert (seen.count, seen.total_seconds) == (7, 1.0)
    assert seen.up_to[0] == 3
