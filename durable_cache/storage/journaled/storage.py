"""How a sample becomes durable at once and reaches its backend later: journal, drain, index.

`commit` returns when the journal is durable. `drain` moves what was committed into the backend in
large batches, records it in the stream index, and only then lets the journal forget it. A reader
sees the backend and the backlog as one.

The parts are told apart at every start: a journal, an index or a backend that is new, another's or
an older copy is recognised and said (`findings`), and then only what can be read is claimed
(ADR 0090). Nothing here starts a thread, sleeps or waits, except `run_drain`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock

from durable_cache.errors import (
    DurableCacheError,
    StorageCorrupt,
    StorageError,
    StorageUnavailable,
)
from durable_cache.model.key_expression import EVERY_KEY
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.model.selection import Cursor, Selection, SnBounds
from durable_cache.model.unnumbered import UNNUMBERED_EID
from durable_cache.protocol.cache.events import Alias, NumberingState
from durable_cache.protocol.cache.questions import Standing
from durable_cache.protocol.wire import Absence
from durable_cache.storage.contract import (
    Conflict,
    Durability,
    Floor,
    Page,
    Refusal,
    Retention,
    Storage,
)
from durable_cache.storage.journaled.absences import HeldStream, absences, gives_all, united
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.belonging import (
    backend_finding,
    begin_anew,
    journal_finding,
)
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.journal import Entry, Journal
from durable_cache.storage.journaled.locks import DirectoryLock
from durable_cache.storage.journaled.merged import MergedReading
from durable_cache.storage.journaled.pace import Pace, RetryPause
from durable_cache.storage.journaled.purges import Purges
from durable_cache.storage.shared.wildcards import WildcardUpdates

_log = logging.getLogger(__name__)
_STREAMS_COMPARED_MAX = 4096
"""Streams of a source that are looked at for one question: 0.05 s of work."""
_FINDINGS_MAX = 100
_NOTHING = RangeSet()


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Bounds of the way from the journal to the backend; each default carries its reason."""

    tail_bytes_max: int = 256 << 20
    """Memory for samples on their way; 15 s of 20 k small samples a second. Beyond it they wait in
    the journal, from where reads take longer."""
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
    wildcard_updates_max: int = 1_000
    """Wildcard updates applied to keys; a page of keys is matched with so many in a second."""
    wildcard_bytes_max: int = 64 << 20
    """Memory for wildcard updates; as much as one answer to a query may hold."""


