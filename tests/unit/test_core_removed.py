"""What was removed stays removed, whoever gives it; what a backend lost is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sequence import EPOCH_UNKNOWN, frame
from durable_cache.protocol.cache.events import (
    Append,
    EngineOptions,
    FetchEnded,
    Origin,
    ReportAbsent,
    Verify,
)
from durable_cache.protocol.cache.names import under
from durable_cache.protocol.cache.questions import Floors
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Ask
from durable_cache.storage.contract import Capabilities, Durability, Floor, Retention
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import (
    EPOCH,
    ONE,
    TWO,
    acknowledged,
    answer_fetches,
    of_run,
    run_of,
    sample,
    token,
)


class Backend(MemoryStorage):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, durability=Durability.DISK)


def moved(cache: DrivenCache) -> None:
    while cache.core.moving:
        cache.wait(0.5)


def test_what_others_give_below_a_floor_does_not_come_in() -> None:
    cache = DrivenCache()
    cache.take([one for one in run_of(ONE, 0, 9) if one.sn != 3])
    cache.store.trim(Retention(samples_max=5), BEGAN_NS)
    cache.take([sample(ONE, 3), sample(ONE, 10)], Origin.RECOVERED)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([SnRange(5, 10)])}


@pytest.mark.parametrize("origin", [Origin.RECOVERED, Origin.NATIVE])
def test_an_awaited_number_that_was_removed_is_neither_missed_nor_asked_for_again(
    origin: Origin,
) -> None:
    cache = DrivenCache()
    cache.take([one for one in run_of(ONE, 0, 9) if one.sn != 3])
    cache.wait(0.1)
    (fetch,) = cache.fetches
    cache.store.purge([Floor(cache.all()[0].stream, 5)])
    cache.take([sample(ONE, 3)], origin)
    cache.give(FetchEnded(fetch.fetch_id, cache.now))
    cache.wait(200)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([SnRange(5, 9)])}
    assert cache.fetches == [fetch]
    assert cache.misses == []
    cache.take([sample(ONE, 10)])
    assert 3 not in acknowledged(cache, ONE)


def test_only_what_nobody_has_is_missed_where_some_of_a_gap_was_removed() -> None:
    cache = DrivenCache()
    other = sample(ONE, 4, key="other")
    cache.store.purge([Floor(other.stream, 5)])
    cache.take([*run_of(ONE, 0, 2), *run_of(ONE, 6, 9)])
    cache.wait(0.1)
    cache.take([other], Origin.RECOVERED)
    for _ in range(20):
        answer_fetches(cache)
        cache.wait(10)
    assert [(miss.first, miss.last) for miss in cache.misses] == [(3, 3), (5, 5)]
    states, _ = cache.store.load(ONE)
    assert [list(state.skipped) for state in states] == [[(3, 3), (5, 5)]]


def trimmed() -> DrivenCache:
    """Return a cache that has the newest five of ten samples of a run that a token named."""
    cache = DrivenCache()
    token(cache, ONE, frame(BEGAN_NS), "0a0a0a0a")
    cache.take(run_of(ONE, 0, 9, seconds=10))
    cache.store.trim(Retention(samples_max=5), BEGAN_NS)
    return cache


def test_what_was_removed_of_a_run_does_not_come_in_where_another_has_lost_its_name() -> None:
    """Its index was lost, and had named what stood without one (seed 84703)."""
    cache = trimmed()
    for _ in range(3):
        cache.take([sample(ONE, 3, seconds=10)], Origin.ALIGNED)
        cache.wait(60)
    assert of_run(cache, ONE, 0) == {frame(BEGAN_NS): RangeSet([SnRange(5, 9)])}


@pytest.mark.parametrize(("sn", "seconds"), [(3, -20), (7, -20), (12, 20)])
def test_what_may_be_of_another_run_comes_in_without_a_name(sn: int, seconds: float) -> None:
    cache = trimmed()
    cache.take([sample(ONE, sn, seconds=seconds, run=1)], Origin.ALIGNED)
    assert of_run(cache, ONE, 1) == {EPOCH_UNKNOWN: RangeSet([SnRange(sn, sn)])}


def test_a_purge_goes_with_the_samples_that_move_to_another_epoch() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.store.purge([Floor(cache.all()[0].stream, 5)])
    token(cache, ONE, EPOCH, "00000001")
    moved(cache)
    cache.start()
    cache.take(under(EPOCH, run_of(ONE, 0, 12)), Origin.RECOVERED)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(5, 12)])}


def test_what_a_backend_lost_is_said_and_claimed_no_more() -> None:
    backend = MemoryStorage()
    cache = DrivenCache(JournaledStorage(backend, None))
    cache.take(run_of(ONE, 0, 9))
    backend.purge([Floor(cache.all()[0].stream, 5)])
    cache.take(run_of(ONE, 3, 3))
    assert "number 3" in cache.store.findings[-1]
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([SnRange(3, 3), SnRange(5, 9)])}
    states, _ = cache.store.load(ONE)
    assert [3 in state.held for state in states] == [True]


def test_what_a_publishers_own_cache_has_is_left_out_until_its_run_is_known() -> None:
    """It may be of a run that began anew, whose numbers are no repeats of those before."""
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.reads = False
    restarted = run_of(ONE, 0, 12, seconds=30, run=1)
    cache.take(restarted[:2])
    cache.take(restarted[10:], Origin.NATIVE)
    cache.answer_all()
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([SnRange(0, 9)])}
    (runs,) = of_run(cache, ONE, 1).values()
    assert list(runs) == [(0, 1)]


def test_what_a_publishers_own_cache_gave_before_it_began_again_is_of_the_run_before() -> None:
    """Its answer may come after the new run's first samples, whose numbers it would take."""
    cache = DrivenCache()
    before = run_of(ONE, 0, 9)
    cache.take(before[:8] + before[9:])
    restarted = run_of(ONE, 0, 3, seconds=30, run=1)
    cache.take(restarted)
    cache.take(before, Origin.NATIVE)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([SnRange(0, 9)])}
    (runs,) = of_run(cache, ONE, 1).values()
    assert list(runs) == [(0, 3)]


