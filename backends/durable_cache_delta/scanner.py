"""Which rows of the live files are asked for, and what do they hold?

Two steps: `find` reads only identity and time of the row groups that can hold something and returns
where the rows are; `load` reads the rest of just those. Keys are compared as data, by Arrow; none
becomes part of a query's text or of a path.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from durable_cache.model.sample import Stream
from durable_cache.model.selection import TimeBounds
from durable_cache.model.timestamp import NTP64_MAX
from durable_cache_delta.errors import translated
from durable_cache_delta.files import DataFile
from durable_cache_delta.index import Wanted, numbering_of
from durable_cache_delta.places import Place
from durable_cache_delta.rows import IDENTITY, unsigned
from durable_cache_delta.schema import SAMPLES_IN_FILES

_EXACT_MAX = 8
"""Up to so many streams are compared one by one; more are joined."""
_ALL_TIMES = TimeBounds()


class Found(NamedTuple):
    """Rows of one file: where they are, and the columns that were read."""

    file: DataFile
    rows: pa.Table
    """The columns asked for, and `row`: the row's number within the file."""


class _Group(NamedTuple):
    """What a row group's footer says; None where it says nothing."""

    first_row: int
    rows: int
    keys: tuple[str, str] | None
    zids: tuple[str, str] | None
    sns: tuple[int, int] | None
    ntp64: tuple[int, int] | None


