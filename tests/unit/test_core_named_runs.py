"""A live sample that names its run is filed under it, whatever came before or comes after it."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.errors import StorageUnavailable
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.run_name import RunName
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.cache.events import BatchRefused, EngineOptions, Origin, TokenGone
from durable_cache.protocol.wire import Incarnation, incarnation_after
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Announce, Arrived
from durable_cache.storage.contract import Page
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.unit.driven import DrivenCache
from tests.unit.test_core import EPOCH, ONE, answer_fetches, of_run, run_of, token

RUNS = [RunName(EPOCH, "0000000a"), RunName(EPOCH + 1, "0000000b"), RunName(EPOCH + 2, "0000000c")]


def named(first: int, last: int, run: int = 0, *, seconds: float = 0.0) -> list[Sample]:
    """Samples of `ONE` that say that they are of a run."""
    samples = run_of(ONE, first, last, run=run, seconds=seconds)
    name = RUNS[run].timestamp_id
    return [msgspec.structs.replace(one, timestamp_id=name) for one in samples]


def test_a_sample_begins_its_run_before_its_token_comes() -> None:
    """By number and time it is the next of the run before."""
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 4))
    cache.take(named(5, 5, run=1))
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(0, 4)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([(5, 5)])}
    assert [ack.incarnation for ack in cache.acks] == ["0000000a", "0000000b"]
    token(cache, ONE, *RUNS[1])
    answer_fetches(cache)
    cache.wait(200)
    missed = [(miss.epoch, miss.first, miss.last) for miss in cache.misses]
    assert missed == [(EPOCH + 1, 0, 4)], "its token says that it began here, at number 0"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_late_sample_is_of_the_run_it_names(at_once: bool) -> None:
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 3))
    token(cache, ONE, *RUNS[1])
    late, begun = named(4, 5), named(0, 2, run=1)
    for batch in ([*begun, *late],) if at_once else (begun, late):
        cache.take(batch)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(0, 5)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([(0, 2)])}


def test_it_waits_for_no_token_and_for_no_look_up_of_another_run() -> None:
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 3))
    cache.give(TokenGone(ONE, RUNS[0].incarnation, cache.now))
    cache.take(named(4, 4))
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(0, 4)])}
    assert not cache.core.doubtful


def test_what_was_refused_behind_a_look_up_is_of_the_run_before_a_token() -> None:
    """The token waits for no look-up of what names its run (seed 7157)."""
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 4))
    cache.reads = False
    cache.take(named(4, 4))
    cache.give(BatchRefused(((ONE, SnRange(30, 31)),), cache.now))
    token(cache, ONE, *RUNS[1])
    cache.take(named(0, 2, run=1))
    cache.reads = True
    cache.answer_all()
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([(0, 2)])}
    answer_fetches(cache)
    cache.wait(200)
    missed = RangeSet((miss.first, miss.last) for miss in cache.misses if miss.epoch == EPOCH)
    assert missed == RangeSet([(5, 31)])
    assert not [miss for miss in cache.misses if miss.epoch != EPOCH]


def test_a_token_of_the_run_before_a_wrap_goes_before_the_run_behind_it() -> None:
    """A sample that names that one was faster; it was a clock set back (seed 37455)."""
    cache = DrivenCache()
    wrapped = RunName(EPOCH + 9, incarnation_after(RUNS[0].incarnation))
    behind = [
        msgspec.structs.replace(one, timestamp_id=wrapped.timestamp_id)
        for one in named(0, 2, run=1)
    ]
    cache.take(behind[:2])
    token(cache, ONE, *RUNS[0])
    cache.take([*named(50, 51), behind[2]])
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(50, 51)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 9: RangeSet([(0, 2)])}


def test_what_was_refused_of_before_a_wrap_is_of_the_run_before() -> None:
    """It was awaited of the run behind the wrap, and reported there (seed 36452)."""
    cache, last = DrivenCache(), SOURCE_SN_MODULUS - 1
    token(cache, ONE, *RUNS[0])
    cache.take(named(last - 9, last - 5))
    token(cache, ONE, EPOCH + 9, incarnation_after(RUNS[0].incarnation))
    cache.give(BatchRefused(((ONE, SnRange(last - 2, last)),), cache.now))
    while cache.core.gaps_open:
        cache.wait(1)
        answer_fetches(cache)
    assert {miss.epoch for miss in cache.misses} == {EPOCH}
    missed = RangeSet((miss.first, miss.last) for miss in cache.misses)
    assert missed.clip(last - 9, last) == RangeSet([(last - 4, last)])


def test_a_repeat_is_looked_up_and_begins_nothing() -> None:
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 4))
    cache.take(named(2, 2))
    other = msgspec.structs.replace(named(3, 3, seconds=60)[0], payload=b"0 other")
    cache.take([other])
    assert cache.core.counts.duplicates == 1
    assert cache.core.counts.conflicts == 1
    assert cache.core.counts.restarts == 0
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(0, 4)])}


def test_a_run_that_is_not_later_begins_with_its_token_alone() -> None:
    """Its publisher's clock was set back: the token says that it is there now."""
    cache = DrivenCache()
    token(cache, ONE, *RUNS[1])
    cache.take(named(0, 4, run=1))
    cache.take(named(0, 2))
    assert of_run(cache, ONE, 0) == {}
    assert cache.core.doubtful == 3
    token(cache, ONE, *RUNS[0])
    assert of_run(cache, ONE, 0) == {EPOCH + 2: RangeSet([(0, 2)])}
    assert not cache.core.doubtful