def test_a_token_waits_for_the_samples_before_it_that_are_looked_up() -> None:
    """Which run they are of is not known before: the token must not name the run before."""
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.reads = False
    cache.take(run_of(ONE, 0, 2, seconds=30, run=1))
    assert cache.core.doubtful
    token(cache, ONE, EPOCH, "00000002")
    cache.answer_all()
    cache.take(run_of(ONE, 3, 5, seconds=30, run=1))
    moved(cache)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([SnRange(0, 9)])}
    (runs,) = of_run(cache, ONE, 1).values()
    assert list(runs) == [(0, 5)]
    assert (cache.acks[-1].incarnation, cache.acks[-1].runs) == ("00000002", ((0, 5),))


def test_a_repeat_of_what_was_purged_on_its_way_is_known_by_who_forgot_the_source(
    tmp_path: Path,
) -> None:
    cache = DrivenCache(JournaledStorage(Backend(), tmp_path))
    cache.take(run_of(ONE, 0, 9))
    cache.store.purge([Floor(sample(ONE, 0).stream, 10)])
    cache.start()
    cache.take([sample(ONE, 5), sample(ONE, 10)])
    assert cache.store.drain_all(10)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([SnRange(10, 10)])}
    cache.store.close()


def test_a_run_that_begins_with_removed_numbers_is_known_though_the_backend_was_lost() -> None:
    """Of the run before only removed numbers are left, and until when it went on."""
    backend = MemoryStorage()
    cache = DrivenCache(JournaledStorage(backend, None))
    cache.take(run_of(ONE, 0, 9))
    cache.store.purge([Floor(sample(ONE, 0).stream, 4)])
    backend.purge([Floor(sample(ONE, 0).stream, 10)])
    cache.store.index.rebuild(backend)
    cache.start()
    cache.effects.clear()
    begun = run_of(ONE, 0, 5, seconds=30, run=1)
    cache.take([begun[3], *begun[4:], *begun[:3]])
    assert [*map(list, of_run(cache, ONE, 1).values())] == [[(0, 5)]]
    assert EPOCH_UNKNOWN not in {ack.epoch for ack in cache.acks}


def test_what_comes_by_another_way_while_it_is_looked_up_is_stored_once() -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    cache.take([*run_of(ONE, 0, 4), sample(ONE, 6)])
    cache.reads = False
    cache.take([sample(ONE, 6), sample(ONE, 5)])
    cache.appends = False
    cache.take(under(EPOCH, [sample(ONE, 5)]), Origin.RECOVERED)
    assert [type(effect) for effect in cache.unanswered] == [Verify, Append]
    cache.answer_one()  # it finds nothing of what is under way
    cache.answer_all()
    stored = [len(effect.batch) for effect in cache.effects if isinstance(effect, Append)]
    assert stored == [6, 1]
    assert not cache.of(ReportAbsent)


def test_what_moves_to_another_epoch_stays_removed_where_it_was_purged_there() -> None:
    cache = DrivenCache()
    cache.store.purge([Floor(sample(ONE, 0).stream._replace(epoch=EPOCH), 5)])
    cache.take(run_of(ONE, 0, 12))
    token(cache, ONE, EPOCH, "00000001")
    moved(cache)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(5, 12)])}


class SlowFloors(DrivenCache):
    """A cache whose index is slow to say what was removed."""

    def _waits(self, effect: Append | Ask | Verify) -> bool:
        floors = isinstance(effect, Ask) and isinstance(effect.question, Floors)
        return (floors and not self.reads) or super()._waits(effect)


def test_a_source_is_not_forgotten_while_its_samples_are_moved() -> None:
    cache = SlowFloors(options=CoreOptions(EngineOptions(sources_max=1)))
    cache.take(run_of(ONE, 0, 9))
    cache.reads = False
    token(cache, ONE, EPOCH, "00000001")
    while not any(
        isinstance(one, Ask) and isinstance(one.question, Floors) for one in cache.unanswered
    ):
        cache.answer_one()
    cache.take(run_of(TWO, 0, 9))
    cache.answer_all()
    moved(cache)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}
