"""What the stream index's tables look like, and how a row becomes what it says.

Many rows go in or out in one statement, through json_each: a statement a row would hand the
interpreter's lock to and fro for every row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from durable_cache.errors import StorageCorrupt
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Skip, SourceId, Stream, StreamSummary
from durable_cache.model.selection import SnBounds
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.cache.events import Alias, NumberingState
from durable_cache.protocol.wire import Incarnation
from durable_cache.storage.journaled import index_blocks as blocks
from durable_cache.storage.journaled.index_blocks import HELD, SKIPPED, STREAM, Owner


def _whole(runs: str, since: str, kind: int, key: str, of: str) -> str:
    """Return the SQL for all runs of an owner, blocks and tail, as one row of its table has them.

    Runs that touch or are out of order are put right where they are read.
    """
    return f"""CASE {since} WHEN 0 THEN {runs} ELSE '[' || coalesce((
  SELECT group_concat(substr(b.runs, 2, length(b.runs) - 2)) || substr(',', 1, {runs} <> '[]')
  FROM blocks AS b WHERE b.kind = {kind} AND b.key = {key} AND b.zid = {of}.zid
    AND b.eid = {of}.eid AND b.epoch = {of}.epoch), '') || substr({runs}, 2) END"""  # noqa: S608


_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numberings (
  zid TEXT, eid INTEGER, epoch INTEGER, held TEXT, skipped TEXT, newest TEXT,
  held_since INTEGER NOT NULL DEFAULT 0, skipped_since INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (zid, eid, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS streams (
  key TEXT, zid TEXT, eid INTEGER, epoch INTEGER, held TEXT, floor INTEGER, purged INTEGER,
  newest TEXT, received INTEGER, since INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (key, zid, eid, epoch)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS streams_by_source ON streams (zid, eid, epoch);
CREATE TABLE IF NOT EXISTS timestamps (
  key TEXT, zid TEXT, epoch INTEGER, sn INTEGER,
  PRIMARY KEY (key, zid, epoch, sn)) WITHOUT ROWID;
{blocks.SCHEMA}
CREATE TABLE IF NOT EXISTS aliases (
  zid TEXT, eid INTEGER, stored INTEGER, from_sn INTEGER, epoch INTEGER,
  PRIMARY KEY (zid, eid, stored, from_sn)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS agreements (
  zid TEXT, eid INTEGER, loser INTEGER, winner INTEGER,
  PRIMARY KEY (zid, eid, loser)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS incarnations (
  zid TEXT, eid INTEGER, epoch INTEGER, incarnation TEXT,
  PRIMARY KEY (zid, eid, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS purge_times (
  key TEXT, zid TEXT, eid INTEGER, epoch INTEGER, floor INTEGER, here INTEGER, ntp64 TEXT,
  PRIMARY KEY (key, zid, eid, epoch)) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS names AS SELECT * FROM incarnations WHERE incarnation <> '';
"""  # noqa: S608
_FORMAT = 2
"""Earlier versions wrote none: there each stream is one row."""
_SINCE = (
    ("streams", "since"),
    ("numberings", "held_since"),
    ("numberings", "skipped_since"),
)
"""Columns that an index of an earlier version lacks: there each row has all runs of its owner."""
_VIEWS = f"""
CREATE VIEW IF NOT EXISTS whole_streams AS
SELECT key, zid, eid, epoch, CASE WHEN eid = 0 THEN (
  SELECT '[' || coalesce(group_concat('[' || sn || ',' || sn || ']'), '') || ']'
  FROM timestamps AS t WHERE t.key = s.key AND t.zid = s.zid AND t.epoch = s.epoch
) ELSE {_whole("held", "since", STREAM, "s.key", "s")} END AS held, floor, purged, newest, received
FROM streams AS s;
CREATE VIEW IF NOT EXISTS whole_numberings AS
SELECT zid, eid, epoch, {_whole("held", "held_since", HELD, "''", "n")} AS held,
  {_whole("skipped", "skipped_since", SKIPPED, "''", "n")} AS skipped, newest
FROM numberings AS n;
"""  # noqa: S608
"""Streams and numberings with all their runs; made when the columns above are there."""
WITH_HOLES = """SELECT zid, eid FROM numberings AS one
WHERE json_array_length(held) > 1 OR held_since > 0 OR (epoch = 0 AND EXISTS (SELECT * FROM names
  WHERE names.zid = one.zid AND names.eid = one.eid))
GROUP BY zid, eid ORDER BY max(json_array_length(held) > 1 OR held_since > 0) DESC LIMIT ?"""
LOSE_NAMES = """INSERT OR IGNORE INTO incarnations
SELECT zid, eid, epoch, '' FROM numberings WHERE epoch > 0"""
"""An empty name: a token may have called the run something that is not known any more."""
RUN_NAMES = (
    "SELECT zid, eid, epoch, incarnation FROM incarnations ORDER BY incarnation <> '', epoch"
)
"""Those that are lost come first."""
_NAME_RUN = """UPDATE incarnations SET incarnation = ?4 WHERE zid = ?1 AND eid = ?2 AND epoch = ?3
AND NOT EXISTS (SELECT * FROM incarnations WHERE zid = ?1 AND eid = ?2 AND incarnation = ?4)"""
"""No two epochs of a source are one run."""
_LEAVE_NAME = """DELETE FROM incarnations WHERE zid = ?1 AND eid = ?2 AND incarnation = ?3
AND NOT EXISTS (SELECT * FROM numberings AS n
  WHERE (n.zid, n.eid, n.epoch) = (?1, ?2, incarnations.epoch))"""
