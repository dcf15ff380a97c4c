"""What people ask the stream index while a cache runs: a bounded page of it at a time.

A page costs the same however many streams there are: it seeks to where the page before it ended.
What is still in the journal alone is not in the index yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.index_rows import NumberingKey, escape, unescape, unpack

COUNTED_MAX = 10_000
"""Samples without a number are a row each: of one stream so many are counted, no more."""
_KEYS_LOOKED_MAX = 20_000
_CHUNK = 2_000


class StreamLook(NamedTuple):
    """One stream as people see it."""

    stream: Stream
    samples: int
    """At most COUNTED_MAX of a source without numbers."""
    held: RangeSet
    """Empty for a source without numbers."""
    last: int
    floor: int
    newest_ntp64: int


class NumberingLook(NamedTuple):
    """One numbering as people see it, all its keys together."""

    source: SourceId
    epoch: int
    held: RangeSet
    skipped: RangeSet
    newest_ntp64: int

    @property
    def missing(self) -> RangeSet:
        """The numbers between the first and the last that are neither here nor given up."""
        first, last = self.held.first, self.held.last
        if first is None or last is None:
            return RangeSet()
        return self.held.gaps(first, last).difference(self.skipped)


def keys_page(
    index: StreamIndex, key_expr: KeyExpression, source: SourceId | None, after: str, limit: int
) -> tuple[list[str], str | None]:
    """Return up to `limit` keys behind `after` in order, and the key where the next page begins.

    That key is None at the end. At most 20,000 keys are looked at, so a page of an expression that
    names few may be short, or empty, and still have a next one.
    """
    low = escape(key_expr.prefix)
    beyond = _beyond(low)
    at = escape(after) if after else ""
    more = ("" if beyond is None else "AND key < ? ") + (
        "" if source is None else "AND zid = ? AND eid = ? "
    )
    statement = (
        f"SELECT DISTINCT key FROM streams WHERE key > ? AND key >= ? {more}"  # noqa: S608
        "ORDER BY key LIMIT ?"
    )
    bounds = (low, *(() if beyond is None else (beyond,)), *(source or ()))
    found: list[str] = []
    for _ in range(0, _KEYS_LOOKED_MAX, _CHUNK):
        rows = index.rows(statement, (at, *bounds, _CHUNK))
        for (text,) in rows:
            at = str(text)
            key = unescape(at)
            if key_expr.matches(key):
                found.append(key)
                if len(found) == limit:
                    return found, key
        if len(rows) < _CHUNK:
            return found, None
    return found, unescape(at)


def _beyond(prefix: str) -> str | None:
    """Return the first text that sorts after all that begin so; None where there is none."""
    text = prefix.rstrip("\U0010ffff")
    if not text:
        return None
    after = ord(text[-1]) + 1
    return text[:-1] + chr(0xE000 if 0xD800 <= after < 0xE000 else after)


def streams_of(index: StreamIndex, key: str, limit: int) -> list[StreamLook]:
    """Return up to `limit` streams of one key."""
    rows = index.rows(
        "SELECT key, zid, eid, epoch, CASE eid WHEN 0 THEN '[]' ELSE held END, "
        "max(floor, purged), newest FROM whole_streams WHERE key = ? LIMIT ?",
        (escape(key), limit),
    )
    return [_stream_of(index, row) for row in rows]


def _stream_of(index: StreamIndex, row: tuple[Any, ...]) -> StreamLook:
    key, zid, eid, epoch, held, floor, newest = row
    stream = Stream(unescape(str(key)), SourceId(str(zid), int(eid)), int(epoch))
    floor, newest = int(floor), int(newest)
    if not is_unnumbered(stream.source):
        runs = unpack(held)
        return StreamLook(stream, runs.count, runs, runs.last or 0, floor, newest)
    last = index.rows(
        "SELECT coalesce(max(sn), 0) FROM timestamps WHERE key = ? AND zid = ? AND epoch = ?",
        (escape(stream.key), stream.source.zid, stream.epoch),
    )
    samples = counted_above(index, stream, -1)
    return StreamLook(stream, samples, RangeSet(), int(last[0][0]), floor, newest)


def counted_above(index: StreamIndex, stream: Stream, sn: int) -> int:
    """Return how many samples without a number lie above `sn`, at most COUNTED_MAX."""
    rows = index.rows(
        "SELECT count(*) FROM (SELECT 1 FROM timestamps "
        "WHERE key = ? AND zid = ? AND epoch = ? AND sn > ? LIMIT ?)",
        (escape(stream.key), stream.source.zid, stream.epoch, sn, COUNTED_MAX),
    )
    return int(rows[0][0])


def timestamps_between(index: StreamIndex, stream: Stream, first: int, last: int) -> RangeSet:
    """Return which numbers of `first..last` a stream of samples without a number holds."""
    rows = index.rows(
        "SELECT sn FROM timestamps WHERE key = ? AND zid = ? AND epoch = ? AND sn BETWEEN ? AND ?",
        (escape(stream.key), stream.source.zid, stream.epoch, first, last),
    )
    return RangeSet.of(int(sn) for (sn,) in rows)


def numberings_page(
    index: StreamIndex, zid: str | None, eid: int | None, after: tuple[str, int, int], limit: int
) -> list[NumberingLook]:
    """Return up to `limit` numberings behind `after` (zid, eid, epoch), as SQLite orders them."""
    named = ("" if zid is None else "AND zid = ? ") + ("" if eid is None else "AND eid = ? ")
    values = [value for value in (zid, eid) if value is not None]
    rows = index.rows(
        f"SELECT * FROM whole_numberings WHERE (zid, eid, epoch) > (?, ?, ?) {named}"  # noqa: S608
        "ORDER BY zid, eid, epoch LIMIT ?",
        (*after, *values, limit),
    )
    return [_numbering_of(row) for row in rows]


def numberings_of_key(index: StreamIndex, streams: list[StreamLook]) -> list[NumberingLook]:
    """Return the numberings of streams, one each."""
    names = {NumberingKey(look.stream.source, look.stream.epoch): None for look in streams}
    found = []
    for source, epoch in names:
        rows = index.rows(
            "SELECT * FROM whole_numberings WHERE zid = ? AND eid = ? AND epoch = ?",
            (*source, epoch),
        )
        found += [_numbering_of(row) for row in rows]
    return found


def _numbering_of(row: tuple[Any, ...]) -> NumberingLook:
    zid, eid, epoch, held, skipped, newest = row
    source = SourceId(str(zid), int(eid))
    return NumberingLook(source, int(epoch), unpack(held), unpack(skipped), int(newest))
