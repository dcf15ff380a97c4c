"""Which samples make one page, in the selection's order.

Identity order walks the streams and within each its numbers; time order and "newest" first pick
places from an index (time, stream, sn) and fetch the samples of the page alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

from sqlalchemy import Select, bindparam, select, true

from durable_cache.model.sample import Sample, SampleBatch, Stream, timestamp_id_number
from durable_cache.model.selection import Cursor, Order, Selection
from durable_cache.storage.contract import Page
from durable_cache_sql.snapshot import (
    Snapshot,
    bounds_of,
    c,
    filtered_by_time,
    is_ranged,
    is_timed,
)
from durable_cache_sql.streams import StreamRow, streams_by_id
from durable_cache_sql.tables import samples, zids

STREAMS_MERGED_MAX = 256
"""Up to so many streams are merged by time; beyond, the time index of the storage is walked."""
SCAN_ROWS = 4096
PICKS_MAX = 20_000
"""Places picked by one statement for "newest"."""
SMALL_STREAM = 1000
"""A stream from which at most so many samples can come is read together with its neighbours."""


class Pick(NamedTuple):
    """Where a sample stands and lies, without the sample."""

    place: tuple[int | bytes, ...]
    stream_id: int
    sn: int


def read_page(
    snapshot: Snapshot, selection: Selection, limit: int, cursor: Cursor | None, bytes_max: int
) -> Page:
    """Return one page; see `Storage.read`."""
    if selection.newest is not None:
        return _newest_page(snapshot, selection, limit, cursor)
    if selection.order is Order.TIME:
        return _time_page(snapshot, selection, limit, cursor)
    return _identity_page(snapshot, selection, limit, cursor, bytes_max)


def _identity_page(
    snapshot: Snapshot, selection: Selection, limit: int, cursor: Cursor | None, bytes_max: int
) -> Page:
    from_key = b"" if cursor is None else _key_of(cursor[0])
    page: list[Sample] = []
    size = 0
    for rows in _runs_of_streams(snapshot, selection, from_key, cursor, limit + 1):
        want = limit + 1 - len(page)
        cap = max(1, (bytes_max - size) * rows[0].samples // max(1, rows[0].bytes))
        found = _samples_of(snapshot, selection, rows, cursor, min(want, cap))
        page += found
        size += sum([len(sample.payload) for sample in found])
        if len(page) > limit:
            cut = page[:limit]
            return Page(SampleBatch(cut), cut[-1].order)
        if page and (size >= bytes_max or len(found) == cap):
            return Page(SampleBatch(page), page[-1].order)
    return Page(SampleBatch(page), None)


def _key_of(part: int | bytes) -> bytes:
    return cast("bytes", part)


def _samples_of(
    snapshot: Snapshot,
    selection: Selection,
    rows: Sequence[StreamRow],
    cursor: Cursor | None,
    limit: int,
) -> list[Sample]:
    bounds, timed = bounds_of(selection), is_timed(selection)
    if len(rows) > 1:
        return snapshot.of_streams(rows, bounds, timed)
    if cursor is not None and rows[0].order == cursor[:4]:
        after = cast("int", cursor[4])
        bounds["first"] = max(int(str(bounds["first"])), after + 1)
    return snapshot.of_stream(rows[0], bounds, timed, limit)


def _runs_of_streams(
    snapshot: Snapshot,
    selection: Selection,
    from_key: bytes,
    cursor: Cursor | None,
    samples_max: int,
) -> Iterator[list[StreamRow]]:
    """Yield streams in order: large ones and the cursor's alone, small ones together."""
    sns = selection.sns
    width = None
    if sns.first is not None and sns.last is not None:
        width = max(0, sns.last - sns.first + 1)
    small = min(samples_max, SMALL_STREAM)
    group: list[StreamRow] = []
    expected = 0
    start = None if cursor is None else cursor[:4]
    pages = snapshot.streams(selection, from_key)
    for rows in pages:
        for row in rows:
            if start is not None and row.order < start:
                continue
            most = row.samples if width is None else min(row.samples, width)
            alone = most > small or row.order == start
            if group and (alone or expected + most > samples_max):
                yield group
                group, expected = [], 0
            if alone:
                yield [row]
            else:
                group.append(row)
                expected += most
    if group:
        yield group


