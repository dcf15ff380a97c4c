"""The log in front of every backend: what it holds survives the level that acks name.

One row per commit in a SQLite file in WAL mode with ``synchronous=FULL``: a group commit costs one
fsync whatever its size up to about 256 KiB. A failed commit means *unknown*; the row may be there
after a restart, and draining it twice is draining it once. After a failed fsync nothing can be
said of what was written before either: such an error is fatal, and so is damage (ADR 0091).
A mark beside the file says how far it was committed, so that a lost end is known (ADR 0285).

The file also keeps a second copy of what the stream index cannot read back from the backend: who
the cache is, what was purged, and which epochs are one (ADR 0090).
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol

from durable_cache.errors import (
    Closed,
    ProtocolError,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.protocol.wire import decode_journal, encode_journal
from durable_cache.storage.journaled.mark import DamagedMark, Mark, Note, make_mark, read_mark
from durable_cache.storage.journaled.wholeness import Damage, missing

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
  id INTEGER PRIMARY KEY AUTOINCREMENT, samples INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS dead_letters (
  id INTEGER PRIMARY KEY AUTOINCREMENT, reason TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS kept (
  kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
  PRIMARY KEY (kind, name)) WITHOUT ROWID;
"""
_INSERT = "INSERT INTO entries (samples, data) VALUES (?, ?)"
_TOTALS = "SELECT count(*), coalesce(sum(samples), 0), coalesce(sum(length(data)), 0) FROM entries"
_PAGE_BYTES = 16384
_WAL_PAGES = 4096
"""64 MiB between checkpoints: a checkpoint costs two more fsyncs."""
_FAILED_SYNCS = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})
"""The kernel may have dropped what it could not write: trying again would succeed for nothing."""


class Entry(NamedTuple):
    """One commit, as the journal gives it back."""

    entry_id: int
    batch: SampleBatch
    skips: tuple[Skip, ...]


class Rows(Protocol):
    """How what is committed together is written as one row."""

    def write(self, batch: SampleBatch, skips: tuple[Skip, ...]) -> bytes: ...

    def read(self, frame: bytes) -> tuple[SampleBatch, tuple[Skip, ...]]:
        """ProtocolError where the row is damaged."""
        ...


class _WholeRows:
    """Each row says everything of its samples."""

    write = staticmethod(encode_journal)
    read = staticmethod(decode_journal)


class IncompleteJournal(StorageCorrupt):
    """Something that was committed to a journal is not in it."""


