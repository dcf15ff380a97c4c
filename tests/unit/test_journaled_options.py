"""Journal, backlog, backend and index together: in which order, and within which bounds?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import Sample, SampleBatch, Skip
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import AppendResult, Capabilities, Durability
from durable_cache.storage.journaled.storage import JournaledStorage, JournalOptions
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import wait_until
from durable_cache.testing.samples import batch, run, sample


class Backend(MemoryStorage):
    """A backend that may be away and remembers when it was given what."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.tried: list[float] = []
        self.given: list[list[int]] = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, durability=Durability.DISK)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        self.tried.append(time.monotonic())
        if self.away:
            raise StorageUnavailable("away")
        self.given.append([sample.sn for sample in batch])
        return super().append(batch, skips)


def store_of(backend: Backend, folder: Path, **bounds: float) -> JournaledStorage:
    options = JournalOptions(**bounds)  # type: ignore[arg-type]
    return JournaledStorage(backend, folder / "state", options=options)


@contextmanager
def draining(store: JournaledStorage) -> Iterator[None]:
    thread = Thread(target=store.run_drain, name="dc-drain")
    thread.start()
    try:
        yield
    finally:
        store.stop_drain()
        thread.join(10)


def sns_of(samples: Sequence[Sample] | SampleBatch) -> list[int]:
    return sorted(sample.sn for sample in samples)


def test_one_append_has_the_samples_asked_for(tmp_path: Path) -> None:
    backend = Backend()
    store = store_of(backend, tmp_path, drain_samples_max=20)
    for begin in range(0, 50, 10):
        store.commit(batch(run(begin, begin + 9)))
    assert store.drain_all(10)
    assert [len(given) for given in backend.given] == [20, 20, 10]
    store.close()


def test_a_small_batch_waits_for_company_as_long_as_asked(tmp_path: Path) -> None:
    backend = Backend()
    store = store_of(backend, tmp_path, drain_linger_seconds=30.0, drain_samples_max=20)
    with draining(store):
        store.commit(batch(run(0, 9)))
        store.commit(batch(run(10, 19)))
        wait_until(lambda: backend.given, what="the drain")
    assert backend.given == [list(range(20))]
    store.close()


def test_what_waits_beyond_the_bound_is_read_back_from_the_journal(tmp_path: Path) -> None:
    backend = Backend()
    store = store_of(backend, tmp_path, tail_bytes_max=10_000)
    for sn in range(100):
        store.commit(batch(sample(sn, payload=bytes(1000))))
    assert store.backlog.spilled > 50
    assert store.backlog.samples >= 100 - store.backlog.spilled
    assert store.drain_all(10)
    assert [sn for given in backend.given for sn in given] == list(range(100))
    assert store.backlog.spilled == 0
    store.close()


def test_conflicts_beyond_the_bound_are_counted_only(tmp_path: Path) -> None:
    store = store_of(Backend(), tmp_path, conflicts_kept_max=2)
    store.commit(batch(run(0, 4)))
    assert store.drain_all(10)
    store.commit(batch([sample(sn, payload=b"another") for sn in range(5)]))
    assert store.drain_all(10)
    assert store.conflicts_total == 5
    assert [conflict.identity.sn for conflict in store.conflicts] == [3, 4]
    store.close()


def test_the_pause_after_a_failure_grows_up_to_its_bound(tmp_path: Path) -> None:
    backend = Backend()
    backend.away = True
    store = store_of(backend, tmp_path, retry_seconds_max=0.2, drain_samples_max=1)
    store.commit(batch(run(0, 0)))
    with draining(store):
        wait_until(lambda: len(backend.tried) >= 7, what="seven attempts")
        assert store.backend_error == "away"
        first, second, third = backend.tried[:3]
        assert second - first >= 0.1
        assert third - second >= 0.2
        assert backend.tried[6] - first < 5.0, "unbounded pauses would take 6.3 s"
        backend.away = False
        wait_until(lambda: backend.given == [[0]], what="the drain")
        wait_until(lambda: not store.backend_error, what="the error to go")
    store.close()


def test_the_journal_keeps_what_the_backend_did_not_take(tmp_path: Path) -> None:
    backend = Backend()
    backend.away = True
    store = store_of(backend, tmp_path)
    store.commit(batch(run(0, 9)))
    with pytest.raises(StorageUnavailable):
        store.drain()
    assert store.index.streams == 0, "the index knows only what the backend has"
    store.commit(batch(run(10, 19)))  # with which the journal lets go what it may
    store.close()
    again = store_of(Backend(), tmp_path)
    assert sns_of(again.read(Selection(), 100).samples) == list(range(20))
    assert again.drain_all(10)
    assert again.index.streams == 1
    again.close()


def test_wildcard_updates_beyond_their_bytes_are_refused_before_they_are_acknowledged(
    tmp_path: Path,
) -> None:
    store = store_of(Backend(), tmp_path, wildcard_bytes_max=12_000)
    updates = [sample(at, key=f"a/{at}/*", payload=bytes(5_000)) for at in range(3)]
    for update in updates[:2]:
        assert len(store.admit(batch([update]))) == 1
        store.commit(batch([update]))
    both = store.admit(batch([updates[2], sample(3, key="a/b")]))
    assert [admitted.key for admitted in both] == ["a/b"]
    assert store.wildcards.refused == 1
    store.close()
