"""What may go, and how is it taken out? Files are dropped, or rewritten when some of it stays.

Floors are computed from the index and, by age and bytes, from the days concerned only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream
from durable_cache.storage.contract import Floor, Retention
from durable_cache_delta.catalog import Catalog
from durable_cache_delta.file_writer import Written, discard, write_rows
from durable_cache_delta.files import DataFile, day_text, stored_bytes
from durable_cache_delta.index import StreamState, Wanted
from durable_cache_delta.options import DeltaOptions
from durable_cache_delta.places import Place
from durable_cache_delta.rows import DAY_NS, IDENTITY, unsigned
from durable_cache_delta.scanner import Found, Scanner, count_up
from durable_cache_delta.schema import SAMPLES_IN_FILES

_BYTES_COLUMNS = ("payload_bytes", "attachment")


class Removal(NamedTuple):
    """Files that go, the files that take their place, and what went of each stream."""

    removed: list[DataFile]
    written: list[Written]
    samples: int
    newest_gone: Mapping[Stream, tuple[int, int]]
    """The greatest NTP64 and time of receipt that went, per stream."""


def plan_removal(
    place: Place,
    options: DeltaOptions,
    scanner: Scanner,
    catalog: Catalog,
    floors: Mapping[Stream, int],
) -> Removal:
    """Write what is to stay of the files that hold something below the floors."""
    wanted = _below(catalog, floors)
    newest: dict[Stream, tuple[int, int]] = {}
    removal = Removal([], [], 0, newest)
    count = 0
    try:
        for file in catalog.files if wanted else ():
            found = scanner.find(file, wanted, columns=("ntp64", "received_ns"))
            if found is None:
                continue
            count += found.rows.num_rows
            _note_newest(newest, found.rows)
            removal.removed.append(file)
            if found.rows.num_rows < file.rows:
                kept = _without(scanner.read_all(file, SAMPLES_IN_FILES.names), found)
                removal.written.append(write_rows(place, options, kept, file.day, new=True))
    except BaseException:
        discard(place, removal.written)
        raise
    return removal._replace(samples=count)


def _below(catalog: Catalog, floors: Mapping[Stream, int]) -> list[Wanted]:
    wanted = []
    for stream in sorted(floors, key=lambda stream: stream.order):
        state = catalog.index.streams.get(stream)
        held = RangeSet() if state is None else state.runs.clip(0, floors[stream] - 1)
        if held.first is not None and held.last is not None:
            wanted.append(Wanted(stream, held.first, held.last, held.count))
    return wanted


def _without(rows: pa.Table, found: Found) -> pa.Table:
    gone = pc.is_in(
        count_up(rows.num_rows),
        value_set=found.rows.column("row").combine_chunks(),
    )
    return rows.filter(pc.invert(gone)).cast(SAMPLES_IN_FILES)


def _note_newest(newest: dict[Stream, tuple[int, int]], rows: pa.Table) -> None:
    times = zip(
        unsigned(rows.column("ntp64")).to_pylist(),
        rows.column("received_ns").to_pylist(),
        strict=True,
    )
    for (stream, _), (ntp64, received_ns) in zip(identities(rows), times, strict=True):
        known = newest.get(stream, (0, 0))
        newest[stream] = max(known[0], ntp64), max(known[1], received_ns)


def identities(rows: pa.Table) -> Iterator[tuple[Stream, int]]:
    """Yield the stream and the number of each row."""
    columns = [rows.column(name).to_pylist() for name in IDENTITY]
    for key, zid, eid, epoch, sn in zip(*columns, strict=True):
        yield Stream(key, SourceId(zid, eid), epoch), sn


def states_after(
    scanner: Scanner, catalog: Catalog, floors: Mapping[Stream, int], removal: Removal
) -> dict[Stream, StreamState]:
    """Return what the index says of the streams once the removal is committed.

    Reads files again only for a stream that lost the newest of its times.
    """
    states = {}
    for stream, (ntp64, received_ns) in removal.newest_gone.items():
        before = catalog.index.streams[stream]
        runs = before.runs.copy()
        runs.remove(0, floors[stream] - 1)
        times = before.newest_ntp64, before.newest_received_ns
        lost = ntp64 >= times[0] or received_ns >= times[1]
        if lost and runs.first is not None and runs.last is not None:
            times = _newest_of(scanner, catalog, Wanted(stream, runs.first, runs.last, runs.count))
        states[stream] = StreamState(runs, *times)
    return states


def _newest_of(scanner: Scanner, catalog: Catalog, want: Wanted) -> tuple[int, int]:
    newest: dict[Stream, tuple[int, int]] = {}
    for file in catalog.files:
        found = scanner.find(file, [want], columns=("ntp64", "received_ns"))
        if found is not None:
            _note_newest(newest, found.rows)
    return newest.get(want.stream, (0, 0))


def floors_of(
    scanner: Scanner, catalog: Catalog, retention: Retention, now_ns: int
) -> dict[Stream, int]:
    """Return the floor of every stream that retention makes lose samples.

    By age a sample stays until its UTC day of receipt is past.
    """
    floors: dict[Stream, int] = {}
    if retention.samples_max is not None:
        floors.update(_by_count(catalog, retention.samples_max))
    if retention.age_seconds_max is not None:
        oldest_ns = now_ns - round(retention.age_seconds_max * 1e9)
        for stream, floor in _by_age(scanner, catalog, day_text(max(0, oldest_ns) // DAY_NS)):
            floors[stream] = max(floor, floors.get(stream, 0))
    if retention.bytes_max is not None:
        floors.update(_by_bytes(scanner, catalog, floors, retention.bytes_max))
    return {
        stream: _first_kept(catalog, stream, floor)
        for stream, floor in floors.items()
        if _loses(catalog, stream, floor)
    }


def _loses(catalog: Catalog, stream: Stream, floor: int) -> bool:
    first = catalog.index.streams[stream].runs.first
    return first is not None and first < floor


def _first_kept(catalog: Catalog, stream: Stream, floor: int) -> int:
    """Return the first number held at or above `floor`, or the one after the last."""
    runs = catalog.index.streams[stream].runs
    last = runs.last or 0
    kept = runs.clip(floor, last).first if floor <= last else None
    return last + 1 if kept is None else kept


def _by_count(catalog: Catalog, samples_max: int) -> Iterator[tuple[Stream, int]]:
    for stream, state in catalog.index.streams.items():
        floor = state.runs.nth_last(samples_max) if samples_max else (state.runs.last or 0) + 1
        if floor is not None:
            yield stream, floor


def _by_age(scanner: Scanner, catalog: Catalog, oldest_day: str) -> Iterator[tuple[Stream, int]]:
    """Yield the floors of streams with samples of days before `oldest_day`."""
    last_old: dict[Stream, int] = {}
    for file in catalog.files:
        if file.day < oldest_day:
            for stream, sn in identities(scanner.read_all(file, IDENTITY)):
                last_old[stream] = max(sn, last_old.get(stream, -1))
    if not last_old:
        return
    wanted = _below(catalog, {stream: last + 1 for stream, last in last_old.items()})
    floors = {stream: last + 1 for stream, last in last_old.items()}
    for file in catalog.files:
        if file.day >= oldest_day:
            young = scanner.find(file, wanted)
            for stream, sn in identities(young.rows) if young is not None else ():
                floors[stream] = min(sn, floors[stream])
    yield from floors.items()


class _Head(NamedTuple):
    received_ns: int
    order: tuple[bytes, int, int, int]
    sn: int
    stream: Stream
    size: int


def _by_bytes(
    scanner: Scanner, catalog: Catalog, floors: Mapping[Stream, int], bytes_max: int
) -> dict[Stream, int]:
    """Let heads of streams go, the head received first going first, until the rest fits.

    Days are loaded one at a time, oldest first: the head of a stream that is not loaded yet was
    received later than every head that is.
    """
    total = sum(file.stored_bytes for file in catalog.files)
    if total <= bytes_max:
        return {}
    for file in catalog.files:
        found = scanner.find(file, _below(catalog, floors), columns=_BYTES_COLUMNS)
        if found is not None:
            total -= pc.sum(stored_bytes(found.rows)).as_py()
    left = {
        stream: state.runs.difference(RangeSet([(0, floors.get(stream, 0) - 1)]))
        for stream, state in catalog.index.streams.items()
    }
    loaded: dict[tuple[Stream, int], tuple[int, int]] = {}
    for day in sorted({file.day for file in catalog.files}):
        if total <= bytes_max:
            break
        for file in catalog.files:
            if file.day == day:
                loaded.update(_sizes(scanner, file))
        total = _drop_heads(left, loaded, total, bytes_max)
    return {
        stream: runs.first if runs.first is not None else (held.runs.last or 0) + 1
        for stream, held in catalog.index.streams.items()
        if (runs := left[stream]).first != held.runs.first
    }


def _sizes(
    scanner: Scanner, file: DataFile
) -> Iterator[tuple[tuple[Stream, int], tuple[int, int]]]:
    rows = scanner.read_all(file, [*IDENTITY, "received_ns", *_BYTES_COLUMNS])
    values = zip(
        rows.column("received_ns").to_pylist(), stored_bytes(rows).to_pylist(), strict=True
    )
    return zip(identities(rows), values, strict=True)


def _drop_heads(
    left: dict[Stream, RangeSet],
    loaded: dict[tuple[Stream, int], tuple[int, int]],
    total: int,
    bytes_max: int,
) -> int:
    """Remove loaded heads from `left`, oldest first; returns the bytes that remain."""
    heads = [head for stream in left if (head := _head(stream, left, loaded)) is not None]
    heapq.heapify(heads)
    while total > bytes_max and heads:
        head = heapq.heappop(heads)
        total -= head.size
        left[head.stream].remove(head.sn, head.sn)
        following = _head(head.stream, left, loaded)
        if following is not None:
            heapq.heappush(heads, following)
    return total


def _head(
    stream: Stream,
    left: Mapping[Stream, RangeSet],
    loaded: Mapping[tuple[Stream, int], tuple[int, int]],
) -> _Head | None:
    sn = left[stream].first
    if sn is None:
        return None
    known = loaded.get((stream, sn))
    return None if known is None else _Head(known[0], stream.order, sn, stream, known[1])


def as_floors(floors: Mapping[Stream, int]) -> Sequence[Floor]:
    """Return floors as the contract does, in order of stream."""
    return [Floor(stream, floors[stream]) for stream in sorted(floors, key=lambda s: s.order)]
