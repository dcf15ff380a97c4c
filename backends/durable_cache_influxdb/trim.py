"""Which points go when a stream's prefix goes, and which prefix does retention let go?

A deletion names a series and a stretch of time, a prefix is meant by number: where numbers and
times do not run alike, the stretches are cut at every point that stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Stream
from durable_cache.storage.contract import Floor, Retention
from durable_cache.storage.shared.retention import Weight, within, young
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import COLUMNS, TIME_MAX_NS, TIME_MIN_NS, Scan, Source
from durable_cache_influxdb.index import Measurements, StreamIndex, StreamState
from durable_cache_influxdb.lines import Meta, Tags
from durable_cache_influxdb.points import SERIES_PER_SCAN_MAX, unix_ns


def predicate(measurement: str, tags: Tags, ordinal: int | None = None) -> str:
    """Return the deletion predicate of a stream's series; ids are made of safe letters."""
    text = (
        f'_measurement="{measurement}" AND key_id="{tags.key_id}"'
        f' AND source_id="{tags.source_id}" AND epoch="{tags.epoch}"'
    )
    return text if ordinal is None else f'{text} AND n="{ordinal}"'


def remove_below(client: Client, where: Measurements, state: StreamState, floor: int) -> None:
    """Delete every sample of a stream below `floor`, exactly; idempotent."""
    measurement = where.samples.measurement
    if floor > (state.runs.last or 0):
        client.delete(predicate(measurement, state.tags), TIME_MIN_NS, TIME_MAX_NS)
        client.delete(predicate(where.streams.measurement, state.tags), 0, 0)
        return
    base = Scan(("sn",), (state.tags.key_id,), (state.tags.source_id,), (state.tags.epoch,))
    going = base._replace(value_last=floor - 1)
    ends: dict[int, list[int]] = {}
    queries = [where.samples.rows(going, "first()"), where.samples.rows(going, "last()")]
    for row in client.rows(queries, COLUMNS):
        ends.setdefault(int(row[6]), []).append(unix_ns(row[0]))
    for ordinal, times in ends.items():
        first, last = min(times), max(times)
        staying = base._replace(
            ordinals=(ordinal,), first_ns=first, last_ns=last, value_first=floor
        )
        kept = [unix_ns(row[0]) for row in client.rows([where.samples.rows(staying)], COLUMNS)]
        start = first
        for moment in [*sorted(kept), last + 1]:
            if moment > start:
                client.delete(predicate(measurement, state.tags, ordinal), start, moment - 1)
            start = moment + 1


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