def test_without_a_token_it_counts_as_what_others_gave() -> None:
    """It came and went before this cache listened, and the network held its sample up."""
    cache = DrivenCache()
    token(cache, ONE, *RUNS[1])
    cache.take(named(0, 4, run=1))
    cache.take(named(7, 8))
    cache.wait(5)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(7, 8)])}
    cache.take(named(5, 5, run=1))
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([(0, 5)])}
    assert not cache.core.doubtful


def test_those_that_wait_for_a_token_are_bounded() -> None:
    options = CoreOptions(engine=EngineOptions(doubtful_samples_max=2))
    cache = DrivenCache(options=options)
    token(cache, ONE, *RUNS[1])
    cache.take(named(0, 4, run=1))
    cache.take(named(0, 4))
    assert cache.core.doubtful == 2
    assert cache.core.put_off == 3


def test_what_others_give_is_of_the_run_that_it_names() -> None:
    """The giver calls it as another run is called here: the later name stands for both."""
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 1))
    token(cache, ONE, *RUNS[1])
    cache.take(named(0, 1, run=1))
    given = [msgspec.structs.replace(one, epoch=EPOCH + 1) for one in named(2, 3)]
    cache.give(Arrived(SampleBatch(given), Origin.RECOVERED, cache.now))
    assert of_run(cache, ONE, 0) == {EPOCH + 1: RangeSet([(0, 3)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 2: RangeSet([(0, 1)])}
    given = [msgspec.structs.replace(one, epoch=EPOCH + 2) for one in named(5, 5)]
    names = (Incarnation(ONE, EPOCH + 2, RUNS[1].incarnation),)
    cache.give(Arrived(SampleBatch(given), Origin.RECOVERED, cache.now, names))
    assert of_run(cache, ONE, 0) == {EPOCH + 1: RangeSet([(0, 3), (5, 5)])}
    own = SampleBatch(named(4, 4))
    cache.give(Arrived(own, Origin.NATIVE, cache.now))
    assert of_run(cache, ONE, 0) == {EPOCH + 1: RangeSet([(0, 5)])}


def test_what_waited_between_two_tokens_is_not_of_the_run_that_a_sample_names_next() -> None:
    """The program gave one of them its time (seed 1999)."""
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 3))
    cache.give(TokenGone(ONE, RUNS[0].incarnation, cache.now))
    cache.take(run_of(ONE, 4, 4))
    assert cache.core.doubtful == 1
    cache.take(named(0, 1, run=1, seconds=20))
    token(cache, ONE, *RUNS[1])
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(0, 3)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([(0, 1)])}
    assert cache.core.put_off == 1, "it is asked for: nothing says of which run it is"


def test_a_name_that_index_and_journal_lost_is_read_from_samples() -> None:
    """The next run declares the same time frame (seed 176999)."""
    backend = MemoryStorage()
    before = DrivenCache(JournaledStorage(backend, None))
    token(before, ONE, *RUNS[0])
    before.take([*run_of(ONE, 0, 0), *named(1, 4)])
    store = JournaledStorage(backend, None)
    store.index.rebuild(backend)
    assert store.index.incarnations([ONE]) == [Incarnation(ONE, *RUNS[0])]
    cache = DrivenCache(store)
    token(cache, ONE, EPOCH, "0000000f", fresh=False)
    assert not cache.acks
    cache.take(named(5, 5))
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(0, 5)])}
    assert [(ack.epoch, ack.incarnation) for ack in cache.acks] == [(EPOCH, RUNS[0].incarnation)]


