"""A storage on Delta Lake: an open handle on the samples and the skips table of one name.

The service is the only committer. `append` writes a sorted Parquet file, flushes it and its folder,
commits, flushes the commit, records it as confirmed, and only then returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from durable_cache.errors import Closed, DurableCacheError, StorageCorrupt, StorageLocked
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch, Skip, Stream
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import (
    AppendResult,
    Capabilities,
    Floor,
    Held,
    Page,
    Refusal,
    Retention,
    Storage,
)
from durable_cache_delta.append import Choice, choose
from durable_cache_delta.catalog import Catalog
from durable_cache_delta.errors import translated
from durable_cache_delta.file_writer import Written, write_samples
from durable_cache_delta.files import DataFile, Numbering
from durable_cache_delta.index import Wanted, numbering_of
from durable_cache_delta.log import Added, TableLog
from durable_cache_delta.options import DeltaOptions
from durable_cache_delta.places import FlushFailed, Place
from durable_cache_delta.read import read_page
from durable_cache_delta.rows import refusal
from durable_cache_delta.scanner import Scanner
from durable_cache_delta.skips import SkipTable
from durable_cache_delta.trim import as_floors, floors_of, identities, plan_removal, states_after
from durable_cache_delta.writer_lock import WriterLock

if TYPE_CHECKING:
    from durable_cache_delta.upkeep import Upkeep


class Parts(NamedTuple):
    """What an open storage is made of; the backend's `open` puts it together."""

    options: DeltaOptions
    place: Place
    samples: TableLog
    skips: TableLog
    cache: Path | None
    """Where the stream index is kept between two opens; None keeps it nowhere."""
    lock: WriterLock | None
    """None: a reader."""


