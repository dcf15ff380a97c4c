"""How do rows become safe files of the table, one or more for each day?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake.transaction import AddAction

from durable_cache_delta.columns import Columns, StreamPlaces, table_of
from durable_cache_delta.errors import translated
from durable_cache_delta.files import DataFile, add_action, day_text, describe, write_file
from durable_cache_delta.options import DeltaOptions
from durable_cache_delta.places import Place
from durable_cache_delta.rows import DAY_NS


class Written(NamedTuple):
    """A file that is safe but not yet part of the table."""

    file: DataFile
    action: AddAction


def write_samples(
    place: Place, options: DeltaOptions, columns: Columns, streams: Sequence[StreamPlaces]
) -> list[Written]:
    """Write streams of a batch, in the order of the table; nothing is left behind on failure."""
    written: list[Written] = []
    try:
        for day, part in _parts(options, columns, streams):
            with translated(f"table {place.uri}"):
                rows = table_of(columns, part)
            written.append(write_rows(place, options, rows, day, new=True))
    except BaseException:
        discard(place, written)
        raise
    return written


def discard(place: Place, written: Sequence[Written]) -> None:
    """Remove files that will not become part of the table."""
    for one in written:
        with translated(f"table {place.uri}"):
            place.remove(one.file.path)


def write_rows(
    place: Place, options: DeltaOptions, rows: pa.Table, day: str, *, new: bool
) -> Written:
    """Write sorted rows of one day as one file; `new` False when they repeat stored rows."""
    with translated(f"table {place.uri}"):
        path, size = write_file(place, rows, day, options.row_group_rows)
        return Written(describe(path, size, day, rows), add_action(path, size, day, rows, new=new))


def _parts(
    options: DeltaOptions, columns: Columns, streams: Sequence[StreamPlaces]
) -> Iterator[tuple[str, Sequence[StreamPlaces]]]:
    """Cut a batch by day, and a day where a file would become too large."""
    bytes_max = 2 * options.file_bytes_target
    whole = len(columns) <= options.file_rows_max and columns.stored_bytes <= bytes_max
    for day, part in sorted(_days(columns, streams).items()):
        if whole:
            yield day_text(day), part
            continue
        for cut in _cut(part, columns.sizes, bytes_max, options.file_rows_max):
            yield day_text(day), cut


def _days(
    columns: Columns, streams: Sequence[StreamPlaces]
) -> Mapping[int, Sequence[StreamPlaces]]:
    received = columns.received_ns
    first = min(received) // DAY_NS
    if first == max(received) // DAY_NS:
        return {first: streams}
    days: dict[int, list[StreamPlaces]] = {}
    for stream, places in streams:
        here: dict[int, list[int]] = {}
        for at in places:
            here.setdefault(received[at] // DAY_NS, []).append(at)
        for day, part in here.items():
            days.setdefault(day, []).append(StreamPlaces(stream, part))
    return days


def _cut(
    streams: Sequence[StreamPlaces], sizes: Sequence[int], bytes_max: int, rows_max: int
) -> Iterator[Sequence[StreamPlaces]]:
    part: list[StreamPlaces] = []
    size = rows = 0
    for stream, places in streams:
        start = 0
        for end, at in enumerate(places, 1):
            size += sizes[at]
            rows += 1
            if size > bytes_max or rows > rows_max:
                yield [*part, StreamPlaces(stream, places[start:end])]
                part, start, size, rows = [], end, 0, 0
        if start < len(places):
            part.append(StreamPlaces(stream, places[start:]))
    if part:
        yield part


def sorted_rows(rows: pa.Table) -> pa.Table:
    """Return rows in the order of the table: key, zid and eid as numbers, epoch, sn."""
    place = pa.table(
        {
            "key": rows.column("key_expr"),
            # Without leading zeros, the longer of two hexadecimal numbers is the greater.
            "digits": pc.utf8_length(rows.column("source_zid")),
            "zid": rows.column("source_zid"),
            "eid": rows.column("source_eid"),
            "epoch": rows.column("epoch"),
            "sn": rows.column("sn"),
        }
    )
    order = pc.sort_indices(place, sort_keys=[(name, "ascending") for name in place.column_names])
    return rows.take(order)
