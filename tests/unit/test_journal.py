"""The journal: what a commit promises, what trimming gives back, where it says no."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from durable_cache.errors import StorageCorrupt, StorageError, StorageFull
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.protocol.wire import decode_journal
from durable_cache.storage.journaled.journal import Journal

SOURCE = SourceId("ab12", 7)


def batch(first: int, count: int, payload_bytes: int = 100) -> SampleBatch:
    return SampleBatch(
        Sample("a/b", SOURCE, 1, sn, bytes(payload_bytes)) for sn in range(first, first + count)
    )


def test_what_was_committed_is_there_after_a_restart_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    skip = Skip(SOURCE, 1, 10, 12)
    first, second = journal.commit(batch(0, 10)), journal.commit(batch(13, 2), (skip,))
    journal.close()
    again = Journal(tmp_path / "journal.db")
    found = list(again.replay())
    assert [(entry.entry_id, entry.batch, entry.skips) for entry in found] == [
        (first, batch(0, 10), ()),
        (second, batch(13, 2), (skip,)),
    ]
    assert (again.entries, again.samples) == (2, 12)
    again.close()


@pytest.mark.parametrize("flushed", [True, False], ids=["flush", "next-commit"])
def test_what_was_trimmed_is_gone_and_counted_off(tmp_path: Path, flushed: bool) -> None:
    journal = Journal(tmp_path / "journal.db")
    ids = [journal.commit(batch(10 * at, 10)) for at in range(5)]
    full = journal.size_bytes()
    journal.trim(ids[2])
    if flushed:
        journal.flush()
        assert (journal.entries, journal.samples) == (2, 20)
        assert journal.size_bytes() == pytest.approx(full * 2 / 5, rel=0.05)
    last = journal.commit(batch(50, 1))
    assert [entry.entry_id for entry in journal.replay()] == [*ids[3:], last]
    counted = journal.entries, journal.samples, journal.size_bytes()
    assert counted[:2] == (3, 21)
    journal.close()
    again = Journal(tmp_path / "journal.db")
    assert (again.entries, again.samples, again.size_bytes()) == counted
    assert again.commit(batch(60, 1)) > last  # numbers are never used again
    again.close()


def test_what_was_let_go_is_not_taken_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    for sn in range(3):
        journal.commit(batch(sn, 1))
    journal.trim(2)
    journal.trim(1)
    journal.flush()
    assert [entry.entry_id for entry in journal.replay()] == [3]
    journal.close()


def test_a_full_spool_refuses_and_takes_again_once_trimmed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", bytes_max=20_000)
    ids = [journal.commit(batch(0, 100)), 0]
    with pytest.raises(StorageFull, match="spool_bytes_max = 20000"):
        ids[1] = journal.commit(batch(100, 100))
    assert journal.samples == 100
    journal.trim(ids[0])  # all that a drained backlog does: the commit that needs the room takes it
    journal.commit(batch(100, 100))
    assert [len(entry.batch) for entry in journal.replay()] == [100]
    journal.close()


def test_one_entry_larger_than_the_spool_still_passes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", bytes_max=1000)
    journal.commit(batch(0, 100))
    assert journal.samples == 100
    journal.close()


def test_a_damaged_entry_is_named_and_never_half_believed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    entry_id = journal.commit(batch(0, 10))
    journal.close()
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("UPDATE entries SET data = CAST(substr(data, 1, 50) AS BLOB)")
    database.close()
    again = Journal(tmp_path / "journal.db")
    with pytest.raises(StorageCorrupt, match=f"entry {entry_id}"):
        list(again.replay())
    again.close()


def test_refused_samples_are_kept_with_their_reason(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.bury(batch(0, 3), "too large")
    journal.close()
    again = Journal(tmp_path / "journal.db")
    assert (again.dead_letters, again.samples) == (1, 0)
    again.close()
    with sqlite3.connect(tmp_path / "journal.db") as database:
        ((reason, data),) = database.execute("SELECT reason, data FROM dead_letters").fetchall()
    database.close()
    assert (reason, decode_journal(data)[0]) == ("too large", batch(0, 3))


class FailingSync:
    """A database whose disk fails once, and would do well ever after."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.failing = True

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if self.failing and statement.startswith("INSERT INTO entries"):
            self.failing = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._database.execute(statement, *values)

    def close(self) -> None:
        self._database.close()


def test_nothing_is_committed_behind_a_failed_fsync(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal._db = FailingSync(journal._db)  # type: ignore[assignment,arg-type]
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            journal.commit(batch(0, 2))
        assert caught.value.fatal
    journal.close()
    again = Journal(tmp_path / "journal.db")
    assert (again.entries, again.finding) == (0, "")
    assert again.commit(batch(0, 2)) == 1
    again.close()


def test_a_full_disk_is_not_fatal_and_damage_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", bytes_max=1)
    journal.commit(batch(0, 2))
    with pytest.raises(StorageFull) as full:
        journal.commit(batch(0, 2))
    assert not full.value.fatal
    journal.close()
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("UPDATE entries SET data = zeroblob(9)")
    database.close()
    journal = Journal(tmp_path / "journal.db")
    with pytest.raises(StorageCorrupt) as corrupt:
        list(journal.replay())
    assert corrupt.value.fatal
    with pytest.raises(StorageCorrupt):
        journal.commit(batch(2, 2))
    journal.close()


def test_a_disk_without_room_refuses_and_takes_again_when_there_is_some(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.commit(batch(0, 2))
    assert journal._db is not None
    journal._db.execute("PRAGMA max_page_count = 1")  # none beyond those it has
    with pytest.raises(StorageFull, match="make room") as full:
        journal.commit(batch(2, 5_000))
    assert not full.value.fatal
    journal._db.execute("PRAGMA max_page_count = 1000000")
    journal.commit(batch(2, 5_000))
    journal.close()
    again = Journal(tmp_path / "journal.db")
    assert [len(entry.batch) for entry in again.replay()] == [2, 5_000]
    again.close()


def test_a_file_that_is_no_journal_is_damage(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"no journal at all" * 1000)
    with pytest.raises(StorageCorrupt, match="move it away"):
        Journal(tmp_path / "journal.db")


def test_a_journal_keeps_its_identity_and_facts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    identity = journal.identity
    assert journal.span() == (1, 0)
    journal.keep("kind", {"a": "1", "b": "2"})
    journal.keep("kind", {"a": "3"}, gone=["b"])
    for sn in range(3):
        journal.commit(batch(sn, 1))
    journal.trim(2)
    journal.flush()
    assert journal.span() == (3, 3)
    journal.trim(3)
    journal.flush()
    journal.close()
    journal = Journal(tmp_path / "journal.db")
    assert journal.identity == identity
    assert journal.kept("kind") == {"a": "3"}
    assert journal.kept("other") == {}
    assert journal.span() == (4, 3)
    journal.close()
    assert Journal(tmp_path / "another.db").identity != identity
