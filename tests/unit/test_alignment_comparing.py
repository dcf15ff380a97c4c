"""Is what another cache gives a conflict only where it is the same run's?"""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, Origin
from durable_cache.protocol.wire import Incarnation
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage

SOURCE = SourceId("ab12", 7)
NAMED = 9


class Door:
    """The door of a cache that nothing comes in by."""

    def __init__(self) -> None:
        self.epochs = Epochs()

    def offer(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        raise AssertionError("nothing is offered here")

    def pulled_again(self, source: SourceId, epoch: int) -> None:
        raise AssertionError("nothing is pulled here")


def run_of(run: str, began: int, *, epoch: int = 0) -> SampleBatch:
    return SampleBatch(
        Sample("a/b", SOURCE, epoch, sn, f"{run} {sn}".encode(), ntp64=began + sn, timestamp_id="1")
        for sn in range(6)
    )


@pytest.fixture
def store() -> JournaledStorage:
    store = JournaledStorage(MemoryStorage(), None)
    store.commit(run_of("one", 1000))
    return store


def test_two_runs_without_an_epoch_are_no_conflict_before_they_have_names(
    store: JournaledStorage,
) -> None:
    aligned, other_run = AlignedStore(store, Door()), run_of("two", 5000)
    nameless = aligned.compare(other_run, named=False)
    assert nameless == other_run
    assert aligned.conflicts == 0
    store.commit(run_of("two", 5000, epoch=NAMED))
    assert len(aligned.compare(nameless)) == 0
    assert aligned.conflicts == 0


def test_what_is_here_under_its_name_already_is_nothing_to_compare_again(
    store: JournaledStorage,
) -> None:
    aligned = AlignedStore(store, Door())
    store.commit(run_of("two", 5000, epoch=NAMED))
    assert len(aligned.compare(run_of("two", 5000), named=False)) == 0
    assert aligned.conflicts == 0


def test_what_was_moved_meanwhile_contradicts_nothing(store: JournaledStorage) -> None:
    door = Door()
    aligned = AlignedStore(store, door)
    nameless = aligned.compare(run_of("two", 5000), named=False)
    door.epochs.learn(Alias(SOURCE, 0, 0, NAMED))
    assert store.drain_all(10)
    store.forget(SOURCE, 0)
    store.commit(run_of("one", 1000, epoch=NAMED))
    assert len(aligned.compare(nameless)) == 0
    assert aligned.conflicts == 0


def test_what_is_being_moved_is_given_once(store: JournaledStorage) -> None:
    """It is stored under both epochs; a reply with more than was pulled is refused (seed 54090)."""
    door = Door()
    door.epochs.learn(Alias(SOURCE, 0, 0, NAMED))
    store.commit(run_of("one", 1000, epoch=NAMED))
    stream = run_of("one", 1000, epoch=NAMED).samples[0].stream
    given = AlignedStore(store, door).stored([(stream, RangeSet([(1, 4)]))])
    assert sorted((one.epoch, one.sn) for one in given) == [(NAMED, sn) for sn in range(1, 5)]


def test_two_runs_that_get_no_names_are_a_conflict(store: JournaledStorage) -> None:
    aligned = AlignedStore(store, Door())
    nameless = aligned.compare(run_of("two", 5000), named=False)
    assert len(aligned.compare(nameless)) == 0
    assert aligned.conflicts == 6


@pytest.mark.parametrize("epoch", [0, NAMED])
def test_another_payload_at_the_same_time_is_a_conflict_at_once(
    store: JournaledStorage, epoch: int
) -> None:
    store.commit(run_of("one", 1000, epoch=NAMED))
    forged = SampleBatch(
        msgspec.structs.replace(sample, payload=b"forged")
        for sample in run_of("one", 1000, epoch=epoch)
    )
    aligned = AlignedStore(store, Door())
    assert len(aligned.compare(forged, named=False)) == 0
    assert aligned.conflicts == 6


def test_two_runs_under_an_epoch_that_a_token_named_are_a_conflict_at_once(
    store: JournaledStorage,
) -> None:
    store.commit(run_of("one", 1000, epoch=NAMED))
    store.index.declare(SOURCE, NAMED, "0a0a0a0a")
    aligned = AlignedStore(store, Door())
    assert len(aligned.compare(run_of("two", 5000, epoch=NAMED), named=False)) == 0
    assert aligned.conflicts == 6


def test_two_runs_that_two_caches_call_alike_conflict_only_after_there_was_time_for_names(
    store: JournaledStorage,
) -> None:
    store.commit(run_of("one", 1000, epoch=NAMED))
    aligned, other_run = AlignedStore(store, Door()), run_of("two", 5000, epoch=NAMED)
    nameless = aligned.compare(other_run, named=False)
    assert (nameless, aligned.conflicts) == (other_run, 0)
    store.commit(run_of("two", 5000, epoch=NAMED + 1))
    assert len(aligned.compare(nameless)) == 0
    assert aligned.conflicts == 0
    store.forget(SOURCE, NAMED + 1)
    assert len(aligned.compare(nameless)) == 0
    assert aligned.conflicts == 6


@pytest.mark.parametrize("named", ["here", "there", "nowhere"])
@pytest.mark.parametrize("epoch", [0, NAMED])
def test_what_is_here_of_a_run_without_a_token_goes_through_the_door_beside_what_is_new(
    store: JournaledStorage, epoch: int, named: str
) -> None:
    """It shows the door of which run the new samples are."""
    if named == "here":
        store.index.declare(SOURCE, epoch, "0a0a0a0a")
    names = (Incarnation(SOURCE, epoch, "0a0a0a0a"),) if named == "there" else ()
    offered: list[Sample] = []

    class Open(Door):
        def offer(
            self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
        ) -> None:
            offered.extend(samples)

    aligned, given = AlignedStore(store, Open()), run_of("two", 5000, epoch=epoch).samples
    new, held = SampleBatch(given[3:]), SampleBatch(given[:1])
    assert aligned.offer(new, held, names) == held
    assert [sample.sn for sample in offered] == [3, 4, 5, 0][: 4 if named == "nowhere" else 3]
    offered.clear()
    aligned.offer(SampleBatch(), held)
    assert offered == []