class JournaledStorage:
    """A backend's storage with a journal in front and an index beside it.

    With `directory` None, or a backend that forgets, there is no journal: `commit` appends to the
    backend itself. The level is never above the backend's own, for the journal forgets what the
    backend has. `commit` and `drain` may run in different threads; reads in any. A `journal` and
    an `index` that are given stand in for those in the directory, so that a simulator drives this
    very composition.
    """

    def __init__(  # the parts it is composed of
        self,
        storage: Storage,
        directory: Path | None,
        *,
        level: Durability = Durability.DISK,
        options: JournalOptions | None = None,
        journal: Journal | None = None,
        index: StreamIndex | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = storage
        self.options = _as_asked(options or JournalOptions(), storage)
        self._directory_lock: DirectoryLock | None = None
        self._clock = clock
        self._stop = Event()
        self._trim_lock = Lock()
        self._drain_lock = Lock()
        self._commit_lock = Lock()
        self.backend_error: str = ""
        """Why the backend takes nothing now; empty when it is well."""
        self.findings: deque[str] = deque(maxlen=_FINDINGS_MAX)
        """What people should know: parts that do not belong together, samples that were refused."""
        self.conflicts: deque[Conflict] = deque(maxlen=self.options.conflicts_kept_max)
        self.conflicts_total = 0
        self.refused_total = 0
        """Samples that were acknowledged and that the backend can never take."""
        self.unstorable_total = 0
        """Samples that were refused before they were acknowledged."""
        self.drained_samples = 0
        self.on_purged: list[Callable[[Sequence[Floor]], None]] = []
        """Called with the floors of a purge once it holds, by the thread that purges or drains.

        Where one raises StorageError, all are called again before the backend removes anything."""
        self._pace = Pace(self.options.drain_samples_max)
        self.level = min(level, storage.capabilities.durability)
        self.journal = journal
        self._compared = False
        self.wildcards = WildcardUpdates(
            self.options.wildcard_updates_max, self.options.wildcard_bytes_max
        )
        try:
            if journal is None and directory is not None and self.level > Durability.MEMORY:
                self._directory_lock = DirectoryLock(directory)
                self.journal = Journal(
                    directory / "journal.db",
                    bytes_max=self.options.spool_bytes_max,
                    durable=self.level >= Durability.DISK,
                )
            in_memory = self.journal is None or directory is None
            self.index = index or StreamIndex(
                None if in_memory or directory is None else directory / "index.db"
            )
            self._join()
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        """Let the parts know each other, and take up what waits in the journal."""
        journal = self.journal
        if journal is None:
            self.backlog = Backlog(0)
            self._purges = Purges()
        else:
            self.index.keep_copies(journal)
            unmet = self.index.journal() is None  # by this journal, or by any that keeps purges
            finding = journal_finding(journal, self.index)
            self._report(finding)
            self._purges = Purges(journal, journal.span()[0])
            if finding or unmet:
                self._purge_again()
            self.backlog = Backlog(self.options.tail_bytes_max, self._entries_after)
            self.backlog.last_id = journal.span()[1]
        self._merged = MergedReading(self.backend, self.backlog, self.concerning, self.streams_of)
        try:
            self._compare()
        except StorageUnavailable as error:
            self.backend_error = str(error)  # compared before the next drain
        self.wildcards.expect((info.stream, info.held) for info in self.index.wildcard_infos())
        if journal is not None:
            drained = self.index.drained()
            journal.trim(drained)
            if self.backlog.last_id > drained:
                self._purges.remember(self.index.purges(), self.backlog.last_id)
            for entry in journal.replay():
                if entry.entry_id > drained:
                    waiting = self._purges.without(entry)
                    self.backlog.push(waiting)
                    self.wildcards.add(waiting.batch)

    def _entries_after(self, entry_id: int, limit: int) -> list[Entry]:
        entries = [] if self.journal is None else self.journal.entries_after(entry_id, limit)
        return [*map(self._purges.without, entries)]

    def _compare(self) -> None:
        """Compare the index with the backend, and read it anew where they differ; once."""
        if self._compared:
            return
        doubted = self.index.doubted
        finding = "" if doubted else backend_finding(self.index, self.backend, self._waiting)
        if finding and self.journal is not None:
            self._report(finding)
            # What the journal still has of drained entries may be what the backend lost.
            begin_anew(self.journal, self.index)
        if finding or doubted:
            self.index.rebuild(self.backend)
            self._purge_again()
        self._compared = True

    def _waiting(self) -> Iterator[Sample]:
        """Yield what the journal holds and the index does not know to be in the backend."""
        drained = self.index.drained()
        for entry in () if self.journal is None else self.journal.replay():
            yield from entry.batch.samples if entry.entry_id > drained else ()

    def _purge_again(self) -> None:
        """See to it that what was purged stays removed from parts that may have it again."""
        if self.journal is not None:
            floors = self._purges.every() + self.index.purges()
            lost = self._purges.lost_by(self.index.infos)
            self._purges.begin(floors, self.journal.span()[1])
            self.index.trimmed(floors, purged=True, unrecorded=lost)
            self._purges.told(floors)

    def _report(self, finding: str) -> None:
        if finding:
            self.findings.append(finding)
            _log.warning(finding)

    def admit(self, batch: SampleBatch) -> SampleBatch:
        """Return a batch without what can never be stored, before anybody is told that it is safe:
        what the backend has no place for, which is reported, and wildcard updates beyond a bound.
        """
        refused = self.backend.check(batch)
        if refused:
            sample, reason = refused[0]
            self.unstorable_total += len(refused)
            self._report(
                f"{len(refused)} samples are refused, for the backend can never take them; the "
                f"first is number {sample.sn} of {sample.source} on {sample.key[:80]!r}: {reason}"
            )
            gone = {id(refusal.sample) for refusal in refused}
            batch = SampleBatch(sample for sample in batch if id(sample) not in gone)
        return self.wildcards.admit(batch)

    def commit(self, batch: SampleBatch, skips: tuple[Skip, ...] = ()) -> SampleBatch:
        """Make samples and skips durable at `level`; raises `StorageError` when it is not known.

        Returns what is stored: all but what was purged while it was on its way here. An error that
        is `fatal` is the last word: nothing is committed behind it.
        """
        with self._commit_lock:  # a purge is before a commit or behind it
            batch, purged = self._purges.part(batch)
            if len(purged):  # a repeat is told to be one
                self.index.trimmed((), purged=True, unrecorded=purged.summaries)
            if len(batch) or skips or not len(purged):
                self._commit(batch, skips)
            return batch

    def _commit(self, batch: SampleBatch, skips: tuple[Skip, ...]) -> None:
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
        with self._drain_lock:  # a purge changes the entries in its own thread
            self._compare()
            moved = self._drain(self._pace.samples())
        if self._purges.pending():
            self.finish_purges()
        return moved

    def _drain(self, samples_max: int) -> int:
        entries = self.backlog.head(samples_max)
        if not entries or self.journal is None:
            return 0
        begun = self._clock()
        skips = [skip for entry in entries for skip in entry.skips]
        batch = SampleBatch.joined([entry.batch for entry in entries])
        samples = batch.samples
        purged = self._purges.carried_out()
        result = self.backend.append(batch, skips)
        if result.refused:
            skips += self._give_up(result.refused)
            refused = {refusal.sample.identity for refusal in result.refused}
            batch = SampleBatch(s for s in samples if s.identity not in refused)
        self._count(result.conflicts)
        last = entries[-1].entry_id
        self.index.record(batch, skips, last)
        self.backlog.pop(len(entries))
        self.journal.trim(last)
        self.drained_samples += len(samples)
        self._pace.took(len(samples), self._clock() - begun)
        if len(batch):  # the entries go with that: an index that lost the record shows (ADR 0212)
            self._purges.outlived(purged)
        return len(samples)

    def _give_up(self, refused: Sequence[Refusal]) -> list[Skip]:
        """Keep acknowledged samples that the backend can never take for people, and say so.

        A durable skip stands in their place, so that nobody waits for them.
        """
        skips = [Skip(r.sample.source, r.sample.epoch, r.sample.sn, r.sample.sn) for r in refused]
        self.backend.append(SampleBatch(), skips)
        for sample, reason in refused:
            if self.journal is not None:
                self.journal.bury(SampleBatch([sample]), reason)
            self._report(
                f"number {sample.sn} of {sample.source} on {sample.key[:80]!r} was acknowledged "
                f"and the backend cannot take it: {reason}; it is kept as a dead letter"
            )
        self.refused_total += len(refused)
        return skips

    def _count(self, conflicts: Sequence[Conflict]) -> None:
        self.conflicts.extend(conflicts)
        self.conflicts_total += len(conflicts)

    def run_drain(self) -> None:
        """Drain until `stop_drain`; a backend that fails is tried again with growing pauses."""
        pause = RetryPause(self.options.retry_seconds_max)
        while not self._stop.is_set():
            linger = self.options.drain_linger_seconds
            waiting = self.backlog.wait(self.options.drain_samples_max, linger)
            if not waiting and not self._purges.pending():
                continue
            try:
                self.drain()
            except StorageCorrupt as error:
                self.backend_error = str(error)
                if error.fatal:
                    raise
                return
            except DurableCacheError as error:
                self.backend_error = str(error)
                if isinstance(error, StorageError) and error.fatal:
                    raise
                asked = error.retry_after_seconds if isinstance(error, StorageUnavailable) else 0
                self._stop.wait(pause.failed(asked))
            else:
                self.backend_error = ""
                pause.succeeded()

    def stop_drain(self) -> None:
        """End `run_drain` after the batch it is at."""
        self._stop.set()
        self.backlog.wake()

    def drain_all(self, timeout_seconds: float) -> bool:
        """Drain in this thread until nothing is left; False when time or the backend gave out.

        Near the end of the time appends are as small as keeps it: what is left stays in the
        journal.
        """
        deadline = self._clock() + timeout_seconds
        try:
            while self.backlog.head(1):
                samples_max = self._pace.samples(deadline - self._clock())
                if samples_max <= 0:
                    return False
                with self._drain_lock:
                    self._compare()
                    self._drain(samples_max)
        except StorageError as error:
            self.backend_error = str(error)
            return False
        return True

    def load(self, source: SourceId) -> tuple[tuple[NumberingState, ...], tuple[Alias, ...]]:
        """Return what is stored of a source, the backlog included, for its windows."""
        pending = self.backlog.numbers_of(source)  # before the index: never neither of both
        states, aliases = self.index.load(source)
        by_epoch = {state.epoch: state for state in states}
        for epoch, (runs, newest_ntp64) in pending.items():
            state = by_epoch.get(epoch) or NumberingState(epoch, RangeSet(), RangeSet())
            state.held.update(runs)
            by_epoch[epoch] = NumberingState(
                epoch,
                state.held,
                state.skipped.difference(runs),
                max(state.newest_ntp64, newest_ntp64),
                state.incarnation,
                state.name_lost,
            )
        for skip in self.backlog.skips():
            if skip.source == source and skip.epoch in by_epoch:
                by_epoch[skip.epoch].skipped.add(skip.first, skip.last)
        return tuple(by_epoch.values()), aliases

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page as `Storage.read` does, of the backend and the backlog together.

        It holds the wildcard updates that concern the selection, each under its expression.
        """
        return self._merged.read(selection, limit, cursor)

    def concerning(self, selection: Selection) -> list[Sample]:
        """Return the wildcard updates that concern a selection, `newest` aside."""
        return self.wildcards.concerning(selection, self._merged.updates_of)

    def find(self, samples: Sequence[Sample]) -> list[tuple[Sample, Sample | None]]:
        """Return each sample with the one stored under its identity."""
        return self._merged.find(samples)

    def lost(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return which of these, looked up and not found, the index says the backend holds.

        That is a finding about the backend, and no duplicate: it is reported, and the index claims
        them no more, so that they come in again.
        """
        standings = zip(samples, self.index.standings(samples), strict=True)
        gone = [sample for sample, standing in standings if standing is Standing.HELD]
        if gone:
            self.index.disclaim(SampleBatch(gone))
            first = gone[0]
            self._report(
                f"{len(gone)} samples that the stream index claims are not in the backend, the "
                f"first is number {first.sn} of {first.source} on {first.key[:80]!r}: they are "
                "asked of other caches"
            )
        return gone

    def range_of(self, source: SourceId, epoch: int, first: int, last: int) -> Iterator[Sample]:
        """Yield what is stored of a source's numbers, every key."""
        return self._merged.range_of(source, epoch, first, last)

    def read_run(self, source: SourceId, epoch: int, limit: int, cursor: Cursor | None) -> Page:
        """Return a page of a numbering, every key, as `read` does."""
        return self._merged.read_run(source, epoch, limit, cursor)

    def pages(self, selection: Selection, limit: int) -> Iterator[SampleBatch]:
        """Yield everything a selection names, so many samples at once."""
        return self._merged.pages(selection, limit)

    def absences(
        self,
        selection: Selection,
        samples_max: int | None = None,
        given: SampleBatch = SampleBatch(),  # noqa: B008  # immutable
    ) -> tuple[Absence, ...]:
        """Return which numbers that a selection asks for are known here and not in its answer.

        Only where it asks for numbers of one source; `samples_max` is the history shown per key,
        `given` its answer, where that is at hand.
        Bounded work: of a source on very many keys only one key's question is answered.
        """
        if not selection.asks_numbers or selection.eid == UNNUMBERED_EID:
            return ()
        source = SourceId(selection.zid or "", selection.eid or 0)
        # What is on its way is looked at before the index each time: never in neither of both.
        states, aliases = self.load(source)
        if gives_all(selection, states, aliases, given):
            return ()
        every = Selection(EVERY_KEY, *source, sns=selection.sns)
        recent = [HeldStream(*pair) for pair in self.backlog.runs(every).items()]
        recent += [f for f in self._purges.untold_streams() if f.stream.source == source]
        # The newest of each key are told by all that is there of it.
        sns = selection.sns if samples_max is None else SnBounds(selection.sns.first, None)
        infos = self.index.infos_of_source(source, _STREAMS_COMPARED_MAX, sns)
        if infos is None and selection.key_expr.is_key:
            key = str(selection.key_expr)
            infos = [*self.index.infos([Stream(key, source, s.epoch) for s in states]).values()]
        streams = None
        if infos is not None:
            stored = [HeldStream(i.stream, i.held, max(i.floor, i.purged)) for i in infos]
            streams = united([*stored, *recent])
        return absences(selection, states, aliases, streams, samples_max)

    def held(self, streams: Sequence[Stream]) -> dict[Stream, RangeSet]:
        """Return which numbers of streams are stored, what is on its way among them."""
        pending: dict[Stream, RangeSet] = {}
        if self.backlog.samples:
            sources = {stream.source for stream in streams}
            zid, eid = next(iter(sources)) if len(sources) == 1 else (None, None)
            pending = self.backlog.runs(Selection(EVERY_KEY, zid, eid), frozenset(streams))
        infos = self.index.infos(streams)
        for stream in streams:
            infos[stream].held.update(pending.get(stream, _NOTHING))
        return {stream: info.held for stream, info in infos.items()}

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        """Apply retention to the backend and remember the floors."""
        with self._trim_lock:
            floors = self.backend.trim(retention, now_ns)
            if floors:
                self.index.trimmed(floors)
                self.wildcards.removed(floors)
            return floors

    def purge(self, floors: Sequence[Floor]) -> int:
        """Remove what is below the floors, for good; returns how many samples.

        Once it is noted it holds: what is on its way never arrives, `on_purged` is called, and a
        backend that is away removes the rest when it is back. Then this raises what that raised.
        """
        floors = list(floors)
        with self._trim_lock:
            with self._drain_lock:
                below: dict[Stream, int] = {}
                for stream, sn in floors:
                    below[stream] = max(sn, below.get(stream, 0))
                waiting = (
                    self.backlog.matching(Selection(EVERY_KEY)) if self.backlog.samples else ()
                )
                # Looked at before the purge is begun, which takes them from what is read back.
                gone = [sample for sample in waiting if sample.sn < below.get(sample.stream, 0)]
                infos = self.index.infos([*below])
                with self._commit_lock:
                    self._purges.begin(floors, self.backlog.last_id, gone, infos)
                    self._purges.watch(floors)
                    self.backlog.change(self._purges.without)
            return len(gone) + self._finish_purges()

    def finish_purges(self) -> int:
        """Remove from the backend what purges it could not carry out left; returns how many."""
        with self._trim_lock:
            return self._finish_purges()

    def _finish_purges(self) -> int:
        if untold := self._purges.untold():
            # Their numbers stay known, so that a repeat that comes late is told to be one.
            self.index.trimmed(untold, purged=True, unrecorded=self._purges.unrecorded().summaries)
            self.wildcards.removed(untold)
            for listener in self.on_purged:
                listener(untold)
            self._purges.told(untold)
        pending = self._purges.pending()
        removed = self.backend.purge(pending)
        self._purges.done(pending, self.index.drained())
        return removed

    def drained_of(self, source: SourceId, epoch: int) -> bool:
        """Tell whether nothing of a numbering is on its way to the backend."""
        return epoch not in self.backlog.numbers_of(source)

    def streams_of(self, source: SourceId, epoch: int) -> list[Stream]:
        """Return the streams of a numbering of which anything is stored, the backlog included."""
        # What is on its way is looked at before the index: in neither of both never.
        recent = self.backlog.runs(Selection(EVERY_KEY, *source, epoch))
        stored = (info.stream for info in self.index.infos_of(source, epoch))
        return [*dict.fromkeys((*recent, *stored))]

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
            with self._commit_lock:
                self._purges.unwatch(source, epoch)
        return [info.stream for info in old]

    def close(self) -> None:
        """Close journal, index and backend, in that order; idempotent. Drains nothing."""
        self._stop.set()
        if hasattr(self, "backlog"):
            self.backlog.wake()
        if self.journal is not None:
            self.journal.close()
        if hasattr(self, "index"):
            self.index.close()
        self.backend.close()
        if self._directory_lock is not None:
            self._directory_lock.release()


def _as_asked(options: JournalOptions, storage: Storage) -> JournalOptions:
    asked = storage.capabilities
    return replace(
        options,
        drain_samples_max=options.drain_samples_max or asked.append_samples,
        drain_linger_seconds=options.drain_linger_seconds or asked.append_linger_seconds,
    )
