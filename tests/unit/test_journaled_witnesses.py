"""By which samples an older copy of a backend, or a new index, is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Floor
from durable_cache.storage.memory import MemoryStorage
from tests.unit.test_journaled_parts import ONE, TWO, Backend, away, batch, filled, opened, sns


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


def test_a_lost_index_beside_a_new_journal_that_knows_of_a_purge_is_read_anew(
    tmp_path: Path,
) -> None:
    backend = Backend()
    filled(tmp_path, backend)
    with opened(tmp_path, backend) as store:
        store.commit(batch(TWO, 10, 11))
        assert store.drain_all(5)
        assert store.purge([Floor(TWO, 12)]) == 2
    away(tmp_path, "journal")
    with opened(tmp_path, backend) as store:
        assert store.findings
    away(tmp_path, "index")
    with opened(tmp_path, backend) as store:
        assert "holds nothing and the backend does" in store.findings[0]
        assert sns(store) == [*range(10)]
        assert store.purge([Floor(ONE, 10)]) == 10
    away(tmp_path, "journal")
    with opened(tmp_path, backend) as store:
        assert store.findings
    with opened(tmp_path, backend) as store:
        assert not store.findings  # the backend holds nothing either


def test_a_purge_that_was_lost_with_what_was_stored_since_and_recorded_is_carried_out_again(
    tmp_path: Path,
) -> None:
    """The disks of backend and index lie, the journal's does not, and the power is cut."""
    backend, there, index, after = Backend(), tmp_path / "there", tmp_path / "index", tmp_path / "b"
    there.mkdir()
    filled(there, backend)
    with opened(there, backend) as store:
        lost = Backend()
        lost.append(SampleBatch(backend.read(Selection(), 99).samples))
        store.purge([Floor(ONE, 8)])
        shutil.copytree(there, index)
        store.commit(batch(ONE, 10))
        store.drain()
        shutil.copytree(there, after)
    away(after, "index")
    for path in index.glob("index.db*"):
        shutil.copy(path, after)
    with opened(after, lost) as store:
        store.drain()
        assert sns(store) == [8, 9]
        assert [*store.index.infos([ONE])[ONE].held] == [(8, 9)]
