"""The reference of the contract: plain objects, gone with the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import RLock
from typing import ClassVar

from durable_cache.errors import Closed, StorageLocked
from durable_cache.model.newest import newest_per_key
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream, sample_digest
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds, TimeBounds
from durable_cache.storage import contract
from durable_cache.storage.contract import AppendResult, Conflict, Floor, Held, Page, Retention
from durable_cache.storage.shared.paging import held_of, page_of
from durable_cache.storage.shared.retention import floors_of
from durable_cache.storage.shared.skips import SkipSet


class MemoryStorage(contract.Storage):
    """Samples in dictionaries, sorted when read."""

    def __init__(self, *, writer: bool = True) -> None:
        self._streams: dict[Stream, dict[int, Sample]] = {}
        self._skips = SkipSet()
        self._lock = RLock()
        self._writer = writer
        self._closed = False

    @property
    def capabilities(self) -> contract.Capabilities:
        return contract.Capabilities(contract.Durability.MEMORY, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        conflicts: list[Conflict] = []
        new = 0
        with self._lock:
            self._check(writing=True)
            self._skip(skips)
            for at, sample in enumerate(batch.samples):
                stream = self._streams.setdefault(sample.stream, {})
                first = stream.get(sample.sn)
                if first is None:
                    stream[sample.sn] = sample
                    self._skips.replace(sample)
                    new += 1
                elif (held := sample_digest(first)) != batch.digests[at]:
                    conflicts.append(Conflict(sample.identity, held, batch.digests[at]))
        return AppendResult(new, len(batch) - new - len(conflicts), tuple(conflicts))

    def _skip(self, skips: Sequence[Skip]) -> None:
        numberings: dict[tuple[SourceId, int], list[dict[int, Sample]]] = {
            (skip.source, skip.epoch): [] for skip in skips
        }
        for stream, held in self._streams.items() if numberings else ():
            of_one = numberings.get((stream.source, stream.epoch))
            if of_one is not None:
                of_one.append(held)
        for skip in skips:
            bounds = SnBounds(skip.first, skip.last)
            streams = numberings[skip.source, skip.epoch]
            held_sns = (s.sn for held in streams for s in _within(held, bounds))
            self._skips.add(skip, RangeSet.of(held_sns))

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        found = self._candidates(selection, limit, cursor)
        return page_of(newest_per_key(found, selection.newest), selection, limit, cursor)

    def _candidates(self, selection: Selection, limit: int, cursor: Cursor | None) -> list[Sample]:
        """Copy the samples of a selection, where it is in order of identity no more than a page."""
        paged = selection.order is Order.IDENTITY and selection.newest is None
        whole = selection.sns == SnBounds() and selection.times == TimeBounds()
        found: list[Sample] = []
        with self._lock:
            self._check()
            for stream in sorted(self._named(selection), key=lambda stream: stream.order):
                if paged and cursor is not None and stream.order < cursor[:4]:
                    continue
                after = cursor if paged else None
                if whole and after is None:  # the stream's name was compared already
                    found += self._streams[stream].values()
                else:
                    found += (
                        sample
                        for sample in _within(self._streams[stream], selection.sns)
                        if selection.holds(sample) and (after is None or sample.order > after)
                    )
                if paged and len(found) > limit:
                    break
        return found

    def _named(self, selection: Selection) -> list[Stream]:
        zid, eid, epoch = selection.zid, selection.eid, selection.epoch
        if zid is not None and eid is not None and epoch is not None and selection.key_expr.is_key:
            stream = Stream(str(selection.key_expr), SourceId(zid, eid), epoch)
            return [stream] if stream in self._streams else []
        return [stream for stream in self._streams if selection.names(stream)]

    def held(self) -> Iterator[Held]:
        streams = self._stored()
        return iter([held_of(s, streams[s]) for s in sorted(streams, key=lambda s: s.order)])

    def skips(self) -> Iterator[Skip]:
        with self._lock:
            self._check()
            return iter(list(self._skips))

    def floors(self, retention: Retention, now_ns: int) -> list[Floor]:
        """Return what `trim` would return, removing nothing."""
        return floors_of(self._stored(), retention, now_ns)

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        with self._lock:
            floors = self.floors(retention, now_ns)
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
        with self._lock:
            self._closed = True
            self._streams.clear()

    def _stored(self) -> dict[Stream, list[Sample]]:
        """Copy the streams that hold anything, each in order of sn."""
        with self._lock:
            self._check()
            return {s: [held[n] for n in sorted(held)] for s, held in self._streams.items() if held}

    def _check(self, *, writing: bool = False) -> None:
        if self._closed:
            raise Closed("the memory storage is closed")
        if writing and not self._writer:
            raise StorageLocked("the memory storage was opened for reading only")


def _within(held: dict[int, Sample], sns: SnBounds) -> Iterable[Sample]:
    """Return at least the samples with these numbers."""
    first, last = sns
    if first is None or last is None or last - first > len(held):
        return held.values()
    return [held[sn] for sn in range(first, last + 1) if sn in held]


class MemoryOptions(contract.BackendOptions, frozen=True):
    """Memory needs no options."""


class MemoryBackend(contract.Backend[MemoryOptions]):
    """Opens memory storages; each is new and empty."""

    name: ClassVar[str] = "memory"
    options_type: ClassVar[type[contract.BackendOptions]] = MemoryOptions

    def open(self, storage: str, options: MemoryOptions, *, writer: bool = True) -> MemoryStorage:
        contract.check_storage_name(storage)
        return MemoryStorage(writer=writer)

    def describe(self, options: MemoryOptions) -> str:
        return "this process's memory"
