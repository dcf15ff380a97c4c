"""What was purged and may lie below: in entries on their way, in a backend that was away.

A purge is durable before anything is removed, and it is pending until the backend has removed what
is below its floors; in the journal's file until something was stored since, for only then does a
start notice a backend that lost its last writes (ADR 0212). Entries that were committed before it
lose what is below whenever they are read from the journal. Later ones are the door's to refuse;
what passed it before the purge and is committed after it is left out then (ADR 0216).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream, StreamSummary
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.absences import HeldStream
from durable_cache.storage.journaled.index_rows import StreamInfo
from durable_cache.storage.journaled.journal import Entry

_KIND = "purge"
_NOTHING = SampleBatch()
_NO_INFOS: Mapping[Stream, StreamInfo] = MappingProxyType({})
_RUNS_MAX = 100
"""Runs of numbers that a purge keeps, 2 kB; a key beside others of its source has many."""
_LATEST_MAX = 10_000
"""So many of the latest purges are compared with what is committed: a sample is on its way from the
door to the journal for seconds, and an index read for each commit would hold up every other one."""


class Keeper(Protocol):
    """Keeps facts by kind and name durably, beside the stream index."""

    def kept(self, kind: str) -> dict[str, str]:
        """Return what is kept of a kind, by name."""

    def keep(self, kind: str, facts: dict[str, str], gone: Iterable[str] = ()) -> None:
        """Keep facts in place of those of the same names, and forget those `gone`."""


class _Purge(NamedTuple):
    sn: int
    """What is below was purged."""
    entry_id: int
    """From entries up to this one."""
    pending: bool
    """The backend may still hold some of it."""
    runs: tuple[tuple[int, int], ...] = ()
    """What was known to be there; of more than `_RUNS_MAX` runs the last."""
    ntp64: int = 0
    """When the newest sample that was known of the stream was published."""

    def knowing(self, runs: RangeSet, ntp64: int) -> _Purge:
        """Return it with numbers that were there, and how new what was there is."""
        known = RangeSet(self.runs)
        known.update(runs)
        below = [(first, last) for first, last in known.clip(0, self.sn - 1)]
        return self._replace(runs=tuple(below[-_RUNS_MAX:]), ntp64=max(ntp64, self.ntp64))


class Purges:
    """The purges of one storage; its owner's locks keep callers apart.

    Without a keeper they last as long as this object. In memory are only those that may still
    change something: pending ones, and those of entries that the journal still has.
    """

    def __init__(self, keeper: Keeper | None = None, first_entry: int = 0) -> None:
        self._keeper = keeper
        self._purges: dict[Stream, _Purge] = {}
        self._carried_out: dict[Stream, _Purge] = {}
        """Those that are still pending in the keeper: nothing was stored since."""
        self._latest: OrderedDict[Stream, int] = OrderedDict()
        """Below which numbers the latest purges removed; what passed the door before may come."""
        self._untold: set[Stream] = set()
        """Those that the index was not told of since they began, or since the start."""
        self._unrecorded: list[Sample] = []
        """What was purged before the backend had it, as long as that is so."""
        self._last_entry = 0
        for name, value in (keeper.kept(_KIND) if keeper is not None else {}).items():
            purge = _read(value)
            if purge.pending or purge.entry_id >= first_entry:
                self._purges[_stream(name)] = purge
                self._last_entry = max(self._last_entry, purge.entry_id)
        self._untold.update(stream for stream, purge in self._purges.items() if purge.pending)
        self.watch(self.pending())  # the door may not know of them yet

    def every(self) -> list[Floor]:
        """Return the floors of every purge there was."""
        return [Floor(stream, purge.sn) for stream, purge in self._kept().items()]

    def lost_by(
        self, infos_of: Callable[[Sequence[Stream]], Mapping[Stream, StreamInfo]]
    ) -> dict[Stream, StreamSummary]:
        """Return what was there of purges that an index does not know: it is new or older."""
        purges = self._kept()
        infos = infos_of([*purges])
        return {
            stream: StreamSummary(RangeSet(p.runs), p.ntp64, p.ntp64, 0)
            for stream, p in purges.items()
            if p.runs and infos[stream].purged < p.sn
        }

    def begin(
        self,
        floors: Iterable[Floor],
        entry_id: int,
        unrecorded: Iterable[Sample] = (),
        recorded: Mapping[Stream, StreamInfo] = _NO_INFOS,
    ) -> None:
        """Note a purge of what entries up to `entry_id`, or the backend, hold below.

        `unrecorded`: what those entries hold of it, and the backend does not; `recorded`: what the
        index knows. An index that is lost is told of both again (ADR 0314).
        """
        new: dict[Stream, _Purge] = {}
        floors = [*floors]
        before = self._kept_of({stream for stream, _ in floors})
        for stream, sn in floors:
            known = new.get(stream) or before.get(stream) or _Purge(0, 0, pending=False)
            new[stream] = known._replace(sn=max(sn, known.sn), entry_id=entry_id, pending=True)
            if (info := recorded.get(stream)) is not None:
                new[stream] = new[stream].knowing(info.held, info.newest_ntp64)
            self._carried_out.pop(stream, None)
        for stream, gone in SampleBatch(unrecorded).summaries.items():
            new[stream] = new[stream].knowing(gone.runs, gone.newest_ntp64)
        self._keep(new)
        self._untold.update(new)
        self._unrecorded += unrecorded
        self._last_entry = max(self._last_entry, entry_id)

    def remember(self, floors: Iterable[Floor], entry_id: int) -> None:
        """Note purges that the index knows and the journal forgot, for its disk lied (ADR 0370).

        What entries up to `entry_id` hold below, they held before: the door refuses it since.
        """
        known = {stream: purge.sn for stream, purge in self._kept().items()}
        lost = [floor for floor in floors if floor.sn > known.get(floor.stream, 0)]
        if lost:
            self.begin(lost, entry_id)

    def watch(self, floors: Iterable[Floor]) -> None:
        """Leave what is below out of what is committed from now on, whenever it passed the door."""
        for stream, sn in floors:
            self._latest[stream] = max(sn, self._latest.get(stream, 0))
            self._latest.move_to_end(stream)
        while len(self._latest) > _LATEST_MAX:
            self._latest.popitem(last=False)

    def unwatch(self, source: SourceId, epoch: int) -> None:
        """Forget it for a numbering that is stored elsewhere; its epoch may be used anew."""
        gone = [stream for stream in self._latest if stream[1:] == (source, epoch)]
        for stream in gone:
            del self._latest[stream]

    def part(self, batch: SampleBatch) -> tuple[SampleBatch, SampleBatch]:
        """Return what of a batch may be committed, and what was purged on its way there."""
        floors = self._latest
        if not floors or floors.keys().isdisjoint(batch.places):
            return batch, _NOTHING
        below = [sample for sample in batch if sample.sn < floors.get(sample.stream, 0)]
        if not below:
            return batch, _NOTHING
        kept = [sample for sample in batch if sample.sn >= floors.get(sample.stream, 0)]
        return SampleBatch(kept), SampleBatch(below)

    def pending(self) -> list[Floor]:
        """Return the floors below which the backend may still hold something."""
        return [Floor(stream, p.sn) for stream, p in [*self._purges.items()] if p.pending]

    def untold(self) -> list[Floor]:
        """Return the floors of purges that the index is to be told of."""
        untold = ((stream, self._purges.get(stream)) for stream in [*self._untold])
        return [Floor(stream, purge.sn) for stream, purge in untold if purge is not None]

    def untold_streams(self) -> list[HeldStream]:
        """Return the same as what tells which numbers are absent: an index may take nothing."""
        return [HeldStream(stream, RangeSet(), sn) for stream, sn in self.untold()]

    def unrecorded(self) -> SampleBatch:
        """Return what of them was purged before the backend had it."""
        return SampleBatch(self._unrecorded)

    def told(self, floors: Iterable[Floor]) -> None:
        """Note that the index knows of purges."""
        self._untold.difference_update(floor.stream for floor in floors)
        self._unrecorded = []

    def done(self, floors: Sequence[Floor], drained: int) -> None:
        """Note that the backend removed what is below; entries up to `drained` are gone."""
        done = {f.stream: self._purges[f.stream]._replace(pending=False) for f in floors}
        self._purges.update(done)
        if self._keeper is not None:
            self._carried_out.update(done)
        for stream, purge in [*self._purges.items()]:
            if not purge.pending and purge.entry_id <= drained:
                del self._purges[stream]

    def carried_out(self) -> list[Stream]:
        """Return the streams whose purges the backend carried out, and nothing was stored since."""
        return [*self._carried_out]

    def outlived(self, streams: Iterable[Stream]) -> None:
        """Note that a batch was stored whose append began after these purges ended."""
        over = {s: self._carried_out.pop(s) for s in streams if s in self._carried_out}
        if self._keeper is not None and over:
            self._keeper.keep(_KIND, {_name(stream): _write(p) for stream, p in over.items()})

    def without(self, entry: Entry) -> Entry:
        """Return an entry without what was purged after it was committed."""
        if not self._purges or entry.entry_id > self._last_entry:
            return entry
        floors = {
            stream: purge.sn
            for stream in entry.batch.places
            if (purge := self._purges.get(stream)) is not None and entry.entry_id <= purge.entry_id
        }
        if not floors:
            return entry
        kept = [s for s in entry.batch if s.sn >= floors.get(s.stream, 0)]
        return entry if len(kept) == len(entry.batch) else entry._replace(batch=SampleBatch(kept))

    def _kept(self) -> dict[Stream, _Purge]:
        if self._keeper is None:
            return self._purges
        return {_stream(name): _read(value) for name, value in self._keeper.kept(_KIND).items()}

    def _kept_of(self, streams: Iterable[Stream]) -> dict[Stream, _Purge]:
        if self._keeper is None:
            return self._purges
        kept = self._keeper.kept(_KIND)
        found = ((stream, kept.get(_name(stream))) for stream in streams)
        return {stream: _read(value) for stream, value in found if value is not None}

    def _keep(self, purges: dict[Stream, _Purge]) -> None:
        if self._keeper is not None and purges:
            self._keeper.keep(_KIND, {_name(stream): _write(p) for stream, p in purges.items()})
        self._purges.update(purges)


def _name(stream: Stream) -> str:
    return msgspec.json.encode((stream.key, *stream.source, stream.epoch)).decode()


def _stream(name: str) -> Stream:
    key, zid, eid, epoch = msgspec.json.decode(name, type=tuple[str, str, int, int])
    return Stream(key, SourceId(zid, eid), epoch)


def _write(purge: _Purge) -> str:
    return msgspec.json.encode(tuple(purge)).decode()


def _read(value: str) -> _Purge:
    return msgspec.json.decode(value, type=_Purge)
