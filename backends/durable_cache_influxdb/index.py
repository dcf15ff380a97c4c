"""Which streams does a storage hold, and which numbers of each? Kept by the writer, loaded by all.

The server is the truth: everything here comes from it and can be loaded again at any time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import COLUMNS, Scan, Source
from durable_cache_influxdb.lines import Meta, Tags, stream_of, tags_of
from durable_cache_influxdb.points import SERIES_PER_SCAN_MAX, unix_ns

Numbering = tuple[SourceId, int]
_STEP = (
    'duplicate(column: "_value", as: "step")',
    'difference(columns: ["step"], keepFirst: true)',
    "filter(fn: (r) => not exists r.step or r.step != 1)",
)


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements of one storage in one bucket."""

    samples: Source
    streams: Source
    skips: Source
    leases: Source

    @classmethod
    def of(cls, bucket: str, storage: str) -> Measurements:
        """Name them; a storage's own name has no dot, so no two storages meet."""
        return cls(
            *(Source(bucket, storage + tail) for tail in ("", ".streams", ".skips", ".lease"))
        )


@dataclass(slots=True)
class StreamState:
    """What is known of one stream."""

    stream: Stream
    tags: Tags
    runs: RangeSet = field(default_factory=RangeSet)
    time_max_ns: int = -1
    """No point of ordinal 0 stands later."""
    newest_ntp64: int = 0
    newest_received_ns: int = 0


class StreamIndex:
    """The streams of a storage, in order; mutable, guarded by its owner's lock."""

    def __init__(self) -> None:
        self.states: dict[Stream, StreamState] = {}
        self.by_tags: dict[Tags, StreamState] = {}
        self._numberings: dict[Numbering, set[Stream]] = {}
        self._order: list[tuple[tuple[bytes, int, int, int], Stream]] = []

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[StreamState]:
        """Yield every stream, in order."""
        return (self.states[stream] for _, stream in self._order)

    def put(self, state: StreamState) -> None:
        """Add a stream, or replace what is known of it."""
        stream = state.stream
        if stream not in self.states:
            insort(self._order, (stream.order, stream))
        self.states[stream] = state
        self.by_tags[state.tags] = state
        self._numberings.setdefault((stream.source, stream.epoch), set()).add(stream)

    def drop(self, stream: Stream) -> None:
        """Forget a stream."""
        state = self.states.pop(stream, None)
        if state is None:
            return
        del self.by_tags[state.tags]
        del self._order[bisect_left(self._order, (stream.order, stream))]
        numbering = (stream.source, stream.epoch)
        self._numberings[numbering].discard(stream)
        if not self._numberings[numbering]:
            del self._numberings[numbering]

    def held(self, numbering: Numbering) -> RangeSet:
        """Return the numbers held of a numbering, over all keys, as a new set."""
        held = RangeSet()
        for stream in self._numberings.get(numbering, ()):
            held.update(self.states[stream].runs)
        return held

    def ordered(
        self, selection: Selection, first: tuple[bytes | int, ...] | None = None
    ) -> Iterator[StreamState]:
        """Yield the streams a selection names, in order, from place `first` on."""
        start = 0
        if first is not None:
            start = bisect_left(self._order, first, key=lambda entry: entry[0])
        for at in range(start, len(self._order)):
            stream = self._order[at][1]
            if selection.names(stream):
                yield self.states[stream]


def load(
    client: Client,
    where: Measurements,
    only: Collection[Stream] | None = None,
    *,
    newest: bool = False,
) -> StreamIndex:
    """Load the index, or the part of some streams; `newest` adds the newest times."""
    index = StreamIndex()
    groups: Sequence[tuple[str, ...]] = [()]
    if only is not None:
        ids = sorted({tags_of(stream).key_id for stream in only})
        step = SERIES_PER_SCAN_MAX
        groups = [tuple(ids[at : at + step]) for at in range(0, len(ids), step)]
    for key_ids in groups:
        _load_streams(client, where.streams, key_ids, index)
        if index.states:
            _load_runs(client, where.samples, key_ids, index)
            if newest:
                _load_newest(client, where.samples, key_ids, index)
    return index


def _load_streams(
    client: Client, source: Source, key_ids: tuple[str, ...], index: StreamIndex
) -> None:
    columns = ("key_id", "source_id", "epoch", "_value")
    query = source.rows(Scan(("key",), key_ids, last_ns=0), columns=columns)
    for key_id, source_id, epoch, key in client.rows([query], columns):
        tags = Tags(key_id, source_id, int(epoch))
        index.put(StreamState(stream_of(tags, key), tags))


def _load_runs(
    client: Client, source: Source, key_ids: tuple[str, ...], index: StreamIndex
) -> None:
    """Let the server name only the numbers at which a series breaks off or ends.

    In order of time each series is a list of ascending chains; the union of the chains is what is
    held, whatever the order is.
    """
    columns = (*COLUMNS, "step")
    scan = Scan(("sn",), key_ids)
    starts: dict[tuple[Tags, str], list[tuple[int, int]]] = {}
    for row in client.rows([source.rows(scan, *_STEP, columns=columns)], columns):
        tags = Tags(row[3], row[4], int(row[5]))
        step = int(row[7]) if row[7] else 0
        starts.setdefault((tags, row[6]), []).append((int(row[1]), step))
    for row in client.rows([source.rows(scan, "last()")], COLUMNS):
        tags = Tags(row[3], row[4], int(row[5]))
        state = index.by_tags.get(tags)
        if state is None:
            continue
        chain = starts.get((tags, row[6]), [(int(row[1]), 0)])
        ends = [sn - step for sn, step in chain[1:]]
        for (first, _), last in zip(chain, [*ends, int(row[1])], strict=True):
            state.runs.add(first, last)
        if row[6] == "0":
            state.time_max_ns = unix_ns(row[0])


def _load_newest(
    client: Client, source: Source, key_ids: tuple[str, ...], index: StreamIndex
) -> None:
    stamps = [
        source.rows(Scan(("meta",), key_ids, ordinals=(0,)), "last()"),
        source.rows(Scan(("meta",), key_ids, ordinals=(1, 2, 3))),
    ]
    for row in client.rows(stamps, COLUMNS):
        state = index.by_tags.get(Tags(row[3], row[4], int(row[5])))
        if state is not None:
            state.newest_ntp64 = max(state.newest_ntp64, Meta.parse(row[1]).ntp64)
    received = [source.rows(Scan(("received",), key_ids), "max()")]
    seen: set[Stream] = set()
    for row in client.rows(received, COLUMNS):
        state = index.by_tags.get(Tags(row[3], row[4], int(row[5])))
        if state is None:
            continue
        value = int(row[1])
        fresh = state.stream not in seen
        state.newest_received_ns = value if fresh else max(value, state.newest_received_ns)
        seen.add(state.stream)
