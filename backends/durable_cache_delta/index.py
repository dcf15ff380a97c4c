"""Which numbers of which streams does the samples table hold? Kept in memory, rebuilt from files.

Appends are checked against it, and reads are planned with it: a page is cut from the runs before a
file is opened. Mutable; the caller holds the storage's lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from durable_cache.errors import StorageFull
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream, key_bytes
from durable_cache.model.selection import Cursor, Selection
from durable_cache_delta.files import Numbering
from durable_cache_delta.rows import unsigned

INDEX_COLUMNS = (
    "key_expr",
    "source_zid",
    "source_eid",
    "epoch",
    "sn",
    "ntp64",
    "received_ns",
    "payload_bytes",
)
"""What the index is rebuilt from."""
_STREAM = ["key_expr", "source_zid", "source_eid", "epoch"]


class StreamRows(NamedTuple):
    """What a file, or a batch, holds of one stream."""

    stream: Stream
    runs: RangeSet
    newest_ntp64: int
    newest_received_ns: int


@dataclass(slots=True)
class StreamState:
    """What the table holds of one stream."""

    runs: RangeSet = field(default_factory=RangeSet)
    newest_ntp64: int = 0
    newest_received_ns: int = 0


class Wanted(NamedTuple):
    """The numbers ``first..last`` of a stream that a read asks for."""

    stream: Stream
    first: int
    last: int
    held: int
    """How many of them are held."""


class StreamIndex:
    """The runs of every stream, at most `streams_max` of them."""

    def __init__(self, streams_max: int) -> None:
        self.streams: dict[Stream, StreamState] = {}
        self.numberings: dict[Numbering, set[Stream]] = {}
        self._streams_max = streams_max
        self._ordered: list[tuple[Cursor, Stream]] = []
        self._in_order = True

    def check_room(self, streams: Iterable[Stream]) -> None:
        """Raise StorageFull when so many new streams do not fit."""
        new = sum(stream not in self.streams for stream in streams)
        if new and len(self.streams) + new > self._streams_max:
            raise StorageFull(
                f"streams_max = {self._streams_max} is reached; raise it, or keep fewer keys and "
                "sources in this storage"
            )

    def add(self, rows: StreamRows) -> None:
        """Include what a file holds of a stream."""
        stream = rows.stream
        state = self.streams.get(stream)
        if state is None:
            state = self.streams[stream] = StreamState()
            self.numberings.setdefault(numbering_of(stream), set()).add(stream)
            if self._ordered:
                self._ordered.append((stream.order, stream))
            self._in_order = False
        state.runs.update(rows.runs)
        state.newest_ntp64 = max(state.newest_ntp64, rows.newest_ntp64)
        state.newest_received_ns = max(state.newest_received_ns, rows.newest_received_ns)

    def replace(self, stream: Stream, state: StreamState | None) -> None:
        """Know a stream anew after a removal; None when nothing of it is left."""
        if state is not None and len(state.runs):
            self.streams[stream] = state
            return
        if self.streams.pop(stream, None) is not None:
            numbering = numbering_of(stream)
            self.numberings[numbering].discard(stream)
            if not self.numberings[numbering]:
                del self.numberings[numbering]
            self._ordered = []
            self._in_order = False

    def ordered(self) -> list[tuple[Cursor, Stream]]:
        """Return the streams in the contract's order; owned by the index."""
        if not self._in_order:
            if len(self._ordered) != len(self.streams):
                self._ordered = [(stream.order, stream) for stream in self.streams]
            self._ordered.sort(key=lambda entry: entry[0])
            self._in_order = True
        return self._ordered

    def held(self, numbering: Numbering, first: int, last: int) -> RangeSet:
        """Return what is held of ``first..last`` of a numbering, over all keys."""
        found = RangeSet()
        for stream in self.numberings.get(numbering, ()):
            found.update(self.streams[stream].runs.clip(first, last))
        return found

    def wanted(self, selection: Selection, cursor: Cursor | None) -> Iterator[Wanted]:
        """Yield, in order, what of the selection is held after `cursor` (one of identity order)."""
        matches = _key_test(selection.key_expr)
        low, high = selection.sns.first or 0, selection.sns.last
        prefix = key_bytes(selection.key_expr.prefix)
        ordered = self.ordered()
        place: Cursor = (prefix,)
        after = -1
        if cursor is not None and cursor[:4] > place:
            place, after = cursor[:4], int(cursor[4])
        for at in range(bisect_left(ordered, place, key=lambda entry: entry[0]), len(ordered)):
            order, stream = ordered[at]
            if not stream_begins(order, prefix):
                return
            if not (selection.has_numbering(stream.source, stream.epoch) and matches(stream.key)):
                continue
            runs = self.streams[stream].runs
            first = max(low, after + 1) if order == place else low
            last = runs.last if high is None else high
            held = runs.clip(first, last) if last is not None else RangeSet()
            if held.first is not None and held.last is not None:
                yield Wanted(stream, held.first, held.last, held.count)


