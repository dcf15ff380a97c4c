"""Which prefix of each stream must go, and how it goes in transactions of bounded size.

The counters of the streams say who is above a limit, so that a stream within it costs nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Select, and_, bindparam, delete, func, select

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Stream
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Floor, Retention
from durable_cache_sql.append import add_counts
from durable_cache_sql.database import Database
from durable_cache_sql.snapshot import SN_END, Snapshot
from durable_cache_sql.streams import StreamRow
from durable_cache_sql.tables import samples, streams

STREAMS_TOGETHER = 1000
HEADS_READ = 256
c = samples.c


def floors_of(snapshot: Snapshot, retention: Retention, now_ns: int) -> list[tuple[int, Floor]]:
    """Return (stream_id, floor) of every stream that must lose samples."""
    floors: dict[int, int] = {}
    known: dict[int, Stream] = {}
    for rows in _streams(snapshot):
        found: dict[int, int] = {}
        if retention.samples_max is not None:
            found = _beyond_count(snapshot, rows, retention.samples_max)
        if retention.age_seconds_max is not None:
            oldest_ns = now_ns - round(retention.age_seconds_max * 1e9)
            found |= _too_old(snapshot, rows, found, oldest_ns)
        floors |= found
        known.update((row.stream_id, row.stream) for row in rows if row.stream_id in found)
    if retention.bytes_max is not None:
        for row, floor in _beyond_bytes(snapshot, retention.bytes_max, floors):
            floors[row.stream_id] = floor
            known[row.stream_id] = row.stream
    return [(stream_id, Floor(known[stream_id], sn)) for stream_id, sn in floors.items()]


def _streams(snapshot: Snapshot) -> Iterator[list[StreamRow]]:
    pages = snapshot.streams(None)
    for rows in pages:
        for begin in range(0, len(rows), STREAMS_TOGETHER):
            yield rows[begin : begin + STREAMS_TOGETHER]


def _beyond_count(
    snapshot: Snapshot, rows: Sequence[StreamRow], samples_max: int
) -> dict[int, int]:
    """The floor of each stream with more than `samples_max`: steps over what goes, no more."""
    statement = snapshot.database.prepare(
        "beyond count",
        lambda: (
            select(c.sn)
            .where(c.stream_id == bindparam("stream"))
            .order_by(c.sn)
            .limit(1)
            .offset(bindparam("n"))
        ),
    )
    floors: dict[int, int] = {}
    for row in rows:
        over = row.samples - samples_max
        if over > 0:  # the last one that goes, for there may be none that stays
            bound = {"stream": row.stream_id, "n": over - 1}
            last = snapshot.rows(statement, bound)[0][0]
            after = snapshot.rows(statement, {**bound, "n": over})
            floors[row.stream_id] = after[0][0] if after else last + 1
    return floors


def _too_old(
    snapshot: Snapshot, rows: Sequence[StreamRow], floors: dict[int, int], oldest_ns: int
) -> dict[int, int]:
    """The first young sn of each stream whose first sample from its floor on is too old."""

    def build() -> Select[Any]:
        table = snapshot.database.table("begins", int, int)
        own = samples.alias("own")

        def edge(*conditions: Any, last: bool = False) -> Any:
            found = select(own.c.sn).where(
                own.c.stream_id == table.c.c0, own.c.sn >= table.c.c1, *conditions
            )
            found = found.order_by(own.c.sn.desc() if last else own.c.sn).limit(1)
            return found.correlate(table).scalar_subquery()

        young = edge(own.c.received_ns >= bindparam("oldest"))
        floors = select(
            table.c.c0.label("stream_id"),
            edge().label("first"),
            func.coalesce(young, edge(last=True) + 1).label("floor"),
        ).subquery("floors")
        return select(floors.c.stream_id, floors.c.floor).where(floors.c.floor > floors.c.first)

    statement = snapshot.database.prepare("too old", build)
    ids = [row.stream_id for row in rows]
    begins = [floors.get(stream_id, 0) for stream_id in ids]
    bound = snapshot.database.bind("begins", (int, int), [ids, begins])
    return dict(snapshot.rows(statement, {**bound, "oldest": oldest_ns}))


class _Head(NamedTuple):
    """The next sample of a stream to go."""

    received_ns: int
    order: tuple[bytes, int, int, int]
    sn: int
    size: int
    row: StreamRow
    later: Iterator[tuple[int, int, int]]


def _beyond_bytes(
    snapshot: Snapshot, bytes_max: int, floors: dict[int, int]
) -> list[tuple[StreamRow, int]]:
    """Drop heads of streams, the head received first going first, until the rest fits."""
    if not floors and _total(snapshot) <= bytes_max:
        return []
    rows = [row for page in _streams(snapshot) for row in page]
    total = sum(row.bytes for row in rows)
    total -= sum(_bytes_below(snapshot, stream_id, sn) for stream_id, sn in floors.items())
    if total <= bytes_max:
        return []
    heads: list[_Head] = []
    for row in rows:
        _push(heads, row, _from(snapshot, row.stream_id, floors.get(row.stream_id, 0)))
    gone: dict[int, tuple[StreamRow, int]] = {}
    while total > bytes_max and heads:
        head = heapq.heappop(heads)
        total -= head.size
        gone[head.row.stream_id] = (head.row, head.sn + 1)
        _push(heads, head.row, head.later, gone)
    return list(gone.values())


def _push(
    heads: list[_Head],
    row: StreamRow,
    later: Iterator[tuple[int, int, int]],
    gone: dict[int, tuple[StreamRow, int]] | None = None,
) -> None:
    following = next(later, None)
    if following is None:
        return
    sn, received_ns, size = following
    if gone is not None:
        gone[row.stream_id] = (row, sn)
    heapq.heappush(heads, _Head(received_ns, row.order, sn, size, row, later))


def _total(snapshot: Snapshot) -> int:
    statement = snapshot.database.prepare(
        "total bytes",
        lambda: select(func.coalesce(func.sum(streams.c.bytes), 0).label("total")).where(
            streams.c.storage_id == bindparam("storage")
        ),
    )
    return int(snapshot.rows(statement, {"storage": snapshot.storage_id})[0][0])


def _size() -> Any:
    return func.length(c.payload) + func.coalesce(func.length(c.attachment), 0)


def _bytes_below(snapshot: Snapshot, stream_id: int, sn: int) -> int:
    statement = snapshot.database.prepare(
        "bytes below",
        lambda: select(func.coalesce(func.sum(_size()), 0).label("total")).where(
            c.stream_id == bindparam("stream"), c.sn < bindparam("sn")
        ),
    )
    return int(snapshot.rows(statement, {"stream": stream_id, "sn": sn})[0][0])


def _from(snapshot: Snapshot, stream_id: int, first: int) -> Iterator[tuple[int, int, int]]:
    """Yield (sn, received_ns, size) of a stream from `first` on, a page at a time."""
    statement = snapshot.database.prepare(
        "heads",
        lambda: (
            select(c.sn, c.received_ns, _size().label("size"))
            .where(c.stream_id == bindparam("stream"), c.sn >= bindparam("first"))
            .order_by(c.sn)
            .limit(bindparam("n"))
        ),
    )
    n = 1
    while True:
        rows = snapshot.rows(statement, {"stream": stream_id, "first": first, "n": n})
        yield from cast("list[tuple[int, int, int]]", rows)
        if len(rows) < n:
            return
        first = rows[-1][0] + 1
        n = HEADS_READ


_CHUNK = (
    select(c.sn, _size().label("size"))
    .where(c.stream_id == bindparam("stream"), c.sn < bindparam("sn"))
    .order_by(c.sn)
    .limit(bindparam("n"))
    .subquery("chunk")
)


def remove_below(
    database: Database, connection: Connection, stream_id: int, sn: int, limit: int
) -> int:
    """Remove at most `limit` samples below `sn`, lowest first; returns how many went."""
    end = database.prepare(
        "end of chunk",
        lambda: select(
            func.count().label("samples"),
            func.coalesce(func.max(_CHUNK.c.sn), -1).label("last"),
            func.coalesce(func.sum(_CHUNK.c.size), 0).label("bytes"),
        ).select_from(_CHUNK),
    )
    bound = {"stream": stream_id, "sn": min(sn, SN_END), "n": limit}
    ((count, last, size),) = database.rows(connection, end, bound)
    if not count:
        return 0
    statement = database.prepare(
        "remove",
        lambda: delete(samples).where(
            and_(c.stream_id == bindparam("stream"), c.sn <= bindparam("last"))
        ),
    )
    database.run(connection, statement, {"stream": stream_id, "last": last})
    add_counts(database, connection, [(stream_id, -count, -int(size))])
    return int(count)


def stream_ids_of(snapshot: Snapshot, wanted: Sequence[Stream]) -> dict[Stream, int]:
    """Return the numbers of the streams among `wanted` that hold something."""
    found: dict[Stream, int] = {}
    for key in {stream.key for stream in wanted}:
        pages = snapshot.streams(Selection(KeyExpression(key)))
        found.update((row.stream, row.stream_id) for rows in pages for row in rows)
    return {stream: found[stream] for stream in wanted if stream in found}
