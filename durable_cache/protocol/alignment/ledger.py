"""What a cache knows of all its streams, slot by slot, and the trees over what it shares.

Theory of operation (ADR 0040). Time is cut in slots. A sample counts in the slot of its timestamp,
or of its arrival where it has none, where that slot is over already (the next to be applied takes
it), or where it lies more than `ring_max` slots ahead (a clock that is wrong, or a publisher that
chooses its timestamps: the current slot takes it). `_pending` holds what waits for its slot.
`advance` applies every slot that has been over for `settle_seconds`: only then do the streams'
records and the views' trees change, a bounded number at a time, and the view remembers the root as
of that slot. So two caches compare trees of the same slots, though one hears a little later.

What a peer is told, `entry`, is as of the applied slot; what this cache asks for, `lacking`, goes
by everything that has arrived. So nothing is asked for that is still on its way, and a timestamp
that is far off costs a comparison, never a sample. Floors count at once for what is wanted, and in
the trees with their slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from durable_cache.model.ranges import RangeSet
from durable_cache.model.run_name import run_of, run_of_id
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.protocol.alignment.events import AlignerOptions, CacheProfile, StreamLoaded
from durable_cache.protocol.alignment.fingerprints import PrefixTree, content_term, stream_hash
from durable_cache.protocol.alignment.knowledge import (
    StreamKnowledge,
    count_of,
    flat,
    floor_of_depth,
    known_of,
    ranges,
)
from durable_cache.protocol.alignment.packing import Entry
from durable_cache.protocol.alignment.scope import Scope
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.wire import Lane
from durable_cache.protocol.wire import Incarnation

Refusal = Callable[[Sample], str]
"""Says why a cache does not take a sample that others have; empty where it does."""

_SECOND_NS = 1_000_000_000
_NUMBER_END = 1 << 63
_FORGET_AT_ONCE = 1000
_NAMED_MAX = 4096


class Lacking(NamedTuple):
    """What of a peer's entry this cache does not have and would keep."""

    want: RangeSet
    """Retained there."""
    absent: RangeSet
    """Known there, retained not: perhaps somebody else has it."""


