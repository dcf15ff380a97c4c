"""The reference of the contract: plain objects, gone with the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import RLock
from typing import ClassVar

from durable_cache.errors import Closed, StorageLocked
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import (
    AppendResult,
    Backend,
    BackendOptions,
    Capabilities,
    Conflict,
    Durability,
    Floor,
    Held,
    Page,
    Retention,
    Storage,
    check_storage_name,
    source_order,
)
from durable_cache.storage.reading import newest_per_key, page_of
from durable_cache.storage.retention import floors_of

__all__ = ["MemoryBackend", "MemoryOptions", "MemoryStorage"]


class MemoryStorage(Storage):
    """Samples in dictionaries, sorted when read."""

    def __init__(self, *, writer: bool = True) -> None:
        self._writer = writer
        self._streams: dict[Stream, dict[int, tuple[Sample, bytes]]] = {}
        self._skips: dict[tuple[SourceId, int], RangeSet] = {}
        self._lock = RLock()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.MEMORY, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        new = duplicates = 0
        conflicts = []
        with self._lock:
            self._check(writing=True)
            for skip in skips:
                free = RangeSet([(skip.first, skip.last)]).difference(self._sns(skip[:2]))
                self._skips.setdefault(skip[:2], RangeSet()).update(free)
            for sample, digest in zip(batch.samples, batch.digests, strict=True):
                held = self._streams.setdefault(sample.stream, {})
                first = held.get(sample.sn)
                if first is None:
                    held[sample.sn] = (sample, digest)
                    new += 1
                    skipped = self._skips.get((sample.source, sample.epoch))
                    if skipped is not None:
                        skipped.remove(sample.sn, sample.sn)
                elif first[1] == digest:
                    duplicates += 1
                else:
                    conflicts.append(Conflict(sample.identity, first[1], digest))
        return AppendResult(new, duplicates, tuple(conflicts))

    def _sns(self, numbering: tuple[SourceId, int]) -> RangeSet:
        return RangeSet.of(
            sn
            for stream, held in self._streams.items()
            if (stream.source, stream.epoch) == numbering
            for sn in held
        )

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        with self._lock:
            self._check()
            found = [s for held in self._streams.values() for s, _ in held.values()]
        chosen = newest_per_key(filter(selection.holds, found), selection.newest)
        return page_of(chosen, selection, limit, cursor)

    def held(self) -> Iterator[Held]:
        with self._lock:
            self._check()
            streams = {stream: list(held.values()) for stream, held in self._streams.items()}
        for stream in sorted(streams, key=lambda stream: stream.order):
            samples = [sample for sample, _ in streams[stream]]
            if samples:
                yield Held(
                    stream,
                    RangeSet.of(sample.sn for sample in samples),
                    max(sample.ntp64 for sample in samples),
                    max(sample.received_ns for sample in samples),
                )

    def skips(self) -> Iterator[Skip]:
        with self._lock:
            self._check()
            held = sorted(
                self._skips.items(), key=lambda item: (source_order(item[0][0]), item[0][1])
            )
            found = [Skip(*numbering, *run) for numbering, runs in held for run in runs]
        return iter(found)

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        with self._lock:
            self._check(writing=True)
            stored = {
                stream: [sample for _, (sample, _) in sorted(held.items())]
                for stream, held in self._streams.items()
            }
            floors = floors_of(stored, retention, now_ns)
            self.purge(floors)
        return floors

    def purge(self, floors: Iterable[Floor]) -> int:
        removed = 0
        with self._lock:
            self._check(writing=True)
            for stream, floor in floors:
                held = self._streams.get(stream, {})
                for sn in [sn for sn in held if sn < floor]:
                    del held[sn]
                    removed += 1
        return removed

    def close(self) -> None:
        self._closed = True
        self._streams.clear()

    def _check(self, *, writing: bool = False) -> None:
        if self._closed:
            raise Closed("the memory storage is closed")
        if writing and not self._writer:
            raise StorageLocked("the memory storage was opened for reading only")


class MemoryOptions(BackendOptions, frozen=True):
    """Memory needs no options."""


class MemoryBackend(Backend[MemoryOptions]):
    """Opens memory storages; each is new and empty."""

    name: ClassVar[str] = "memory"
    options_type: ClassVar[type[BackendOptions]] = MemoryOptions

    def open(self, storage: str, options: MemoryOptions, *, writer: bool = True) -> MemoryStorage:
        check_storage_name(storage)
        return MemoryStorage(writer=writer)

    def describe(self, options: MemoryOptions) -> str:
        return "this process's memory"
