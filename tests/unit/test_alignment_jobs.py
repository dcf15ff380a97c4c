"""What a cache does for others while it gives the samples of a source another name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from durable_cache.endpoints.alignment import jobs as jobs_module
from durable_cache.endpoints.alignment.asked import Asked
from durable_cache.endpoints.alignment.counts import AlignmentCounts
from durable_cache.endpoints.alignment.inbox import Inbox
from durable_cache.endpoints.alignment.jobs import Jobs
from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.endpoints.workers import Pool
from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.protocol.alignment import Appended, Offer, Trimmed
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, Origin
from durable_cache.protocol.wire import Incarnation
from durable_cache.storage.contract import Page
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import wait_until

SOURCE = SourceId("ab12", 7)
NAMED = 9
LATER = 5_000


class CountedStorage(MemoryStorage):
    """Memory that counts how often it is read."""

    reads = 0

    def read(self, selection: Selection, limit: int, cursor: str | None = None) -> Page:
        self.reads += 1
        return super().read(selection, limit, cursor)


class Door:
    """Notes what the aligner still has to hear when something comes in."""

    def __init__(self, inbox: Inbox, epochs: Epochs) -> None:
        self.epochs, self._inbox = epochs, inbox
        self.heard_before: list[object] | None = None

    def offer(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        self.heard_before = taken(self._inbox)

    def pulled_again(self, source: SourceId, epoch: int) -> None:
        raise AssertionError("nothing is pulled here")


def taken(inbox: Inbox) -> list[object]:
    return [*iter(lambda: inbox.take(LATER), None)]


def on_two_keys(count: int) -> SampleBatch:
    """Return one run without an epoch, in turn on two keys: no number follows its neighbour."""
    return SampleBatch(
        Sample(f"a/{sn % 2}", SOURCE, 0, sn, b"x", ntp64=sn + 1, timestamp_id="1")
        for sn in range(count)
    )


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool("test", threads=1)
    yield pool
    assert pool.close(10) == []


@pytest.fixture
def epochs() -> Epochs:
    return Epochs()


@pytest.fixture
def inbox(epochs: Epochs) -> Inbox:
    return Inbox(epochs, bytes_max=1 << 20, events_max=3, wake=lambda: None)


def test_samples_on_two_keys_are_renamed_in_few_reads(
    pool: Pool, inbox: Inbox, epochs: Epochs
) -> None:
    """One read for each number had held up what others asked for minutes (soak of 2026-11)."""
    backend = CountedStorage()
    store = JournaledStorage(backend, None)
    store.commit(on_two_keys(1_000))
    assert store.drain_all(10)
    epochs.learn(Alias(SOURCE, 0, 0, NAMED))
    lane = pool.lane("align", running_max=1, waiting_max=4)
    counts = AlignmentCounts()
    jobs = Jobs(lane, AlignedStore(store, Door(inbox, epochs)), inbox, Asked(4), counts)
    jobs.rename(SOURCE)
    heard: list[object] = []

    def whole() -> bool:
        heard.extend(taken(inbox))
        jobs.tick(0.0)
        return sum(len(event.batch) for event in heard if isinstance(event, Appended)) >= 1_000

    wait_until(whole, what="the renaming")
    assert 2 <= backend.reads <= 20
    trimmed = {event.floors for event in heard if isinstance(event, Trimmed)}
    assert trimmed == {((Stream("a/0", SOURCE, 0), 999),), ((Stream("a/1", SOURCE, 0), 1_000),)}
    named = [s for event in heard if isinstance(event, Appended) for s in event.batch]
    assert sorted((s.epoch, s.sn) for s in named) == [(NAMED, sn) for sn in range(1_000)]
    assert not inbox.overflown


def test_what_others_give_does_not_wait_until_all_is_renamed(
    pool: Pool, inbox: Inbox, epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_RENAMING_SECONDS", 0.0)
    store = JournaledStorage(MemoryStorage(), None)
    store.commit(on_two_keys(1_000))
    epochs.learn(Alias(SOURCE, 0, 0, NAMED))
    door = Door(inbox, epochs)
    lane = pool.lane("align", running_max=1, waiting_max=4)
    jobs = Jobs(lane, AlignedStore(store, door), inbox, Asked(4), AlignmentCounts())
    given = SampleBatch([*islice(on_two_keys(2), 1)])
    with pool.lock:  # both wait before either is done
        jobs.rename(SOURCE)
        jobs.take(Offer("other", given, SampleBatch()))
    wait_until(lambda: door.heard_before is not None, what="the offer")
    assert len(door.heard_before or []) == 1  # of four: two keys, and what was under each


def test_a_source_too_many_lets_alignment_begin_anew(
    pool: Pool, inbox: Inbox, epochs: Epochs
) -> None:
    epochs.learn(Alias(SOURCE, 0, 0, NAMED))
    store = AlignedStore(JournaledStorage(MemoryStorage(), None), Door(inbox, epochs))
    lane = pool.lane("align", running_max=1, waiting_max=4)
    jobs = Jobs(lane, store, inbox, Asked(4), AlignmentCounts())
    with pool.lock:
        for _ in range(jobs_module._RENAMES_MAX):
            jobs.rename(SOURCE)
        assert not inbox.overflown
        jobs.rename(SOURCE)
    assert inbox.overflown


@pytest.mark.parametrize("error", [StorageUnavailable("away"), ValueError("a mistake of ours")])
def test_where_renaming_fails_alignment_begins_anew(
    pool: Pool, inbox: Inbox, epochs: Epochs, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an error that was none of the storage's it had counted as done."""
    backend = MemoryStorage()
    store = JournaledStorage(backend, None)
    store.commit(on_two_keys(4))
    assert store.drain_all(10)
    epochs.learn(Alias(SOURCE, 0, 0, NAMED))

    def fail(*_: object) -> Page:
        raise error

    monkeypatch.setattr(backend, "read", fail)
    lane = pool.lane("align", running_max=1, waiting_max=4)
    jobs = Jobs(lane, AlignedStore(store, Door(inbox, epochs)), inbox, Asked(4), AlignmentCounts())
    jobs.rename(SOURCE)
    wait_until(lambda: inbox.overflown, what="that alignment begins anew")
