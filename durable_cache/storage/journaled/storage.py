"""How a sample becomes durable at once and reaches its backend later: journal, drain, index.

`commit` returns when the journal is durable. `drain` moves what was committed into the backend in
large batches, records it in the stream index, and only then lets the journal forget it. A reader
sees the backend and the backlog as one.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock

from durable_cache.errors import (
    DurableCacheError,
    StorageCorrupt,
    StorageError,
    StorageUnavailable,
)
from durable_cache.model.key_expression import KeyExpression, parse_update
from durable_cache.model.newest import newest_per_key
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import (
    Identity,
    Sample,
    SampleBatch,
    Skip,
    SourceId,
    Stream,
    key_bytes,
)
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds
from durable_cache.protocol.cache.events import Alias, NumberingState
from durable_cache.protocol.wire import Absence
from durable_cache.storage.contract import Conflict, Durability, Floor, Page, Retention, Storage
from durable_cache.storage.journaled.absences import HeldStream, absences, may_hold_others
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.journal import Entry, Journal
from durable_cache.storage.journaled.locks import DirectoryLock
from durable_cache.storage.shared.wildcards import WildcardUpdates

__all__ = ["JournalOptions", "JournaledStorage"]

_STREAMS_COMPARED_MAX = 4096
"""Streams of a source that are looked at for one question: 0.05 s of work."""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Bounds of the way from the journal to the backend; each default carries its reason."""

    tail_bytes_max: int = 256 << 20
    """Memory for samples on their way; more than a minute of 20 k small samples a second."""
    spool_bytes_max: int = 4 << 30
    """Journal on disk while the backend is slow or down; beyond it samples are refused."""
    drain_samples_max: int = 0
    """One backend append; 0: what the backend asks for, which knows its fixed cost."""
    drain_linger_seconds: float = 0.0
    """How long a small batch waits for company; 0: as the backend asks."""
    retry_seconds_max: float = 5.0
    """The longest pause before a backend that failed is tried again."""
    conflicts_kept_max: int = 1000
    """Conflicts remembered for people; all are counted."""
    wildcard_updates_max: int = 10_000
    """Wildcard updates at hand to be applied to keys; matching so many takes a key 10 ms."""
    wildcard_bytes_max: int = 64 << 20
    """Memory for wildcard updates; as much as one answer to a query may hold."""