class Scanner:
    """Reads the files of one table; any number of threads at once."""

    def __init__(self, place: Place, footers_max: int) -> None:
        self._place = place
        self._footers_max = footers_max
        self._footers: OrderedDict[str, tuple[pq.FileMetaData, Sequence[_Group]]] = OrderedDict()
        self._lock = Lock()

    def find(
        self,
        file: DataFile,
        wanted: Sequence[Wanted],
        times: TimeBounds = _ALL_TIMES,
        columns: Iterable[str] = (),
    ) -> Found | None:
        """Return the rows of `file` that are wanted, or None when there are none.

        The result has the identity columns, `columns` and `row`.
        """
        if not file.ntp64.meets(times.first, times.last):
            return None
        here = [
            want
            for want in wanted
            if file.keys[0] <= want.stream.key <= file.keys[1]
            and file.may_hold(numbering_of(want.stream), want.first, want.last)
        ]
        if not here:
            return None
        with translated(f"{self._place.uri}/{file.path}"):
            footer, groups = self._footer(file)
            chosen = _groups_with(groups, here, times)
            if not chosen:
                return None
            bounded = times != _ALL_TIMES
            names = [*IDENTITY, *columns]
            if bounded and "ntp64" not in names:
                names.append("ntp64")
            rows = self._read(file, footer, chosen, names)
            rows = rows.append_column("row", _row_numbers(groups, chosen))
            if bounded:
                rows = rows.filter(_within(rows, times))
            rows = _only(rows, here)
        return Found(file, rows) if rows.num_rows else None

    def load(self, file: DataFile, rows: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return `columns` of the given rows of a file, in the order given."""
        with translated(f"{self._place.uri}/{file.path}"):
            footer, groups = self._footer(file)
            starts = [group.first_row for group in groups]
            chosen = sorted({_group_of(starts, row) for row in rows})
            offsets: dict[int, int] = {}
            before = 0
            for group in chosen:
                offsets[group] = before - groups[group].first_row
                before += groups[group].rows
            table = self._read(file, footer, chosen, columns)
            return table.take(pa.array([row + offsets[_group_of(starts, row)] for row in rows]))

    def read_all(self, file: DataFile, columns: Sequence[str]) -> pa.Table:
        """Return `columns` of the whole file."""
        with translated(f"{self._place.uri}/{file.path}"):
            footer, groups = self._footer(file)
            return self._read(file, footer, range(len(groups)), columns)

    def has_attachments(self, file: DataFile) -> bool:
        """Tell whether some row of the file has an attachment, or may have one."""
        with translated(f"{self._place.uri}/{file.path}"):
            footer, _ = self._footer(file)
            at = footer.schema.names.index("attachment")
            for number in range(footer.num_row_groups):
                statistics = footer.row_group(number).column(at).statistics
                if statistics is None or not statistics.has_null_count:
                    return True
                if statistics.null_count < footer.row_group(number).num_rows:
                    return True
        return False

    def _read(
        self,
        file: DataFile,
        footer: pq.FileMetaData,
        groups: Iterable[int],
        columns: Iterable[str],
    ) -> pa.Table:
        with (
            self._place.reader(file.path) as source,
            pq.ParquetFile(source, metadata=footer, page_checksum_verification=True) as parquet,
        ):
            rows = parquet.read_row_groups(list(groups), columns=list(columns), use_threads=False)
        # Another engine may have written views or large types.
        wanted = pa.schema([SAMPLES_IN_FILES.field(name) for name in rows.column_names])
        return rows if rows.schema.types == wanted.types else rows.cast(wanted)

    def _footer(self, file: DataFile) -> tuple[pq.FileMetaData, Sequence[_Group]]:
        with self._lock:
            known = self._footers.get(file.path)
            if known is not None:
                self._footers.move_to_end(file.path)
                return known
        with self._place.reader(file.path) as source:
            footer = pq.read_metadata(source)
        made = footer, _groups(footer)
        with self._lock:
            self._footers[file.path] = made
            while len(self._footers) > self._footers_max:
                self._footers.popitem(last=False)
        return made

    def forget(self, files: Iterable[DataFile]) -> None:
        """Drop the footers of files that are no longer live."""
        with self._lock:
            for file in files:
                self._footers.pop(file.path, None)


def _groups(footer: pq.FileMetaData) -> Sequence[_Group]:
    columns = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
    first = 0
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        ends = {}
        for name in ("key_expr", "source_zid", "sn", "ntp64"):
            statistics = group.column(columns[name]).statistics
            known = statistics is not None and statistics.has_min_max
            ends[name] = (statistics.min, statistics.max) if known else None
        ntp64 = ends["ntp64"]
        found.append(
            _Group(
                first,
                group.num_rows,
                ends["key_expr"],
                ends["source_zid"],
                ends["sn"],
                None if ntp64 is None else (int(ntp64[0]), int(ntp64[1])),
            )
        )
        first += group.num_rows
    return found


def _groups_with(
    groups: Sequence[_Group], wanted: Sequence[Wanted], times: TimeBounds
) -> list[int]:
    """Return the row groups that can hold something; `wanted` is in order of key."""
    keys = [want.stream.key for want in wanted]
    chosen = []
    for number, group in enumerate(groups):
        if group.ntp64 and (group.ntp64[1] < times.first or group.ntp64[0] > times.last):
            continue
        if group.keys is None:
            chosen.append(number)
            continue
        low = bisect_left(keys, group.keys[0])
        for want in wanted[low : low + _EXACT_MAX]:
            if want.stream.key > group.keys[1]:
                break
            if _may_hold(group, want):
                chosen.append(number)
                break
        else:
            if low + _EXACT_MAX < len(keys) and keys[low + _EXACT_MAX] <= group.keys[1]:
                chosen.append(number)
    return chosen


def _may_hold(group: _Group, want: Wanted) -> bool:
    zid = want.stream.source.zid
    if group.zids is not None and not group.zids[0] <= zid <= group.zids[1]:
        return False
    return group.sns is None or (group.sns[0] <= want.last and want.first <= group.sns[1])


def _group_of(starts: Sequence[int], row: int) -> int:
    return bisect_left(starts, row + 1) - 1


def _row_numbers(groups: Sequence[_Group], chosen: Sequence[int]) -> pa.Array:
    return pa.concat_arrays(
        [pc.add(count_up(groups[at].rows), groups[at].first_row) for at in chosen]
    )


@lru_cache(maxsize=8)
def count_up(rows: int) -> pa.Array:
    """Return 0, 1, 2 … for so many rows."""
    return pa.array(array("q", range(rows)))


def _within(rows: pa.Table, times: TimeBounds) -> pa.ChunkedArray:
    ntp64 = unsigned(rows.column("ntp64"))
    first = pa.scalar(times.first, pa.uint64())
    last = pa.scalar(min(times.last, NTP64_MAX), pa.uint64())
    return pc.and_(pc.greater_equal(ntp64, first), pc.less_equal(ntp64, last))


def _only(rows: pa.Table, wanted: Sequence[Wanted]) -> pa.Table:
    if not rows.num_rows:
        return rows
    if len(wanted) <= _EXACT_MAX:
        mask = None
        for want in wanted:
            one = _is_of(rows, want.stream, want.first, want.last)
            mask = one if mask is None else pc.or_(mask, one)
        return rows.filter(mask)
    return _joined(rows, wanted)


def _is_of(rows: pa.Table, stream: Stream, first: int, last: int) -> pa.ChunkedArray:
    sn = rows.column("sn")
    mask = pc.and_(pc.greater_equal(sn, first), pc.less_equal(sn, last))
    mask = pc.and_(mask, pc.equal(rows.column("source_eid"), stream.source.eid))
    mask = pc.and_(mask, pc.equal(rows.column("epoch"), stream.epoch))
    mask = pc.and_(mask, pc.equal(rows.column("source_zid"), stream.source.zid))
    return pc.and_(mask, pc.equal(rows.column("key_expr"), stream.key))


def _joined(rows: pa.Table, wanted: Sequence[Wanted]) -> pa.Table:
    """Keep the rows of many streams: an inner join with the streams as a table of their own."""
    streams = pa.table(
        {
            "key_expr": pa.array([want.stream.key for want in wanted], pa.string()),
            "source_zid": pa.array([want.stream.source.zid for want in wanted], pa.string()),
            "source_eid": pa.array([want.stream.source.eid for want in wanted], pa.int64()),
            "epoch": pa.array([want.stream.epoch for want in wanted], pa.int64()),
            "_first": pa.array([want.first for want in wanted], pa.int64()),
            "_last": pa.array([want.last for want in wanted], pa.int64()),
        }
    )
    joined = rows.join(
        streams,
        ["key_expr", "source_zid", "source_eid", "epoch"],
        join_type="inner",
        use_threads=False,
    )
    sn = joined.column("sn")
    inside = pc.and_(
        pc.greater_equal(sn, joined.column("_first")), pc.less_equal(sn, joined.column("_last"))
    )
    return joined.filter(inside).select(rows.column_names)
