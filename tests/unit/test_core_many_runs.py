"""A publisher that is started again and again: what a cache keeps of its runs."""

from __future__ import annotations

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.protocol.cache.events import TokenGone
from tests.unit.driven import DrivenCache
from tests.unit.test_core import EPOCH, ONE, answer_fetches, of_run, run_of, token


def test_of_a_publisher_that_ends_at_once_each_time_few_runs_are_remembered() -> None:
    """Each start took memory, and longer than the one before."""
    cache = DrivenCache()
    token(cache, ONE, EPOCH, f"{0:08x}")
    cache.take(run_of(ONE, 0, 4))
    for run in range(1_000):
        cache.give(TokenGone(ONE, f"{run:08x}", cache.now))
        token(cache, ONE, EPOCH + run + 1, f"{run + 1:08x}")
        answer_fetches(cache)
    known = cache.core._engine.known(ONE)
    assert len(known.numberings) <= 70
    cache.take(run_of(ONE, 0, 2, seconds=100, run=1))
    everything = {0: RangeSet([SnRange(0, 4)]), 1: RangeSet([SnRange(0, 2)])}
    assert of_run(cache, ONE, 0) == {EPOCH: everything[0]}
    assert of_run(cache, ONE, 1) == {EPOCH + 1_000: everything[1]}
    assert not cache.misses