"""Of an epoch under which nothing is, nor was."""
_PUT_STREAMS = """INSERT INTO streams
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
  value ->> 7, value ->> 8, value ->> 9 FROM json_each(?) WHERE true
ON CONFLICT (key, zid, eid, epoch) DO UPDATE SET held = excluded.held, floor = excluded.floor,
  purged = excluded.purged, newest = excluded.newest, received = excluded.received,
  since = excluded.since"""
GET_STREAMS = """SELECT s.* FROM json_each(?) AS w CROSS JOIN {} AS s
ON s.key = w.value ->> 0 AND s.zid = w.value ->> 1 AND s.eid = w.value ->> 2
  AND s.epoch = w.value ->> 3"""
_SOURCES_STREAMS = """SELECT * FROM streams WHERE zid = ?1 AND eid = ?2 AND eid <> 0
UNION ALL SELECT *, 0 FROM whole_streams WHERE zid = ?1 AND eid = ?2 AND eid = 0 LIMIT ?3"""
"""A source's streams with their tails; what has no numbers whole."""
_SOURCES_BLOCKS = """SELECT b.key, b.epoch, b.runs FROM streams AS s CROSS JOIN blocks AS b
ON b.kind = 0 AND b.key = s.key AND b.zid = s.zid AND b.eid = s.eid AND b.epoch = s.epoch
  AND b.first <= ?4 AND b.first >= coalesce((SELECT max(c.first) FROM blocks AS c
    WHERE c.kind = 0 AND c.key = s.key AND c.zid = s.zid AND c.eid = s.eid AND c.epoch = s.epoch
      AND c.first <= ?3), 0)
WHERE s.zid = ?1 AND s.eid = ?2 AND s.since > ?3 LIMIT ?5"""
"""Of a source's streams the blocks that a range of numbers touches."""
_PUT_TIMESTAMPS = """INSERT OR IGNORE INTO timestamps
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?)"""
_HAS_TIMESTAMP = "SELECT 1 FROM timestamps WHERE key = ? AND zid = ? AND epoch = ? AND sn = ?"
_DROP_TIMESTAMPS = (
    "DELETE FROM timestamps WHERE key = ? AND zid = ? AND epoch = ? AND sn BETWEEN ? AND ?"
)
_PUT_NUMBERINGS = """INSERT OR REPLACE INTO numberings
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
  value ->> 7 FROM json_each(?)"""
_GET_NUMBERINGS = """SELECT n.* FROM json_each(?) AS w CROSS JOIN {} AS n
ON n.zid = w.value ->> 0 AND n.eid = w.value ->> 1 AND n.epoch = w.value ->> 2"""
GET_SOURCE = """SELECT n.epoch, held, skipped, newest, incarnation, 0
FROM whole_numberings AS n LEFT JOIN incarnations USING (zid, eid, epoch)
WHERE zid = ?1 AND eid = ?2
UNION ALL SELECT epoch, '[]', '[]', '0', incarnation, 0 FROM names
WHERE zid = ?1 AND eid = ?2 AND epoch NOT IN
  (SELECT epoch FROM numberings WHERE zid = ?1 AND eid = ?2)
UNION ALL SELECT stored, from_sn, epoch, 0, 0, 1 FROM aliases WHERE zid = ?1 AND eid = ?2
UNION ALL SELECT loser, 0, winner, 0, 0, 1 FROM agreements WHERE zid = ?1 AND eid = ?2"""
"""A source's numberings, those that are known by name alone, and, with 1 in the last column, what
epochs are called: in one statement, as one is asked with each question for a gap."""
DROP_BLOCKS = """DELETE FROM blocks WHERE kind IN (0, 1, 2) AND key IN
  (SELECT '' UNION SELECT key FROM streams WHERE zid = ?1 AND eid = ?2 AND epoch = ?3)
AND zid = ?1 AND eid = ?2 AND epoch = ?3"""
HAS_ZID = """SELECT 1 FROM numberings WHERE zid = ?
UNION ALL SELECT 1 FROM streams WHERE zid = ? AND eid = 0 LIMIT 1"""

