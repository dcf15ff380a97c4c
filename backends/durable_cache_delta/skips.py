"""Which numbers were given up, and how does the skips table keep them?

The table holds disjoint ranges. New ones are appended as a small file; when samples replace some,
or the files have become many, the whole is written anew: it is small.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake.transaction import AddAction

from durable_cache.errors import StorageFull
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Skip, SourceId
from durable_cache.storage.contract import source_order
from durable_cache_delta.errors import translated
from durable_cache_delta.files import Numbering, add_action
from durable_cache_delta.log import Added, TableLog
from durable_cache_delta.schema import SKIPS

_FILES_MAX = 64
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


class _Row(NamedTuple):
    numbering: Numbering
    first: int
    last: int
    recorded_us: int


class SkipTable:
    """The skips of one storage in memory and in their table; the caller holds the lock."""

    def __init__(self, log: TableLog, skips_max: int) -> None:
        self._log = log
        self._skips_max = skips_max
        self._rows: dict[Numbering, list[_Row]] = {}
        self._files: list[Added] = []
        self._added: list[_Row] = []
        self._rewrite = False

    def load(self) -> None:
        """Read the table; what was not saved yet is forgotten."""
        self._rows.clear()
        self._added.clear()
        self._rewrite = False
        self._files = list(self._log.files())
        for file in self._files:
            with translated(f"{self._log.subject}: {file.path}"):
                with self._log.place.reader(file.path) as source:
                    rows = pq.read_table(source, columns=SKIPS.names)
                rows = rows.set_column(
                    5, "recorded_at", rows.column("recorded_at").cast(pa.int64())
                )
                columns = [rows.column(name).to_pylist() for name in SKIPS.names]
            for zid, eid, epoch, first, last, recorded in zip(*columns, strict=True):
                numbering = Numbering(zid, eid, epoch)
                self._rows.setdefault(numbering, []).append(_Row(numbering, first, last, recorded))

    def refresh(self) -> None:
        """Read what others committed."""
        self._log.refresh()
        self.load()

    @property
    def numberings(self) -> Iterable[Numbering]:
        """The numberings that have skips."""
        return tuple(self._rows)

    def skipped(self, numbering: Numbering) -> RangeSet:
        """Return the numbers given up of a numbering, as a new set."""
        return RangeSet((row.first, row.last) for row in self._rows.get(numbering, ()))

    def give_up(self, numbering: Numbering, numbers: RangeSet) -> None:
        """Record numbers that are not held; those recorded already stay as they are."""
        recorded = time.time_ns() // 1000
        for first, last in numbers.difference(self.skipped(numbering)):
            row = _Row(numbering, first, last, recorded)
            self._rows.setdefault(numbering, []).append(row)
            self._added.append(row)

    def found(self, numbering: Numbering, numbers: RangeSet) -> None:
        """Take out numbers whose samples came after all."""
        rows = self._rows.get(numbering)
        if rows is None:
            return
        kept: list[_Row] = []
        for row in rows:
            runs = RangeSet([(row.first, row.last)]).difference(numbers)
            kept.extend(row._replace(first=first, last=last) for first, last in runs)
        if kept != rows:
            self._rewrite = True
            self._rows[numbering] = kept
            if not kept:
                del self._rows[numbering]

    def save(self) -> None:
        """Make every change since the last call durable."""
        if not self._added and not self._rewrite:
            return
        rows = self._added
        removed: Sequence[Added] = ()
        if self._rewrite or len(self._files) >= _FILES_MAX:
            rows = [row for rows in self._rows.values() for row in rows]
            removed = self._files
        if sum(map(len, self._rows.values())) > self._skips_max:
            raise StorageFull(
                f"{self._log.subject}: skips_max = {self._skips_max} is reached; raise it"
            )
        added = [self._write(rows)] if rows else []
        if added or removed:
            self._log.commit([action for _, action in added], removed)
        kept = [] if removed else self._files
        self._files = [*kept, *(file for file, _ in added)]
        self._added = []
        self._rewrite = False

    def _write(self, rows: Sequence[_Row]) -> tuple[Added, AddAction]:
        table = pa.Table.from_pylist(
            [
                dict(
                    zip(
                        SKIPS.names,
                        (*row.numbering, row.first, row.last, _moment(row.recorded_us)),
                        strict=True,
                    )
                )
                for row in sorted(rows)
            ],
            schema=SKIPS,
        )
        path = f"part-{uuid.uuid4().hex}.parquet"
        with translated(self._log.subject):
            size = self._log.place.write(
                path, lambda sink: pq.write_table(table, sink, compression="zstd")
            )
        return Added(path, size, None), add_action(path, size, None, table, new=True)

    def __iter__(self) -> Iterator[Skip]:
        """Yield the skips as the contract wants them: disjoint, maximal, in order."""

        def order(numbering: Numbering) -> tuple[tuple[int, int], int]:
            return source_order(SourceId(numbering.zid, numbering.eid)), numbering.epoch

        for numbering in sorted(self._rows, key=order):
            for first, last in self.skipped(numbering):
                yield Skip(SourceId(numbering.zid, numbering.eid), numbering.epoch, first, last)


def _moment(microseconds: int) -> datetime:
    return _UNIX + timedelta(microseconds=microseconds)
