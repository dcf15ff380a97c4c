"""The reference of the contract: plain objects, gone with the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from threading import RLock
from typing import ClassVar, cast

from durable_cache.errors import Closed, StorageLocked
from durable_cache.model.newest import newest_per_key
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream, sample_digest
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds
from durable_cache.storage import contract
from durable_cache.storage.contract import AppendResult, Conflict, Floor, Held, Page, Retention
from durable_cache.storage.shared.paging import held_of, page_of
from durable_cache.storage.shared.retention import floors_of
from durable_cache.storage.shared.skips import SkipSet

_NTP64 = attrgetter("ntp64")
_FEW = 4
"""A selection that names less than one of so many samples is read from its own streams."""


class MemoryStorage(contract.Storage):
    """Samples in dictionaries; put in order when they are read, so that a page costs a page."""

    def __init__(self, *, writer: bool = True) -> None:
        self._streams: dict[Stream, dict[int, Sample]] = {}
        self._sorted: dict[Stream, list[int]] = {}
        """The numbers of streams that were read, while they come in order."""
        self._in_time: list[Sample] | None = None
        """Every sample by its timestamp alone, but for the `_late`; None until it is read so."""
        self._late: list[Sample] = []
        self._skips = SkipSet()
        self._lock = RLock()
        self._writer = writer
        self._closed = False

    @property
    def capabilities(self) -> contract.Capabilities:
        return contract.Capabilities(contract.Durability.MEMORY, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        conflicts: dict[int, Conflict] = {}
        new, samples = 0, batch.samples
        with self._lock:
            self._check(writing=True)
            self._skip(skips)
            for stream, places in batch.places.items():
                held = self._streams.setdefault(stream, {})
                fresh: list[Sample] = []
                for at in places:
                    sample = samples[at]
                    first = held.get(sample.sn)
                    if first is None:
                        held[sample.sn] = sample
                        fresh.append(sample)
                    elif (digest := sample_digest(first)) != batch.digests[at]:
                        conflicts[at] = Conflict(sample.identity, digest, batch.digests[at])
                self._note(stream, fresh)
                new += len(fresh)
        in_order = tuple(conflicts[at] for at in sorted(conflicts))
        return AppendResult(new, len(batch) - new - len(conflicts), in_order)

    def _note(self, stream: Stream, fresh: list[Sample]) -> None:
        """Note what is new of a stream: no skip any more, and perhaps out of order."""
        self._skips.replace(stream, fresh)
        if self._in_time is not None:
            self._late += fresh
        sns = self._sorted.get(stream)
        if sns is None:
            return
        for sample in fresh:
            if sns and sample.sn < sns[-1]:
                del self._sorted[stream]
                return
            sns.append(sample.sn)

    def _skip(self, skips: Sequence[Skip]) -> None:
        numberings: dict[tuple[SourceId, int], list[dict[int, Sample]]] = {
            (skip.source, skip.epoch): [] for skip in skips
        }
        for stream, held in self._streams.items() if numberings else ():
            known = numberings.get((stream.source, stream.epoch))
            if known is not None:
                known.append(held)
        for skip in skips:
            of_one = numberings[skip.source, skip.epoch]
            held_sns = (sn for held in of_one for sn in _numbers(held, skip.first, skip.last))
            self._skips.add(skip, RangeSet.of(held_sns))

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if selection.newest is not None:
            found = newest_per_key(self._named_samples(selection), selection.newest)
        elif selection.order is Order.TIME:
            found = self._next_in_time(selection, limit, cursor)
        else:
            found = self._next_by_identity(selection, limit, cursor)
        return page_of(found, selection, limit, cursor)

    def _named_samples(self, selection: Selection) -> list[Sample]:
        """Copy the samples of a selection."""
        with self._lock:
            self._check()
            return [
                sample
                for stream in self._named(selection)
                for sample in self._within(stream, selection.sns)
                if selection.times.holds(sample.ntp64)
            ]

    def _next_by_identity(
        self, selection: Selection, limit: int, cursor: Cursor | None
    ) -> list[Sample]:
        """Return a selection's next samples in order of identity, at least one more than asked."""
        found: list[Sample] = []
        with self._lock:
            self._check()
            for stream in sorted(self._named(selection), key=lambda stream: stream.order):
                sns = selection.sns
                if cursor is not None and stream.order <= cursor[:4]:
                    if stream.order < cursor[:4]:
                        continue
                    after = cast("int", cursor[4]) + 1
                    sns = SnBounds(max(after, sns.first or 0), sns.last)
                within = self._within(stream, sns)
                left = limit + 1 - len(found)
                found += islice((s for s in within if selection.times.holds(s.ntp64)), left)
                if len(found) > limit:
                    break
        return found

    def _next_in_time(
        self, selection: Selection, limit: int, cursor: Cursor | None
    ) -> list[Sample]:
        """Return a selection's next samples in order of time, all that share the last one's."""
        with self._lock:
            self._check()
            named = self._named(selection)
            count = sum(len(self._streams[stream]) for stream in named)
            if _FEW * count < sum(map(len, self._streams.values())):
                return self._named_samples(selection)
            line = self._line()
            begin = selection.times.first if cursor is None else cast("int", cursor[0])
            every = len(named) == len(self._streams) and selection.sns == SnBounds()
            found: list[Sample] = []
            last = selection.times.last
            for at in range(bisect_left(line, begin, key=_NTP64), len(line)):
                sample = line[at]
                if sample.ntp64 > last:
                    break
                if not every and not selection.holds(sample):
                    continue
                if sample.ntp64 == begin and cursor is not None and sample.time_order <= cursor:
                    continue
                found.append(sample)
                if len(found) > limit:
                    last = min(last, sample.ntp64)
            return found

    def _line(self) -> list[Sample]:
        """Return every sample in order of its timestamp; the caller holds the lock."""
        line, late = self._in_time, self._late
        if line is None:
            every = (sample for held in self._streams.values() for sample in held.values())
            line = self._in_time = sorted(every, key=_NTP64)
        elif late:
            at = bisect_left(line, min(map(_NTP64, late)), key=_NTP64)
            line[at:] = sorted(line[at:] + late, key=_NTP64)
        self._late = []
        return line

    def _within(self, stream: Stream, sns: SnBounds) -> Iterator[Sample]:
        """Yield a stream's samples with these numbers, in order; the caller holds the lock."""
        held = self._streams[stream]
        first, last = sns
        if first is not None and last is not None and last - first < len(held):
            yield from (held[sn] for sn in range(first, last + 1) if sn in held)
            return
        found = self._sorted.get(stream)
        if found is None:
            found = self._sorted[stream] = sorted(held)
        begin = 0 if first is None else bisect_left(found, first)
        end = len(found) if last is None else bisect_right(found, last)
        yield from (held[found[at]] for at in range(begin, end))

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
        gone: list[Sample] = []
        with self._lock:
            self._check(writing=True)
            for stream, floor in floors:
                held = self._streams.get(stream, {})
                below = [sn for sn in held if sn < floor]
                gone += [held.pop(sn) for sn in below]
                if below:
                    self._sorted.pop(stream, None)
            if gone and self._in_time is not None:
                lost = set(map(id, gone))
                self._in_time = [sample for sample in self._line() if id(sample) not in lost]
        return len(gone)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._streams.clear()
            self._sorted.clear()
            self._in_time, self._late = None, []

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


def _numbers(held: dict[int, Sample], first: int, last: int) -> Iterable[int]:
    """Return which numbers of `first..last` are held."""
    if last - first > len(held):
        return [sn for sn in held if first <= sn <= last]
    return [sn for sn in range(first, last + 1) if sn in held]


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
