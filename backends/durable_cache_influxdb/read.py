"""Which samples does a selection name? One page, in the order that every backend has.

Reads by number go straight to the numbers that are held. All others first let the server name the
few points in question by their packed `meta`, decide exactly here, and fetch payloads last: a page
is all that is ever in memory, whatever is stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from threading import RLock
from typing import NamedTuple

from durable_cache.model.newest import NewestPlaces
from durable_cache.model.sample import Sample, SampleBatch, timestamp_id_number
from durable_cache.model.selection import Cursor, Order, Selection, TimeBounds
from durable_cache.model.sequence import UNNUMBERED_SN_MAX
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.storage.contract import Page
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import COLUMNS, Scan, Source
from durable_cache_influxdb.index import StreamIndex, StreamState
from durable_cache_influxdb.lines import Meta, Tags
from durable_cache_influxdb.points import (
    SERIES_PER_SCAN_MAX,
    Point,
    fetch,
    numbers,
    point_of,
    unix_ns,
)
from durable_cache_influxdb.slots import ORDINALS, SHIFT_NS_MAX

_SHIFTED = tuple(ORDINALS)[1:]


class Plan(NamedTuple):
    """What a page by number consists of, as far as the index knows."""

    whole: tuple[StreamState, ...]
    parts: tuple[tuple[StreamState, int, int], ...]
    last: Cursor | None
    """Where the planned page ends if more follows."""

    @property
    def streams(self) -> int:
        """How many streams take part."""
        return len(self.whole) + len(self.parts)


def is_by_number(selection: Selection) -> bool:
    """Tell whether a selection can be planned from the numbers held alone."""
    return (
        selection.order is Order.IDENTITY
        and selection.newest is None
        and selection.times == TimeBounds()
    )


def plan_by_number(
    index: StreamIndex, selection: Selection, limit: int, cursor: Cursor | None
) -> Plan:
    """Choose the streams and numbers of a page; no I/O."""
    whole: list[StreamState] = []
    parts: list[tuple[StreamState, int, int]] = []
    left = limit
    last: Cursor | None = None
    for state in index.ordered(selection, None if cursor is None else cursor[:4]):
        low = selection.sns.first or 0
        high = UNNUMBERED_SN_MAX if selection.sns.last is None else selection.sns.last
        if cursor is not None and state.stream.order == cursor[:4]:
            low = max(low, int(cursor[4]) + 1)
        runs = state.runs.clip(low, high) if low <= high else None
        if not runs:
            continue
        if left == 0:
            return Plan(tuple(whole), tuple(parts), last)
        count = runs.count
        if count <= left and runs == state.runs:
            whole.append(state)
            last = (*state.stream.order, runs.last or 0)
        else:
            first, end = runs.first or 0, _nth(runs, min(count, left))
            parts.append((state, first, end))
            last = (*state.stream.order, end)
        if count > left:
            return Plan(tuple(whole), tuple(parts), last)
        left -= count
    return Plan(tuple(whole), tuple(parts), None)


def _nth(runs: Iterable[tuple[int, int]], count: int) -> int:
    last = -1
    for first, last in runs:
        if last - first + 1 >= count:
            return first + count - 1
        count -= last - first + 1
    return last


def read_planned(client: Client, source: Source, plan: Plan) -> list[Sample]:
    """Fetch the samples of a plan, in order; what was trimmed meanwhile is missing."""
    bounds = {state.tags: (first, last) for state, first, last in plan.parts}
    points = [point for point, _ in numbers(client, source, bounds)]
    states = [*plan.whole, *(state for state, _, _ in plan.parts)]
    streams = {state.tags: state.stream for state in states}
    found = fetch(client, source, streams, points, [state.tags for state in plan.whole])
    limits = {state.stream: state.runs.last or 0 for state in plan.whole}
    return sorted(
        (s for s in found if s.sn <= limits.get(s.stream, UNNUMBERED_SN_MAX)),
        key=lambda sample: sample.order,
    )


class _Place(NamedTuple):
    """A sample that a page may hold, without its payload."""

    state: StreamState
    meta: Meta
    point: Point

    @property
    def order(self) -> Cursor:
        return (*self.state.stream.order, self.meta.sn)

    @property
    def time_order(self) -> Cursor:
        return (self.meta.ntp64, timestamp_id_number(self.meta.timestamp_id), *self.order)


def read_by_meta(
    client: Client,
    source: Source,
    index: StreamIndex,
    selection: Selection,
    limit: int,
    cursor: Cursor | None,
    lock: RLock,
) -> Page:
    """Return the page of a selection that goes by time or asks for the newest."""
    by_time = selection.order is Order.TIME
    chosen: list[_Place] = []
    first = cursor[:1] if cursor is not None and not by_time else None
    with lock:
        states = [state for state in index.ordered(selection, first) if state.runs]
    for group in [states] if by_time else _groups(states):
        rows = _places(client, source, group, selection, limit, cursor if by_time else None)
        matching = (place for place in rows if _holds(selection, place.meta))
        candidates = _newest(matching, selection.newest)
        if cursor is not None:
            candidates = (p for p in candidates if _key(selection, p) > cursor)
        chosen += heapq.nsmallest(limit + 1, candidates, key=lambda p: _key(selection, p))
        if len(chosen) > limit:
            break
    page = chosen[:limit]
    streams = {place.point.tags: place.state.stream for place in page}
    samples = fetch(client, source, streams, [place.point for place in page])
    samples.sort(key=selection.place)
    if len(chosen) <= limit:
        return Page(SampleBatch(samples), None)
    if not samples:  # all were removed meanwhile: what follows is the page
        after = _key(selection, page[-1])
        return read_by_meta(client, source, index, selection, limit, after, lock)
    return Page(SampleBatch(samples), selection.place(samples[-1]))


def _key(selection: Selection, place: _Place) -> Cursor:
    return place.order if selection.order is Order.IDENTITY else place.time_order


def _holds(selection: Selection, meta: Meta) -> bool:
    return selection.sns.holds(meta.sn) and selection.times.holds(meta.ntp64)


def _groups(states: Iterable[StreamState]) -> Iterator[list[StreamState]]:
    """Cut streams into groups of whole keys that grow, so that a first page asks for little."""
    size = 4
    keys = (list(group) for _, group in groupby(states, key=lambda state: state.stream.key))
    while group := [state for key in islice(keys, size) for state in key]:
        yield group
        size = min(2 * size, SERIES_PER_SCAN_MAX)


def _newest(places: Iterable[_Place], newest: int | None) -> Iterable[_Place]:
    if newest is None:
        return places
    kept: NewestPlaces[str, tuple[Cursor, _Place]] = NewestPlaces(newest)
    for place in places:
        kept.offer(place.state.tags.key_id, (place.time_order, place))
    return [place for _, place in kept]


def _places(
    client: Client,
    source: Source,
    states: list[StreamState],
    selection: Selection,
    limit: int,
    cursor: Cursor | None,
) -> Iterator[_Place]:
    """Yield at least every sample that the page may hold, from as few rows as are certain."""
    first_ns, last_ns = (ntp64_to_ns(end) for end in selection.times)
    if cursor is not None and selection.newest is None:
        first_ns = max(first_ns, ntp64_to_ns(int(cursor[0])))
    if selection.order is Order.TIME and selection.newest is None:
        last_ns = _horizon(client, source, states, selection, limit, (first_ns, last_ns))
    if first_ns > last_ns or not states:
        return
    pipelines = []
    for base in _scans(states, selection):
        own = base._replace(fields=("meta",), first_ns=first_ns, last_ns=last_ns)
        pipelines += _pipelines(source, own, selection)
        shifted = own._replace(
            ordinals=_SHIFTED,
            first_ns=max(0, first_ns - SHIFT_NS_MAX),
            last_ns=last_ns + SHIFT_NS_MAX,
        )
        pipelines.append(source.rows(shifted))
    named = {state.tags: state for state in states}
    for row in client.rows(pipelines, COLUMNS):
        state = named.get(Tags(row[3], row[4], int(row[5])))
        if state is not None:
            yield _Place(state, Meta.parse(row[1]), point_of(row))


def _pipelines(source: Source, scan: Scan, selection: Selection) -> list[str]:
    """Ask for the end of each series where only that can be among the newest.

    Under ordinal 0 the order of points is the order of timestamps, and a nanosecond has one point.
    Which of the last nanosecond's timestamps a selection admits is not certain: it comes extra.
    """
    if selection.newest is None or selection.sns != (None, None) or scan.last_ns < scan.first_ns:
        return [source.rows(scan)]
    step = "last()" if selection.newest == 1 else f"tail(n: {selection.newest})"
    if selection.times == TimeBounds() or scan.last_ns == scan.first_ns:
        return [source.rows(scan, step)]
    return [
        source.rows(scan._replace(last_ns=scan.last_ns - 1), step),
        source.rows(scan._replace(first_ns=scan.last_ns)),
    ]


def _horizon(
    client: Client,
    source: Source,
    states: list[StreamState],
    selection: Selection,
    limit: int,
    bounds: tuple[int, int],
) -> int:
    """Return a time up to which at least `limit` + 1 samples follow the first nanosecond."""
    first_ns, last_ns = bounds
    if first_ns >= last_ns:
        return last_ns
    count = limit + 1
    named = {state.tags for state in states}
    pipelines = []
    steps = [f"limit(n: {count})", "group()", 'sort(columns: ["_time"])']
    for base in _scans(states, selection):
        scan = base._replace(
            fields=("sn",),
            first_ns=first_ns + 1,
            last_ns=last_ns,
            value_first=selection.sns.first,
            value_last=selection.sns.last,
        )
        exact = selection.zid is None or bool(scan.source_ids)
        pipelines.append(source.rows(scan, *steps, *steps[: int(exact)]))
    times: list[int] = []
    for row in client.rows(pipelines, COLUMNS):
        if Tags(row[3], row[4], int(row[5])) in named:
            moment = -unix_ns(row[0])
            if len(times) < count:
                heapq.heappush(times, moment)
            elif moment > times[0]:
                heapq.heapreplace(times, moment)
    return -times[0] if len(times) == count else last_ns


def _scans(states: list[StreamState], selection: Selection) -> Iterator[Scan]:
    """Yield scans of ordinal 0 that cover the streams, and no other where that can be said."""
    ids = list(dict.fromkeys(state.tags.key_id for state in states))
    sources: tuple[str, ...] = ()
    if selection.zid is not None:
        sources = tuple(dict.fromkeys(state.tags.source_id for state in states))
    epochs = () if selection.epoch is None else (selection.epoch,)
    for at in range(0, len(ids), SERIES_PER_SCAN_MAX):
        yield Scan(
            key_ids=tuple(ids[at : at + SERIES_PER_SCAN_MAX]),
            source_ids=sources if len(sources) <= SERIES_PER_SCAN_MAX else (),
            epochs=epochs,
            ordinals=(0,),
        )