_RUNS_TEXT_MAX = 4 << 20
"""Tails of a source that are read to answer one question: 0.1 s of work."""
_BLOCKS_READ_MAX = 5_000
"""Blocks that are read to answer one question: 0.1 s of work, some 150,000 numbers of many keys."""
_NO_BOUND = 1 << 62
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
    since: int = 0
    """`held` lacks what blocks hold, below; 0 where it is whole, as in all that the index gives."""

    @property
    def owner(self) -> Owner:
        key, source, epoch = self.stream
        return Owner(STREAM, escape(key), *source, epoch)


class NumberingKey(NamedTuple):
    """One epoch of a source."""

    source: SourceId
    epoch: int


class NumberingRuns:
    """What is held and skipped of one numbering, while a batch is being recorded."""

    __slots__ = ("held", "held_since", "newest", "replaces", "skipped", "skipped_since")

    def __init__(
        self,
        held: RangeSet,
        skipped: RangeSet,
        newest: int,
        held_since: int = 0,
        skipped_since: int = 0,
    ) -> None:
        self.held, self.skipped, self.newest = held, skipped, newest
        self.held_since, self.skipped_since = held_since, skipped_since
        """Where they begin; 0 where they are whole."""
        self.replaces = False
        """They are whole, and replace what blocks hold of them."""


def prepare(database: sqlite3.Connection) -> None:
    """Make the tables and views that are not there yet; idempotent.

    StorageCorrupt, never to be retried, where a later version wrote the index.
    """
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found > _FORMAT:
        raise StorageCorrupt(
            f"it is of format {found}, this is format {_FORMAT}; use the version that "
            "wrote it, or move it away and it is read anew from the backend"
        )
    database.executescript(_SCHEMA)
    for table, column in _SINCE:
        if column not in {row[1] for row in database.execute(f"PRAGMA table_info({table})")}:
            database.execute(f"ALTER TABLE {table} ADD {column} INTEGER NOT NULL DEFAULT 0")
    database.executescript(_VIEWS)
    if found < _FORMAT:
        database.execute(f"PRAGMA user_version = {_FORMAT}")


def json_rows(rows: Iterable[Iterable[object]]) -> str:
    """Write rows as the text that a statement's json_each takes apart."""
    return _json.encode([*rows]).decode()


def set_meta(database: sqlite3.Connection, name: str, value: str) -> None:
    """Put one of the index's own facts."""
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def put_streams(database: sqlite3.Connection, infos: Iterable[StreamInfo]) -> list[StreamInfo]:
    """Put what is known of streams in place of what was; return it with tails alone."""
    tails: list[StreamInfo] = []
    parted: list[tuple[object, ...]] = []
    for info in infos:
        tail = info
        if is_unnumbered(info.stream.source):  # a row for each number
            tail = info._replace(held=RangeSet())
        elif len(info.held) > blocks.TAIL_RUNS_MAX:
            since = blocks.shortened(info.owner, info.held, info.since, parted)
            tail = info._replace(since=since)
        tails.append(tail)
    rows = (
        (
            escape(info.stream.key),
            *info.stream.source,
            info.stream.epoch,
            runs_text(info.held),
            info.floor,
            info.purged,
            str(info.newest_ntp64),
            info.newest_received_ns,
            info.since,
        )
        for info in tails
    )
    database.execute(_PUT_STREAMS, (json_rows(rows),))
    blocks.put(database, parted)
    return tails


def is_held(read: blocks.Read, info: StreamInfo, sn: int) -> bool:
    """Tell whether a number of a stream is held, of which `info` may have the tail alone."""
    key, source, epoch = info.stream
    if is_unnumbered(source):
        return bool(read(_HAS_TIMESTAMP, (escape(key), source.zid, epoch, sn)))
    return sn in info.held or (sn < info.since and blocks.holds(read, info.owner, sn))


