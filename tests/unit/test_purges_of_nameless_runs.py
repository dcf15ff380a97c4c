"""Does another cache's purge of a run without an epoch leave the publisher's next run alone?"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.protocol.alignment import RaisePurge
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, Origin
from durable_cache.protocol.wire import Incarnation
from durable_cache.storage.contract import Capabilities, Durability, Floor
from durable_cache.storage.journaled.purge_times import purged_here
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage

SOURCE = SourceId("ab12", 7)
STREAM = Stream("a/b", SOURCE, 0)
SECOND = 1 << 32
FIRST, NEXT = 1_000 * SECOND, 5_000 * SECOND


class Durable(MemoryStorage):
    """A backend that has a journal before it."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=True)


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


def run_of(began_ntp64: int, count: int = 4) -> SampleBatch:
    return SampleBatch(
        Sample("a/b", SOURCE, 0, sn, b"%d" % sn, ntp64=began_ntp64 + sn * SECOND, timestamp_id="1")
        for sn in range(count)
    )


def store_of(batch: SampleBatch) -> JournaledStorage:
    store = JournaledStorage(MemoryStorage(), None)
    if len(batch):
        store.commit(batch)
    return store


def undrained(batch: SampleBatch, directory: Path) -> JournaledStorage:
    """Return a storage of which the backend has nothing yet."""
    store = JournaledStorage(Durable(), directory)
    store.commit(batch)
    assert store.backlog.samples == len(batch)
    return store


def told_by(purger: JournaledStorage, floor: int) -> RaisePurge:
    """Return what another cache hears of a purge."""
    aligned = AlignedStore(purger, Door())
    return RaisePurge("other", ((STREAM, floor),), aligned.purge_times([STREAM]))


def held(store: JournaledStorage) -> list[int]:
    return [sample.sn for page in store.pages(Selection(), 100) for sample in page]


@pytest.fixture
def purger() -> JournaledStorage:
    """A cache that had the first run, and whose operator purged it."""
    store = store_of(run_of(FIRST))
    store.purge([Floor(STREAM, 4)])
    return store


@pytest.mark.parametrize("drained", [True, False], ids=["in the backend", "in the journal"])
def test_a_purge_of_the_run_before_leaves_the_next_run(
    purger: JournaledStorage, tmp_path: Path, drained: bool
) -> None:
    store = store_of(run_of(NEXT, 2)) if drained else undrained(run_of(NEXT, 2), tmp_path)
    with closing(store):
        AlignedStore(store, Door()).purge(told_by(purger, 4))
        assert held(store) == [0, 1]


def test_a_purge_of_what_was_never_drained_is_told_apart_too(tmp_path: Path) -> None:
    store = store_of(run_of(NEXT, 2))
    with closing(undrained(run_of(FIRST), tmp_path)) as purger:
        purger.purge([Floor(STREAM, 4)])
        AlignedStore(store, Door()).purge(told_by(purger, 4))
    assert held(store) == [0, 1]


def test_a_purge_of_the_same_run_is_carried_out(purger: JournaledStorage) -> None:
    store = store_of(run_of(FIRST, 6))
    AlignedStore(store, Door()).purge(told_by(purger, 4))
    assert held(store) == [4, 5]


def test_who_heard_of_a_purge_passes_on_which_run_it_was(
    purger: JournaledStorage,
) -> None:
    between = store_of(SampleBatch())
    AlignedStore(between, Door()).purge(told_by(purger, 4))
    between.commit(run_of(NEXT, 6))
    between.purge([Floor(STREAM, 4)])  # as a start repeats it: nothing new is known
    store = store_of(run_of(NEXT, 2))
    AlignedStore(store, Door()).purge(told_by(between, 4))
    assert held(store) == [0, 1]


def test_a_cache_that_tells_no_time_is_believed() -> None:
    store = store_of(run_of(NEXT, 6))
    AlignedStore(store, Door()).purge(RaisePurge("older", ((STREAM, 4),)))
    assert held(store) == [4, 5]


def test_a_purge_waits_while_the_run_here_gets_its_name(purger: JournaledStorage) -> None:
    door = Door()
    door.epochs.learn(Alias(SOURCE, 0, 0, 9))
    store = store_of(run_of(FIRST, 2))
    AlignedStore(store, door).purge(told_by(purger, 4))
    assert held(store) == [0, 1]


def test_a_purge_that_another_told_of_does_not_go_on_under_the_name_of_the_run_here(
    purger: JournaledStorage,
) -> None:
    store = store_of(SampleBatch(run_of(NEXT, 6).samples[4:]))  # nothing below the floor yet
    store.purge([Floor(STREAM, 2)])
    store_floors = purged_here(store.index, store.index.infos_of(SOURCE, 0))
    AlignedStore(store, Door()).purge(told_by(purger, 4))
    assert store_floors == [Floor(STREAM, 2)]
    assert purged_here(store.index, store.index.infos_of(SOURCE, 0)) == [Floor(STREAM, 2)]
    store.purge([Floor(STREAM, 5)])
    assert purged_here(store.index, store.index.infos_of(SOURCE, 0)) == [Floor(STREAM, 5)]


def test_a_time_that_cannot_be_read_is_no_purge_without_one(
    purger: JournaledStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StorageUnavailable("the index is away")

    monkeypatch.setattr(purger.index, "rows", fails)
    with pytest.raises(StorageUnavailable):
        told_by(purger, 4)


@pytest.mark.parametrize("drained", [True, False], ids=["in the backend", "in the journal"])
def test_what_was_purged_stays_known_where_the_index_is_lost(tmp_path: Path, drained: bool) -> None:
    """Else the next run's first number below the floor is taken for a new one of the same run."""
    with closing(undrained(run_of(FIRST), tmp_path)) as store:
        if drained:
            store.drain()
        store.purge([Floor(STREAM, 4)])
        store.purge([Floor(STREAM, 2)])  # takes nothing back
        before, _ = store.index.load(SOURCE)
    for file in tmp_path.glob("index.db*"):
        file.unlink()
    with closing(JournaledStorage(Durable(), tmp_path)) as store:
        assert store.index.load(SOURCE)[0] == before
        assert [(*run,) for run in before[0].held] == [(0, 3)]
        elsewhere = store_of(run_of(NEXT, 2))
        AlignedStore(elsewhere, Door()).purge(told_by(store, 4))
        assert held(elsewhere) == [0, 1], "when it was is known, too"
