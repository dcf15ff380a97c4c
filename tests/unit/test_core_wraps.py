"""A foreign source's numbers begin again at 0: what of it comes in which order, by which way."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame
from durable_cache.protocol.cache.events import (
    BatchRefused,
    EpochDeclared,
    FetchEnded,
    HeartbeatReceived,
    Origin,
)
from durable_cache.protocol.restarts import has_wrapped
from durable_cache.protocol.wire import incarnation_after
from durable_cache.runtime.effects import Arrived
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import ONE, of_run, run_of, sample, token

END = SOURCE_SN_MODULUS - 1


def last(count: int) -> list[Sample]:
    """Return the last numbers before the wrap, each a millisecond after the one before."""
    return [
        msgspec.structs.replace(one, sn=END - count + 1 + at)
        for at, one in enumerate(run_of(ONE, 0, count - 1))
    ]


def wrapped(first: int, to: int) -> list[Sample]:
    """Return the numbers after it."""
    return run_of(ONE, first, to, seconds=1, run=1)


def fetched(cache: DrivenCache) -> list[tuple[int, int | None]]:
    return [(fetch.first, fetch.last) for fetch in cache.fetches]


def test_what_a_publisher_gives_of_before_the_wrap_fills_the_run_before() -> None:
    cache = DrivenCache()
    ended = last(5)
    cache.take([ended[0], ended[4]])
    cache.take(wrapped(0, 2))
    cache.take(ended[1:4], Origin.NATIVE)
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(END - 4, END)])}
    assert [*of_run(cache, ONE, 1).values()] == [RangeSet([SnRange(0, 2)])]
    cache.wait(200, 1)
    assert cache.misses == []


def test_a_number_below_one_that_could_not_be_stored_is_behind_no_wrap() -> None:
    """Near the end of the range (seed 35160)."""
    cache = DrivenCache()
    ended = last(5)
    token(cache, ONE, frame(BEGAN_NS), "0a0a0a0a", fresh=False)
    cache.take(ended[:2])
    cache.disk_up = False
    cache.take(ended[4:])
    cache.disk_up = True
    cache.take(ended[2:4])
    assert of_run(cache, ONE, 0) == {frame(BEGAN_NS): RangeSet([SnRange(END - 4, END - 1)])}


def test_the_next_number_is_behind_no_wrap() -> None:
    assert not has_wrapped(END, END - 1, 100)
    assert has_wrapped(0, END, 100)
    assert has_wrapped(3, END - 1, 100)


def test_a_late_number_of_before_the_wrap_is_of_the_run_before() -> None:
    cache = DrivenCache()
    ended = last(5)
    cache.take(ended[:4])
    cache.take(wrapped(0, 2))
    cache.take(ended[4:])
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(END - 4, END)])}


def test_a_number_of_before_the_wrap_raises_nothing_where_its_run_is_not_known() -> None:
    cache = DrivenCache()
    cache.take(wrapped(0, 2))
    cache.take(last(5))
    cache.take(last(5), Origin.RECOVERED)
    cache.take(wrapped(3, 5))
    cache.wait(200, 1)
    assert cache.misses == []
    assert [*of_run(cache, ONE, 1).values()] == [RangeSet([SnRange(0, 5)])]


def test_a_refused_number_behind_the_wrap_is_asked_for_and_begins_the_run_when_it_comes() -> None:
    cache = DrivenCache()
    cache.take(last(5))
    cache.give(BatchRefused(((ONE, SnRange(0, 0)),), cache.now))
    assert fetched(cache) == [(0, 0)]
    (fetch,) = cache.fetches
    cache.give(
        Arrived(SampleBatch(wrapped(0, 0)), Origin.NATIVE, cache.now),
        FetchEnded(fetch.fetch_id, cache.now),
    )
    cache.wait(200, 1)
    assert cache.misses == []
    assert [*of_run(cache, ONE, 1).values()] == [RangeSet([SnRange(0, 0)])]


@pytest.mark.parametrize("looked_up", [False, True])
def test_what_is_refused_on_both_sides_of_a_wrap_awaits_none_between(looked_up: bool) -> None:
    """Nothing of the source is known yet, and numbers do not say which came first (seed 103001)."""
    cache = DrivenCache()
    if looked_up:
        cache.take(last(6)[:1])
        cache.reads = False
        cache.take(last(6)[:1])
    cache.give(BatchRefused(((ONE, SnRange(0, 1)), (ONE, SnRange(END - 4, END))), cache.now))
    cache.answer_all()
    misses = []
    for _ in range(60):
        fetches, misses = cache.fetches, misses + cache.misses
        cache.effects.clear()
        for fetch in fetches:
            of_fetch = range(fetch.first, (END if fetch.last is None else fetch.last) + 1)
            given = [one for one in (*last(5), *wrapped(0, 1)) if one.sn in of_fetch]
            cache.give(
                Arrived(SampleBatch(given), Origin.NATIVE, cache.now),
                FetchEnded(fetch.fetch_id, cache.now),
            )
        cache.wait(4, 1)
    assert misses == []
    first = END - 5 if looked_up else END - 4
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(first, END)])}
    assert [*of_run(cache, ONE, 1).values()] == [RangeSet([SnRange(0, 1)])]


def test_a_heartbeat_of_behind_the_wrap_awaits_the_last_numbers_and_asks_for_its_own() -> None:
    cache = DrivenCache()
    cache.take(last(5)[:3])
    cache.give(HeartbeatReceived(ONE, 7, cache.now))
    cache.wait(0.1)
    assert fetched(cache) == [(7, 7), (END - 1, END)]


def test_a_restart_that_only_the_publishers_own_cache_shows_begins_a_run() -> None:
    """The first of the new run were lost; what came looked like the rest of the old one."""
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 4))
    cache.take(run_of(ONE, 7, 7, seconds=0.01))
    began = run_of(ONE, 0, 5, seconds=5, run=1)
    cache.take(began, Origin.NATIVE)
    epoch = frame(BEGAN_NS + 5 * 10**9)
    assert of_run(cache, ONE, 1) == {epoch: RangeSet([SnRange(0, 5)])}
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 4), SnRange(7, 7)])}


def test_a_name_given_here_before_the_token_came_raises_no_epoch() -> None:
    """A publisher's clock may be behind: all caches call its run as its token says."""
    cache = DrivenCache()
    declared = frame(BEGAN_NS) - 2
    cache.give(EpochDeclared(ONE, declared - 10, False, cache.now, "0a0a0a0a"))
    cache.take(last(5))
    cache.take([sample(ONE, 0, seconds=1, run=1)])
    token(cache, ONE, declared, incarnation_after("0a0a0a0a"), fresh=False)
    assert of_run(cache, ONE, 1) == {declared: RangeSet([SnRange(0, 0)])}


