"""Threads that commit, drain and purge one storage at once do not get into each other's way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import pytest

from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage, JournalOptions
from durable_cache.storage.plugins import open_storage
from durable_cache.storage.shared.wildcards import read_values
from durable_cache.testing.conformance.newest import NEWEST_CASES, NewestCase, values

COMMITS = 300


def test_purging_beside_the_drain_loses_and_breaks_nothing(tmp_path: Path) -> None:
    source = SourceId("ab", 1)
    url = f"sqlite:///{tmp_path}/one.db"
    store = JournaledStorage(open_storage("sql", "one", {"url": url}), tmp_path / "state")
    ended = Event()

    def purge() -> None:
        while not ended.is_set():
            store.purge([Floor(Stream("b", source, 1), 5)])

    try:
        with ThreadPoolExecutor(2) as pool:
            draining, purging = pool.submit(store.run_drain), pool.submit(purge)
            try:
                for sn in range(COMMITS):
                    store.commit(SampleBatch([Sample("a", source, 1, sn, b"")]))
            finally:
                ended.set()
                store.stop_drain()
            assert wait((draining, purging), 30).not_done == set()
            draining.result()
            purging.result()
        assert store.drain_all(30)
        held = store.read(Selection(), 2 * COMMITS).samples
        assert [sample.sn for sample in held] == list(range(COMMITS))
    finally:
        store.close()


@pytest.mark.parametrize("case", NEWEST_CASES, ids=lambda case: case.name)
def test_newest_is_the_same_wherever_samples_are(tmp_path: Path, case: NewestCase) -> None:
    """In the backend, in the journal, a part in each, and after a restart."""
    selection = Selection(newest=1)

    def opened() -> JournaledStorage:
        url = f"sqlite:///{tmp_path}/one.db"
        options = JournalOptions(drain_samples_max=1)
        backend = open_storage("sql", "one", {"url": url})
        return JournaledStorage(backend, tmp_path / "state", options=options)

    def newest(store: JournaledStorage) -> list[Sample]:
        page = read_values(store.read, store.concerning(selection), selection, 100, None)
        return list(page.samples)

    store = opened()
    try:
        for sample in case.samples:
            store.commit(SampleBatch([sample]))
        for _ in range(len(case.samples) + 1):
            assert newest(store) == values(case)
            store.drain()
            store.close()
            store = opened()
        assert store.drained_samples == store.backlog.samples == 0
        assert newest(store) == values(case)
    finally:
        store.close()
