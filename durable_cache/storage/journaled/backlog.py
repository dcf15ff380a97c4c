"""What is in the journal and not yet in the backend: the newest samples, there to be read.

Every entry has a place here, in order. The oldest are in memory, up to a bound; of the others only
a sketch is (which sources and keys, from which number to which), by which a reader finds those that
it needs and reads them back from the journal. So what is acknowledged is read wherever it lies,
and a backend that is away costs disk and time, not memory (ADR 0092).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from threading import Condition
from typing import NamedTuple

from durable_cache.model.key_expression import EVERY_KEY
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.storage.journaled.journal import Entry

_READ_BACK_ENTRIES = 16
_NUMBERINGS_MAX = 4_000
"""Numberings whose spilled numbers are known without reading: 3 MB. Beyond, they are read back."""


class _Numbers(NamedTuple):
    """What is here of one numbering."""

    runs: RangeSet
    newest_ntp64: int
    """Of the timestamps that are the publisher's own; 0 when there is none."""


class _Sketch(NamedTuple):
    """Which samples an entry holds, roughly: what tells that it need not be looked at."""

    first: int
    last: int
    keys: array[int]
    zids: array[int]

    @classmethod
    def of(cls, batch: SampleBatch) -> _Sketch:
        sns = [sample.sn for sample in batch.samples]
        keys = _hashes(sample.key for sample in batch.samples)
        zids = _hashes(sample.source.zid for sample in batch.samples)
        return cls(min(sns, default=0), max(sns, default=-1), keys, zids)

    def may_hold(self, selection: Selection) -> bool:
        """Tell whether the entry may hold samples of a selection; never wrongly False."""
        first, last = selection.sns
        if (first is not None and self.last < first) or (last is not None and self.first > last):
            return False
        if selection.zid is not None and not _among(self.zids, selection.zid):
            return False
        return not selection.key_expr.is_key or _among(self.keys, str(selection.key_expr))


class _Waiting:
    """An entry's place: what is in it, and the entry itself while it is in memory."""

    __slots__ = ("_sketch", "bytes", "entry", "entry_id", "samples", "skips")

    def __init__(self, entry: Entry) -> None:
        self.entry_id = entry.entry_id
        self.samples = len(entry.batch)
        self.bytes = entry.batch.held_bytes
        self.skips = entry.skips
        self.entry: Entry | None = None
        self._sketch: _Sketch | None = None

    def spill(self, entry: Entry) -> None:
        """Leave the entry to the journal."""
        self._sketch = _Sketch.of(entry.batch)

    @property
    def sketch(self) -> _Sketch:
        """What is in the entry, made when first asked for: most are drained before that.

        Any thread, without a lock, as an entry that was in memory once stays with its place.
        """
        if self._sketch is None and self.entry is not None:
            self._sketch = _Sketch.of(self.entry.batch)
        return self._sketch or _Sketch.of(SampleBatch())


def _hashes(texts: Iterable[str]) -> array[int]:
    """Return the hashes of texts, sorted: 8 bytes for each that differs."""
    return array("q", sorted({hash(text) for text in texts}))


def _among(hashes: array[int], text: str) -> bool:
    wanted = hash(text)
    at = bisect_left(hashes, wanted)
    return at < len(hashes) and hashes[at] == wanted


