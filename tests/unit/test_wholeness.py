"""Is what was committed to a journal there after its files were cut, flipped, emptied or lost?"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import StorageCorrupt
from durable_cache.storage.journaled.journal import IncompleteJournal, Journal
from durable_cache.storage.journaled.mark import Note, read_mark
from durable_cache.storage.journaled.wholeness import Damage, missing
from tests.unit import test_journaled_parts as parts
from tests.unit.test_journal import batch

ENTRIES = 30


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a journal as a SIGKILL leaves them: half of it in its log.

    Frames of an earlier round of the log lie behind its end.
    """
    folder, copy = tmp_path_factory.mktemp("running"), tmp_path_factory.mktemp("killed") / "files"
    journal = Journal(folder / "journal.db")
    for sn in range(ENTRIES // 2):
        journal.commit(batch(sn, 1, 5_000))
    journal.commit(batch(1_000, 1, 200_000))
    with closing(sqlite3.connect(folder / "journal.db")) as other:
        other.execute("PRAGMA wal_checkpoint(FULL)")
    for sn in range(ENTRIES // 2 + 1, ENTRIES):
        journal.commit(batch(sn, 1, 5_000))
    shutil.copytree(folder, copy)
    journal.close()
    return copy


@pytest.fixture
def path(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "files")) / "journal.db"


def log_of(path: Path) -> Path:
    return path.with_name("journal.db-wal")


def frames_end(log: bytes | bytearray) -> int:
    """Return where the frames end that are of the log's last round, by their salts."""
    salts, at = log[16:24], 32
    while log[at + 8 : at + 16] == salts:
        at += 24 + 16384
    return at


def ids(journal: Journal) -> list[int]:
    return [entry.entry_id for entry in journal.replay()]


def test_a_journal_that_is_whole_is_opened(path: Path) -> None:
    assert missing(path, read_mark(path.with_suffix(".mark"))) == ""
    with closing(Journal(path, refuses_loss=True)) as journal:
        assert ids(journal) == [*range(1, ENTRIES + 1)]
        assert journal.finding == ""


def test_looking_changes_nothing(path: Path) -> None:
    before = {
        file.name: file.read_bytes() for file in path.parent.iterdir() if "shm" not in str(file)
    }
    missing(path, read_mark(path.with_suffix(".mark")))
    for name, data in before.items():
        assert (path.parent / name).read_bytes() == data


@given(data=st.data())
def test_a_log_that_was_cut_anywhere_is_whole_or_missed(
    killed: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = Path(shutil.copytree(killed, tmp_path_factory.mktemp("cut") / "files")) / "journal.db"
    whole = log_of(path).read_bytes()
    end = frames_end(whole)
    assert 32 < end < len(whole)
    size = data.draw(st.one_of(st.integers(0, len(whole)), st.integers(end - 2, end + 2)))
    log_of(path).write_bytes(whole[:size])
    found = missing(path, read_mark(path.with_suffix(".mark")))
    assert (found == "") == (size >= end)


@given(seed=st.integers(0, 1 << 32))
def test_a_bit_that_is_flipped_in_the_log_is_missed_or_of_no_use(
    killed: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path = Path(shutil.copytree(killed, tmp_path_factory.mktemp("flip") / "files")) / "journal.db"
    log, chance = bytearray(log_of(path).read_bytes()), random.Random(seed)
    at = chance.randrange(len(log))
    end = frames_end(log)
    log[at] ^= 1 << chance.randrange(8)
    log_of(path).write_bytes(log)
    found = missing(path, read_mark(path.with_suffix(".mark")))
    assert (found == "") == (at >= end)


def test_a_torn_end_without_a_note_is_no_damage(path: Path) -> None:
    """As a power cut leaves it within a commit, of which the mark cannot know."""
    whole = log_of(path).read_bytes()
    with closing(Journal(path)) as journal:
        journal.commit(batch(ENTRIES, 1, 5_000))
        log = log_of(path).read_bytes()
        mark = path.with_suffix(".mark")
        torn = path.parent / "torn"
        torn.mkdir()
        for file in (path, mark):
            shutil.copy(file, torn / file.name)
    assert len(log) <= len(whole)
    end = frames_end(log)
    (torn / "journal.db-wal").write_bytes(log[: end - 100])
    shutil.copy(path.with_suffix(".mark"), torn / "journal.mark")
    note = read_mark(torn / "journal.mark")
    assert note is not None
    assert missing(torn / "journal.db", note) != ""
    assert missing(torn / "journal.db", note._replace(last_id=note.last_id - 1)) == ""


@pytest.mark.parametrize("gone", [7, ENTRIES])
def test_an_entry_that_is_gone_is_damage(path: Path, gone: int) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM entries WHERE id = ?", (gone,))
    with pytest.raises(StorageCorrupt, match="of its entries 1 to 30 only 29 are there"):
        Journal(path)


def test_an_entry_under_another_number_is_damage(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE entries SET id = 94 WHERE id = 30")
    with pytest.raises(StorageCorrupt, match="of its entries 1 to 30"):
        Journal(path)


def test_a_log_beside_an_empty_database_is_left_alone(path: Path) -> None:
    path.write_bytes(b"")
    log = log_of(path).read_bytes()
    path.with_suffix(".mark").unlink()
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match=r"its log journal\.db-wal is not"):
            Journal(path)
    assert log_of(path).read_bytes() == log


def test_a_file_that_was_being_made_when_the_power_went_is_taken_back(tmp_path: Path) -> None:
    """Its first page is written under a rollback journal; behind its mark there is none."""
    making, path = tmp_path / "making.db", tmp_path / "journal.db"
    with closing(sqlite3.connect(making, isolation_level=None)) as database:
        database.execute("CREATE TABLE one (data BLOB)")
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN")
        for _ in range(20):
            database.execute("INSERT INTO one VALUES (zeroblob(10000))")
        shutil.copy(making, path)
        shutil.copy(f"{making}-journal", f"{path}-journal")
    note = Note(1, "0" * 16, 3)
    with pytest.raises(Damage):
        missing(path, note)
    with closing(Journal(path, refuses_loss=True)) as journal:
        assert journal.commit(batch(0, 1)) == 1


def test_free_pages_that_do_not_fit_are_damage(path: Path) -> None:
    """Nothing that is read shows it, and what is written next goes over what is there."""
    with closing(Journal(path)) as journal:
        journal.trim(20)
        journal.flush()
    data = bytearray(path.read_bytes())
    assert data[36:40] != bytes(4)
    data[39] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageCorrupt, match="reelist"):
        Journal(path)


def test_another_journal_in_its_place_is_known(path: Path, tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "another.db")) as another:
        for sn in range(2 * ENTRIES):
            another.commit(batch(sn, 1))
    log_of(path).unlink()
    shutil.copy(tmp_path / "another.db", path)
    with pytest.raises(IncompleteJournal, match="it is another one"):
        Journal(path, refuses_loss=True)


def test_an_older_copy_is_known_and_one_that_cannot_refuse_goes_on(path: Path) -> None:
    older = path.read_bytes()
    with closing(Journal(path)) as journal:
        journal.commit(batch(100, 1))
    path.write_bytes(older)
    with pytest.raises(IncompleteJournal, match="ends at entry 16, and entry 31 was committed"):
        Journal(path, refuses_loss=True)
    with closing(Journal(path)) as journal:
        assert "it ends at entry 16, and entry 31 was committed to it" in journal.finding
        assert journal.commit(batch(200, 1)) == 17
    with closing(Journal(path, refuses_loss=True)) as journal:  # said once
        assert ids(journal)[-1] == 17


def test_a_journal_of_an_earlier_version_has_a_mark_from_then_on(path: Path) -> None:
    path.with_suffix(".mark").unlink()
    with closing(Journal(path, refuses_loss=True)) as journal:
        assert ids(journal) == [*range(1, ENTRIES + 1)]
    path.unlink()
    with pytest.raises(IncompleteJournal, match="gone or empty, and entry 30 was committed to it"):
        Journal(path, refuses_loss=True)


def test_one_that_is_not_durable_notes_nothing(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db", durable=False)) as journal:
        journal.commit(batch(0, 1))
    assert not (tmp_path / "journal.mark").exists()


def test_a_mark_that_is_older_than_the_journal_is_brought_up_to_it(path: Path) -> None:
    mark = path.with_suffix(".mark")
    before = mark.read_bytes()
    with closing(Journal(path)) as journal:
        journal.commit(batch(100, 1))
    mark.write_bytes(before)  # as after a power cut
    Journal(path, refuses_loss=True).close()
    note = read_mark(mark)
    assert note is not None
    assert note.last_id == ENTRIES + 1


def test_facts_out_of_order_and_strange_rows_are_damage(path: Path) -> None:
    with closing(Journal(path)) as journal:
        journal.keep("kind", {"one": "1", "two": "2"})
    whole = path.read_bytes()
    assert whole.count(b"kindone1") == 1
    path.write_bytes(whole.replace(b"kindone1", b"kindzne1"))
    with pytest.raises(StorageCorrupt, match="facts are not in their order"):
        Journal(path)
    path.write_bytes(whole.replace(b"kindone1", b"kind\xffne1"))
    with pytest.raises(StorageCorrupt, match="a fact is no text"):
        Journal(path)
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE entries SET data = 1.5 WHERE id = 3")
    with pytest.raises(StorageCorrupt, match="entry 3 is no entry"):
        Journal(path)


def test_a_journal_that_lost_what_was_not_drained_is_said_once(tmp_path: Path) -> None:
    backend, copy = parts.Backend(), tmp_path / "copy.db"
    folder = tmp_path / "state"
    parts.filled(folder, backend, 2)
    shutil.copy(folder / "journal.db", copy)
    with parts.opened(folder, backend) as store:
        store.commit(parts.batch(parts.ONE, 2))
        store.commit(parts.batch(parts.ONE, 3))
    shutil.copy(copy, folder / "journal.db")
    with parts.opened(folder, backend) as store:
        (finding,) = store.findings
        assert "it ends at entry 2, and entry 4 was committed to it: it is damaged" in finding
        assert parts.sns(store) == [0, 1]
        store.commit(parts.batch(parts.ONE, 4))
    with parts.opened(folder, backend) as store:
        assert not store.findings
        assert store.drain_all(5)
        assert parts.sns(store) == [0, 1, 4]