def put_timestamps(database: sqlite3.Connection, held: Mapping[Stream, RangeSet]) -> None:
    """Put the numbers of unnumbered samples, a row each: what one more costs is then the same,
    however many there are; those of numbered samples, whose runs are few, are passed over.
    """
    rows = (
        (escape(stream.key), stream.source.zid, stream.epoch, sn)
        for stream, runs in held.items()
        if is_unnumbered(stream.source)
        for first, last in runs
        for sn in range(first, last + 1)
    )
    database.execute(_PUT_TIMESTAMPS, (json_rows(rows),))


def drop_timestamps(database: sqlite3.Connection, stream: Stream, first: int, last: int) -> None:
    """Forget the numbers `first..last` of unnumbered samples."""
    if is_unnumbered(stream.source):
        name = (escape(stream.key), stream.source.zid, stream.epoch)
        database.execute(_DROP_TIMESTAMPS, (*name, first, last))


def put_numberings(
    database: sqlite3.Connection, numberings: Mapping[NumberingKey, NumberingRuns]
) -> None:
    """Put what is held and skipped of numberings in place of what was."""
    rows: list[tuple[object, ...]] = []
    parted: list[tuple[object, ...]] = []
    for (source, epoch), runs in numberings.items():
        held, skipped = (Owner(kind, "", *source, epoch) for kind in (HELD, SKIPPED))
        if runs.replaces:
            blocks.drop(database, held)
            blocks.drop(database, skipped)
        left = runs.skipped.difference(runs.held)
        held_since = blocks.shortened(held, runs.held, runs.held_since, parted)
        skipped_since = blocks.shortened(skipped, left, runs.skipped_since, parted)
        known = (runs_text(runs.held), runs_text(left), str(runs.newest))
        rows.append((*source, epoch, *known, held_since, skipped_since))
    database.execute(_PUT_NUMBERINGS, (json_rows(rows),))
    blocks.put(database, parted)


def read_numberings(
    read: blocks.Read, wanted: Iterable[NumberingKey]
) -> dict[NumberingKey, NumberingRuns]:
    """Return what is known of numberings, whole."""
    found = _read_numberings(read, "whole_numberings", wanted)
    for runs in found.values():
        runs.replaces = True
    return found


def read_tails(
    read: blocks.Read, skipped: Mapping[NumberingKey, int]
) -> dict[NumberingKey, NumberingRuns]:
    """Return the tails of numberings, those whole of which something below is to be skipped.

    What is skipped there may be held there, and no skip then.
    """
    found = _read_numberings(read, "numberings", skipped)
    deep = [at for at, it in found.items() if skipped[at] < max(it.held_since, it.skipped_since)]
    return found | read_numberings(read, deep) if deep else found


def _read_numberings(
    read: blocks.Read, table: str, wanted: Iterable[NumberingKey]
) -> dict[NumberingKey, NumberingRuns]:
    names = [(*numbering.source, numbering.epoch) for numbering in wanted]
    found = {numbering: no_runs() for numbering in wanted}
    rows = read(_GET_NUMBERINGS.format(table), (json_rows(names),))
    for zid, eid, epoch, held, skipped, newest, *since in rows:
        numbering = NumberingKey(SourceId(str(zid), int(eid)), int(epoch))
        found[numbering] = NumberingRuns(unpack(held), unpack(skipped), int(newest), *since)
    return found


def info_of(row: tuple[Any, ...]) -> StreamInfo:
    """Read a row of the streams."""
    key, zid, eid, epoch, held, *numbers = map(str, row)
    stream = Stream(unescape(key), SourceId(zid, int(eid)), int(epoch))
    return StreamInfo(stream, unpack(held), *map(int, numbers))


def streams_of_source(
    read: blocks.Read, source: SourceId, streams_max: int, sns: SnBounds
) -> list[StreamInfo] | None:
    """Return every stream of a source with at least what it holds of some numbers.

    None when they are more than `streams_max`, or have too many runs of these numbers.
    """
    first, last = sns.first or 0, _NO_BOUND if sns.last is None else sns.last
    rows = read(_SOURCES_STREAMS, (*source, streams_max + 1))
    if len(rows) > streams_max or sum(len(row[4]) for row in rows) > _RUNS_TEXT_MAX:
        return None
    infos = {info.stream: info for info in map(info_of, rows)}
    if any(info.since > first for info in infos.values()):
        parts = read(_SOURCES_BLOCKS, (*source, first, last, _BLOCKS_READ_MAX + 1))
        if len(parts) > _BLOCKS_READ_MAX:
            return None
        for key, epoch, runs in parts:
            infos[Stream(unescape(key), source, int(epoch))].held.update(unpack(runs))
    return [info._replace(since=0) for info in infos.values()]


