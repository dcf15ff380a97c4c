"""After which pauses does a cache try again what failed?"""

from __future__ import annotations

import pytest

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import SampleBatch
from durable_cache.protocol.cache.events import Append, EngineOptions, Origin
from durable_cache.protocol.cache.questions import IsMoved, MovedSoFar, ReadToMove
from durable_cache.runtime.answering import answer
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Answered, Arrived, Ask
from tests.unit.driven import DrivenCache
from tests.unit.test_core import (
    EPOCH,
    ONE,
    THREE,
    TWO,
    answer_fetches,
    of_run,
    run_of,
    sample,
    token,
)


def test_a_look_up_that_failed_is_asked_again_after_a_pause_that_doubles() -> None:
    options = EngineOptions(verify_retry_seconds=2.0, fetch_retry_seconds_max=3.0)
    cache = DrivenCache(options=CoreOptions(options))
    cache.take(run_of(ONE, 0, 4))
    cache.reads = False
    cache.take(run_of(ONE, 4, 5))
    for pause in (2.0, 3.0, 3.0):
        cache.answer_one(fails=True)
        cache.wait(pause - 0.2)
        assert not cache.unanswered
        cache.wait(0.3)
        assert len(cache.unanswered) == 1
    cache.answer_all()
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 5)])}


def test_gaps_are_not_given_up_right_after_an_append_that_failed() -> None:
    options = EngineOptions(append_retry_seconds=5.0, gap_timeout_seconds=1.0)
    cache = DrivenCache(options=CoreOptions(options))
    cache.take([sample(ONE, 0), sample(ONE, 2)])
    cache.disk_up = False

    def wait(seconds: float) -> int:
        """Let time pass while others have nothing; returns how often it was given up."""
        before = len(cache.of(Append))
        for _ in range(round(seconds * 10)):
            cache.wait(0.1)
            answer_fetches(cache)
        return len(cache.of(Append)) - before

    assert wait(2) == 1
    assert wait(3.5) == 0
    assert wait(3) == 1
    cache.disk_up = True
    wait(5)
    assert [(miss.first, miss.last) for miss in cache.misses] == [(1, 1)]


def test_a_gap_may_be_filled_while_it_is_being_given_up() -> None:
    options = EngineOptions(gap_timeout_seconds=1.0)
    cache = DrivenCache(options=CoreOptions(options))
    cache.take([sample(ONE, 0), sample(ONE, 2)])
    cache.appends = False
    for _ in range(20):
        cache.wait(0.1)
        answer_fetches(cache)
    (append,) = cache.unanswered
    assert isinstance(append, Append)
    assert [(skip.first, skip.last) for skip in append.skips] == [(1, 1)]
    cache.take([sample(ONE, 1)], Origin.NATIVE)
    cache.wait(10)
    assert cache.core.gaps_open == 0
    cache.answer_all()
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 2)])}
    assert cache.misses == []
    assert cache.core.gaps_open == 0


def test_an_index_that_failed_is_asked_again_after_a_pause() -> None:
    cache = DrivenCache(options=CoreOptions(ask_retry_seconds=3.0))
    cache.disk_up = False
    cache.take(run_of(ONE, 0, 4))
    cache.disk_up = True
    cache.take(run_of(ONE, 5, 9))
    cache.wait(2.8)
    assert not cache.all()
    cache.wait(0.3)
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 9)])}


def test_a_move_is_looked_at_so_often_and_then_begins_anew() -> None:
    cache = DrivenCache(options=CoreOptions(move_poll_seconds=2.0, move_polls=3))
    cache.take(run_of(ONE, 0, 4))
    cache.reads = False
    token(cache, ONE, EPOCH, "00000001")
    looked = 0
    while looked < 3:
        (asked,) = cache.unanswered
        assert isinstance(asked, Ask)
        if isinstance(asked.question, IsMoved):
            looked += 1
            cache.unanswered.clear()
            cache.give(Answered(asked.ask_id, MovedSoFar(all=False), cache.now))
            cache.wait(1.9)
            assert not cache.unanswered
            cache.wait(0.2 if looked < 3 else 2.2)
        else:
            cache.answer_one()
    (asked,) = cache.unanswered
    assert isinstance(asked, Ask)
    assert isinstance(asked.question, ReadToMove), "from the beginning"
    cache.answer_all()
    while cache.core.moving:
        cache.wait(0.5)
    assert {stored.epoch for stored in cache.all()} == {EPOCH}


def test_a_move_whose_commit_was_refused_begins_anew_soon() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 4))
    cache.appends = False
    token(cache, ONE, EPOCH, "00000001")
    (refused,) = cache.unanswered
    assert isinstance(refused, Append)
    cache.answer_one(fails=True)
    cache.appends = True
    cache.wait(3)
    assert not cache.core.moving
    assert {stored.epoch for stored in cache.all()} == {EPOCH}


def test_a_move_that_failed_begins_anew_after_a_pause() -> None:
    cache = DrivenCache(options=CoreOptions(move_poll_seconds=2.0))
    cache.take(run_of(ONE, 0, 4))
    cache.reads = False
    token(cache, ONE, EPOCH, "00000001")
    cache.answer_one(fails=True)
    cache.wait(1.8)
    assert not cache.unanswered
    cache.wait(0.3)
    assert len(cache.unanswered) == 1


@pytest.mark.parametrize("origin", [Origin.LIVE, Origin.NATIVE])
def test_a_source_may_make_room_while_its_samples_wait_for_an_answer(origin: Origin) -> None:
    cache = DrivenCache(options=CoreOptions(EngineOptions(sources_max=1)))
    cache.appends = False
    cache.take(run_of(ONE, 0, 4))
    cache.take(run_of(TWO, 0, 4))
    arrived = SampleBatch([sample(ONE, 5), sample(THREE, 0)])
    (asked,) = cache.core.handle(Arrived(arrived, origin, cache.now))
    assert isinstance(asked, Ask)
    if origin is Origin.NATIVE:
        (asked,) = cache.core.handle(
            Answered(asked.ask_id, answer(cache.store, asked.question), cache.now)
        )
        assert isinstance(asked, Ask)
    cache.answer_all()
    cache.unanswered.append(asked)
    cache.answer_all()
    assert of_run(cache, ONE, 0) == {0: RangeSet([SnRange(0, 5)])}
    assert of_run(cache, THREE, 0) == {0: RangeSet([SnRange(0, 0)])}
