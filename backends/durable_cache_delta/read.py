"""How is a page cut from the live files without reading them all?

The index says which streams and how many numbers may be on the page; the spans of the files say
which of them to open. By identity the streams are taken in order, so much at a time; by time the
files are taken oldest first, until no later one can matter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from durable_cache.model.newest import NewestPlaces
from durable_cache.model.sample import (
    Sample,
    SampleBatch,
    key_bytes,
    timestamp_id_number,
    zid_number,
)
from durable_cache.model.selection import Cursor, Order, Selection, TimeBounds
from durable_cache.storage.contract import Page
from durable_cache_delta.files import DataFile
from durable_cache_delta.index import Wanted
from durable_cache_delta.rows import IDENTITY, READ_COLUMNS, samples_of, unsigned
from durable_cache_delta.scanner import Scanner, count_up

Planner = Callable[[Selection, Cursor | None], Iterator[Wanted]]
"""What of a selection is held after a place in identity order."""

_CHUNK_ROWS = 50_000
"""Numbers looked at first when only the rows know whether they belong to the page."""
_TIME_COLUMNS = ("ntp64", "timestamp_id")


class _Row(NamedTuple):
    """One candidate: where it stands in the order, and where it lies."""

    place: Cursor
    file: int
    row: int


def read_page(
    scanner: Scanner,
    files: Sequence[DataFile],
    wanted: Planner,
    selection: Selection,
    limit: int,
    cursor: Cursor | None,
) -> Page:
    """Return the first `limit` samples after `cursor`, in the selection's order."""
    if selection.order is Order.IDENTITY:
        rows = _by_identity(scanner, files, wanted, selection, limit, cursor)
    else:
        rows = _by_time(scanner, files, wanted, selection, limit, cursor)
    page = rows[:limit]
    return Page(
        SampleBatch(_load(scanner, files, page)), page[-1].place if len(rows) > limit else None
    )


def _by_identity(
    scanner: Scanner,
    files: Sequence[DataFile],
    wanted: Planner,
    selection: Selection,
    limit: int,
    cursor: Cursor | None,
) -> list[_Row]:
    """Take streams in order, more at each turn, until the page and one row more are found."""
    newest = selection.newest
    # The newest of a key are chosen from all of its rows: begin at the cursor's key.
    start = cursor if cursor is None or newest is None else (cursor[0], -1, -1, -1, -1)
    exact = newest is None and selection.times == TimeBounds()
    budget = limit + 1 if exact else max(_CHUNK_ROWS, limit + 1)
    found: list[_Row] = []
    for chunk in _chunks(wanted(selection, start), budget, by_key=newest is not None):
        if newest is None:
            rows = _rows_of(scanner, files, chunk, selection.times)
        else:
            rows = _newest(scanner, files, chunk, selection.times, newest)
            rows = (_Row(row.place[2:], row.file, row.row) for row in rows)
        later = rows if cursor is None else (row for row in rows if row.place > cursor)
        found.extend(heapq.nsmallest(limit + 1, later))
        if len(found) > limit:
            break
    return found


def _chunks(wanted: Iterable[Wanted], rows: int, *, by_key: bool) -> Iterator[list[Wanted]]:
    """Cut a plan into parts of about `rows` numbers, each twice the last."""
    chunk: list[Wanted] = []
    count = 0
    for want in wanted:
        ends_key = not chunk or want.stream.key != chunk[-1].stream.key
        if count >= rows and (ends_key or not by_key):
            yield chunk
            chunk, count, rows = [], 0, rows * 2
        chunk.append(want)
        count += want.held
    if chunk:
        yield chunk


def _rows_of(
    scanner: Scanner, files: Sequence[DataFile], wanted: Sequence[Wanted], times: TimeBounds
) -> Iterator[_Row]:
    for at, file in enumerate(files):
        found = scanner.find(file, wanted, times)
        if found is not None:
            yield from _identity_rows(at, found.rows)


def _identity_rows(at: int, rows: pa.Table) -> Iterator[_Row]:
    columns = [rows.column(name).to_pylist() for name in (*IDENTITY, "row")]
    for key, zid, eid, epoch, sn, row in zip(*columns, strict=True):
        yield _Row((key_bytes(key), zid_number(zid), eid, epoch, sn), at, row)


def _time_rows(at: int, rows: pa.Table) -> Iterator[_Row]:
    columns = [rows.column(name).to_pylist() for name in (*IDENTITY, "timestamp_id", "row")]
    columns.append(unsigned(rows.column("ntp64")).to_pylist())
    for key, zid, eid, epoch, sn, stamp_id, row, ntp64 in zip(*columns, strict=True):
        identity = (key_bytes(key), zid_number(zid), eid, epoch, sn)
        yield _Row((ntp64, timestamp_id_number(stamp_id), *identity), at, row)


