"""The way in: decoded batches through the engine into the journal, acks and fetches out.

`offer` never waits: when the queue is full the samples are refused visibly, and the engine keeps
their numbers as gaps to be recovered. Everything else here runs in the cache's own threads.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Event
from typing import assert_never

from durable_cache.endpoints.acknowledging import Acknowledging
from durable_cache.endpoints.agreeing import Agreeing
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.delays import Delays
from durable_cache.endpoints.door import Door
from durable_cache.endpoints.epochs import Epochs
from durable_cache.endpoints.fetching import Fetching
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.refiling import Refiling
from durable_cache.endpoints.session import (
    Session,
    declare_heartbeats,
)
from durable_cache.errors import DurableCacheError, StorageError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, frame
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.events import (
    Alias,
    Append,
    Appended,
    AppendFailed,
    BatchReceived,
    BatchRefused,
    EpochDeclared,
    EpochFreed,
    EpochsAgreed,
    Fetch,
    FetchEnded,
    HeartbeatReceived,
    Learned,
    Moment,
    Origin,
    Output,
    ReportConflict,
    ReportMiss,
    SendAck,
    SourceLoaded,
    Tick,
    Verified,
    Verify,
)
from durable_cache.protocol.cache.events import (
    Event as EngineEvent,
)
from durable_cache.protocol.cache.numbering import KnownSource
from durable_cache.storage.journaled.storage import JournaledStorage

__all__ = ["Ingest"]

_log = logging.getLogger(__name__)
_FRESH_FRAMES = 3
"""A publisher whose epoch began within about 26 s, and after us, is new, not merely unknown."""
_IDLE_SECONDS = 0.5
_PAUSE_AFTER_FAILURE_SECONDS = 0.2
_UNLEARNED_MAX = 1024
_SAMPLE_BYTES = 250
"""What a sample takes in the queue besides its payload, near enough for a bound."""


def _now() -> Moment:
    return Moment(time.monotonic_ns(), time.time_ns())


class Ingest:
    """One cache's engine with its queue, its fetches and its acknowledgements."""

    def __init__(
        self,
        session: Session,
        store: JournaledStorage,
        options: CacheOptions,
        key_exprs: Sequence[KeyExpression],
        asking: Asking,
        excluded: Callable[[str], bool],
    ) -> None:
        self._session = session
        self._store = store
        self._options = options
        self._engine = CacheEngine(options.engine)
        self.acknowledging = Acknowledging(session, store, options.domain)
        self._queue: deque[tuple[EngineEvent | list[Sample], int]] = deque()
        self._queued_bytes = 0
        self._changed = Condition()
        self._refused: dict[SourceId, RangeSet] = {}
        self.fetching = Fetching(asking, key_exprs, excluded, self.offer, self._tell)
        self._began_ns = time.time_ns()
        self.epochs = Epochs(store.index.aliases())
        self._unlearned: deque[Alias] = deque(maxlen=_UNLEARNED_MAX)
        self._agreeing = Agreeing(
            store,
            self._agree,
            self._revoke,
            self._inquire,
        )
        self.door = Door(store, self._agreeing, options.resources_limit)
        self.refiling = Refiling(store, self.offer, lambda: self._queued_bytes, self._moved)
        self._busy = False
        self.stopped = Event()
        self.counts = self._engine.counts
        self.received = self.appended = self.refused = self.commits = 0
        self.append_seconds = 0.0
        self.delays = Delays()
        self.error = ""
        self.on_committed: list[Callable[[SampleBatch], None]] = []
        self.on_learned: list[Callable[[Alias], None]] = []

    @property
    def gaps_open(self) -> int:
        return self._engine.gaps_open

    @property
    def sources(self) -> int:
        return self._engine.sources

    @property
    def queued_bytes(self) -> int:
        """Bytes received and not committed yet."""
        return self._queued_bytes

    @property
    def waiting(self) -> bool:
        """Whether something received is not committed yet."""
        return bool(self._queue) or self._busy

    def offer(self, samples: list[Sample], origin: Origin = Origin.LIVE) -> None:
        """Hand in decoded samples; refuses them visibly when the queue is full."""
        if not samples:
            return
        size = sum([len(sample.payload) for sample in samples]) + _SAMPLE_BYTES * len(samples)
        with self._changed:
            self.received += len(samples)
            if self._queued_bytes + size > self._options.queue_bytes_max and self._queue:
                self.refused += len(samples)
                for sample in samples:
                    self._refused.setdefault(sample.source, RangeSet()).add(sample.sn, sample.sn)
                return
            self._queued_bytes += size
            if origin is Origin.LIVE:
                self._queue.append((samples, size))
            else:
                self._queue.append((BatchReceived(SampleBatch(samples), origin, _now()), size))
            self._changed.notify()

    def _tell(self, event: EngineEvent) -> None:
        with self._changed:
            self._queue.append((event, 0))
            self._changed.notify()

    def declared(self, source: SourceId, epoch: int) -> None:
        """A publisher's token says its epoch."""
        now = _now()
        since_ns = max(self._began_ns, now.unix_ns - (_FRESH_FRAMES << 33))
        self._tell(EpochDeclared(source, epoch, epoch >= frame(since_ns), now))

    def hear_native(self, key_expr: str) -> object:
        """Listen to foreign publishers' heartbeats."""

        def beat(source: SourceId, source_sn: int) -> None:
            self._tell(HeartbeatReceived(source, source_sn, _now()))

        return declare_heartbeats(self._session, key_expr, beat)

    def _resume(self) -> None:
        """Go on recovering what was awaited when the cache last ended."""
        for source in self._store.index.sources_with_holes(self._options.engine.sources_max):
            states, aliases = self._store.load(source)
            self._engine.handle(SourceLoaded(source, states, _now(), aliases))

    def run(self) -> None:
        """Run the engine until `finish` or `stop`."""
        self._resume()
        while True:
            item = self._next()
            if item is None:
                return
            self._busy = True
            try:
                self._timed(self._load(item))
                if self._refused:
                    self._handle(self._take_refused())
                wake = self._engine.wake_ns()
                if wake is not None and wake <= time.monotonic_ns():
                    self._handle(Tick(_now()))
            finally:
                self._busy = False

    def _timed(self, event: EngineEvent) -> None:
        before = self.appended
        self._handle(event)
        done = self.appended - before
        if done and isinstance(event, BatchReceived) and event.origin is Origin.LIVE:
            waited_ns = time.time_ns() - event.batch.samples[0].received_ns
            self.delays.observe(waited_ns / 1e9, done)

    def _next(self) -> EngineEvent | None:
        wake = self._engine.wake_ns()
        pause = _IDLE_SECONDS
        if wake is not None:
            pause = min(pause, max(0.0, (wake - time.monotonic_ns()) / 1e9))
        with self._changed:
            if not self._queue and not self.stopped.is_set():
                self._changed.wait(pause)
            if self._queue:
                return self._merged()
            return None if self.stopped.is_set() else Tick(_now())

    def _merged(self) -> EngineEvent:
        """Take the oldest event; live batches that wait together become one commit."""
        first, size = self._queue.popleft()
        self._queued_bytes -= size
        if not isinstance(first, list):
            return first
        samples = first
        while self._queue and len(samples) < self._options.batch_samples_max:
            following = self._queue[0][0]
            if not isinstance(following, list):
                break
            samples = samples + following
            self._queued_bytes -= self._queue.popleft()[1]
        return BatchReceived(SampleBatch(samples), Origin.LIVE, _now())

    def _take_refused(self) -> BatchRefused:
        with self._changed:
            refused, self._refused = self._refused, {}
        ranges = tuple((source, run) for source, runs in refused.items() for run in runs)
        return BatchRefused(ranges, _now())

    def _load(self, event: EngineEvent) -> EngineEvent:
        match event:
            case BatchReceived():
                sources = {sample.source: None for sample in event.batch}
            case EpochDeclared() | EpochFreed() | HeartbeatReceived():
                sources = {event.source: None}
            case FetchEnded(fetch_id):
                if fetch_id < 0:
                    self._agreeing.answered(-fetch_id, self._known)
                return event
            case _:
                return event
        for source in self._engine.unknown(sources):
            self._known(source)
        if not isinstance(event, BatchReceived):
            return event
        admitted, refused = self.door.admit(event, self._known)
        if refused:
            self.refused += refused
            self.error = self.door.full
        return admitted

    def _known(self, source: SourceId) -> KnownSource:
        if self._engine.unknown([source]):
            states, aliases = self._store.load(source)
            self._engine.handle(SourceLoaded(source, states, _now(), aliases))
        return self._engine.known(source)

    def _agree(self, agreement: Alias) -> bool:
        """Take two epochs for one, durably, and move what is stored under the one that lost."""
        try:
            self._store.index.agree(agreement)
        except StorageError as error:
            self.error = str(error)
            return False  # the next samples in common say it again
        source, loser, _, winner = agreement
        self._engine.handle(EpochsAgreed(source, loser, winner))
        self.refiling.move(agreement)
        return True

    def _revoke(self, agreement: Alias) -> None:
        try:
            self._store.index.disagree(agreement)
        except StorageError as error:
            self.error = str(error)
        self._engine.handle(EpochFreed(agreement.source, agreement.stored))

    def _inquire(self, inquiry_id: int, source: SourceId, first: int, last: int) -> None:
        self.fetching.start(Fetch(-inquiry_id, source, EPOCH_UNKNOWN, first, last))

    def _moved(self, agreement: Alias, was_right: bool) -> None:
        """Nothing is left under the epoch that lost, or its samples turned out to be others."""
        source, loser, _, winner = agreement
        if not was_right:
            self._agreeing.differ(source, winner, loser)
            self._store.index.disagree(agreement)
        if not was_right or loser == EPOCH_UNKNOWN:
            self._tell(EpochFreed(source, loser))
            self._agreeing.release(source)

    def _handle(self, event: EngineEvent) -> None:
        outputs = deque(self._engine.handle(event))
        while outputs:
            outputs.extend(self._do(outputs.popleft()))

    def _do(self, output: Output) -> list[Output]:
        match output:
            case Append():
                return self._engine.handle(self._commit(output))
            case SendAck():
                self.acknowledging.send(output)
            case Fetch():
                self.fetching.start(output)
            case Verify():
                return self._engine.handle(Verified(self._verify(output.samples), _now()))
            case ReportMiss(source, epoch, first, last):
                _log.warning(
                    "samples missed",
                    extra={"source": str(source), "epoch": epoch, "first": first, "last": last},
                )
            case ReportConflict(offered, _):
                _log.warning(
                    "another payload under a stored identity",
                    extra={"source": str(offered.source), "sn": offered.sn},
                )
            case Learned(alias):
                self.epochs.learn(alias)
                self._unlearned.append(alias)
                self._learn()
                for told in self.on_learned:
                    told(alias)
            case _:
                assert_never(output)
        return []

    def _learn(self) -> None:
        """Keep aliases durably; one that cannot be kept now is tried again after a commit."""
        while self._unlearned:
            try:
                self._store.index.learn(self._unlearned[0])
            except StorageError as error:
                self.error = str(error)
                return
            self._unlearned.popleft()

    def _commit(self, append: Append) -> EngineEvent:
        begun = time.monotonic()
        try:
            self._store.commit(append.batch, append.skips)
        except StorageError as error:
            self.error = str(error)
            self.refused += len(append.batch)
            self.stopped.wait(_PAUSE_AFTER_FAILURE_SECONDS)
            return AppendFailed(_now())
        self.append_seconds += time.monotonic() - begun
        self.commits += 1
        self.appended += len(append.batch)
        self.error = ""
        if self._unlearned:
            self._learn()
        for listener in self.on_committed:
            listener(append.batch)
        return Appended(_now())

    def _verify(self, samples: tuple[Sample, ...]) -> tuple[tuple[Sample, Sample | None], ...]:
        try:
            return tuple(self._store.find(samples))
        except DurableCacheError as error:
            self.error = str(error)
            return ()

    def finish(self, timeout_seconds: float) -> None:
        """Commit and acknowledge what was received, then stop."""
        deadline = time.monotonic() + timeout_seconds
        while self.waiting and time.monotonic() < deadline and not self.stopped.is_set():
            time.sleep(0.005)
        self.stop()

    def stop(self) -> None:
        """Stop the engine after the event it is at; idempotent."""
        self.stopped.set()
        self.fetching.stop(self._options.fetch_threads)
        self.refiling.stop()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        self.acknowledging.close()
