"""Which points go when a stream's prefix goes, and which prefix does retention let go?

A deletion names a series and a stretch of time, a prefix is meant by number: where numbers and
times do not run alike, the stretches are cut at every point that stays.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

from durable_cache.errors import StorageUnavailable
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Stream
from durable_cache.storage.contract import Floor, Retention
from durable_cache.storage.shared.retention import Weight, within, young
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import COLUMNS, TIME_MAX_NS, TIME_MIN_NS, Scan, Source
from durable_cache_influxdb.index import Measurements, StreamIndex, StreamState
from durable_cache_influxdb.line_writer import LineWriter
from durable_cache_influxdb.lines import Meta, Tags, series_of
from durable_cache_influxdb.options import InfluxDbOptions
from durable_cache_influxdb.points import LOOKS_SECONDS, SERIES_PER_SCAN_MAX, numbers_of, unix_ns

_GUARD_NS = 600 * 1_000_000_000
"""One guard stands for so long; shards begin and end at multiples of that."""
_GUARDS_MAX = 10_000


def predicate(measurement: str, tags: Tags, ordinal: int | None = None) -> str:
    """Return the deletion predicate of a stream's series; ids are made of safe letters."""
    text = (
        f'_measurement="{measurement}" AND key_id="{tags.key_id}"'
        f' AND source_id="{tags.source_id}" AND epoch="{tags.epoch}"'
    )
    return text if ordinal is None else f'{text} AND n="{ordinal}"'


