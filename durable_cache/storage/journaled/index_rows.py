"""What the stream index's tables look like, and how a row becomes what it says.

Many rows go in or out in one statement, through json_each: a statement a row would hand the
interpreter's lock to and fro for every row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream

__all__ = [
    "GET_NUMBERINGS",
    "GET_STREAMS",
    "SCHEMA",
    "NumberingKey",
    "NumberingRuns",
    "StreamInfo",
    "escape",
    "info_of",
    "json_rows",
    "put_numberings",
    "put_streams",
    "set_meta",
    "unpack",
]

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numberings (
  zid TEXT, eid INTEGER, epoch INTEGER, held TEXT, skipped TEXT, newest TEXT,
  PRIMARY KEY (zid, eid, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS streams (
  key TEXT, zid TEXT, eid INTEGER, epoch INTEGER, held TEXT, floor INTEGER, purged INTEGER,
  newest TEXT, received INTEGER, PRIMARY KEY (key, zid, eid, epoch)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS streams_by_source ON streams (zid, eid, epoch);
CREATE TABLE IF NOT EXISTS aliases (
  zid TEXT, eid INTEGER, stored INTEGER, from_sn INTEGER, epoch INTEGER,
  PRIMARY KEY (zid, eid, stored, from_sn)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS agreements (
  zid TEXT, eid INTEGER, loser INTEGER, winner INTEGER,
  PRIMARY KEY (zid, eid, loser)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS incarnations (
  zid TEXT, eid INTEGER, epoch INTEGER, incarnation TEXT,
  PRIMARY KEY (zid, eid, epoch)) WITHOUT ROWID;
"""
_PUT_STREAMS = """INSERT INTO streams
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
  value ->> 7, value ->> 8 FROM json_each(?) WHERE true
ON CONFLICT (key, zid, eid, epoch) DO UPDATE SET held = excluded.held, floor = excluded.floor,
  purged = excluded.purged, newest = excluded.newest, received = excluded.received"""
GET_STREAMS = """SELECT s.* FROM json_each(?) AS w CROSS JOIN streams AS s
ON s.key = w.value ->> 0 AND s.zid = w.value ->> 1 AND s.eid = w.value ->> 2
  AND s.epoch = w.value ->> 3"""
_PUT_NUMBERINGS = """INSERT OR REPLACE INTO numberings
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(?)"""
GET_NUMBERINGS = """SELECT n.* FROM json_each(?) AS w CROSS JOIN numberings AS n
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


class NumberingKey(NamedTuple):
    """One epoch of a source."""

    source: SourceId
    epoch: int


class NumberingRuns:
    """What is held and skipped of one numbering, while a batch is being recorded."""

    __slots__ = ("held", "newest", "skipped")

    def __init__(self, held: RangeSet, skipped: RangeSet, newest: int) -> None:
        self.held, self.skipped, self.newest = held, skipped, newest


def json_rows(rows: Iterable[Iterable[object]]) -> str:
    """Write rows as the text that a statement's json_each takes apart."""
    return _json.encode([*rows]).decode()


def set_meta(database: sqlite3.Connection, name: str, value: str) -> None:
    """Put one of the index's own facts."""
    database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def put_streams(database: sqlite3.Connection, infos: Iterable[StreamInfo]) -> None:
    """Put what is known of streams in place of what was."""
    rows = (
        (
            escape(info.stream.key),
            *info.stream.source,
            info.stream.epoch,
            list(info.held),
            info.floor,
            info.purged,
            str(info.newest_ntp64),
            info.newest_received_ns,
        )
        for info in infos
    )
    database.execute(_PUT_STREAMS, (json_rows(rows),))


def put_numberings(
    database: sqlite3.Connection, numberings: Mapping[NumberingKey, NumberingRuns]
) -> None:
    """Put what is held and skipped of numberings in place of what was."""
    rows = (
        (
            *numbering.source,
            numbering.epoch,
            list(runs.held),
            list(runs.skipped.difference(runs.held)),
            str(runs.newest),
        )
        for numbering, runs in numberings.items()
    )
    database.execute(_PUT_NUMBERINGS, (json_rows(rows),))


def info_of(row: tuple[Any, ...]) -> StreamInfo:
    """Read a row of the streams."""
    key, zid, eid, epoch, held, floor, purged, newest, received = map(str, row)
    stream = Stream(_unescape(key), SourceId(zid, int(eid)), int(epoch))
    return StreamInfo(stream, unpack(held), int(floor), int(purged), int(newest), int(received))


def unpack(text: object) -> RangeSet:
    """Read runs."""
    return RangeSet(_runs.decode(str(text)))


def escape(key: str) -> str:
    """Write a key without NUL, which text in SQLite's JSON cannot hold."""
    return key.replace("\x1b", "\x1b1").replace("\x00", "\x1b0")


def _unescape(text: str) -> str:
    return text.replace("\x1b0", "\x00").replace("\x1b1", "\x1b")