def _by_time(
    scanner: Scanner,
    files: Sequence[DataFile],
    wanted: Planner,
    selection: Selection,
    limit: int,
    cursor: Cursor | None,
) -> list[_Row]:
    """Take files oldest first, until the page is full of what no later file can precede."""
    plan = list(wanted(selection, None))
    if not plan:
        return []
    if selection.newest is not None:
        rows = _newest(scanner, files, plan, selection.times, selection.newest)
        later = rows if cursor is None else (row for row in rows if row.place > cursor)
        return heapq.nsmallest(limit + 1, later)
    since = 0 if cursor is None else int(cursor[0])
    times = TimeBounds(max(selection.times.first, since), selection.times.last)
    found: list[_Row] = []
    for at in sorted(range(len(files)), key=lambda at: files[at].ntp64.first):
        if len(found) > limit and _time_of(found[limit]) < files[at].ntp64.first:
            break
        read = scanner.find(files[at], plan, times, _TIME_COLUMNS)
        if read is not None:
            rows = _time_rows(at, _oldest(read.rows, limit + 1, None if cursor is None else since))
            later = rows if cursor is None else (row for row in rows if row.place > cursor)
            found = heapq.nsmallest(limit + 1, [*found, *later])
    return found


def _time_of(row: _Row) -> int:
    time = row.place[0]
    return time if isinstance(time, int) else 0


def _oldest(rows: pa.Table, count: int, since: int | None) -> pa.Table:
    """Return every row as old as the `count`-th oldest, rows of the time `since` not counted."""
    ntp64 = unsigned(rows.column("ntp64")).combine_chunks()
    if since is not None:
        count += pc.sum(pc.equal(ntp64, pa.scalar(since, pa.uint64()))).as_py() or 0
    if rows.num_rows <= count:
        return rows
    order = pc.array_sort_indices(ntp64)
    return rows.filter(pc.less_equal(ntp64, ntp64[order[count - 1].as_py()]))


def _newest(
    scanner: Scanner,
    files: Sequence[DataFile],
    wanted: Sequence[Wanted],
    times: TimeBounds,
    newest: int,
) -> Iterator[_Row]:
    """Yield the newest rows of every key of a plan, their places in order of time."""
    kept: NewestPlaces[str, _Row] = NewestPlaces(newest)
    open_keys = list(wanted)
    order = sorted(range(len(files)), key=lambda at: files[at].ntp64.last, reverse=True)
    for at in order:
        last = files[at].ntp64.last
        open_keys = [
            want for want in open_keys if not _is_settled(kept.oldest(want.stream.key), last)
        ]
        if not open_keys:
            break
        found = scanner.find(files[at], open_keys, times, _TIME_COLUMNS)
        if found is None:
            continue
        best_rows = _newest_rows(found.rows, newest)
        keys = best_rows.column("key_expr").to_pylist()
        for key, row in zip(keys, _time_rows(at, best_rows), strict=True):
            kept.offer(key, row)
    yield from kept


def _newest_rows(rows: pa.Table, newest: int) -> pa.Table:
    """Return, of every key, the rows as new as its `newest`-th newest one, or newer."""
    if rows.num_rows <= newest:
        return rows
    times = pa.table(
        {"key": rows.column("key_expr"), "ntp64": unsigned(rows.column("ntp64"))}
    ).combine_chunks()
    if newest == 1:
        best = times.group_by("key", use_threads=False).aggregate([("ntp64", "max")])
        at = pc.index_in(times.column("key"), value_set=best.column("key").combine_chunks())
        return rows.filter(
            pc.equal(times.column("ntp64"), best.column("ntp64_max").combine_chunks().take(at))
        )
    order = pc.sort_indices(times, sort_keys=[("key", "ascending"), ("ntp64", "descending")])
    times = times.take(order).combine_chunks()
    key = times.column("key").combine_chunks()
    begins = pc.not_equal(key.slice(1), key.slice(0, len(key) - 1))
    places = count_up(len(key))
    begin = pc.if_else(pa.concat_arrays([pa.array([True]), begins]), places, 0)
    start = pc.cumulative_max(begin)
    last = pc.min_element_wise(pc.add(start, newest - 1), len(key) - 1)
    ntp64 = times.column("ntp64").combine_chunks()
    is_near = pc.less(pc.subtract(places, start), newest)
    return rows.take(order.filter(pc.or_(is_near, _is_tied(key, ntp64, last))))


def _is_tied(key: pa.Array, ntp64: pa.Array, last: pa.Array) -> pa.Array:
    """Tell which rows are as new as the row of their own key at `last`."""
    return pc.and_(pc.equal(key.take(last), key), pc.equal(ntp64.take(last), ntp64))


def _is_settled(oldest: _Row | None, last: int) -> bool:
    """Tell whether nothing at or before the time `last` can displace what a key has."""
    return oldest is not None and last < _time_of(oldest)


def _load(scanner: Scanner, files: Sequence[DataFile], page: Sequence[_Row]) -> list[Sample]:
    """Return the samples of the rows, in their order."""
    places: dict[int, list[int]] = {}
    for at, row in enumerate(page):
        places.setdefault(row.file, []).append(at)
    samples: list[Sample | None] = [None] * len(page)
    for file, positions in places.items():
        rows = scanner.load(files[file], [page[at].row for at in positions], READ_COLUMNS)
        for at, sample in zip(positions, samples_of(rows), strict=True):
            samples[at] = sample
    return [sample for sample in samples if sample is not None]
