"""Which waits ended without a sample? One point a range: its time is the first number.

A range that is no longer valid keeps its point with a `last` below its first, until the next open.
What the points say is always read less what is held, so that a skip never hides a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Skip, SourceId
from durable_cache.storage.contract import source_order
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.flux import Scan, Source
from durable_cache_influxdb.index import Numbering, StreamIndex
from durable_cache_influxdb.line_writer import LineWriter
from durable_cache_influxdb.points import unix_ns

_COLUMNS = ("_time", "_value", "source_id", "epoch")
_CLEARED_AT_OPEN_MAX = 1000


class SkipTable:
    """The skips of a storage and what the server has of them; guarded by its owner's lock."""

    def __init__(self) -> None:
        self.runs: dict[Numbering, RangeSet] = {}
        self.stored: dict[Numbering, dict[int, int]] = {}
        self.void: list[tuple[Numbering, int]] = []
        self.changed: set[Numbering] = set()

    def settle(self, index: StreamIndex) -> None:
        """Take what is held out of every skip."""
        for numbering, runs in self.runs.items():
            for first, last in index.held(numbering):
                runs.remove(first, last)
        self.changed.update(self.runs)

    def replace(self, numbering: Numbering, sn: int) -> None:
        """End the skip of a number whose sample was found."""
        runs = self.runs.get(numbering)
        if runs is not None and sn in runs:
            runs.remove(sn, sn)
            self.changed.add(numbering)

    def add(self, skips: Iterable[Skip], index: StreamIndex) -> None:
        """Take in new skips, less what is held."""
        for skip in skips:
            numbering = (skip.source, skip.epoch)
            free = RangeSet([(skip.first, skip.last)]).difference(index.held(numbering))
            self.runs.setdefault(numbering, RangeSet()).update(free)
            self.changed.add(numbering)

    def ordered(self) -> Iterator[Skip]:
        """Yield the skips as the contract orders them."""
        numberings = sorted(self.runs, key=lambda one: (source_order(one[0]), one[1]))
        for numbering in numberings:
            for first, last in self.runs[numbering]:
                yield Skip(*numbering, first, last)

    def changes(self) -> dict[Numbering, dict[int, int]]:
        """Return the points that must be written, as first number to last, -1 where void."""
        found: dict[Numbering, dict[int, int]] = {}
        for numbering in self.changed:
            stored = self.stored.get(numbering, {})
            now = {run.first: run.last for run in self.runs[numbering]}
            points = {first: last for first, last in now.items() if stored.get(first) != last}
            points |= {
                first: -1 for first, last in stored.items() if first not in now and last >= 0
            }
            if points:
                found[numbering] = points
        return found

    def written(self, changes: dict[Numbering, dict[int, int]]) -> None:
        """Take note that `changes` are on the server."""
        for numbering, points in changes.items():
            self.stored.setdefault(numbering, {}).update(points)
        self.changed.clear()


def lines_of(measurement: str, changes: dict[Numbering, dict[int, int]]) -> Iterator[str]:
    """Yield the lines of changed skips."""
    for (source, epoch), points in changes.items():
        for first, last in points.items():
            width = max(0, last - first + 1)
            tags = f"{measurement},epoch={epoch},source_id={source}"
            yield f"{tags} last={last}i,skipped={width}i {first}"


def load_skips(client: Client, source: Source) -> SkipTable:
    """Load what the server has; the caller settles it with what is held."""
    table = SkipTable()
    query = source.rows(Scan(("last",)), columns=_COLUMNS)
    for time_text, last_text, source_id, epoch in client.rows([query], _COLUMNS):
        numbering = (SourceId.parse(source_id), int(epoch))
        first, last = unix_ns(time_text), int(last_text)
        table.stored.setdefault(numbering, {})[first] = last
        table.runs.setdefault(numbering, RangeSet()).add(first, last)
        if last < first:
            table.void.append((numbering, first))
    return table


def clear_void(client: Client, source: Source, table: SkipTable, writer: LineWriter) -> None:
    """Remove the points of ranges that are no longer valid, some at a time.

    One that stays is written again where others went, as for samples (ADR 0349).
    """
    touched: set[Numbering] = set()
    for numbering, first in table.void[:_CLEARED_AT_OPEN_MAX]:
        source_id, epoch = numbering
        touched.add(numbering)
        client.delete(
            f'_measurement="{source.measurement}" AND source_id="{source_id}" AND epoch="{epoch}"',
            first,
            first,
        )
        del table.stored[numbering][first]
    table.void = []
    staying = {
        numbering: dict([next(iter(table.stored[numbering].items()))])
        for numbering in touched
        if table.stored[numbering]
    }
    writer.plain(lines_of(source.measurement, staying))