class Ledger:
    """All streams of one cache; owned by its aligner's thread."""

    def __init__(
        self,
        options: AlignerOptions,
        profile: CacheProfile,
        refusal: Refusal | None = None,
    ) -> None:
        self.options = options
        self.refusal = refusal or refuse_nothing
        self.depth = profile.samples_max
        self.scope = Scope.of(profile.include, profile.exclude)
        self.records: dict[int, StreamKnowledge] = {}
        self.views: dict[int, View] = {}
        self.slot = 0
        """The slot applied last; 0 before the first tick."""
        self.applying = False
        """A slot is partly applied: the trees are between two slots."""
        self.counted = True
        self.left_out = 0
        """How often something came of a stream that there is no place for: it is not aligned."""
        self.unrecoverable_serial = 0
        self.unrecoverable_since: dict[int, int] = {}
        """Streams with unrecoverable runs, and the serial of the latest."""
        self.changed: list[int] = []
        """Places whose fingerprints changed since the list was taken last."""
        self._pending: dict[int, dict[Stream, tuple[list[int], list[int]]]] = {}
        self._now_slot = 0
        self._forgetting: Iterator[int] = iter(())
        self._named: set[tuple[SourceId, int]] = set()
        self._naming: set[Stream] = set()
        """Streams of which a sample that waits for its slot names its run."""

    @property
    def pending(self) -> bool:
        """Whether something waits for its slot to be applied."""
        return bool(self._pending)

    def place(self, stream: Stream) -> int:
        return stream_hash(self.options.secret, stream)

    def load(self, streams: Iterable[StreamLoaded]) -> None:
        """Take what the storage holds at start; each stream once."""
        for stream, runs, floor, purge, purged_ntp64 in streams:
            record = self._record(stream)
            if record is None:
                continue
            record.load(runs)
            record.floor, record.purge, record.purged_ntp64 = floor, purge, purged_ntp64
            record.refresh(self.options.secret, self.depth, self.options.block)
            if record.uncounted:
                self.counted = False

    def hear_names(self, names: Iterable[Incarnation]) -> None:
        """Note by which epochs runs go that have names, as a peer or its samples say."""
        if len(self._named) > _NAMED_MAX:
            self._named.clear()  # it is said again
        self._named.update((source, epoch) for source, epoch, _ in names)

    def is_named(self, record: StreamKnowledge) -> bool:
        """Tell whether samples that are here name the run of a stream, or a peer said its name."""
        stream = record.stream
        here = record.named or stream in self._naming
        return here or (stream.source, stream.epoch) in self._named

    def count(self, batch: SampleBatch) -> None:
        """Take the digests of samples that were loaded without."""
        digests = {id(s): d for s, d in zip(batch.samples, batch.digests, strict=True)}
        for stream, samples in batch.by_stream.items():
            record = self.records.get(self.place(stream))
            if record is not None and record.stream == stream:
                record.named = record.named or any(map(run_of, samples))
                record.count_loaded(((s.sn, digests[id(s)]) for s in samples), self.options.block)
                self._mark(stream, self._now_slot)

    def count_ended(self) -> None:
        """Every stored sample was read: what was not found is gone from the storage."""
        for record in self.records.values():
            record.uncounted = None
        self.counted = True

    def append(self, batch: SampleBatch) -> None:
        """Take what became durable; it shows in the slot of its timestamps."""
        open_slot = self.slot + 1
        now_slot = max(self._now_slot, open_slot)
        far_slot = now_slot + self.options.ring_max
        slot_seconds = self.options.slot_seconds
        stream = Stream("", SourceId("", 0), -1)
        before = -1
        sns: list[int] = []
        terms: list[int] = []
        for sample, digest in zip(batch.samples, batch.digests, strict=True):
            seconds = sample.ntp64 >> 32
            if sample.stamped or not seconds:
                seconds = sample.received_ns // _SECOND_NS
            if (
                seconds != before
                or sample.key != stream.key
                or sample.source != stream.source
                or sample.epoch != stream.epoch
            ):
                before, stream = seconds, sample.stream
                slot = seconds // slot_seconds
                slot = max(slot, open_slot) if slot <= far_slot else now_slot
                sns, terms = self._mark(stream, slot)
                if run_of_id(sample.timestamp_id) is not None:
                    self._naming.add(stream)
            sns.append(sample.sn)
            terms.append(content_term(sample.sn, digest))

    def _mark(self, stream: Stream, slot: int) -> tuple[list[int], list[int]]:
        """Note that a stream changes in a slot that is not applied yet."""
        streams = self._pending.setdefault(max(slot, self.slot + 1), {})
        columns = streams.get(stream)
        if columns is None:
            columns = streams[stream] = ([], [])
        return columns

    def raise_floors(self, floors: Iterable[tuple[Stream, int]], *, purge: bool = False) -> None:
        """Let go of what is below floors: for wants at once, in the trees with the slot."""
        for stream, floor in floors:
            record = self._record(stream)
            if record is not None:
                removed = record.raise_floor(floor, purge=purge)
                for view in self._views_of(record):
                    view.samples -= removed
                self._mark(stream, self._now_slot)

    def note_purged(self, times: Iterable[tuple[Stream, int]]) -> None:
        """Note until when what was purged was published."""
        for stream, ntp64 in times:
            record = self._record(stream)
            if record is not None:
                record.purged_ntp64 = ntp64

    def add_unrecoverable(self, stream: Stream, runs: RangeSet) -> int:
        """Note that nobody reachable has `runs`; returns how many numbers that is."""
        record = self._record(stream)
        if record is None:
            return 0
        missing = runs.difference(self.current(record))
        if not missing or not record.add_unrecoverable(missing, self.depth):
            return 0
        self.count_as_new(record.place)
        self._mark(stream, self._now_slot)
        return missing.count

    def count_as_new(self, place: int) -> int:
        """Let peers be asked again for what is unrecoverable of a stream; returns its serial."""
        self.unrecoverable_serial += 1
        self.unrecoverable_since[place] = self.unrecoverable_serial
        return self.unrecoverable_serial

    def refuse(self, stream: Stream, runs: RangeSet) -> int:
        """Note that this cache does not take `runs`, whoever has them; returns how many are new.

        For others they are as what it cannot recover (ADR 0280).
        """
        self.add_unrecoverable(stream, runs)
        record = self._record(stream)
        if record is None:
            return 0
        refused = ranges(record.refused)
        before = refused.count
        refused.update(runs)
        record.refused = flat(refused)
        return refused.count - before

    def _record(self, stream: Stream) -> StreamKnowledge | None:
        place = self.place(stream)
        record = self.records.get(place)
        if record is None:
            if len(self.records) >= self.options.streams_max:
                self.left_out += 1
                return None
            record = self.records[place] = StreamKnowledge(stream, place)
            record.slot = self._now_slot
        elif record.stream != stream:  # a collision of 64 bits: one of the two is not aligned
            self.left_out += 1
            return None
        return record

    def counted_since(self, view: View, stream: Stream) -> int | None:
        """Return the slot since which a view's tree shows all that is known here of a stream."""
        record = self.records.get(self.place(stream))
        if record is None or record.stream != stream or not record.views & view.bit:
            return None
        waits = any(stream in streams for streams in self._pending.values())
        return None if waits else record.slot

    def _views_of(self, record: StreamKnowledge) -> Iterator[View]:
        return (view for view in self.views.values() if record.views & view.bit)

    def current(self, record: StreamKnowledge) -> RangeSet:
        """Return what is retained now, slots not yet applied included."""
        held = ranges(record.runs)
        floor = max(record.floor, record.purge)
        for streams in self._pending.values():
            columns = streams.get(record.stream)
            if columns is not None and columns[0]:
                for first, last in RangeSet.of(columns[0]):
                    held.add(max(first, floor), last)
        return held

    def advance(self, unix_ns: int) -> None:
        """Apply what is due by now, at most `streams_per_tick_max` streams of it."""
        seconds = self.options.slot_seconds
        self._now_slot = unix_ns // (seconds * _SECOND_NS)
        due = int(unix_ns / _SECOND_NS - self.options.settle_seconds) // seconds - 1
        if not self.slot or due < self.slot - self.options.ring_max:
            self._begin(due)
        left = self.options.streams_per_tick_max
        for slot in sorted([at for at in self._pending if at <= due]) if self._pending else ():
            left = self._apply(slot, left)
            if self.applying:
                return
        if due > self.slot:
            self.slot = due
        for view in self.views.values():
            if view.building is not None:
                self._build(view)
            if view.touched and view.ready:
                view.remember(self.slot)
                view.touched = False

    def _begin(self, slot: int) -> None:
        """Start counting slots, or start again after the clock was set back."""
        later = [at for at in sorted(self._pending) if at > slot + 1]
        for at in later if self.slot else ():
            for stream, (sns, terms) in self._pending.pop(at).items():
                columns = self._pending.setdefault(slot + 1, {}).setdefault(stream, ([], []))
                columns[0].extend(sns)
                columns[1].extend(terms)
        self.slot = slot
        for view in self.views.values():
            view.ring.clear()
            view.touched = True

    def _apply(self, slot: int, left: int) -> int:
        streams = self._pending[slot]
        self.applying = True
        while streams:
            if left <= 0:
                return 0
            left -= 1
            stream, (sns, terms) = streams.popitem()
            record = self._record(stream)
            if record is not None:
                self._update(record, sns, terms)
            self._naming.discard(stream)
        del self._pending[slot]
        self.applying = False
        self.slot = max(self.slot, slot)
        for view in self.views.values():
            if view.touched and view.ready:
                view.remember(slot)
                view.touched = False
        return left

    def _update(self, record: StreamKnowledge, sns: list[int], terms: list[int]) -> None:
        options = self.options
        record.named = record.named or record.stream in self._naming
        fresh = record.insert(sns, terms, options.block)
        knowledge, content = record.refresh(options.secret, self.depth, options.block)
        record.slot = self._now_slot
        self.changed.append(record.place)
        if not record.unrecoverable:
            self.unrecoverable_since.pop(record.place, None)
        for view in self.views.values():
            if record.views & view.bit:
                view.samples += fresh
                if knowledge or content:
                    view.tree.change(record.place, knowledge, content)
                    view.touched = True
            else:
                view.insert(record)

    def open_view(self, scope: Scope) -> View | None:
        """Return the view of a scope, in the making at first; None when there are too many."""
        view = self.views.get(scope.name)
        if view is None and len(self.views) < self.options.views_max:
            used = {view.bit for view in self.views.values()}
            bit = next(1 << at for at in range(len(used) + 1) if 1 << at not in used)
            view = View(scope, bit, self.options.ring_max)
            view.building = iter(list(self.records))
            self.views[scope.name] = view
            self._build(view)
        return view

    def rebuild(self, view: View) -> None:
        """Make a view's tree anew from the streams, for a sum in it is wrong."""
        for record in self.records.values():
            record.views &= ~view.bit
        view.tree = PrefixTree()
        view.samples = 0
        view.ready = False
        view.building = iter(list(self.records))

    def _build(self, view: View) -> None:
        if view.building is None:
            return
        part = list(islice(view.building, self.options.streams_per_tick_max))
        for place in part:
            record = self.records.get(place)
            if record is not None:
                view.insert(record)
        if len(part) < self.options.streams_per_tick_max:
            view.building = None
            view.ready = True
            view.touched = True

    def forget(self) -> None:
        """Drop some of the streams of which nothing was retained for long."""
        oldest = self._now_slot - int(self.options.forget_seconds / self.options.slot_seconds)
        waiting = self._pending.values()
        places = list(islice(self._forgetting, _FORGET_AT_ONCE))
        if not places:
            self._forgetting = iter(list(self.records))
        for place in places:
            record = self.records.get(place)
            if record is None or not record.dead:
                continue
            record.slot = record.slot or self._now_slot  # 0 is: loaded before the first tick
            if record.slot > oldest or any(record.stream in held for held in waiting):
                continue
            self._drop(record)

    def drop(self, streams: Iterable[Stream]) -> None:
        """Know nothing of streams any more, at once: they are stored under another name."""
        for stream in streams:
            for waiting in self._pending.values():
                waiting.pop(stream, None)
            record = self.records.get(self.place(stream))
            if record is not None and record.stream == stream:
                for view in self._views_of(record):
                    view.samples -= count_of(record.runs)
                self._drop(record)
                self.changed.append(record.place)

    def _drop(self, record: StreamKnowledge) -> None:
        for view in self._views_of(record):
            view.tree.remove(record)
            view.touched = True
        del self.records[record.place]
        self.unrecoverable_since.pop(record.place, None)

    def entry(self, record: StreamKnowledge, lane: Lane, first: int = 0) -> Entry:
        """Return what to tell of a stream as of the applied slot, from number `first` on."""
        floor = record.effective_floor(self.depth)
        entry = Entry(record.place, floor, record.purge, record.runs, record.unrecoverable, first)
        entry.purged_ntp64 = record.purged_ntp64
        if lane is Lane.CONTENT:
            entry.content, entry.blocks = record.content, record.blocks
        runs_max = 2 * self.options.entry_runs_max
        if first or len(record.runs) + len(record.unrecoverable) > 2 * runs_max:
            runs = flat(ranges(record.runs).clip(first, _NUMBER_END))
            unrecoverable = flat(ranges(record.unrecoverable).clip(first, _NUMBER_END))
            ends = [part[runs_max - 1] for part in (runs, unrecoverable) if len(part) > runs_max]
            entry.runs, entry.unrecoverable = runs, unrecoverable
            if ends:
                entry.next = min(ends) + 1
                entry.runs = flat(ranges(runs).clip(first, entry.next - 1))
                entry.unrecoverable = flat(ranges(unrecoverable).clip(first, entry.next - 1))
        return entry

    def lacking(self, entry: Entry, lane: Lane) -> Lacking:
        """Return what this cache would take of a peer's entry."""
        record = self.records.get(entry.place)
        retained = ranges(entry.runs)
        current = self.current(record) if record is not None else RangeSet()
        both = current.copy()
        both.update(retained)
        floor = max(entry.purge, floor_of_depth(flat(both), self.depth))
        unrecoverable, refused = RangeSet(), RangeSet()
        if record is not None:
            floor = max(floor, record.floor, record.purge)
            unrecoverable, refused = ranges(record.unrecoverable), ranges(record.refused)
        theirs = ranges(known_of(entry.runs, entry.floor, entry.unrecoverable))
        theirs = theirs.clip(entry.first, entry.next - 1 if entry.next else _NUMBER_END)
        missing = theirs.difference(current).difference(unrecoverable)
        want = missing.intersection(retained)
        absent = missing.difference(retained)
        want.update(unrecoverable.difference(current).intersection(retained))
        if lane is Lane.CONTENT:
            want.update(retained.difference(current))
        want = want.difference(refused)
        for runs in (want, absent):
            runs.remove(0, floor - 1)
        return Lacking(want, absent)


def refuse_nothing(_: Sample) -> str:
    """Take every sample."""
    return ""