def test_a_named_run_that_wraps_is_one_run_whatever_the_times_it_chooses() -> None:
    """Its first samples overtake its token, and their times go back: no second run begins."""
    cache = DrivenCache()
    began = frame(BEGAN_NS)
    token(cache, ONE, began - 10, "0a0a0a0a", fresh=False)
    cache.take(last(5))
    back = msgspec.structs.replace(wrapped(4, 4)[0], ntp64=wrapped(0, 0)[0].ntp64 - (30 << 32))
    cache.take([back, *wrapped(3, 3), *wrapped(6, 6), *wrapped(0, 2)])
    token(cache, ONE, began, incarnation_after("0a0a0a0a"))
    assert of_run(cache, ONE, 1) == {began: RangeSet([SnRange(0, 4), SnRange(6, 6)])}


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_token_takes_no_run_for_its_own_that_began_where_a_named_runs_numbers_wrapped(
    is_started_again: bool,
) -> None:
    """Both declare one epoch, and the first's token did not come: its name shows in the wrap."""
    cache = DrivenCache()
    declared = frame(BEGAN_NS + 10**9)
    token(cache, ONE, declared - 10, "0a0a0a0a", fresh=False)
    cache.take(last(5))
    cache.take(wrapped(0, 1))
    if is_started_again:
        cache.start()
    token(cache, ONE, declared, "0c0c0c0c")
    cache.take(run_of(ONE, 0, 2, seconds=5, run=2))
    assert of_run(cache, ONE, 1) == {declared: RangeSet([SnRange(0, 1)])}
    assert of_run(cache, ONE, 2) == {declared + 1: RangeSet([SnRange(0, 2)])}
    named = {ack.incarnation: ack.epoch for ack in cache.acks}
    assert named["0c0c0c0c"] == declared + 1
    assert "" not in named, "a publisher would take it for one of its run that declared that epoch"


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_run_behind_a_wrap_is_the_one_whose_token_comes_late(is_started_again: bool) -> None:
    cache = DrivenCache()
    declared = frame(BEGAN_NS + 10**9)
    token(cache, ONE, declared - 10, "0a0a0a0a", fresh=False)
    cache.take(last(5))
    cache.take(wrapped(0, 1))
    if is_started_again:
        cache.start()
    token(cache, ONE, declared, incarnation_after("0a0a0a0a"))
    cache.take(wrapped(2, 3))
    assert of_run(cache, ONE, 1) == {declared: RangeSet([SnRange(0, 3)])}
    assert cache.acks[-1].incarnation == incarnation_after("0a0a0a0a")


