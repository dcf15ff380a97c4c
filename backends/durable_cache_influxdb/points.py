"""Which points stand where, and what is in them: windows of time in, rows and samples out."""

from __future__ import annotations

import calendar
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from durable_cache.errors import StorageCorrupt
from durable_cache.model.sample import Sample, Stream
from durable_cache_influxdb.client import Client, Row
from durable_cache_influxdb.flux import COLUMNS, TIME_MAX_NS, TIME_MIN_NS, Scan, Source
from durable_cache_influxdb.lines import Tags, is_whole, sample_of
from durable_cache_influxdb.slots import Slot

LOOKS_SECONDS = (0.0, 0.05, 0.2, 1.0, 3.0)
"""A point that is being written beside a busy server shows its fields one by one for a while."""

SERIES_PER_SCAN_MAX = 100
_SLACK_NS = 1_000_000
_GAP_NS = 1_000_000_000


class Point(NamedTuple):
    """The identity of a point in our measurement."""

    tags: Tags
    slot: Slot


class Window(NamedTuple):
    """A stretch of one series, ends included; no ordinal means all of a stream's series."""

    tags: Tags
    ordinal: int | None
    first_ns: int
    last_ns: int


@lru_cache(maxsize=8192)
def _seconds(text: str) -> int:
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def unix_ns(text: str) -> int:
    """Return the Unix nanoseconds of a time in an answer."""
    return _seconds(text[:19]) * 1_000_000_000 + int(text[20:-1].ljust(9, "0") or 0)


def point_of(row: Row) -> Point:
    """Return the point a row of our columns belongs to."""
    return Point(Tags(row[3], row[4], int(row[5])), Slot(int(row[6]), unix_ns(row[0])))


def windows_of(points: Iterable[Point]) -> list[Window]:
    """Return windows that cover the points, one per series and stretch without a longer gap."""
    series: dict[tuple[Tags, int], list[int]] = {}
    for tags, slot in points:
        series.setdefault((tags, slot.ordinal), []).append(slot.time_ns)
    found = []
    for (tags, ordinal), times in series.items():
        times.sort()
        first = last = times[0]
        for moment in times[1:]:
            if moment - last > _GAP_NS:
                found.append(Window(tags, ordinal, first, last))
                first = moment
            last = moment
        found.append(Window(tags, ordinal, first, last))
    return found


def scans_of(windows: Iterable[Window], fields: tuple[str, ...]) -> list[Scan]:
    """Join windows of about the same time into few scans that read little else.

    No fields means those that make a sample.
    """
    scans: list[Scan] = []
    group: list[Window] = []
    first = last = widest = 0
    for window in sorted(windows, key=lambda w: (-1 if w.ordinal is None else w.ordinal, w[2:])):
        low, high = min(first, window.first_ns), max(last, window.last_ns)
        wide = max(widest, window.last_ns - window.first_ns)
        if group and (
            window.ordinal != group[0].ordinal
            or high - low > 2 * wide + _SLACK_NS
            or len(group) >= SERIES_PER_SCAN_MAX
        ):
            scans.append(_scan(group, fields))
            group = []
        if not group:
            low, high, wide = window.first_ns, window.last_ns, window.last_ns - window.first_ns
        group.append(window)
        first, last, widest = low, high, wide
    if group:
        scans.append(_scan(group, fields))
    return scans


def _scan(group: Sequence[Window], fields: tuple[str, ...]) -> Scan:
    ordinal = group[0].ordinal
    return Scan(
        fields=fields,
        stored=not fields,
        key_ids=tuple(dict.fromkeys(window.tags.key_id for window in group)),
        source_ids=tuple(dict.fromkeys(window.tags.source_id for window in group)),
        epochs=tuple(dict.fromkeys(window.tags.epoch for window in group)),
        ordinals=() if ordinal is None else (ordinal,),
        first_ns=min(window.first_ns for window in group),
        last_ns=max(window.last_ns for window in group),
    )


def whole(tags: Tags) -> Window:
    """Return the window of everything in a stream."""
    return Window(tags, None, TIME_MIN_NS, TIME_MAX_NS - 1)


def numbers_of(tags: Tags) -> Scan:
    """Return the scan of all numbers of one stream."""
    return Scan(("sn",), (tags.key_id,), (tags.source_id,), (tags.epoch,))


def numbers(
    client: Client, source: Source, bounds: Mapping[Tags, tuple[int, int]]
) -> Iterator[tuple[Point, int]]:
    """Yield point and sn of the samples of each stream between two numbers, ends included."""
    pipelines = [
        source.rows(numbers_of(tags)._replace(value_first=first, value_last=last))
        for tags, (first, last) in bounds.items()
    ]
    for row in client.rows(pipelines, COLUMNS):
        yield point_of(row), int(row[1])


def fetch(
    client: Client,
    source: Source,
    streams: Mapping[Tags, Stream],
    points: Collection[Point],
    whole_streams: Iterable[Tags] = (),
) -> list[Sample]:
    """Return the samples of the given points, and all of the given streams, in no order.

    What is removed meanwhile is left out. Raises `StorageCorrupt` for a point there in part.
    """
    everything = set(whole_streams)
    wanted = set(points)
    windows = [*windows_of(wanted), *map(whole, everything)]
    found = _fields(client, source, windows, wanted, everything)
    for pause_seconds in LOOKS_SECONDS:
        torn = {point for point, fields in found.items() if not is_whole(fields)}
        if not torn:
            break
        # A write or a removal between the fields of one answer looks like this: look again later.
        time.sleep(pause_seconds)
        for point in torn:
            del found[point]
        found |= _fields(client, source, windows_of(torn), torn, set())
    for point, fields in found.items():
        if not is_whole(fields):
            raise StorageCorrupt(
                f"{client.subject}: the point of {point.tags} at {point.slot} is not whole"
            )
    return [sample_of(streams[point.tags], fields) for point, fields in found.items()]


def _fields(
    client: Client,
    source: Source,
    windows: Iterable[Window],
    wanted: Collection[Point],
    everything: Collection[Tags],
) -> dict[Point, dict[str, str]]:
    found: dict[Point, dict[str, str]] = {}
    pipelines = [source.rows(scan) for scan in scans_of(windows, ())]
    for row in client.rows(pipelines, COLUMNS):
        point = point_of(row)
        if point in wanted or point.tags in everything:
            found.setdefault(point, {})[row[2]] = row[1]
    return found