class Backlog:
    """A queue of commits on their way to the backend, bounded in memory; any thread.

    `read_back(after, limit)` returns entries of the journal above an id.
    """

    def __init__(
        self, bytes_max: int, read_back: Callable[[int, int], list[Entry]] | None = None
    ) -> None:
        self._bytes_max = bytes_max
        self._read_back = read_back
        self._waiting: deque[_Waiting] = deque()
        self._in_memory = 0
        """So many from the front have their entry."""
        self._spilled_numbers: dict[SourceId, dict[int, _Numbers]] | None = {}
        self._spilled_numberings = 0
        self._changed = Condition()
        self._woken = False
        self._flush_soon = False
        self._enough_samples = 0
        """So many samples are waited for."""
        self.bytes = 0
        """Of the entries in memory."""
        self.samples = 0
        self.last_id = 0

    def push(self, entry: Entry) -> None:
        """Take a commit; the caller has made it durable."""
        waiting = _Waiting(entry)
        entry = Entry(entry.entry_id, entry.batch.bare(), entry.skips)
        with self._changed:
            spilled = self._in_memory < len(self._waiting)
            if spilled or (self._in_memory and self.bytes + waiting.bytes > self._bytes_max):
                self._note_spilled(entry.batch)
                waiting.spill(entry)
            else:
                self._take(waiting, entry)
            self._waiting.append(waiting)
            self.samples += waiting.samples
            self.last_id = entry.entry_id
            if self._is_enough():  # who waits is not woken by every commit, to see that it is not
                self._changed.notify()

    def _take(self, waiting: _Waiting, entry: Entry) -> None:
        waiting.entry = entry
        self.bytes += waiting.bytes
        self._in_memory += 1

    def _return(self, entry: Entry) -> None:
        """Take an entry that was spilled; something may have been purged from it meanwhile."""
        waiting = self._waiting[self._in_memory]
        self.samples -= waiting.samples - len(entry.batch)
        waiting.samples, waiting.bytes = len(entry.batch), entry.batch.held_bytes
        self._take(waiting, entry)

    def _note_spilled(self, batch: SampleBatch) -> None:
        known = self._spilled_numbers
        if known is None:
            return
        for (_, source, epoch), summary in SampleBatch(batch.samples).summaries.items():
            numbers = known.setdefault(source, {}).get(epoch)
            if numbers is None:
                numbers = _Numbers(RangeSet(), 0)
                self._spilled_numberings += 1
            numbers.runs.update(summary.runs)
            newest = max(numbers.newest_ntp64, summary.newest_published_ntp64)
            known[source][epoch] = numbers._replace(newest_ntp64=newest)
        if self._spilled_numberings > _NUMBERINGS_MAX:
            self._spilled_numbers = None

    @property
    def spilled(self) -> int:
        """How many entries are only in the journal."""
        return len(self._waiting) - self._in_memory

    def wait(self, samples: int, timeout_seconds: float) -> bool:
        """Wait until so many samples are here, half of the bound, or some and the time is over."""
        with self._changed:
            self._enough_samples = samples
            self._changed.wait_for(self._is_enough, timeout_seconds)
            self._flush_soon = False
            return bool(self._waiting)

    def _is_enough(self) -> bool:
        full = self.samples >= self._enough_samples or self.bytes > self._bytes_max // 2
        return full or self._flush_soon or self._woken

    def flush_soon(self) -> None:
        """End the `wait` under way, or else the next: somebody waits for the backend."""
        with self._changed:
            self._flush_soon = True
            self._changed.notify_all()

    def wake(self) -> None:
        """End every `wait` now, and those that come."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def head(self, samples_max: int) -> list[Entry]:
        """Return the oldest entries, at least one if there is any, up to so many samples.

        Refills from the journal what was spilled, as far as there is room; raises what reading it
        raised, and the next call tries again.
        """
        self._refill()
        with self._changed:
            chosen: list[Entry] = []
            count = 0
            for waiting in islice(self._waiting, self._in_memory):
                count += waiting.samples
                if (chosen and count > samples_max) or waiting.entry is None:
                    break
                chosen.append(waiting.entry)
        return chosen

    def pop(self, count: int) -> None:
        """Remove the `count` oldest entries."""
        with self._changed:
            for _ in range(count):
                waiting = self._waiting.popleft()
                self._in_memory -= 1
                self.bytes -= waiting.bytes
                self.samples -= waiting.samples

    def _refill(self) -> None:
        with self._changed:
            wanted = self._next_spilled()
        while wanted is not None and self._read_back is not None:
            entries = self._read_back(wanted - 1, _READ_BACK_ENTRIES)
            before = wanted
            with self._changed:
                for entry in entries:
                    if self._next_spilled() == entry.entry_id:
                        self._return(entry)
                wanted = self._next_spilled()
            if wanted == before:
                return

    def _next_spilled(self) -> int | None:
        """Return the entry to be read back next, while there is room for it."""
        if self._in_memory == len(self._waiting):
            self._spilled_numbers, self._spilled_numberings = {}, 0
            return None
        full = self._in_memory and self.bytes >= self._bytes_max // 2
        return None if full else self._waiting[self._in_memory].entry_id

    def change(self, changed: Callable[[Entry], Entry]) -> None:
        """Put entries in memory in place of what they were, as `read_back` from now on gives them.

        `changed` returns the same entry where nothing is to change.
        """
        with self._changed:
            for waiting in islice(self._waiting, self._in_memory):
                before = waiting.entry
                after = before if before is None else changed(before)
                if after is not before and after is not None:
                    self.samples -= waiting.samples - len(after.batch)
                    self.bytes -= waiting.bytes - after.batch.held_bytes
                    waiting.entry, waiting.samples = after, len(after.batch)
                    waiting.bytes = after.batch.held_bytes

    def matching(self, selection: Selection) -> Iterator[Sample]:
        """Yield the samples a selection names, `newest` aside, in no order, repeats possible.

        What is here when this is called, wherever it lies; reads back a few entries at a time.
        """
        with self._changed:
            waiting = [*self._waiting]
        # Not while commits wait for the lock: some are looked at for the first time.
        chosen = [one for one in waiting if one.sketch.may_hold(selection)]
        return _matching(selection, self._entries(chosen))

    def _entries(self, chosen: Sequence[_Waiting]) -> Iterator[Entry]:
        """Yield entries, those that are not in memory from the journal; not those it let go of:
        they are in the backend by now.
        """
        missing: deque[int] = deque()
        for waiting in chosen:
            entry = waiting.entry
            if entry is not None:
                yield entry
            else:
                missing.append(waiting.entry_id)
        while missing and self._read_back is not None:
            found = self._read_back(missing[0] - 1, _READ_BACK_ENTRIES)
            if not found:
                return
            for entry in found:
                while missing and missing[0] < entry.entry_id:
                    missing.popleft()
                if missing and missing[0] == entry.entry_id:
                    missing.popleft()
                    yield entry

    def numbers_of(self, source: SourceId) -> dict[int, _Numbers]:
        """Return what is here of a source, per epoch."""
        with self._changed:
            known = self._spilled_numbers
            wanted = [*islice(self._waiting, None if known is None else self._in_memory)]
            found = {
                epoch: numbers._replace(runs=numbers.runs.copy())
                for epoch, numbers in (known or {}).get(source, {}).items()
            }
        chosen = [waiting for waiting in wanted if _among(waiting.sketch.zids, source.zid)]
        epochs: dict[int, list[Sample]] = {}
        for sample in _matching(Selection(EVERY_KEY, *source), self._entries(chosen)):
            epochs.setdefault(sample.epoch, []).append(sample)
        for epoch, samples in epochs.items():
            runs, newest = found.get(epoch, _Numbers(RangeSet(), 0))
            runs.update(RangeSet.of([sample.sn for sample in samples]))
            own = max([s.ntp64 for s in samples if not s.stamped], default=0)
            found[epoch] = _Numbers(runs, max(newest, own))
        return found

    def runs(
        self, selection: Selection, streams: frozenset[Stream] | None = None
    ) -> dict[Stream, RangeSet]:
        """Return the numbers here per stream that a selection names, or of these `streams`."""
        sns: dict[Stream, list[int]] = {}
        for sample in self.matching(selection):
            stream = sample.stream
            if streams is None or stream in streams:
                sns.setdefault(stream, []).append(sample.sn)
        return {stream: RangeSet.of(numbers) for stream, numbers in sns.items()}

    def skips(self) -> list[Skip]:
        """Return the skips on their way."""
        with self._changed:
            return [skip for waiting in self._waiting for skip in waiting.skips]


def _matching(selection: Selection, entries: Iterable[Entry]) -> Iterator[Sample]:
    zid, eid = selection.zid, selection.eid
    source = None if zid is None or eid is None else SourceId(zid, eid)
    sns, times = selection.sns, selection.times
    for entry in entries:
        named: dict[tuple[str, SourceId, int], bool] = {}
        for sample in entry.batch.samples:
            if source is not None and sample.source != source:
                continue
            stream = (sample.key, sample.source, sample.epoch)
            fits = named.get(stream)
            if fits is None:
                fits = named[stream] = selection.names(Stream(*stream))
            if fits and sns.holds(sample.sn) and times.holds(sample.ntp64):
                yield sample