class JournaledStorage:
    """A backend's storage with a journal in front and an index beside it.

    With `directory` None, or a backend that forgets, there is no journal: `commit` appends to the
    backend itself. The level is never above the backend's own, for the journal forgets what the
    backend has. `commit` and `drain` may run in different threads; reads in any.
    """

    def __init__(
        self,
        storage: Storage,
        directory: Path | None,
        *,
        level: Durability = Durability.DISK,
        options: JournalOptions | None = None,
    ) -> None:
        self.backend = storage
        self.options = _as_asked(options or JournalOptions(), storage)
        self.journal: Journal | None = None
        self._directory_lock: DirectoryLock | None = None
        self._stop = Event()
        self._trim_lock = Lock()
        self._drain_lock = Lock()
        self.backend_error: str = ""
        """Why the backend takes nothing now; empty when it is well."""
        self.conflicts: deque[Conflict] = deque(maxlen=self.options.conflicts_kept_max)
        self.conflicts_total = 0
        self.drained_samples = 0
        self.level = min(level, storage.capabilities.durability)
        self.backlog = Backlog(0)
        self.wildcards = WildcardUpdates(
            self.options.wildcard_updates_max, self.options.wildcard_bytes_max
        )
        if directory is None or self.level is Durability.MEMORY:
            self.index = StreamIndex(None)
            self._restore_index()
            return
        self._directory_lock = DirectoryLock(directory)
        try:
            self._open(directory)
        except BaseException:
            self.close()
            raise

    def _open(self, directory: Path) -> None:
        self.index = StreamIndex(directory / "index.db")
        self.journal = journal = Journal(
            directory / "journal.db",
            bytes_max=self.options.spool_bytes_max,
            durable=self.level >= Durability.DISK,
        )
        self.backlog = Backlog(self.options.tail_bytes_max, journal.entries_after)
        self._restore_index()
        drained = self.index.drained()
        journal.trim(drained)
        for entry in journal.replay():
            if entry.entry_id > drained:
                self.backlog.push(entry)
                self.wildcards.add(entry.batch)

    def _restore_index(self) -> None:
        """Read the index back from a backend that holds more than it, as after a lost file."""
        if self.index.streams == 0 and next(iter(self.backend.held()), None) is not None:
            self.index.rebuild(self.backend)
        self.wildcards.expect((info.stream, info.held) for info in self.index.wildcard_infos())

    def commit(self, batch: SampleBatch, skips: tuple[Skip, ...] = ()) -> None:
        """Make samples and skips durable at `level`; raises `StorageError` when it is not known."""
        if self.journal is None:
            result = self.backend.append(batch, skips)
            self._count(result.conflicts)
            self.index.record(batch, skips)
            self.wildcards.add(batch)
            self.drained_samples += len(batch)
            return
        entry_id = self.journal.commit(batch, skips)
        self.backlog.push(Entry(entry_id, batch, skips))
        self.wildcards.add(batch)

    def drain(self) -> int:
        """Move one batch of entries into the backend; returns the samples moved, 0 when none.

        Raises what the backend raised; the entries stay and are tried again by the next call.
        """
        with self._drain_lock:  # a purge drains in its own thread
            return self._drain()

    def _drain(self) -> int:
        entries = self.backlog.head(self.options.drain_samples_max)
        if not entries or self.journal is None:
            return 0
        skips = [skip for entry in entries for skip in entry.skips]
        batch = SampleBatch.joined([entry.batch for entry in entries])
        samples = batch.samples
        result = self.backend.append(batch, skips)
        if result.refused:
            for refusal in result.refused:
                self.journal.bury(SampleBatch([refusal.sample]), refusal.reason)
            refused = {refusal.sample.identity for refusal in result.refused}
            batch = SampleBatch(s for s in samples if s.identity not in refused)
        self._count(result.conflicts)
        last = entries[-1].entry_id
        self.index.record(batch, skips, last)
        self.backlog.pop(len(entries))
        self.journal.trim(last)
        self.drained_samples += len(samples)
        return len(samples)

    def _count(self, conflicts: Sequence[Conflict]) -> None:
        self.conflicts.extend(conflicts)
        self.conflicts_total += len(conflicts)

    def run_drain(self) -> None:
        """Drain until `stop_drain`; a backend that fails is tried again with growing pauses."""
        pause = 0.1
        while not self._stop.is_set():
            linger = self.options.drain_linger_seconds
            if not self.backlog.wait(self.options.drain_samples_max, linger):
                continue
            try:
                self.drain()
            except StorageCorrupt as error:
                self.backend_error = str(error)
                return
            except DurableCacheError as error:
                self.backend_error = str(error)
                asked = error.retry_after_seconds if isinstance(error, StorageUnavailable) else 0
                self._stop.wait(max(pause, asked))
                pause = min(pause * 2, self.options.retry_seconds_max)
            else:
                self.backend_error = ""
                pause = 0.1

    def stop_drain(self) -> None:
        """End `run_drain` after the batch it is at."""
        self._stop.set()
        self.backlog.wake()

    def drain_all(self, timeout_seconds: float) -> bool:
        """Drain in this thread until nothing is left; False when time or the backend gave out."""
        deadline = time.monotonic() + timeout_seconds
        while self.backlog.samples or self.backlog.head(1):
            if time.monotonic() > deadline:
                return False
            try:
                self.drain()
            except StorageError as error:
                self.backend_error = str(error)
                return False
        return True

    def load(self, source: SourceId) -> tuple[tuple[NumberingState, ...], tuple[Alias, ...]]:
        """Return what is stored of a source, the backlog included, for its windows."""
        pending = self.backlog.numbers_of(source)  # before the index: never neither of both
        states, aliases = self.index.load(source)
        by_epoch = {state.epoch: state for state in states}
        for epoch, samples in pending:
            state = by_epoch.get(epoch) or NumberingState(epoch, RangeSet(), RangeSet())
            sns = RangeSet.of(sample.sn for sample in samples)
            state.held.update(sns)
            newest = max((s.ntp64 for s in samples if not s.stamped), default=0)
            by_epoch[epoch] = NumberingState(
                epoch,
                state.held,
                state.skipped.difference(sns),
                max(state.newest_ntp64, newest),
            )
        for skip in self.backlog.skips():
            if skip.source == source and skip.epoch in by_epoch:
                by_epoch[skip.epoch].skipped.add(skip.first, skip.last)
        return tuple(by_epoch.values()), aliases

    def backlog_runs(self) -> dict[Stream, RangeSet]:
        """Return what is committed and not drained yet, per stream."""
        batch = SampleBatch(self.backlog.matching(Selection()))
        return {stream: summary.runs for stream, summary in batch.summaries.items()}

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page as `Storage.read` does, of the backend and the backlog together.

        It holds the wildcard updates that concern the selection, each under its expression.
        """
        recent = self.backlog.matching(selection)  # before the backend: never neither of both
        recent += self.concerning(selection)
        if not recent:
            return self.backend.read(selection, limit, cursor)
        if selection.newest is not None:
            return self._read_newest(selection, recent, limit, cursor)
        page = self.backend.read(selection, limit, cursor)
        place = selection.place
        end = place(page.samples.samples[-1]) if page.cursor is not None else None
        fitting = {place(sample): sample for sample in recent}
        fitting = {
            at: sample
            for at, sample in fitting.items()
            if (cursor is None or at > cursor) and (end is None or at <= end)
        }
        fitting.update((place(sample), sample) for sample in page.samples)
        places = heapq.nsmallest(limit + 1, fitting)
        chosen = [fitting[at] for at in places[:limit]]
        more = len(places) > limit or page.cursor is not None
        return Page(SampleBatch(chosen), places[len(chosen) - 1] if more else None)

    def concerning(self, selection: Selection) -> list[Sample]:
        """Return the wildcard updates that concern a selection, `newest` aside."""
        return self.wildcards.concerning(selection, self._read_updates)

    def _read_updates(self, stream: Stream, runs: RangeSet) -> list[Sample]:
        """Read a wildcard update's stream back from the backend."""
        source, found = stream.source, list[Sample]()
        for first, last in runs:
            cursor: Cursor | None = None
            selection = Selection(
                key_expr=parse_update(stream.key) or KeyExpression("**"),
                zid=source.zid,
                eid=source.eid,
                epoch=stream.epoch,
                sns=SnBounds(first, last),
            )
            while True:
                page = self.backend.read(selection, 1000, cursor)
                found += (sample for sample in page.samples if sample.key == stream.key)
                cursor = page.cursor
                if cursor is None:
                    break
        return found

    def _read_newest(
        self, selection: Selection, recent: list[Sample], limit: int, cursor: Cursor | None
    ) -> Page:
        """Merge per key: the backend's newest of each key with the backlog's, then cut the page."""
        newest = selection.newest or 1
        by_key = selection.order is Order.IDENTITY
        stored: list[Sample] = []
        begin: Cursor | None = None
        if by_key and cursor is not None:
            begin = (cursor[0], 0, 0, 0, -1)  # before the first sample of the cursor's key
        while True:
            page = self.backend.read(selection, limit + newest + 1, begin)
            stored += page.samples
            begin = page.cursor
            horizon = key_bytes(stored[-1].key) if stored and begin is not None else None
            if not by_key and begin is not None:
                continue
            merged = {selection.place(sample): sample for sample in (*recent, *stored)}
            chosen = [
                (at, sample)
                for sample in newest_per_key(merged.values(), selection.newest)
                for at in (selection.place(sample),)
                if cursor is None or at > cursor
                if horizon is None or key_bytes(sample.key) < horizon
            ]
            if chosen or begin is None:
                break
        chosen = heapq.nsmallest(limit + 1, chosen, key=lambda pair: pair[0])
        more = len(chosen) > limit or begin is not None
        chosen = chosen[:limit]
        samples = SampleBatch(sample for _, sample in chosen)
        return Page(samples, chosen[-1][0] if more and chosen else None)

    def find(self, samples: Sequence[Sample]) -> list[tuple[Sample, Sample | None]]:
        """Return each sample with the one stored under its identity."""
        found: dict[Identity, Sample] = {}
        groups: dict[tuple[SourceId, int], list[int]] = {}
        for sample in samples:
            groups.setdefault((sample.source, sample.epoch), []).append(sample.sn)
        for (source, epoch), sns in groups.items():
            for first, last in RangeSet.of(sns):
                for stored in self.range_of(source, epoch, first, last):
                    found[stored.identity] = stored
        return [(sample, found.get(sample.identity)) for sample in samples]

    def range_of(self, source: SourceId, epoch: int, first: int, last: int) -> Iterator[Sample]:
        """Yield what is stored of a source's numbers, every key."""
        selection = Selection(
            zid=source.zid, eid=source.eid, epoch=epoch, sns=SnBounds(first, last)
        )
        for page in self.pages(selection, 1000):
            yield from page

    def pages(self, selection: Selection, limit: int) -> Iterator[SampleBatch]:
        """Yield everything a selection names, so many samples at once."""
        cursor: Cursor | None = None
        while True:
            page = self.read(selection, limit, cursor)
            yield page.samples
            cursor = page.cursor
            if cursor is None:
                return

    def absences(self, selection: Selection, samples_max: int | None = None) -> tuple[Absence, ...]:
        """Return which numbers that a selection asks for are known here and not in its answer.

        Only where it asks for numbers of one source; `samples_max` is the history shown per key.
        Bounded work: of a source on very many keys only one key's question is answered.
        """
        if not may_hold_others(selection):
            return ()
        source = SourceId(selection.zid or "", selection.eid or 0)
        # What is on its way is looked at before the index each time: never in neither of both.
        states, aliases = self.load(source)
        recent = [
            HeldStream(stream, summary.runs)
            for stream, summary in self.backlog.of_source(source).summaries.items()
        ]
        infos = self.index.infos_of_source(source, _STREAMS_COMPARED_MAX)
        if infos is None and selection.key_expr.is_key:
            key = str(selection.key_expr)
            asked_for = [Stream(key, source, state.epoch) for state in states]
            infos = [*self.index.infos(asked_for).values()]
        streams = None
        if infos is not None:
            stored = [HeldStream(i.stream, i.held, max(i.floor, i.purged)) for i in infos]
            streams = _united([*stored, *recent])
        return absences(selection, states, aliases, streams, samples_max)

    def history_floor(self, streams: Sequence[Stream], samples_max: int) -> dict[Stream, int]:
        """Return the sn below which each stream is beyond its newest `samples_max` samples.

        Retention removes in its own time; a reader of the queue does not see what must go.
        """
        infos = self.index.infos(streams)
        for stream in streams:
            for epoch, samples in self.backlog.numbers_of(stream.source):
                if epoch == stream.epoch:
                    sns = RangeSet.of(s.sn for s in samples if s.key == stream.key)
                    infos[stream].held.update(sns)
        return {stream: info.held.nth_last(samples_max) or 0 for stream, info in infos.items()}

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        """Apply retention to the backend and remember the floors."""
        with self._trim_lock:
            floors = self.backend.trim(retention, now_ns)
            if floors:
                self.index.trimmed(floors)
                self.wildcards.removed(floors)
            return floors

    def purge(self, floors: Sequence[Floor]) -> int:
        """Remove what is below the floors, for good; drains first."""
        with self._trim_lock:
            self.drain_all(30)
            removed = self.backend.purge(floors)
            self.index.trimmed(floors, purged=True)
            self.wildcards.removed(floors)
            return removed

    def drained_of(self, source: SourceId, epoch: int) -> bool:
        """Tell whether nothing of a numbering is on its way to the backend."""
        waiting = (at for at, _ in self.backlog.numbers_of(source))
        return not self.backlog.spilled and epoch not in waiting

    def moved(self, agreement: Alias) -> bool:
        """Tell whether the backend has all of an epoch under the one that was agreed on."""
        source, loser = agreement.source, agreement.stored
        if not self.drained_of(source, loser):
            return False
        old = self.index.infos_of(source, loser)
        now = self.index.infos([info.stream._replace(epoch=agreement.epoch) for info in old])
        for info, found in zip(old, now.values(), strict=True):
            missing = info.held.difference(found.held)
            missing.remove(0, max(found.floor, found.purged) - 1)
            if missing:
                return False
        return True

    def forget(self, source: SourceId, epoch: int) -> list[Stream]:
        """Remove a numbering that was stored anew under another epoch; returns its streams."""
        with self._trim_lock:
            old = self.index.infos_of(source, epoch)
            floors = [Floor(info.stream, (info.held.last or 0) + 1) for info in old]
            self.backend.purge(floors)
            self.wildcards.removed(floors)
            self.index.forget(source, epoch)
        return [info.stream for info in old]

    def close(self) -> None:
        """Close journal, index and backend, in that order; idempotent. Drains nothing."""
        self.stop_drain()
        if self.journal is not None:
            self.journal.close()
        if hasattr(self, "index"):
            self.index.close()
        self.backend.close()
        if self._directory_lock is not None:
            self._directory_lock.release()


def _united(streams: Sequence[HeldStream]) -> list[HeldStream]:
    """Return each stream once, with all that is held of it."""
    found: dict[Stream, HeldStream] = {}
    for held in streams:
        known = found.setdefault(held.stream, held)
        if known is not held:
            known.held.update(held.held)
    return [*found.values()]


def _as_asked(options: JournalOptions, storage: Storage) -> JournalOptions:
    asked = storage.capabilities
    return replace(
        options,
        drain_samples_max=options.drain_samples_max or asked.append_samples,
        drain_linger_seconds=options.drain_linger_seconds or asked.append_linger_seconds,
    )
