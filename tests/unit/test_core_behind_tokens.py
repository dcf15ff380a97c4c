"""What comes behind a token that waits for a look-up waits with it: it is of the new run."""

from __future__ import annotations

import msgspec

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.protocol.cache.events import (
    Append,
    BatchRefused,
    EngineOptions,
    HeartbeatReceived,
)
from durable_cache.runtime.core import CoreOptions
from tests.unit.driven import DrivenCache
from tests.unit.test_core import EPOCH, ONE, TWO, answer_fetches, of_run, run_of, token


def doubting(samples_max: int = 20_000) -> DrivenCache:
    """A cache in which a repeat of `ONE` waits for its look-up, with a token behind it."""
    engine = EngineOptions(doubtful_samples_max=samples_max)
    cache = DrivenCache(options=CoreOptions(engine=engine))
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 0, 4))
    cache.reads = False
    cache.take(run_of(ONE, 4, 4))
    assert cache.core.doubtful == 1
    token(cache, ONE, EPOCH + 1, "00000002")
    return cache


def missed_in_the_end(cache: DrivenCache, epoch: int) -> list[tuple[int, int]]:
    """Let nobody have what `ONE` lacks, until nothing is asked any more."""
    while cache.core.gaps_open:
        cache.wait(1)
        answer_fetches(cache)
    missed = RangeSet()
    for miss in cache.misses:
        if (miss.source, miss.epoch) == (ONE, epoch):
            missed.add(miss.first, miss.last)
    return [*missed]


def test_samples_behind_a_waiting_token_are_of_its_run() -> None:
    cache = doubting()
    cache.take([*run_of(ONE, 0, 5, run=1), *run_of(TWO, 0, 0)])
    assert cache.core.doubtful == 8
    assert [held.source for held in cache.all()].count(TWO) == 1, "others go on"
    cache.answer_all()
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 4)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([SnRange(0, 5)])}
    assert not cache.core.doubtful


def test_several_runs_wait_in_their_order() -> None:
    cache = doubting()
    cache.take(run_of(ONE, 0, 2, run=1))
    token(cache, ONE, EPOCH + 2, "00000003")
    cache.take(run_of(ONE, 0, 1, run=2))
    cache.answer_all()
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([SnRange(0, 2)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 2: RangeSet([SnRange(0, 1)])}


def test_beyond_the_bound_the_numbers_are_awaited() -> None:
    cache = doubting(samples_max=4)
    cache.take(run_of(ONE, 0, 4, run=1))
    assert cache.core.doubtful == 5, "one is looked up; a token and three samples wait behind it"
    cache.answer_all()
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([SnRange(0, 2)])}
    assert missed_in_the_end(cache, EPOCH + 1) == [(3, 4)]


def test_what_was_refused_and_what_a_heartbeat_says_waits_as_well() -> None:
    cache = doubting()
    cache.take(run_of(ONE, 0, 0, run=1))
    cache.give(BatchRefused(((ONE, SnRange(1, 2)), (TWO, SnRange(5, 5))), cache.now))
    cache.give(HeartbeatReceived(ONE, 4, cache.now))
    cache.answer_all()
    assert missed_in_the_end(cache, EPOCH + 1) == [(1, 4)]


def test_what_waited_counts_as_heard_since_it_came() -> None:
    """Its delay to the acknowledgement is counted though it was committed on another occasion."""
    cache = doubting()
    came = cache.now.unix_ns
    late = [msgspec.structs.replace(s, received_ns=came) for s in run_of(ONE, 0, 5, run=1)]
    cache.take(late)
    cache.wait(3)
    cache.answer_all()
    heard = [(e.heard, e.heard_since_ns) for e in cache.effects if isinstance(e, Append)]
    assert (6, came) in heard


def test_where_there_is_no_room_a_token_that_showed_nothing_gives_its_place_to_the_next() -> None:
    cache = doubting(samples_max=2)
    for number in range(3, 9):
        token(cache, ONE, EPOCH + number, f"{number:08x}")
        assert cache.core.doubtful <= 3
    cache.take(run_of(ONE, 0, 1, run=1))
    cache.answer_all()
    cache.wait(1)
    assert (ONE, EPOCH + 8) in {(fetch.source, fetch.epoch) for fetch in cache.fetches}


def test_a_heartbeat_while_a_number_is_looked_up_awaits_nothing_of_the_run_before() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 4))
    cache.reads = False
    cache.take(run_of(ONE, 0, 2, seconds=30, run=1))
    cache.give(HeartbeatReceived(ONE, 6, cache.now))
    cache.wait(1)
    assert cache.fetches == []
    cache.answer_all()
    cache.wait(1)
    (epoch,) = of_run(cache, ONE, 1)
    assert [(fetch.epoch, fetch.first, fetch.last) for fetch in cache.fetches] == [(epoch, 3, 6)]
