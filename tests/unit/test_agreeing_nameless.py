"""One number shows of which run samples without an epoch are, where all of them fit (ADR 0384)."""

from __future__ import annotations

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import Alias
from tests.unit.test_agreeing import LATE, SOURCE, Cache, named, of_run, samples


def test_what_comes_without_an_epoch_beside_a_number_of_a_run_is_of_that_if_all_of_it_fits() -> (
    None
):
    """It waited for its name for longer than a gap is waited for (seed 33303)."""
    cache = Cache()
    named(cache, LATE, 3, 4, 5)
    assert cache.given(*samples(2, 3, 4, payload=b"older")) == 3
    assert cache.given(*samples(5, 6)) == 2
    assert of_run(cache, LATE) == RangeSet([(3, 6)])
    assert of_run(cache, EPOCH_UNKNOWN) == RangeSet([(2, 4)])


def test_where_some_of_it_is_here_without_an_epoch_both_are_one() -> None:
    """It came in when nothing showed of which run it is, and stayed there (seed 67303)."""
    cache = Cache()
    named(cache, LATE, 3, 4, 5)
    assert cache.given(*samples(7, 8)) == 2
    assert of_run(cache, EPOCH_UNKNOWN) == RangeSet([(7, 8)])
    assert cache.given(*samples(5, 7, 8)) == 3
    assert of_run(cache, LATE) == RangeSet([(3, 5), (7, 8)])
    cache.answered()
    assert cache.agreed == [Alias(SOURCE, EPOCH_UNKNOWN, 0, LATE)]