def stream_begins(order: Cursor, prefix: bytes) -> bool:
    """Tell whether the key of a stream's order begins with `prefix`."""
    key = order[0]
    return isinstance(key, bytes) and key.startswith(prefix)


def numbering_of(stream: Stream) -> Numbering:
    """Return the numbering a stream belongs to."""
    return Numbering(stream.source.zid, stream.source.eid, stream.epoch)


class _KeyTest:
    """Remembers the answer for the key asked about last: streams come ordered by key."""

    def __init__(self, key_expr: KeyExpression) -> None:
        self._key_expr = key_expr
        self._key: str | None = None
        self._answer = False

    def __call__(self, key: str) -> bool:
        if key != self._key:
            self._key, self._answer = key, self._key_expr.matches(key)
        return self._answer


def _key_test(key_expr: KeyExpression) -> _KeyTest:
    return _KeyTest(key_expr)


def stream_rows(rows: pa.Table) -> list[StreamRows]:
    """Return what rows with `INDEX_COLUMNS`, in any order, hold of each stream."""
    if not rows.num_rows:
        return []
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in [*_STREAM, "sn"]])
    identity = rows.select([*_STREAM, "sn"]).take(order).combine_chunks()
    begins = _run_begins(identity)
    first = identity.filter(begins)
    ends = pa.concat_arrays([begins.slice(1), pa.array([True])])
    last_sn = identity.column("sn").combine_chunks().filter(ends).to_pylist()
    found: dict[Stream, StreamRows] = {}
    columns = [first.column(name).to_pylist() for name in [*_STREAM, "sn"]]
    newest = _newest(rows)
    for key, zid, eid, epoch, low, high in zip(*columns, last_sn, strict=True):
        stream = Stream(key, SourceId(zid, eid), epoch)
        state = found.get(stream)
        if state is None:
            state = found[stream] = StreamRows(stream, RangeSet(), *newest[key, zid, eid, epoch])
        state.runs.add(low, high)
    return list(found.values())


def _run_begins(identity: pa.Table) -> pa.Array:
    """Return, for rows in order, whether each begins a run of consecutive numbers of a stream."""
    differs = None
    for name in _STREAM:
        column = identity.column(name).combine_chunks()
        here = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        differs = here if differs is None else pc.or_(differs, here)
    sn = identity.column("sn").combine_chunks()
    jumps = pc.greater(pc.subtract(sn.slice(1), sn.slice(0, len(sn) - 1)), 1)
    return pa.concat_arrays([pa.array([True]), pc.or_(differs, jumps)])


def _newest(rows: pa.Table) -> dict[tuple[str, str, int, int], tuple[int, int]]:
    table = rows.select([*_STREAM, "received_ns"]).append_column(
        "ntp64", unsigned(rows.column("ntp64"))
    )
    grouped = (
        table.group_by(_STREAM, use_threads=False)
        .aggregate([("ntp64", "max"), ("received_ns", "max")])
        .to_pydict()
    )
    columns = [grouped[name] for name in [*_STREAM, "ntp64_max", "received_ns_max"]]
    return {
        (key, zid, eid, epoch): (ntp64, received_ns)
        for key, zid, eid, epoch, ntp64, received_ns in zip(*columns, strict=True)
    }
