"""By which samples an older copy of a backend is noticed."""

from __future__ import annotations

from pathlib import Path

from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Floor
from durable_cache.storage.memory import MemoryStorage
from tests.unit.test_journaled_parts import ONE, Backend, batch, opened


def test_an_older_backend_is_noticed_where_what_was_recorded_last_was_purged(
    tmp_path: Path,
) -> None:
    """Its stream's last number tells then."""
    backend = Backend()
    with opened(tmp_path, backend) as store:
        for key in ("a/0/a", "a/0/b", "a/0/c", "a/0/d", "b/a", "b/b", "b/c", "b/d"):
            store.commit(batch(Stream(key, SourceId("cd", 1), 3), 0))
        store.commit(batch(ONE, 1, 2))
        assert store.drain_all(5)
        older = backend.read(Selection(), 99)
        store.commit(batch(ONE, *range(3, 9)))
        assert store.drain_all(5)
        store.commit(batch(ONE, 0))  # found late
        assert store.drain_all(5)
        assert store.purge([Floor(ONE, 1)]) == 1
    MemoryStorage.purge(backend, [Floor(ONE, 9)])
    backend.append(SampleBatch(older.samples))
    with opened(tmp_path, backend) as store:
        assert "number 8" in store.findings[0]