@pytest.mark.parametrize("by_program", [0, 3])
def test_a_name_of_an_older_index_gives_way_to_that_of_samples(by_program: int) -> None:
    """Both runs declared one epoch, and the first published nothing (seed 92578)."""
    backend = MemoryStorage()
    before = DrivenCache(JournaledStorage(backend, None))
    token(before, ONE, *RUNS[0])
    before.take([*run_of(ONE, 0, by_program - 1), *named(by_program, 4)])
    store = JournaledStorage(backend, None)
    store.index.declare(ONE, EPOCH, "0000000f")
    store.index.rebuild(backend)
    assert store.index.incarnations([ONE]) == [Incarnation(ONE, *RUNS[0])]
    assert of_run(DrivenCache(store), ONE, 0) == {EPOCH: RangeSet([(0, 4)])}


@pytest.mark.parametrize("holds", [True, False])
def test_it_has_no_name_that_another_epoch_bears_by_right(holds: bool) -> None:
    """An epoch under which nothing is or was got that name while the other one had it."""
    backend = MemoryStorage()
    before = DrivenCache(JournaledStorage(backend, None))
    token(before, ONE, *RUNS[0])
    before.take(named(0, 4))
    if holds:
        backend.append(SampleBatch(msgspec.structs.replace(one, epoch=7) for one in named(5, 6)))
    store = JournaledStorage(backend, None)
    other, beside = Incarnation(ONE, EPOCH, "0000000f"), Incarnation(ONE, 7, RUNS[0].incarnation)
    store.index.declare(*other)
    store.index.declare(*beside)
    store.index.rebuild(backend)
    named_now = {*store.index.incarnations([ONE])}
    assert named_now == ({other, beside} if holds else {Incarnation(ONE, *RUNS[0])})


def test_a_token_waits_for_no_look_up_of_samples_that_name_their_run() -> None:
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 4))
    cache.reads = False
    cache.take(named(2, 2))
    token(cache, ONE, *RUNS[1])
    assert Incarnation(ONE, *RUNS[1]) in cache.store.index.incarnations([ONE])
    cache.take(named(0, 1, run=1))
    cache.answer_all()
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([(0, 1)])}
    assert cache.core.counts.duplicates == 1


def test_what_waits_for_a_token_that_waits_itself_is_not_given_up() -> None:
    """Its publisher's clock was set back while the backend could not be read (seed 181350)."""
    cache = DrivenCache()
    token(cache, ONE, *RUNS[1])
    cache.take(named(0, 4, run=1))
    cache.reads = False
    cache.take(run_of(ONE, 2, 2, run=1))
    cache.take(named(0, 2))
    token(cache, ONE, *RUNS[0])
    cache.wait(5)
    cache.answer_all()
    assert of_run(cache, ONE, 0) == {EPOCH + 2: RangeSet([(0, 2)])}


def test_a_backend_that_cannot_be_read_as_it_starts_leaves_a_name_unknown() -> None:
    class Away(MemoryStorage):
        def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
            raise StorageUnavailable("away")

    backend = Away()
    before = DrivenCache(JournaledStorage(backend, None))
    token(before, ONE, *RUNS[0])
    before.take(named(0, 4))
    store = JournaledStorage(backend, None)
    store.index.rebuild(backend)
    assert store.index.incarnations([ONE]) == []
    cache = DrivenCache(store)
    token(cache, ONE, *RUNS[1])
    cache.take(named(0, 1, run=1))
    assert [(ack.epoch, ack.runs) for ack in cache.acks] == [(EPOCH + 1, ((0, 1),))]


def told(cache: DrivenCache) -> list[tuple[int, int]]:
    """Return of which runs something was told, and up to which number."""
    return [(effect.epoch, effect.sn) for effect in cache.effects if isinstance(effect, Announce)]


def test_a_late_sample_of_the_run_before_is_told_once_it_is_durable() -> None:
    """Subscribers asked where that run ended as this one began (seed 96269)."""
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 3))
    cache.give(TokenGone(ONE, RUNS[0].incarnation, cache.now))
    token(cache, ONE, *RUNS[1])
    cache.take(named(0, 1, run=1))
    cache.take(named(0, 3))
    assert told(cache) == []
    cache.appends = False
    cache.take([*named(2, 2, run=1), *named(4, 5)])
    assert told(cache) == []
    cache.answer_all()
    assert told(cache) == [(EPOCH, 5)]
