"""What is one data file of the samples table: how it is written, and what is known of it?

What is known (the span of every numbering, of keys and of times) decides which files a read opens.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake.transaction import AddAction

from durable_cache_delta.failpoints import reached
from durable_cache_delta.places import Place
from durable_cache_delta.rows import unsigned
from durable_cache_delta.schema import PARTITION, STATS_COLUMNS

_TEXT_STAT_CHARACTERS = 256
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = ("payload", "attachment", "payload_digest")
"""Columns without dictionary or statistics: neither would ever help."""
_DISTINCT = ("sequence", "sn", "ntp64", "timestamp", "received_at", "received_ns")
"""Columns whose values hardly repeat: no dictionary."""


class Numbering(NamedTuple):
    """Who numbers: a source in one epoch."""

    zid: str
    eid: int
    epoch: int


class Span(NamedTuple):
    """The least and the greatest of something, both included."""

    first: int
    last: int

    def meets(self, first: int, last: int) -> bool:
        return self.first <= last and first <= self.last


@dataclass(frozen=True, slots=True)
class DataFile:
    """One live file of the samples table; immutable."""

    path: str
    """As the log names it."""
    size: int
    rows: int
    day: str
    """The partition, as an ISO date."""
    keys: tuple[str, str]
    """The least and the greatest key."""
    ntp64: Span
    stored_bytes: int
    """Payload and attachment bytes, as retention counts them."""
    numberings: Mapping[Numbering, Span]
    """The sns it holds of every numbering."""

    def may_hold(self, numbering: Numbering, first: int, last: int) -> bool:
        """Tell whether the file can hold one of ``first..last`` of `numbering`."""
        span = self.numberings.get(numbering)
        return span is not None and span.meets(first, last)


def day_text(days: int) -> str:
    """Return the ISO date of a day since 1970."""
    return (_UNIX + timedelta(days=days)).date().isoformat()


def write_file(place: Place, rows: pa.Table, day: str, row_group_rows: int) -> tuple[str, int]:
    """Write sorted rows of one day into a new file and make it safe; returns (path, bytes)."""
    path = f"{PARTITION}={day}/part-{uuid.uuid4().hex}.parquet"
    size = place.write(path, lambda sink: _fill(sink, rows, row_group_rows))
    reached("parquet synced")
    return path, size


def _fill(sink: pa.NativeFile, rows: pa.Table, row_group_rows: int) -> None:
    described = [name for name in rows.column_names if name not in _PLAIN]
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        compression_level=1,
        row_group_size=row_group_rows,
        use_dictionary=[name for name in described if name not in _DISTINCT],
        write_statistics=[*described, "attachment"],
        write_page_checksum=True,
        store_schema=False,
    )
    reached("parquet written")


def describe(path: str, size: int, day: str, rows: pa.Table) -> DataFile:
    """Return what is known of a file from its rows; the columns of the index are enough."""
    grouped = (
        rows.select(["source_zid", "source_eid", "epoch", "sn"])
        .group_by(["source_zid", "source_eid", "epoch"], use_threads=False)
        .aggregate([("sn", "min"), ("sn", "max")])
        .to_pydict()
    )
    keys = pc.min_max(_distinct(rows.column("key_expr"))).as_py()
    times = pc.min_max(unsigned(rows.column("ntp64"))).as_py()
    numberings = {
        Numbering(zid, eid, epoch): Span(first, last)
        for zid, eid, epoch, first, last in zip(
            grouped["source_zid"],
            grouped["source_eid"],
            grouped["epoch"],
            grouped["sn_min"],
            grouped["sn_max"],
            strict=True,
        )
    }
    return DataFile(
        path,
        size,
        rows.num_rows,
        day,
        (keys["min"], keys["max"]),
        Span(times["min"], times["max"]),
        pc.sum(stored_bytes(rows)).as_py() or 0,
        numberings,
    )


def stored_bytes(rows: pa.Table) -> pa.ChunkedArray:
    """Return the payload and attachment bytes of each row; without the column, no attachments."""
    payload = rows.column("payload_bytes")
    if "attachment" not in rows.column_names:
        return payload
    attached = pc.fill_null(pc.binary_length(rows.column("attachment")), 0)
    return pc.add(payload, attached.cast(pa.int64()))


def add_action(path: str, size: int, day: str | None, rows: pa.Table, *, new: bool) -> AddAction:
    """Return the log's action for a written file; `new` False when it repeats stored rows."""
    return AddAction(
        path=path,
        size=size,
        partition_values={} if day is None else {PARTITION: day},
        modification_time=int(time.time() * 1000),
        data_change=new,
        stats=json.dumps(_statistics(rows, set(STATS_COLUMNS)), ensure_ascii=False),
    )


def _statistics(rows: pa.Table, wanted: Iterable[str]) -> dict[str, Any]:
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names:
        if name not in wanted:
            continue
        column = rows.column(name)
        ends = pc.min_max(_distinct(column)).as_py()
        least[name] = _least(ends["min"])
        greatest[name] = _greatest(ends["max"])
        nulls[name] = column.null_count
    return {
        "numRecords": rows.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def _distinct(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts that a dictionary's rows use; another column as it is."""
    if not pa.types.is_dictionary(column.type):
        return column
    return pc.unique(column).cast(column.type.value_type)


def _least(value: object) -> object:
    """Write a lower bound: a text cut short is one, and so is a time cut to milliseconds."""
    match value:
        case str():
            return value[:_TEXT_STAT_CHARACTERS]
        case datetime():
            return _milliseconds(value)
    return _number(value)


def _greatest(value: object) -> object:
    """Write an upper bound: a text cut short goes up, a time goes to the next millisecond."""
    match value:
        case str():
            return _above(value)
        case datetime():
            rest = value.microsecond % 1000
            return _milliseconds(value + timedelta(microseconds=-rest % 1000))
    return _number(value)


def _above(text: str) -> str:
    if len(text) <= _TEXT_STAT_CHARACTERS:
        return text
    cut = _TEXT_STAT_CHARACTERS
    while cut < len(text) and text[cut] == "\U0010ffff":
        cut += 1
    return text if cut >= len(text) else text[:cut] + "\U0010ffff"


def _milliseconds(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def _number(value: object) -> object:
    return value if isinstance(value, (int, float)) or value is None else int(str(value))
