"""What is stored per source and per stream, beside the journal: windows and alignment start here.

A SQLite file of its own, so that recording a drained batch never holds up a commit of the journal.
It is written after the backend and before the journal is trimmed; it can be rebuilt from the
backend at any time (`rebuild`). Many rows go in or out in one statement, through json_each: a
statement a row would hand the interpreter's lock to and fro for every row.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import msgspec

from durable_cache.errors import Closed
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch, Skip, SourceId, Stream
from durable_cache.protocol.events import Alias, NumberingState
from durable_cache.storage.contract import Floor, Storage
from durable_cache.storage.journal import sqlite_error

__all__ = ["StreamIndex", "StreamInfo"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numberings (
  zid TEXT, eid INTEGER, epoch INTEGER, held TEXT, skipped TEXT, newest TEXT,
  PRIMARY KEY (zid, eid, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS streams (
  key TEXT, zid TEXT, eid INTEGER, epoch INTEGER, held TEXT, floor INTEGER, purged INTEGER,
  newest TEXT, received INTEGER, PRIMARY KEY (key, zid, eid, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS aliases (
  zid TEXT, eid INTEGER, stored INTEGER, from_sn INTEGER, epoch INTEGER,
  PRIMARY KEY (zid, eid, stored, from_sn)) WITHOUT ROWID;
"""
_PUT_STREAMS = """INSERT OR REPLACE INTO streams
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
  value ->> 7, value ->> 8 FROM json_each(?)"""
_GET_STREAMS = """SELECT s.* FROM json_each(?) AS w CROSS JOIN streams AS s
ON s.key = w.value ->> 0 AND s.zid = w.value ->> 1 AND s.eid = w.value ->> 2
  AND s.epoch = w.value ->> 3"""
_PUT_NUMBERINGS = """INSERT OR REPLACE INTO numberings
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(?)"""
_GET_NUMBERINGS = """SELECT n.* FROM json_each(?) AS w CROSS JOIN numberings AS n
ON n.zid = w.value ->> 0 AND n.eid = w.value ->> 1 AND n.epoch = w.value ->> 2"""

_runs = msgspec.json.Decoder(list[tuple[int, int]])
_json = msgspec.json.Encoder()


class StreamInfo(NamedTuple):
    """What the index knows of one stream."""

    stream: Stream
    held: RangeSet
    floor: int = 0
    """Retention removed what was below."""
    purged: int = 0
    """An operator removed what was below: it never comes back."""
    newest_ntp64: int = 0
    newest_received_ns: int = 0


class _Numbering(NamedTuple):
    source: SourceId
    epoch: int


class _Runs:
    """What is held and skipped of one numbering, while a batch is being recorded."""

    __slots__ = ("held", "newest", "skipped")

    def __init__(self, held: RangeSet, skipped: RangeSet, newest: int) -> None:
        self.held, self.skipped, self.newest = held, skipped, newest