class Journal:
    """A durable, ordered list of commits. `commit` belongs to one thread; the rest to any.

    Where something of it is missing, `finding` says what; with `refuses_loss` it is not opened
    then, IncompleteJournal is raised, and its files stay as they are. One that is not `durable` has
    no mark: after a power cut it may end before what was committed to it. `remedy` is what people
    are told to do where it is damaged; `rows` writes and reads the entries; the log beside the file
    has at most `wal_pages` of 16 KiB and those of one commit.
    """

    finding: str = ""
    name: str = ""
    """What its mark calls it: another one since the last time where the mark was made anew."""

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int = 4 << 30,
        durable: bool = True,
        refuses_loss: bool = False,
        remedy: str = "restore it, or move it away and let the cache align with a peer",
        rows: Rows | None = None,
        wal_pages: int = _WAL_PAGES,
    ) -> None:
        self.path = path
        self._rows: Rows = rows or _WholeRows()
        self._remedy = remedy
        self._mark_path = path.with_suffix(".mark")
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._trimmed = self._trim_to = 0
        self._failed: StorageError | None = None
        self.entries = self.samples = self._bytes = 0
        self._db: sqlite3.Connection | None = None
        self._mark: Mark | None = None
        try:
            note = self._look(refuses_loss)
            self._db = _open(path, durable, wal_pages)
            self._db.executescript(_SCHEMA)
            _sync_directory(path.parent)
            self.entries, self.samples, self._bytes = self._db.execute(_TOTALS).fetchone()
            self.dead_letters = self._one("SELECT count(*) FROM dead_letters")
            self.identity = self._identify()
            if durable:
                self._mark = self._take_mark(note)
        except sqlite3.Error as error:
            self.close()
            raise self._error(error) from error
        except OSError as error:
            self.close()
            raise file_error(error, f"journal {path}") from error
        except BaseException:
            self.close()
            raise

    def _look(self, refuses_loss: bool) -> Note | None:
        """Find out whether everything is there, before anything is changed; return its mark."""
        note = None
        try:
            note = read_mark(self._mark_path)
            lost = missing(self.path, note)
        except DamagedMark:
            lost = f"its mark {self._mark_path} is damaged"
        except Damage as error:
            raise self._corrupt(str(error)) from error
        if lost:
            self.finding = f"journal {self.path}: {lost}"
            if refuses_loss:
                raise IncompleteJournal(self.finding)
            return None
        return note

    def _take_mark(self, note: Note | None) -> Mark:
        """Go on with the mark that there is, or make one: the journal has its name first."""
        self.name = self.kept("journal").get("mark", "")
        _, last = self.span()
        if note is None:
            self.name = secrets.token_hex(8)
            self.keep("journal", {"mark": self.name})
            make_mark(self._mark_path, self.name, last)
        mark = Mark(self._mark_path, note or Note(0, self.name, last))
        mark.reached(last)  # it may be older after a power cut
        return mark

    def _identify(self) -> str:
        """Return what tells this file from one that is put in its place; made with the file."""
        found = self.kept("journal").get("identity")
        if found is None:
            self.renew()
            return self.identity
        return found

    def renew(self) -> None:
        """Take another identity: what was written beside this file until now is older."""
        identity = secrets.token_hex(8)
        self.keep("journal", {"identity": identity})
        self.identity = identity

    def span(self) -> tuple[int, int]:
        """Return the ids of the first entry that is left and of the last one ever written.

        Ids are handed out without holes; where nothing is left the first is above the last.
        """
        with self._lock:
            database = self._open()
            try:
                ever = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'")
                (last,) = ever.fetchone() or (0,)
                (first,) = database.execute("SELECT min(id) FROM entries").fetchone()
            except sqlite3.Error as error:
                raise self._error(error) from error
        return last + 1 if first is None else first, last

    def kept(self, kind: str) -> dict[str, str]:
        """Return what is kept of a kind, by name."""
        with self._lock:
            try:
                rows = self._open().execute("SELECT name, value FROM kept WHERE kind = ?", (kind,))
                return dict(rows.fetchall())
            except sqlite3.Error as error:
                raise self._error(error) from error

    def keep(self, kind: str, facts: Mapping[str, str], gone: Iterable[str] = ()) -> None:
        """Keep facts durably in place of those of the same names, and forget those `gone`.

        What `trim` let go is removed with that.
        """
        with self._lock:
            try:
                with self._open() as database:
                    database.execute("BEGIN IMMEDIATE")
                    trimmed = self._drop_trimmed(database)
                    database.executemany(
                        "DELETE FROM kept WHERE kind = ? AND name = ?",
                        [(kind, name) for name in gone],
                    )
                    database.executemany(
                        "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)",
                        [(kind, name, value) for name, value in facts.items()],
                    )
                self._count_trimmed(trimmed)
            except sqlite3.Error as error:
                raise self._error(error) from error

    def commit(self, batch: SampleBatch, skips: tuple[Skip, ...] = ()) -> int:
        """Append one entry and return its id; durable on return.

        Raises `StorageFull` at `bytes_max` or without room, `StorageUnavailable`, `StorageCorrupt`;
        after an error the outcome is unknown and committing again is harmless. After a fatal error
        every further commit raises it again: nothing is written behind a hole.
        """
        data = self._rows.write(batch, skips)
        with self._lock:
            database = self._open()
            if self._failed is not None:
                raise self._failed
            if self._is_full(len(data)):
                self._flush(database)  # what was let go makes room
            if self._is_full(len(data)):
                raise StorageFull(
                    f"journal {self.path} has reached spool_bytes_max = {self._bytes_max}; "
                    "the backend is too slow or down"
                )
            try:
                if self._trim_to > self._trimmed:
                    with database:
                        database.execute("BEGIN IMMEDIATE")
                        gone = self._drop_trimmed(database)
                        cursor = database.execute(_INSERT, (len(batch), data))
                    self._count_trimmed(gone)
                else:  # one call, for each gives up the interpreter and waits to have it back
                    cursor = database.execute(_INSERT, (len(batch), data))
            except sqlite3.Error as error:
                raise self._error(error) from error
            entry_id = cursor.lastrowid or 0
            if self._mark is not None:
                self._mark.reached(entry_id)
            self.entries += 1
            self.samples += len(batch)
            self._bytes += len(data)
            return entry_id

    def _is_full(self, more_bytes: int) -> bool:
        return self._bytes + more_bytes > self._bytes_max and self.entries > 0

    def entries_after(self, entry_id: int, limit: int = 64) -> list[Entry]:
        """Return up to `limit` entries above `entry_id`, oldest first; may be `StorageCorrupt`."""
        with self._lock:
            try:
                rows = self._open().execute(
                    "SELECT id, data FROM entries WHERE id > ? ORDER BY id LIMIT ?",
                    (entry_id, limit),
                )
                found = rows.fetchall()
            except sqlite3.Error as error:
                raise self._error(error) from error
        entries = []
        for found_id, data in found:
            try:
                entries.append(Entry(found_id, *self._rows.read(data)))
            except ProtocolError as error:
                raise self._corrupt(f"entry {found_id}: {error}") from error
        return entries

    def replay(self) -> Iterator[Entry]:
        """Yield every entry, oldest first, reading a few at a time."""
        last = 0
        while entries := self.entries_after(last):
            yield from entries
            last = entries[-1].entry_id

    def trim(self, entry_id: int) -> None:
        """Let every entry up to `entry_id` go, with the next commit or `flush`."""
        with self._lock:
            self._trim_to = max(self._trim_to, entry_id)

    def flush(self) -> None:
        """Remove now what `trim` let go."""
        with self._lock:
            self._flush(self._open())

    def _flush(self, database: sqlite3.Connection) -> None:
        if self._trim_to <= self._trimmed:
            return
        try:
            with database:
                database.execute("BEGIN IMMEDIATE")
                gone = self._drop_trimmed(database)
            self._count_trimmed(gone)
        except sqlite3.Error as error:
            raise self._error(error) from error

    def bury(self, batch: SampleBatch, reason: str) -> None:
        """Keep samples the backend can never take, for people to look at."""
        with self._lock:
            try:
                with self._open() as database:
                    database.execute(
                        "INSERT INTO dead_letters (reason, data) VALUES (?, ?)",
                        (reason, encode_journal(batch, ())),
                    )
            except sqlite3.Error as error:
                raise self._error(error) from error
            self.dead_letters += len(batch)

    def size_bytes(self) -> int:
        """Return the bytes of the entries that are not trimmed."""
        return self._bytes

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            database, self._db = self._db, None
            mark, self._mark = self._mark, None
            if database is not None:
                database.close()
            if mark is not None:
                mark.close()

    def _drop_trimmed(self, database: sqlite3.Connection) -> tuple[int, int, int]:
        """Delete what was let go; returns what `_count_trimmed` takes when that is committed."""
        gone = database.execute(f"{_TOTALS} WHERE id <= ?", (self._trim_to,)).fetchone()
        database.execute("DELETE FROM entries WHERE id <= ?", (self._trim_to,))
        entries, samples, size = gone
        return entries, samples, size

    def _count_trimmed(self, gone: tuple[int, int, int]) -> None:
        self.entries -= gone[0]
        self.samples -= gone[1]
        self._bytes -= gone[2]
        self._trimmed = self._trim_to

    def _error(self, error: sqlite3.Error) -> StorageError:
        """Return ours for an error of SQLite's; one that is fatal stays with the journal."""
        ours = sqlite_error(error, f"journal {self.path}", self._remedy)
        code = getattr(error, "sqlite_errorcode", None)
        if code in _FAILED_SYNCS or isinstance(ours, StorageCorrupt):
            return self._fatal(ours)
        return ours

    def _corrupt(self, found: str) -> StorageError:
        return self._fatal(StorageCorrupt(f"journal {self.path}: {found}; {self._remedy}"))

    def _fatal(self, error: StorageError) -> StorageError:
        error.fatal = True
        self._failed = self._failed or error
        return error

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            raise Closed(f"journal {self.path} is closed")
        return self._db

    def _one(self, statement: str) -> int:
        return int(self._open().execute(statement).fetchone()[0])