class Remover:
    """Deletes prefixes of streams; one thread at a time, the storage's lock is held.

    A deletion that meets the server while it moves its memory to disk misses what is on the way
    there, and takes the whole series out of its shard's directory where it finds nothing else of
    it: what should stay is not shown any more. So a point that stays is written again behind each
    deletion, which puts the series back. Then the server is asked what is left below the floor.
    What a query finds by another shard's directory no deletion finds: it is written again, too,
    before it is deleted again. With the last series of a measurement a shard forgets its fields, so
    a guard stands beside what stays, in a series of its own. A stream that goes as a whole shows
    what was missed when it begins again: that goes then (ADR 0349).
    """

    def __init__(
        self, client: Client, where: Measurements, options: InfluxDbOptions, writer: LineWriter
    ) -> None:
        self._client = client
        self._where = where
        self._options = options
        self._writer = writer
        self._staying: list[str] = []
        self._gone: dict[Tags, None] = {}
        """Streams that went as a whole, the last ones; bounded by `streams_max`."""
        self._guarded: set[int] = set()
        """Where guards stand, as Unix nanoseconds; at most `_GUARDS_MAX`."""

    def put_back(self) -> None:
        """Write what an interrupted removal has not written; before anything is loaded."""
        if self._staying:
            self._writer.again(self._staying)
            self._staying = []

    def remove_below(self, state: StreamState, floor: int) -> None:
        """Delete every sample of a stream below `floor`, exactly; idempotent.

        Raises `StorageUnavailable` while the server shows again what it was told to delete.
        """
        measurement = self._where.samples.measurement
        if floor > (state.runs.last or 0):
            text = predicate(measurement, state.tags)
            self._client.delete(text, TIME_MIN_NS, TIME_MAX_NS)
            self._client.delete(predicate(self._where.streams.measurement, state.tags), 0, 0)
            self._gone[state.tags] = None
            if len(self._gone) > self._options.streams_max:
                del self._gone[next(iter(self._gone))]
            return
        going = numbers_of(state.tags)._replace(value_last=floor - 1)
        for look, pause_seconds in enumerate((0.0, *LOOKS_SECONDS)):
            time.sleep(pause_seconds)
            ends = self._ends(going)
            if not ends:
                return
            for ordinal, points in ends.items():
                staying = self._staying_beside(state.tags, floor, ordinal, points)
                self._cut(state, ordinal, points, staying, again=look > 0)
            times = [moment for points in ends.values() for moment in points]
            going = going._replace(first_ns=min(times), last_ns=max(times))
        raise self._still_there(state)

    @property
    def gone(self) -> Collection[Tags]:
        """The streams that went as a whole and were not looked at since."""
        return self._gone.keys()

    def look_again(self, begun: Iterable[StreamState]) -> None:
        """Delete what streams that went as a whole and have begun again show beside their runs.

        Raises `StorageUnavailable` while the server shows again what it was told to delete.
        """
        states = {state.tags: state for state in begun}
        for pause_seconds in LOOKS_SECONDS:
            time.sleep(pause_seconds)
            left: dict[tuple[Tags, int], dict[int, int]] = {}
            staying: dict[tuple[Tags, int], dict[int, int]] = {}
            queries = [self._where.samples.rows(numbers_of(tags)) for tags in states]
            for row in self._client.rows(queries, COLUMNS):
                tags, sn = Tags(row[3], row[4], int(row[5])), int(row[1])
                known = staying if sn in states[tags].runs else left
                known.setdefault((tags, int(row[6])), {})[unix_ns(row[0])] = sn
            for (tags, ordinal), going in left.items():
                stays = staying.get((tags, ordinal), {})
                self._cut(states[tags], ordinal, going, stays, again=True)
            again = {tags for tags, _ in left}
            for tags in states.keys() - again:
                self._gone.pop(tags, None)
            states = {tags: states[tags] for tags in states if tags in again}
            if not states:
                return
        raise self._still_there(next(iter(states.values())))

    def _still_there(self, state: StreamState) -> StorageUnavailable:
        return StorageUnavailable(
            f"{self._client.subject}: what was removed of source {state.stream.source} is still"
            " there; try again"
        )

    def _ends(self, going: Scan) -> dict[int, dict[int, int]]:
        """Return the first and the last point of a scan, by ordinal: time and number."""
        samples = self._where.samples
        points: dict[int, dict[int, int]] = {}
        queries = [samples.rows(going, "first()"), samples.rows(going, "last()")]
        for row in self._client.rows(queries, COLUMNS):
            points.setdefault(int(row[6]), {})[unix_ns(row[0])] = int(row[1])
        return points

    def _staying_beside(
        self, tags: Tags, floor: int, ordinal: int, going: Collection[int]
    ) -> dict[int, int]:
        """Return the points that stay between the times of those that go, and on either side."""
        samples, first, last = self._where.samples, min(going), max(going)
        series = numbers_of(tags)._replace(ordinals=(ordinal,))
        queries = [
            samples.rows(series._replace(first_ns=first, last_ns=last, value_first=floor)),
            samples.rows(series._replace(first_ns=last + 1), "first()"),
        ]
        if first > TIME_MIN_NS:
            queries.append(samples.rows(series._replace(last_ns=first - 1), "last()"))
        return {unix_ns(row[0]): int(row[1]) for row in self._client.rows(queries, COLUMNS)}

    def _cut(
        self,
        state: StreamState,
        ordinal: int,
        going: dict[int, int],
        staying: dict[int, int],
        *,
        again: bool,
    ) -> None:
        """Delete what stands between the times of `going`; write again what stays."""
        measurement = self._where.samples.measurement
        head, tail = series_of(measurement, state.stream, self._options)

        def lines(points: dict[int, int]) -> list[str]:
            return [f"{head}{ordinal}{tail}sn={sn}i {moment}" for moment, sn in points.items()]

        self._guard(staying)
        if again:
            self._writer.again(lines(going))
        self._staying = lines(staying)
        text = predicate(measurement, state.tags, ordinal)
        start, last = min(going), max(going)
        for moment in [*sorted(at for at in staying if start <= at <= last), last + 1]:
            if moment > start:
                self._client.delete(text, start, moment - 1)
            start = moment + 1
        self.put_back()

    def _guard(self, moments: Iterable[int]) -> None:
        """Let each shard keep the measurement's fields where something stays at these times."""
        spans = {moment // _GUARD_NS * _GUARD_NS for moment in moments} - self._guarded
        head = f"{self._where.samples.measurement},epoch=0,key_id=-,n=0,source_id=- guard=true"
        self._writer.again(f"{head} {span}" for span in sorted(spans))
        if len(self._guarded) + len(spans) > _GUARDS_MAX:
            self._guarded.clear()
        self._guarded |= spans


def floors_of(
    client: Client, source: Source, index: StreamIndex, retention: Retention, now_ns: int
) -> list[Floor]:
    """Return the floor of every stream that must lose samples."""
    floors = {
        state.stream: _floor_by_count(state.runs, retention.samples_max)
        for state in index.states.values()
        if state.runs
    }
    oldest_ns = None
    if retention.age_seconds_max is not None:
        oldest_ns = now_ns - round(retention.age_seconds_max * 1e9)
    weighed: list[StreamState] = []
    if retention.bytes_max is not None:
        weighed = list(index.states.values())
    elif oldest_ns is not None:
        weighed = _with_older(client, source, index, oldest_ns)
    kept: dict[Stream, Sequence[Weight]] = {}
    step = 1 if retention.bytes_max is None else SERIES_PER_SCAN_MAX
    for at in range(0, len(weighed), step):
        for stream, stored in _weights(client, source, weighed[at : at + step]).items():
            above = [weight for weight in stored if weight.sn >= floors.get(stream, 0)]
            weights = above if oldest_ns is None else young(above, oldest_ns)
            runs = index.states[stream].runs
            floors[stream] = weights[0].sn if weights else (runs.last or 0) + 1
            if retention.bytes_max is not None:
                kept[stream] = weights
    if retention.bytes_max is not None:
        for stream, left in within(kept, retention.bytes_max).items():
            if kept[stream]:
                floors[stream] = left[0].sn if left else kept[stream][-1].sn + 1
    return [
        Floor(stream, sn)
        for stream, sn in floors.items()
        if sn > (index.states[stream].runs.first or 0)
    ]


def _floor_by_count(runs: RangeSet, samples_max: int | None) -> int:
    first, last = runs.first or 0, runs.last or 0
    if samples_max is None:
        return first
    left = samples_max
    if left == 0:
        return last + 1
    for low, high in reversed(list(runs)):
        if high - low + 1 >= left:
            return high - left + 1
        left -= high - low + 1
    return first


def _with_older(
    client: Client, source: Source, index: StreamIndex, oldest_ns: int
) -> list[StreamState]:
    """Return the streams that hold something too old; the server looks."""
    found: dict[Tags, StreamState] = {}
    query = source.rows(Scan(("received",)), "min()")
    for row in client.rows([query], COLUMNS):
        tags = Tags(row[3], row[4], int(row[5]))
        if int(row[1]) < oldest_ns and tags in index.by_tags:
            found[tags] = index.by_tags[tags]
    return list(found.values())


def _weights(
    client: Client, source: Source, states: Iterable[StreamState]
) -> dict[Stream, list[Weight]]:
    """Return what some streams hold, in order of sn."""
    named = {state.tags: state.stream for state in states}
    found: dict[Stream, list[Weight]] = {stream: [] for stream in named.values()}
    scan = Scan(
        ("meta",),
        tuple(dict.fromkeys(tags.key_id for tags in named)),
        tuple(dict.fromkeys(tags.source_id for tags in named)),
        tuple(dict.fromkeys(tags.epoch for tags in named)),
    )
    for row in client.rows([source.rows(scan)], COLUMNS):
        stream = named.get(Tags(row[3], row[4], int(row[5])))
        if stream is not None:
            meta = Meta.parse(row[1])
            found[stream].append(Weight(meta.sn, meta.received_ns, meta.size))
    return {stream: sorted(weights) for stream, weights in found.items() if weights}
