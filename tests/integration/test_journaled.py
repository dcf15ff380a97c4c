"""Threads that commit, drain and purge one storage at once do not get into each other's way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.plugins import open_storage

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
