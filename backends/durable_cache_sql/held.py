"""What is held, as unbroken runs that the engine makes from gaps and islands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Select, func, select

from durable_cache.model.ranges import RangeSet
from durable_cache.storage.contract import Held
from durable_cache_sql.snapshot import Snapshot
from durable_cache_sql.streams import StreamRow
from durable_cache_sql.tables import samples

SAMPLES_TOGETHER = 200_000
c = samples.c


def held_of(snapshot: Snapshot) -> Iterator[Held]:
    """Yield every stream that holds something, in order; a scan in bounded statements."""
    group: list[StreamRow] = []
    pages = snapshot.streams(None)
    for rows in pages:
        expected = 0
        for row in rows:
            if group and expected + row.samples > SAMPLES_TOGETHER:
                yield from _held(snapshot, group)
                group, expected = [], 0
            group.append(row)
            expected += row.samples
        if group:
            yield from _held(snapshot, group)
        group = []


def _held(snapshot: Snapshot, group: Sequence[StreamRow]) -> Iterator[Held]:
    ids = snapshot.database.bind("ids", (int,), [[row.stream_id for row in group]])
    starts = snapshot.database.prepare("runs", lambda: _runs(snapshot))
    newest = snapshot.database.prepare("newest held", lambda: _newest(snapshot))
    runs: dict[int, RangeSet] = {row.stream_id: RangeSet() for row in group}
    for stream_id, first, last in snapshot.rows(starts, ids):
        runs[stream_id].add(first, last)
    tops = {row[0]: row[1:] for row in snapshot.rows(newest, ids)}
    for row in group:
        if row.stream_id in tops:
            received, seconds, fraction = tops[row.stream_id]
            ntp64 = seconds << 32 | fraction
            yield Held(row.stream, runs[row.stream_id], ntp64, received)


def _wanted(snapshot: Snapshot) -> Any:
    return c.stream_id.in_(select(snapshot.database.table("ids", int).c.c0))


def _runs(snapshot: Snapshot) -> Select[Any]:
    number = func.row_number().over(partition_by=c.stream_id, order_by=c.sn)
    island = (c.sn - number).label("island")
    numbered = select(c.stream_id, c.sn, island).where(_wanted(snapshot)).subquery("numbered")
    n = numbered.c
    ends = select(n.stream_id, func.min(n.sn).label("first"), func.max(n.sn).label("last"))
    return ends.group_by(n.stream_id, n.island).order_by(n.stream_id, "first")


def _newest(snapshot: Snapshot) -> Select[Any]:
    top = (
        select(c.stream_id, func.max(c.received_ns).label("received"))
        .where(_wanted(snapshot))
        .group_by(c.stream_id)
        .subquery("top")
    )
    own = samples.alias("own")

    def latest(column: Any) -> Any:
        found = select(column).where(own.c.stream_id == top.c.stream_id)
        found = found.order_by(own.c.seconds.desc(), own.c.fraction.desc()).limit(1)
        return found.correlate(top).scalar_subquery().label(column.name)

    return select(top.c.stream_id, top.c.received, latest(own.c.seconds), latest(own.c.fraction))