class DeltaStorage(Storage):
    """The samples and skips of one storage."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.options = parts.options
        self.place = parts.place
        self._log = parts.samples
        self.scanner = Scanner(parts.place, parts.options.footers_max)
        self.catalog = Catalog(parts.samples, self.scanner, parts.options.streams_max, parts.cache)
        self._skip_table = SkipTable(parts.skips, parts.options.skips_max)
        self.lock = RLock()
        self._stale = False
        self._broken: StorageCorrupt | None = None
        self._closed = False
        self._upkeep: Upkeep | None = None
        with self.lock:
            with translated(self._log.subject):
                self.catalog.load()
            self._skip_table.load()
            if parts.lock is not None:
                self._settle_skips(self._skip_table.numberings)
                self._skip_table.save()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            self.place.durability,
            time_resolution_ns=1000,
            exact_age=False,
            # A commit costs five flushes and an entry in the log that every reader replays.
            append_samples=100_000,
            append_linger_seconds=2.0,
        )

    def check(self, batch: SampleBatch) -> Sequence[Refusal]:
        return [Refusal(s, reason) for s in batch if (reason := refusal(s)) is not None]

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        with self.lock:
            self._ready(writing=True)
            choice = choose(batch, self.catalog.index, self._held_digests)
            with self._unknown_on_failure():
                if choice.streams:
                    self._store(choice)
                self._record_skips(choice, skips)
        return AppendResult(
            choice.new,
            choice.duplicates,
            tuple(choice.conflicts),
            tuple(choice.refused),
        )

    def _store(self, choice: Choice) -> None:
        written = write_samples(self.place, self.options, choice.columns, choice.streams)
        self._log.commit([one.action for one in written])
        self.catalog.add((one.file for one in written), choice.rows)

    def _record_skips(self, choice: Choice, skips: Sequence[Skip]) -> None:
        for source, epoch, first, last in skips:
            numbering = Numbering(source.zid, source.eid, epoch)
            free = RangeSet([(first, last)])
            self._skip_table.give_up(
                numbering, free.difference(self.catalog.index.held(numbering, first, last))
            )
        self._settle_skips({numbering_of(rows.stream) for rows in choice.rows})
        self._skip_table.save()

    def _settle_skips(self, numberings: Iterable[Numbering]) -> None:
        """Take out the skips whose samples are held."""
        for numbering in numberings:
            skipped = self._skip_table.skipped(numbering)
            for first, last in skipped:
                self._skip_table.found(numbering, self.catalog.index.held(numbering, first, last))

    def _held_digests(self, wanted: Sequence[Wanted]) -> Mapping[tuple[Stream, int], bytes]:
        found: dict[tuple[Stream, int], bytes] = {}
        for file in self.catalog.files:
            rows = self.scanner.find(file, wanted, columns=("payload_digest",))
            if rows is not None:
                found.update(_digests(rows.rows))
        return found

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        with self.lock:
            self._ready()
            files = self.catalog.files
        return read_page(self.scanner, files, self._wanted, selection, limit, cursor)

    def _wanted(self, selection: Selection, cursor: Cursor | None) -> Iterator[Wanted]:
        """Plan under the lock, a part at a time, so that a long plan does not hold up appends."""
        place = cursor
        while True:
            with self.lock:
                part = []
                for want in self.catalog.index.wanted(selection, place):
                    part.append(want)
                    if len(part) == _PLAN_STREAMS:
                        break
            yield from part
            if len(part) < _PLAN_STREAMS:
                return
            place = (*part[-1].stream.order, part[-1].last)

    def held(self) -> Iterator[Held]:
        with self.lock:
            self._ready()
            index = self.catalog.index
            found = []
            for _, stream in index.ordered():
                state = index.streams[stream]
                found.append(
                    Held(stream, state.runs.copy(), state.newest_ntp64, state.newest_received_ns)
                )
        return iter(found)

    def skips(self) -> Iterator[Skip]:
        with self.lock:
            self._ready()
            return iter(list(self._skip_table))

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        with self.lock:
            self._ready(writing=True)
            if retention.unlimited:
                return []
            floors = floors_of(self.scanner, self.catalog, retention, now_ns)
            self._remove(floors)
        return as_floors(floors)

    def purge(self, floors: Iterable[Floor]) -> int:
        with self.lock:
            self._ready(writing=True)
            lowest: dict[Stream, int] = {}
            for stream, sn in floors:
                if stream in self.catalog.index.streams:
                    lowest[stream] = max(sn, lowest.get(stream, 0))
            return self._remove(lowest)

    def _remove(self, floors: Mapping[Stream, int]) -> int:
        removal = plan_removal(self.place, self.options, self.scanner, self.catalog, floors)
        if not removal.removed:
            return 0
        states = states_after(self.scanner, self.catalog, floors, removal)
        with self._unknown_on_failure():
            self._replace(removal.removed, removal.written, new=True)
        for stream, state in states.items():
            self.catalog.index.replace(stream, state)
        self.catalog.save()
        return removal.samples

    def _replace(
        self, removed: Sequence[DataFile], written: Sequence[Written], *, new: bool
    ) -> None:
        """Commit files in the place of others."""
        self._log.commit(
            [one.action for one in written],
            [Added(file.path, file.size, file.day) for file in removed],
            new=new,
        )
        self.catalog.swap(removed, [one.file for one in written])

    def swap_if_live(self, removed: Sequence[DataFile], written: Sequence[Written]) -> bool:
        """Commit files that hold the rows of others; False when one of those is gone already."""
        with self.lock:
            self._ready(writing=True)
            live = {file.path for file in self.catalog.files}
            if not all(file.path in live for file in removed):
                return False
            with self._unknown_on_failure():
                self._replace(removed, written, new=False)
            self.catalog.save()
        return True

    def files(self) -> Sequence[DataFile]:
        """Return the live files of the samples table."""
        with self.lock:
            self._ready()
            return self.catalog.files

    @property
    def version(self) -> int:
        """The version of the samples table."""
        return self._log.version

    @property
    def streams(self) -> int:
        """How many streams are held."""
        return len(self.catalog.index.streams)

    @contextmanager
    def _unknown_on_failure(self) -> Iterator[None]:
        """After an error the tables are read again before anything else is done with them."""
        try:
            yield
        except FlushFailed as error:
            self._broken = StorageCorrupt(
                f"{self._log.subject}: a flush to the disk failed ({error}); what the disk has is "
                "unknown: check it and open the storage again"
            )
            raise self._broken from error
        except BaseException:
            self._stale = True
            raise

    def _ready(self, *, writing: bool = False) -> None:
        """Check that the handle may be used, and know what others committed."""
        if self._closed:
            raise Closed(f"{self._log.subject} is closed")
        if writing and self._parts.lock is None:
            raise StorageLocked(f"{self._log.subject} was opened for reading")
        if self._broken is not None:
            raise self._broken
        if self._stale or self._log.moved():
            self._stale = True
            self._log.refresh()
            with translated(self._log.subject):
                self.catalog.load()
            self._log.acknowledge()
            self._skip_table.refresh()
            self._parts.skips.acknowledge()
            self._stale = False
        elif self._parts.skips.moved():
            self._skip_table.refresh()
            self._parts.skips.acknowledge()

    def start_upkeep(self) -> None:
        """Look after the tables in the background until `close`."""
        from durable_cache_delta.upkeep import Upkeep

        self._upkeep = Upkeep(self)

    def close(self) -> None:
        if self._closed:
            return
        if self._upkeep is not None:
            self._upkeep.close()
        self._closed = True
        with self.lock:
            try:
                if self._parts.lock is not None and not self._stale and self._broken is None:
                    self.catalog.save()
            except DurableCacheError:
                self._stale = True
            finally:
                self._log.close()
                self._parts.skips.close()
                if self._parts.lock is not None:
                    self._parts.lock.release()


_PLAN_STREAMS = 4096


def _digests(rows: pa.Table) -> Iterator[tuple[tuple[Stream, int], bytes]]:
    return zip(identities(rows), rows.column("payload_digest").to_pylist(), strict=True)
