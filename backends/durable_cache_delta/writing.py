"""How do rows become safe files of the table, one or more for each day?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake.transaction import AddAction

from durable_cache.model.sample import Sample
from durable_cache_delta.failures import translated
from durable_cache_delta.files import DataFile, add_action, day_text, describe, write_file
from durable_cache_delta.options import DeltaOptions
from durable_cache_delta.places import Place
from durable_cache_delta.rows import DAY_NS, table_of

__all__ = ["Written", "sorted_rows", "write_rows", "write_samples"]


class Written(NamedTuple):
    """A file that is safe but not yet part of the table."""

    file: DataFile
    action: AddAction


def write_samples(
    place: Place, options: DeltaOptions, samples: Sequence[Sample], digests: Sequence[bytes]
) -> list[Written]:
    """Write samples, given in the order of the table; nothing is left behind on failure."""
    written: list[Written] = []
    try:
        for day, part, part_digests in _parts(options, samples, digests):
            with translated(f"table {place.uri}"):
                rows = table_of(part, part_digests)
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
    options: DeltaOptions, samples: Sequence[Sample], digests: Sequence[bytes]
) -> Iterator[tuple[str, Sequence[Sample], Sequence[bytes]]]:
    """Cut samples by day, and a day where a file would become too large."""
    received = [sample.received_ns for sample in samples]
    if min(received) // DAY_NS == max(received) // DAY_NS:
        days = {received[0] // DAY_NS: range(len(samples))}
        chosen: dict[int, Sequence[int]] = dict(days)
    else:
        by_day: dict[int, list[int]] = {}
        for at, moment in enumerate(received):
            by_day.setdefault(moment // DAY_NS, []).append(at)
        chosen = dict(sorted(by_day.items()))
    bytes_max = 2 * options.file_bytes_target
    whole = len(samples) <= options.file_rows_max and _bytes(samples) <= bytes_max
    for day, places in chosen.items():
        if whole:
            yield day_text(day), *_pick(samples, digests, places)
            continue
        start = size = 0
        for count, at in enumerate(places):
            size += _bytes(samples[at : at + 1])
            if size > bytes_max or count - start >= options.file_rows_max:
                yield day_text(day), *_pick(samples, digests, places[start : count + 1])
                start, size = count + 1, 0
        if start < len(places):
            yield day_text(day), *_pick(samples, digests, places[start:])


def _bytes(samples: Sequence[Sample]) -> int:
    return sum([len(s.payload) + (len(s.attachment) if s.attachment else 0) for s in samples])


def _pick(
    samples: Sequence[Sample], digests: Sequence[bytes], places: Sequence[int]
) -> tuple[Sequence[Sample], Sequence[bytes]]:
    if isinstance(places, range):
        cut = slice(places.start, places.stop)
        return samples[cut], digests[cut]
    return [samples[at] for at in places], [digests[at] for at in places]


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