def _time_page(snapshot: Snapshot, selection: Selection, limit: int, cursor: Cursor | None) -> Page:
    streams: dict[int, StreamRow] = {}
    everything = selection.key_expr.text == "**" and selection.zid is None
    few = not everything
    if few:
        pages = snapshot.streams(selection)
        for rows in pages:
            streams.update((row.stream_id, row) for row in rows)
            if len(streams) > STREAMS_MERGED_MAX:
                few = False
                break
    picks: Iterable[Pick]
    if few:
        chunk = max(16, 2 * limit // max(1, len(streams)))
        picks = heapq.merge(
            *(
                _walk(snapshot, selection, cursor, chunk, streams, stream_id)
                for stream_id in sorted(streams)
            )
        )
    else:
        picks = _walk(snapshot, selection, cursor, min(2 * limit + 16, SCAN_ROWS), streams, None)
    return _page_of(snapshot, list(islice(picks, limit + 1)), limit, streams)


def _page_of(
    snapshot: Snapshot, picks: Sequence[Pick], limit: int, streams: dict[int, StreamRow]
) -> Page:
    chosen = picks[:limit]
    by_id: dict[int, Stream] = {p.stream_id: streams[p.stream_id].stream for p in chosen}
    found = snapshot.at_places([(pick.stream_id, pick.sn) for pick in chosen], by_id)
    more = len(picks) > limit
    return Page(SampleBatch(found), chosen[-1].place if more else None)


def _walk(
    snapshot: Snapshot,
    selection: Selection,
    cursor: Cursor | None,
    chunk: int,
    streams: dict[int, StreamRow],
    stream_id: int | None,
) -> Iterator[Pick]:
    """Yield picks in time order after the cursor, of one stream or of the whole storage.

    Samples of one timestamp are never split between two statements.
    """
    low = selection.times.first
    if cursor is not None:
        low = max(low, cast("int", cursor[0]))
    owner = snapshot.storage_id if stream_id is None else stream_id
    single = stream_id is not None
    ranged = is_ranged(selection)
    edge = snapshot.database.prepare(("edge", single, ranged), lambda: _edge(single, ranged))
    scan = snapshot.database.prepare(("scan", single, ranged), lambda: _scan(single, ranged))
    while low <= selection.times.last:
        bounds = bounds_of(selection)
        bounds |= {"low_s": low >> 32, "low_f": low & 0xFFFFFFFF, "owner": owner, "n": chunk}
        end = snapshot.rows(edge, bounds)
        if end:
            bounds |= {"high_s": end[0][0], "high_f": end[0][1]}
        picks = _picks(snapshot, snapshot.rows(scan, bounds), streams, selection)
        picks.sort()
        yield from (pick for pick in picks if cursor is None or pick.place > cursor)
        if not end:
            return
        low = (end[0][0] << 32 | end[0][1]) + 1


def _owned(statement: Select[Any], single: bool, ranged: bool) -> Select[Any]:
    owner = c.stream_id if single else c.storage_id
    return filtered_by_time(statement.where(owner == bindparam("owner")), ranged)


def _edge(single: bool, ranged: bool) -> Select[Any]:
    """The time of the last row of a chunk; none when fewer are left."""
    found = _owned(select(c.seconds, c.fraction), single, ranged)
    return found.order_by(c.seconds, c.fraction).limit(1).offset(bindparam("n"))


def _scan(single: bool, ranged: bool) -> Select[Any]:
    places = (c.seconds, c.fraction, c.stamp_id, c.stream_id, c.sn)
    return _owned(select(*places), single, ranged)


def _picks(
    snapshot: Snapshot,
    rows: Sequence[tuple[Any, ...]],
    streams: dict[int, StreamRow],
    selection: Selection,
) -> list[Pick]:
    """Give light rows their place; rows of streams outside the selection drop out."""
    unknown = {row[3] for row in rows} - streams.keys()
    if unknown:
        found = streams_by_id(snapshot.database, snapshot.connection, sorted(unknown))
        streams.update(found)
    stamps = snapshot.dictionary.zid_texts(snapshot.connection, {row[2] for row in rows})
    numbers = {stamp_id: timestamp_id_number(text) for stamp_id, text in stamps.items()}
    held = {row[3]: selection.names(streams[row[3]].stream) for row in rows}
    return [
        Pick(
            (s << 32 | f, numbers[stamp_id], *streams[stream_id].order, sn),
            stream_id,
            sn,
        )
        for s, f, stamp_id, stream_id, sn in rows
        if held[stream_id]
    ]


def _newest_page(
    snapshot: Snapshot, selection: Selection, limit: int, cursor: Cursor | None
) -> Page:
    by_key = selection.order is Order.IDENTITY
    from_key = _key_of(cursor[0]) if by_key and cursor is not None else b""
    streams: dict[int, StreamRow] = {}
    best: list[tuple[tuple[int | bytes, ...], Pick]] = []
    for group in _groups_of_keys(snapshot, selection, from_key):
        mine = {row.stream_id: row for row in group}
        for pick in _newest_of(snapshot, selection, mine):
            at = (*pick.place[2:6], pick.sn) if by_key else pick.place
            if cursor is None or at > cursor:
                best.append((at, pick))
        streams.update(mine)
        if by_key and len(best) > limit:
            break
        if len(best) > 4 * (limit + PICKS_MAX):
            best = heapq.nsmallest(limit + 1, best)
            streams = {pick.stream_id: streams[pick.stream_id] for _, pick in best}
    best = heapq.nsmallest(limit + 1, best)
    chosen = [Pick(at, pick.stream_id, pick.sn) for at, pick in best]
    return _page_of(snapshot, chosen, limit, streams)


def _groups_of_keys(
    snapshot: Snapshot, selection: Selection, from_key: bytes
) -> Iterator[list[StreamRow]]:
    """Yield whole keys, as many together as one statement may pick from."""
    newest = selection.newest or 1
    group: list[StreamRow] = []
    expected = 0
    pages = snapshot.streams(selection, from_key)
    for rows in pages:
        for row in rows:
            if expected >= PICKS_MAX and row.stream.key != group[-1].stream.key:
                yield group
                group, expected = [], 0
            group.append(row)
            expected += min(newest, row.samples)
        if group:
            yield group
        group, expected = [], 0


def _newest_of(
    snapshot: Snapshot, selection: Selection, streams: dict[int, StreamRow]
) -> Iterator[Pick]:
    ranged, timed = is_ranged(selection), is_timed(selection)
    statement = snapshot.database.prepare(
        ("newest", ranged, timed), lambda: _newest_places(snapshot, ranged, timed)
    )
    newest = selection.newest or 1
    bound = bounds_of(selection) | {"n": newest}
    bound |= snapshot.database.bind("ids", (int,), [sorted(streams)])
    by_key: dict[str, list[Pick]] = {}
    for pick in _picks(snapshot, snapshot.rows(statement, bound), streams, selection):
        by_key.setdefault(streams[pick.stream_id].stream.key, []).append(pick)
    for picks in by_key.values():
        yield from heapq.nlargest(newest, picks)


def _newest_places(snapshot: Snapshot, ranged: bool, timed: bool) -> Select[Any]:
    """The newest `n` of each stream in `ids`, through the index of its times."""
    ids = snapshot.database.table("ids", int)
    own = samples.alias("own")
    number = select(zids.c.number).where(zids.c.id == own.c.stamp_id).correlate(own)
    columns = (own.c.seconds, own.c.fraction, own.c.stamp_id, own.c.stream_id, own.c.sn)
    inner = (
        filtered_by_time(select(*columns).where(own.c.stream_id == ids.c.c0), ranged, timed, own.c)
        .order_by(
            own.c.seconds.desc(),
            own.c.fraction.desc(),
            number.scalar_subquery().desc(),
            own.c.sn.desc(),
        )
        .limit(bindparam("n"))
        .correlate(ids)
    )
    if snapshot.database.lateral:
        top = inner.lateral("top")
        return select(*top.c).select_from(ids).join(top, true())
    numbers = inner.with_only_columns(own.c.sn, maintain_column_froms=True)
    return select(c.seconds, c.fraction, c.stamp_id, c.stream_id, c.sn).join_from(
        ids, samples, (c.stream_id == ids.c.c0) & c.sn.in_(numbers.scalar_subquery())
    )