def _open(path: Path, durable: bool, wal_pages: int) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    database.execute(f"PRAGMA wal_autocheckpoint = {wal_pages}")
    database.execute("PRAGMA cache_size = -16384")
    return database


def _sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: a file without its name is lost in a power cut."""
    for place in (directory, directory.parent):
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def file_error(error: OSError, subject: str) -> StorageError:
    """Return ours for an error of the system's; `subject` names the file."""
    if error.errno == errno.ENOSPC:
        return StorageFull(f"{subject}: the disk is full; make room")
    name = f" ({error.filename})" if error.filename else ""
    return StorageUnavailable(f"{subject}: {error.strerror}{name}; check its permissions")


def sqlite_error(
    error: sqlite3.Error, subject: str, remedy: str = "restore it or move it away"
) -> StorageError:
    """Return ours for an error of SQLite's; `subject` names the file.

    `remedy` is what people are told to do where it is damaged.
    """
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StorageFull(f"{subject}: the disk is full; make room")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StorageCorrupt(f"{subject}: {error}; {remedy}")
    if primary == sqlite3.SQLITE_CANTOPEN:
        return StorageUnavailable(f"{subject}: {error}; check its permissions")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StorageUnavailable(f"{subject}: not writable ({error}); check its permissions")
    return StorageUnavailable(f"{subject}: {error}")