class StreamIndex:
    """The durable index; any thread, one writer process (the state directory's lock sees to it).

    `path` None keeps it in memory. Raises `StorageUnavailable` and `StorageFull` (retry),
    `StorageCorrupt` (move the file away: it is rebuilt).
    """

    def __init__(self, path: Path | None = None, *, streams_cached_max: int = 50_000) -> None:
        self._path = path
        self._lock = RLock()
        self._cached_max = streams_cached_max
        self._cache: OrderedDict[Stream, StreamInfo] = OrderedDict()
        self._db: sqlite3.Connection | None = None
        try:
            self._db = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=10,
                isolation_level=None,
                check_same_thread=False,
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            self.close()
            raise sqlite_error(error, f"stream index {path}") from error
        self.streams = int(self._rows("SELECT count(*) FROM streams")[0][0])
        self.generation = self._once("generation")
        """Changes when the state directory is lost: what peers know of this cache is void then."""
        self.cache_id = self._once("cache_id")

    def record(self, batch: SampleBatch, skips: Iterable[Skip] = (), drained: int = 0) -> None:
        """Take in what the backend now holds durably; `drained` is the last journal entry in it."""
        with self._transaction() as database:
            infos = self._infos(list(batch.summaries))
            numberings = self._numberings(batch, skips := list(skips))
            for stream, new in batch.summaries.items():
                info = infos[stream]
                info.held.update(new.runs)
                infos[stream] = info._replace(
                    newest_ntp64=max(info.newest_ntp64, new.newest_ntp64),
                    newest_received_ns=max(info.newest_received_ns, new.newest_received_ns),
                )
                runs = numberings[_Numbering(stream.source, stream.epoch)]
                runs.held.update(new.runs)
                runs.newest = max(runs.newest, new.newest_published_ntp64)
            for skip in skips:
                numberings[_Numbering(skip.source, skip.epoch)].skipped.add(skip.first, skip.last)
            self._put_streams(database, infos)
            _put_numberings(database, numberings)
            if drained:
                _set(database, "drained", str(drained))

    def drained(self) -> int:
        """Return the journal entry up to which everything is in the backend and in here."""
        return int(self._get("drained") or 0)

    def load(self, source: SourceId) -> tuple[tuple[NumberingState, ...], tuple[Alias, ...]]:
        """Return what is stored of a source, for its windows."""
        rows = self._rows(
            "SELECT epoch, held, skipped, newest FROM numberings WHERE zid = ? AND eid = ?", source
        )
        aliases = self._rows(
            "SELECT stored, from_sn, epoch FROM aliases WHERE zid = ? AND eid = ?", source
        )
        states = tuple(
            NumberingState(int(epoch), _unpack(held), _unpack(skipped), int(newest))
            for epoch, held, skipped, newest in rows
        )
        return states, tuple(Alias(source, *map(int, row)) for row in aliases)

    def learn(self, alias: Alias) -> None:
        """Keep an alias durably; idempotent."""
        with self._transaction() as database:
            database.execute(
                "INSERT OR REPLACE INTO aliases VALUES (?, ?, ?, ?, ?)",
                (*alias.source, alias.stored, alias.from_sn, alias.epoch),
            )

    def aliases(self) -> list[Alias]:
        """Return every alias."""
        rows = self._rows("SELECT zid, eid, stored, from_sn, epoch FROM aliases")
        return [
            Alias(SourceId(str(zid), int(eid)), int(stored), int(from_sn), int(epoch))
            for zid, eid, stored, from_sn, epoch in rows
        ]

    def sources_with_holes(self, limit: int) -> list[SourceId]:
        """Return up to `limit` sources whose numbers are not one unbroken run."""
        rows = self._rows(
            "SELECT DISTINCT zid, eid FROM numberings WHERE json_array_length(held) > 1 LIMIT ?",
            (limit,),
        )
        return [SourceId(str(zid), int(eid)) for zid, eid in rows]

    def has_zid(self, zid: str) -> bool:
        """Tell whether something of this Zenoh id is stored."""
        return bool(self._rows("SELECT 1 FROM numberings WHERE zid = ? LIMIT 1", (zid,)))

    def unknown(self, streams: Sequence[Stream]) -> list[Stream]:
        """Return which of these streams are new here."""
        with self._lock:
            missing = [stream for stream in streams if stream not in self._cache]
            held = self._select(missing)
            return [stream for stream in missing if stream not in held]

    def infos(self, streams: Sequence[Stream]) -> dict[Stream, StreamInfo]:
        """Return what is known of these streams; an empty record for one that is not known."""
        with self._lock:
            return {
                stream: info._replace(held=info.held.copy())
                for stream, info in self._infos(streams).items()
            }

    def all_infos(self, page: int = 1000) -> Iterator[StreamInfo]:
        """Yield every stream, in order of key, zid, eid and epoch as SQLite sorts them."""
        after: tuple[Any, ...] = ("", "", -1, -1)
        while True:
            rows = self._rows(
                "SELECT * FROM streams WHERE (key, zid, eid, epoch) > (?, ?, ?, ?) "
                "ORDER BY key, zid, eid, epoch LIMIT ?",
                (*after, page),
            )
            if not rows:
                return
            yield from map(_info, rows)
            after = rows[-1][:4]

    def trimmed(self, floors: Iterable[Floor], *, purged: bool = False) -> None:
        """Take in that retention (or, with `purged`, an operator) removed what is below."""
        floors = list(floors)
        with self._transaction() as database:
            infos = self._infos([floor.stream for floor in floors])
            for stream, sn in floors:
                info = infos[stream]
                info.held.remove(0, sn - 1)
                infos[stream] = info._replace(
                    floor=max(info.floor, sn), purged=max(info.purged, sn if purged else 0)
                )
            self._put_streams(database, infos)

    def rebuild(self, storage: Storage) -> None:
        """Forget the runs and read them from the backend; floors are lost, aliases stay."""
        with self._transaction() as database:
            self._cache.clear()
            self.streams = 0
            database.execute("DELETE FROM streams")
            database.execute("DELETE FROM numberings")
            numberings: dict[_Numbering, _Runs] = {}
            for held in storage.held():
                info = StreamInfo(
                    held.stream, held.runs, 0, 0, held.newest_ntp64, held.newest_received_ns
                )
                numbering = _Numbering(held.stream.source, held.stream.epoch)
                runs = numberings.setdefault(numbering, _Runs(RangeSet(), RangeSet(), 0))
                runs.held.update(held.runs)
                runs.newest = max(runs.newest, held.newest_ntp64)
                self._put_streams(database, {held.stream: info})
            for skip in storage.skips():
                numbering = _Numbering(skip.source, skip.epoch)
                runs = numberings.setdefault(numbering, _Runs(RangeSet(), RangeSet(), 0))
                runs.skipped.add(skip.first, skip.last)
            _put_numberings(database, numberings)

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            database, self._db = self._db, None
            if database is not None:
                database.close()

    def _numberings(self, batch: SampleBatch, skips: list[Skip]) -> dict[_Numbering, _Runs]:
        wanted = {_Numbering(stream.source, stream.epoch) for stream in batch.summaries}
        wanted.update(_Numbering(skip.source, skip.epoch) for skip in skips)
        found = {numbering: _Runs(RangeSet(), RangeSet(), 0) for numbering in wanted}
        names = [(*numbering.source, numbering.epoch) for numbering in wanted]
        for zid, eid, epoch, held, skipped, newest in self._rows(
            _GET_NUMBERINGS, (_json.encode(names).decode(),)
        ):
            numbering = _Numbering(SourceId(str(zid), int(eid)), int(epoch))
            found[numbering] = _Runs(_unpack(held), _unpack(skipped), int(newest))
        return found

    def _infos(self, streams: Sequence[Stream]) -> dict[Stream, StreamInfo]:
        found = {stream: self._cache[stream] for stream in streams if stream in self._cache}
        missing = [stream for stream in streams if stream not in found]
        stored = self._select(missing)
        for stream in missing:
            found[stream] = stored.get(stream) or StreamInfo(stream, RangeSet())
        return found

    def _select(self, streams: Sequence[Stream]) -> dict[Stream, StreamInfo]:
        if not streams:
            return {}
        wanted = [(_escape(stream.key), *stream.source, stream.epoch) for stream in streams]
        rows = self._rows(_GET_STREAMS, (_json.encode(wanted).decode(),))
        return {info.stream: info for info in map(_info, rows)}

    def _put_streams(self, database: sqlite3.Connection, infos: dict[Stream, StreamInfo]) -> None:
        new = [stream for stream in infos if stream not in self._cache]
        self.streams += len(new) - len(self._select(new))
        rows = [
            (
                _escape(stream.key),
                *stream.source,
                stream.epoch,
                list(info.held),
                info.floor,
                info.purged,
                str(info.newest_ntp64),
                info.newest_received_ns,
            )
            for stream, info in infos.items()
        ]
        database.execute(_PUT_STREAMS, (_json.encode(rows).decode(),))
        for stream, info in infos.items():
            self._cache[stream] = info
            self._cache.move_to_end(stream)
        while len(self._cache) > self._cached_max:
            self._cache.popitem(last=False)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            database = self._open()
            try:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            except BaseException as error:
                self._cache.clear()
                if database.in_transaction:
                    database.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise sqlite_error(error, f"stream index {self._path}") from error
                raise

    def _rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._open().execute(statement, tuple(values)).fetchall()
            except sqlite3.Error as error:
                raise sqlite_error(error, f"stream index {self._path}") from error

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            raise Closed(f"stream index {self._path} is closed")
        return self._db

    def _get(self, name: str) -> str | None:
        rows = self._rows("SELECT value FROM meta WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def _once(self, name: str) -> str:
        value = self._get(name)
        if value is None:
            value = secrets.token_hex(8)
            with self._transaction() as database:
                _set(database, name, value)
        return value


def _set(database: sqlite3.Connection, name: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _put_numberings(database: sqlite3.Connection, numberings: dict[_Numbering, _Runs]) -> None:
    rows = [
        (
            *numbering.source,
            numbering.epoch,
            list(runs.held),
            list(runs.skipped.difference(runs.held)),
            str(runs.newest),
        )
        for numbering, runs in numberings.items()
    ]
    database.execute(_PUT_NUMBERINGS, (_json.encode(rows).decode(),))


def _info(row: tuple[Any, ...]) -> StreamInfo:
    key, zid, eid, epoch, held, floor, purged, newest, received = map(str, row)
    stream = Stream(_unescape(key), SourceId(zid, int(eid)), int(epoch))
    return StreamInfo(stream, _unpack(held), int(floor), int(purged), int(newest), int(received))


def _unpack(text: object) -> RangeSet:
    return RangeSet(_runs.decode(str(text)))


def _escape(key: str) -> str:
    """Write a key without NUL, which text in SQLite's JSON cannot hold."""
    return key.replace("\x1b", "\x1b1").replace("\x00", "\x1b0")


def _unescape(text: str) -> str:
    return text.replace("\x1b0", "\x00").replace("\x1b1", "\x1b")
