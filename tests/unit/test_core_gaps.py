"""Many gaps of a cache: few are kept, and none is given up for that (ADR 0346)."""

from __future__ import annotations

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import SampleBatch
from durable_cache.protocol.cache.events import FetchEnded, Origin
from durable_cache.runtime.effects import Arrived
from tests.unit.driven import DrivenCache
from tests.unit.test_core import ONE, TWO, answer_fetches, of_run, run_of, sample


def test_thousands_of_gaps_of_one_source_are_a_few_and_crowd_out_none() -> None:
    cache = DrivenCache()
    cache.take([sample(ONE, 0), sample(ONE, 2), sample(TWO, 0)])
    cache.take([sample(TWO, sn) for sn in range(2, 20_102, 2)])
    assert cache.core.gaps_open < 10_000
    cache.wait(0.1)
    assert cache.misses == []
    (fetch,) = (fetch for fetch in cache.fetches if fetch.source == ONE)
    cache.give(
        Arrived(SampleBatch([sample(ONE, 1)]), Origin.NATIVE, cache.now),
        FetchEnded(fetch.fetch_id, cache.now),
    )
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 2)])}


def test_a_disk_that_is_full_for_long_leaves_few_gaps_and_all_of_it_comes_in_later() -> None:
    cache = DrivenCache()
    cache.take([sample(ONE, 0)])
    cache.disk_up = False
    for at in range(3000):
        cache.take([sample(ONE, 1 + 2 * at), sample(ONE, 2 + 2 * at)])
        cache.wait(0.02, 0.02)
        answer_fetches(cache)
    assert cache.core.gaps_open < 200
    assert cache.misses == []
    cache.disk_up = True
    for _ in range(10):
        for fetch in cache.fetches:
            last = 6000 if fetch.last is None else fetch.last
            cache.take(run_of(ONE, fetch.first, last), Origin.NATIVE)
        answer_fetches(cache)
        cache.wait(1)
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 6000)])}
    assert cache.core.gaps_open == 0