def test_what_others_give_of_before_a_wrap_is_taken_where_its_run_is_over() -> None:
    """A cache that lost everything took what was faster than its token for the run before."""
    cache = DrivenCache()
    first, second = frame(BEGAN_NS), frame(BEGAN_NS) + 1
    token(cache, ONE, first, "0a0a0a0a", fresh=False)
    cache.take(wrapped(1, 2))
    ended = [msgspec.structs.replace(one, epoch=first) for one in last(5)]
    cache.take(ended, Origin.RECOVERED)
    assert of_run(cache, ONE, 0) == {}, "it may be these that are another run's"
    token(cache, ONE, second, incarnation_after("0a0a0a0a"), fresh=False)
    for origin, given in ((Origin.RECOVERED, ended[2:]), (Origin.ALIGNED, ended[:2])):
        cache.take(given, origin)
    assert of_run(cache, ONE, 0) == {first: RangeSet([SnRange(END - 4, END)])}
    cache.take(wrapped(3, 3))
    cache.wait(200, 1)
    assert cache.misses == []
    assert of_run(cache, ONE, 1)[second] == RangeSet([SnRange(3, 3)])


@pytest.mark.parametrize("is_started_again", [False, True])
def test_what_lacks_among_numbers_faster_than_their_token_is_no_miss_of_the_run_before(
    is_started_again: bool,
) -> None:
    """They lie under the name of that run, which ended with the range (seeds 73848, 77760)."""
    cache = DrivenCache()
    first, second = frame(BEGAN_NS), frame(BEGAN_NS) + 1
    token(cache, ONE, first, "0a0a0a0a", fresh=False)
    cache.take([wrapped(1, 1)[0], wrapped(3, 3)[0]])
    token(cache, ONE, second, incarnation_after("0a0a0a0a"), fresh=False)
    begun = [msgspec.structs.replace(one, epoch=second) for one in wrapped(0, 3)]
    cache.take(begun, Origin.RECOVERED)
    ended = [msgspec.structs.replace(one, epoch=first) for one in last(5)]
    cache.take(ended[:3], Origin.RECOVERED)
    cache.take(ended[4:], Origin.RECOVERED)
    if is_started_again:
        cache.start()
    cache.take(wrapped(4, 4))
    cache.wait(200, 1)
    assert [(miss.first, miss.last) for miss in cache.misses] == [(END - 1, END - 1)]
    assert of_run(cache, ONE, 1)[second] == RangeSet([SnRange(0, 4)])