def state_of(row: Sequence[Any]) -> NumberingState:
    """Read a row of a numbering with its name: none, or empty where one may be lost."""
    epoch, held, skipped, newest, name = row
    lost = name == ""
    return NumberingState(
        int(epoch), unpack(held), unpack(skipped), int(newest), name or "", name_lost=lost
    )


def name_run(database: sqlite3.Connection, run: Incarnation) -> None:
    """Let a run have the name that its samples bear, unless another epoch has it and held some."""
    (zid, eid), epoch, name = run
    database.execute(_LEAVE_NAME, (zid, eid, name))
    database.execute(_NAME_RUN, (zid, eid, epoch, name))


def runs_text(runs: RangeSet) -> str:
    """Write runs as `unpack` reads them; as text they cost a row's statement one look."""
    return _json.encode(runs.pairs()).decode()


def unpack(text: object) -> RangeSet:
    """Read runs."""
    return RangeSet(_runs.decode(str(text)))


def escape(key: str) -> str:
    """Write a key without NUL, which text in SQLite's JSON cannot hold."""
    return key.replace("\x1b", "\x1b1").replace("\x00", "\x1b0")


def unescape(text: str) -> str:
    """Return the key that `escape` wrote."""
    return text.replace("\x1b0", "\x00").replace("\x1b1", "\x1b")


def note_held(
    database: sqlite3.Connection,
    numberings: dict[NumberingKey, NumberingRuns],
    summaries: Mapping[Stream, StreamSummary],
) -> dict[NumberingKey, NumberingRuns]:
    """Count a batch's numbers as held in its numberings; samples without a number have none."""
    parts: dict[NumberingKey, list[StreamSummary]] = {}
    for stream, new in summaries.items():
        parts.setdefault(NumberingKey(stream.source, stream.epoch), []).append(new)
    for key, news in parts.items():
        runs = numberings.get(key)
        if runs is None:
            continue
        held, skipped = (Owner(kind, "", *key.source, key.epoch) for kind in (HELD, SKIPPED))
        numbers = RangeSet.union(new.runs for new in news)
        blocks.add(database, held, runs.held, runs.held_since, numbers)
        for first, last in numbers if runs.skipped or runs.skipped_since else ():
            blocks.remove(database, skipped, runs.skipped, runs.skipped_since, first, last)
        runs.newest = max(runs.newest, *(new.newest_published_ntp64 for new in news))
    return numberings


def skip_removed(runs: NumberingRuns, infos: Iterable[StreamInfo]) -> None:
    """Count numbers that only retention removed as skipped, not as held."""
    kept = RangeSet()
    for info in infos:
        kept.update(info.held)
        kept.add(0, info.purged - 1)
    runs.skipped.update(runs.held.difference(kept))
    runs.held = runs.held.difference(runs.skipped)


def numberings_of(streams: Iterable[Stream]) -> set[NumberingKey]:
    """Return the numberings of streams; unnumbered samples have none that anybody waits in."""
    return {
        NumberingKey(stream.source, stream.epoch)
        for stream in streams
        if not is_unnumbered(stream.source)
    }


def skipped_from(
    summaries: Mapping[Stream, StreamSummary], skips: Iterable[Skip]
) -> dict[NumberingKey, int]:
    """Return the numberings of a batch, each with the lowest number that is skipped of it."""
    found = dict.fromkeys(numberings_of(summaries), _NO_BOUND)
    for source, epoch, first, _ in skips:
        numbering = NumberingKey(source, epoch)
        found[numbering] = min(first, found.get(numbering, first))
    return found


def no_runs() -> NumberingRuns:
    return NumberingRuns(RangeSet(), RangeSet(), 0)


def alias_of(row: tuple[Any, ...]) -> Alias:
    """Read a row of the aliases, or of the agreements with 0 as the number they hold from."""
    zid, eid, stored, from_sn, epoch = row
    return Alias(SourceId(str(zid), int(eid)), int(stored), int(from_sn), int(epoch))


def alias_fact(alias: Alias) -> tuple[str, str]:
    """Return an alias as a name that is its own and a value that holds the whole."""
    fact = (*alias.source, alias.stored, alias.from_sn, alias.epoch)
    return json_text(fact[:4]), json_text(fact)


def agreement_fact(agreement: Alias) -> tuple[str, str]:
    fact = (*agreement.source, agreement.stored, agreement.epoch)
    return json_text(fact[:3]), json_text(fact)


def json_text(fact: object) -> str:
    return msgspec.json.encode(fact).decode()
