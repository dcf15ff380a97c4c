"""What is in the journal and not yet in the backend: the newest samples, readable from memory.

Beyond its bound the backlog keeps only the numbers of the entries; they are read back from the
journal when they are drained, and answer no reads until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Condition
from typing import NamedTuple

from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.storage.journaled.journal import Entry

__all__ = ["Backlog"]


class _Part(NamedTuple):
    """What one commit holds of one stream."""

    entry_id: int
    stream: Stream
    samples: list[Sample]


class Backlog:
    """A bounded queue of commits on their way to the backend; any thread."""

    def __init__(
        self, bytes_max: int, read_back: Callable[[int, int], list[Entry]] | None = None
    ) -> None:
        self._bytes_max = bytes_max
        self._read_back = read_back
        self._entries: deque[tuple[Entry, int]] = deque()
        self._by_source: dict[SourceId, deque[_Part]] = {}
        self._skips: deque[tuple[int, tuple[Skip, ...]]] = deque()
        self._spilled: deque[int] = deque()
        self._changed = Condition()
        self._woken = False
        self._flush_soon = False
        self.bytes = 0
        self.samples = 0

    def push(self, entry: Entry) -> None:
        """Take a commit; the caller has made it durable."""
        size = entry.batch.size
        with self._changed:
            if self._spilled or (self.bytes + size > self._bytes_max and self._entries):
                self._spilled.append(entry.entry_id)
            else:
                self._take(entry, size)
            self.samples += len(entry.batch)
            self._changed.notify()

    def _take(self, entry: Entry, size: int) -> None:
        self._entries.append((entry, size))
        self.bytes += size
        for stream, samples in entry.batch.by_stream.items():
            parts = self._by_source.setdefault(stream.source, deque())
            parts.append(_Part(entry.entry_id, stream, samples))
        if entry.skips:
            self._skips.append((entry.entry_id, entry.skips))

    def _let_go(self) -> None:
        entry, size = self._entries.popleft()
        self.bytes -= size
        self.samples -= len(entry.batch)
        for source in {stream.source for stream in entry.batch.by_stream}:
            parts = self._by_source[source]
            while parts and parts[0].entry_id <= entry.entry_id:
                parts.popleft()
            if not parts:
                del self._by_source[source]
        while self._skips and self._skips[0][0] <= entry.entry_id:
            self._skips.popleft()

    @property
    def spilled(self) -> int:
        """How many entries are only in the journal."""
        return len(self._spilled)

    def wait(self, samples: int, timeout_seconds: float) -> bool:
        """Wait until so many samples are here, half of the bound, or some and the time is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._woken
                    or self._flush_soon
                    or self.samples >= samples
                    or self.bytes > self._bytes_max // 2
                ),
                timeout_seconds,
            )
            self._flush_soon = False
            return bool(self._entries or self._spilled)

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
        """Return the oldest entries, at least one if there is any, up to so many samples."""
        with self._changed:
            chosen: list[Entry] = []
            count = 0
            for entry, _ in self._entries:
                count += len(entry.batch)
                if chosen and count > samples_max:
                    break
                chosen.append(entry)
        return chosen

    def pop(self, count: int) -> None:
        """Remove the `count` oldest entries and refill from the journal what was spilled."""
        with self._changed:
            for _ in range(count):
                self._let_go()
            last = self._entries[-1][0].entry_id if self._entries else None
        if self._spilled and self._read_back is not None:
            self._refill(last)

    def _refill(self, last: int | None) -> None:
        after = self._spilled[0] - 1 if last is None else last
        while self._spilled and (self.bytes < self._bytes_max // 2 or not self._entries):
            read_back = self._read_back
            entries = read_back(after, 16) if read_back else []
            if not entries:
                break
            with self._changed:
                for entry in entries:
                    if not self._spilled or entry.entry_id != self._spilled[0]:
                        break
                    self._spilled.popleft()
                    self._take(entry, entry.batch.size)
                    after = entry.entry_id

    def matching(self, selection: Selection) -> list[Sample]:
        """Return the samples a selection names, `newest` aside, in no order, repeats possible."""
        return list(_matching(selection, self._parts(selection)))

    def _parts(self, selection: Selection) -> list[_Part]:
        """Return where to look: one source's part when it is named, else everything."""
        zid, eid = selection.zid, selection.eid
        with self._changed:
            if zid is not None and eid is not None:
                return list(self._by_source.get(SourceId(zid, eid), ()))
            return [part for parts in self._by_source.values() for part in parts]

    def numbers_of(self, source: SourceId) -> list[tuple[int, list[Sample]]]:
        """Return (epoch, samples) of one source, in the order of their commits."""
        with self._changed:
            parts = self._by_source.get(source, ())
            return [(part.stream.epoch, part.samples) for part in parts]

    def of_source(self, source: SourceId) -> SampleBatch:
        """Return the samples of one source, in the order of their commits."""
        with self._changed:
            parts = self._by_source.get(source, ())
            return SampleBatch(sample for part in parts for sample in part.samples)

    def skips(self) -> list[Skip]:
        """Return the skips on their way."""
        with self._changed:
            return [skip for _, skips in self._skips for skip in skips]


def _matching(selection: Selection, parts: Iterable[_Part]) -> Iterator[Sample]:
    for _, stream, samples in parts:
        if selection.names(stream):
            for sample in samples:
                if selection.sns.holds(sample.sn) and selection.times.holds(sample.ntp64):
                    yield sample
