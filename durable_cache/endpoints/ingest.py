"""The shell of a cache's core: a queue in front of it, and hands for its effects.

Nothing is decided here. `offer` takes decoded samples: where they wait too long, it first holds up
its caller, and so Zenoh, for a bounded time, and then refuses them visibly; the core keeps their
numbers as gaps to be recovered. One thread owns the core and commits to the journal; what reads a
backend or the network is done by the pool, and its answer comes back as an event.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Condition, Event
from typing import NamedTuple, TypeVar, assert_never

from durable_cache.endpoints.acknowledging import Acknowledging
from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.delays import Delays
from durable_cache.endpoints.failures import Failures
from durable_cache.endpoints.fencing import Fencing
from durable_cache.endpoints.fetching import Fetching, Offer
from durable_cache.endpoints.options import CacheOptions, parse_one_source
from durable_cache.endpoints.session import Session, declare_heartbeats, is_sendable
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import DurableCacheError, StorageCorrupt, StorageError
from durable_cache.model.key_expression import is_too_long
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.sequence import frame
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.cache.events import (
    Alias,
    Append,
    Appended,
    AppendFailed,
    BatchRefused,
    EpochDeclared,
    Fetch,
    FetchEnded,
    HeartbeatReceived,
    Origin,
    ReportAbsent,
    ReportConflict,
    ReportMiss,
    SendAck,
    Tick,
    TokenGone,
    Verified,
    Verify,
    VerifyFailed,
)
from durable_cache.protocol.resends import RefusalReason
from durable_cache.protocol.wire import Incarnation, PublisherToken
from durable_cache.runtime.answering import answer, look_up
from durable_cache.runtime.core import CacheCore, CoreOptions
from durable_cache.runtime.effects import (
    Announce,
    Answered,
    AnswerResend,
    Arrived,
    Ask,
    AskFailed,
    CoreEvent,
    Effect,
    Inquire,
    Inquired,
    PulledAgain,
    ReportEpochs,
    ResendArrived,
    Started,
)
from durable_cache.runtime.given import GivenInTurn
from durable_cache.storage.journaled.storage import JournaledStorage

EffectT = TypeVar("EffectT", Ask, Verify)

_log = logging.getLogger(__name__)
_NOT_ANSWERED, _NOT_LOOKED_UP = "the storage could not answer", "samples wait to be looked up"
_FRESH_FRAMES = 3
"""A publisher whose epoch began within about 26 s, and after us, is new, not merely unknown."""
_IDLE_SECONDS = 0.5
_MOVING_SECONDS = 2.0
"""So much of the time for closing is given to samples on their way to another epoch."""
_PAUSE_AFTER_FAILURE_SECONDS = 0.2
"""A full disk fails each commit at once: the thread does not spin meanwhile."""
_SOURCES_TOLD_MAX = 32
_MISSES_TOLD_MAX = 200


def _not_kept(refused: dict[SourceId, RangeSet]) -> BatchRefused:
    ranges = tuple((source, run) for source, runs in refused.items() for run in runs)
    return BatchRefused(ranges, moment_now())


class Miss(NamedTuple):
    """Numbers of one source that were given up."""

    unix_seconds: float
    source: str
    epoch: int
    first: int
    last: int


class _Waiting(NamedTuple):
    """Live samples that wait for the core, or what was heard after those before it."""

    samples: list[Sample]
    size: int
    since: float
    heard: EpochDeclared | HeartbeatReceived | TokenGone | None = None
    refused: dict[SourceId, RangeSet] | None = None
    """Numbers that found no room after what waits before this; those that follow join them."""
    batch: SampleBatch | None = None
    """The samples, with what was found out about them already."""


class Ingest:
    """One cache's core with its queue; any thread may call `offer`, `declared` and `tell`."""

    def __init__(
        self,
        session: Session,
        store: JournaledStorage,
        options: CacheOptions,
        fetching: Callable[[Offer], Fetching],
        lane: Lane,
    ) -> None:
        self._session = session
        self._store = store
        self._options = options
        self._lane = lane
        self._wanted = parse_one_source(options.source)
        index = store.index
        limited = options.resources_limit is not None
        self._core = CacheCore(
            CoreOptions(options.engine, options.resources_limit),
            aliases=index.aliases(),
            agreements=index.agreements(),
            streams=(info.stream for info in index.all_infos()) if limited else (),
            screen=self._screen,
        )
        self.epochs = self._core.epochs
        self.fencing: Fencing | None = None
        """What leaves out positions of earlier owners, where positions are stored."""
        self.acknowledging = Acknowledging(
            session, store, options.domain, unheard_max=options.acks_unheard_max
        )
        self.fetching = fetching(self.offer)
        self.misses: deque[Miss] = deque(maxlen=_MISSES_TOLD_MAX)
        """What was given up of late."""
        self._queue: deque[_Waiting] = deque()
        self._events: deque[CoreEvent] = deque()
        self._given: GivenInTurn[CoreEvent] = GivenInTurn()
        self._queued_bytes = 0
        self._heard_waiting = 0
        self._changed = Condition()
        self._began_ns = time.time_ns()
        self._busy = False
        self.stopped = Event()
        self.counts = self._core.counts
        self.received = self.appended = self.unnumbered = self.commits = 0
        self._refused_here = self._given_refused = self.tokens_refused = 0
        self.of_others = 0
        """Samples of other publishers than the one whose samples are stored."""
        self.append_seconds = 0.0
        self.delays = Delays()
        self.error = self.commit_error = ""
        """What went wrong last; the second, why samples are not taken now."""
        self._failures = Failures(_log)
        self.before_commit: list[Callable[[SampleBatch], None]] = []
        """Called with what is to be stored and was not before; may raise StorageError."""
        self.on_committed: list[Callable[[SampleBatch], None]] = []
        self.on_judged: list[Callable[[AnswerResend], None]] = []
        self.on_learned: list[Callable[[Alias], None]] = []
        self.on_forgotten: list[Callable[[Sequence[Stream]], None]] = []

    def refusal(self, sample: Sample) -> RefusalReason | None:
        """Tell why a sample is not taken that its publisher sends to this cache; any thread."""
        is_large = len(sample.payload) > self._options.payload_bytes_max
        if is_large or is_too_long(sample.key) or not is_sendable(sample.encoding):
            return RefusalReason.TOO_LARGE
        return None if self.fencing is None else self.fencing.refusal(sample)

    def _screen(self, batch: SampleBatch, origin: Origin) -> SampleBatch:
        """Leave out what is not to be stored."""
        taken = batch if self.fencing is None else self.fencing.admit(batch, origin)
        return self._store.admit(taken)

    @property
    def refused(self) -> int:
        """Samples there was no room for, or of a stream beyond `resources_limit`."""
        return self._refused_here + self._core.refused

    @property
    def full(self) -> str:
        """Which limit has kept samples out, for people; empty when none has."""
        if self._core.streams_refused:
            limit = self._options.resources_limit
            return f"resources_limit = {limit} streams reached; new streams are refused"
        if self._store.unstorable_total:
            return f"{self._store.unstorable_total} samples were refused that no backend can take"
        if self._core.refused:
            limit = self._store.options.wildcard_updates_max
            return (
                f"wildcard_updates_max = {limit} or wildcard_bytes_max reached; new wildcard "
                "updates are refused: raise it under limits, or purge"
            )
        return ""

    @property
    def gaps_open(self) -> int:
        return self._core.gaps_open

    def gaps_by_source(self) -> tuple[tuple[str, int], ...]:
        """Return the sources that wait for most numbers, at most `_SOURCES_TOLD_MAX`."""
        found = self._core.gaps_by_source() if self._core.gaps_open else {}
        most = heapq.nlargest(_SOURCES_TOLD_MAX, found.items(), key=lambda item: item[1])
        return tuple((str(source), awaited) for source, awaited in most)

    @property
    def sources(self) -> int:
        return self._core.sources

    @property
    def queued_bytes(self) -> int:
        """Bytes received and not committed yet."""
        return self._queued_bytes

    @property
    def waiting(self) -> bool:
        """Whether something received is not committed yet."""
        return bool(self._queue or self._events) or self._given.waits or self._busy

    def offer(
        self,
        samples: list[Sample],
        origin: Origin = Origin.LIVE,
        names: tuple[Incarnation, ...] = (),
    ) -> None:
        """Hand in decoded samples; refuses them visibly when the queue is full.

        `names`: of what others gave, which runs its epochs are.
        """
        samples = self._of_source(samples)
        if not samples:
            return
        if origin is not Origin.LIVE:
            self._offer_given(samples, origin, names)
            return
        batch = SampleBatch(samples)
        size = batch.size
        with self._changed:
            self.received += len(samples)
            room = self._has_room(size) or self._changed.wait_for(
                lambda: self._has_room(size) or self.stopped.is_set(),
                self._options.stall_seconds_max,
            )
            if not room or self.stopped.is_set():
                self._refuse(samples)
                return
            self._queued_bytes += size
            self._queue.append(_Waiting(samples, size, time.monotonic(), batch=batch))
            self._changed.notify_all()

    def _of_source(self, samples: list[Sample]) -> list[Sample]:
        if not self._options.source:
            return samples
        wanted = [s for s in samples if self._wanted.has_numbering(s.source, s.epoch)]
        with self._changed:
            self.of_others += len(samples) - len(wanted)
        return wanted

    def _offer_given(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...]
    ) -> None:
        """Take what others gave; what there is no room for is asked for again by who asked.

        As much as there is room for is taken: a page may be larger than all of it, and then it
        comes in part by part.
        """
        with self._changed:
            self.received += len(samples)
            waiting = self._core.given_waiting + self._given.samples
            room = max(0, self._options.given_samples_max - waiting)
            self._refused_here += len(samples[room:])
            self._given_refused += len(samples[room:])
            if not room:
                return
            arrived = Arrived(SampleBatch(samples[:room]), origin, moment_now(), names)
            self._given.add(arrived, len(arrived.batch))
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        if not self._queue:
            return True
        late = time.monotonic() - self._queue[0].since > self._options.queue_seconds_max
        return not late and self._queued_bytes + size <= self._options.queue_bytes_max

    def _refuse(self, samples: list[Sample]) -> None:
        """Keep their numbers, behind the tokens that came before them: of which run they are."""
        self._refused_here += len(samples)
        last = self._queue[-1].refused if self._queue else None
        refused: dict[SourceId, RangeSet] = {} if last is None else last
        for sample in samples:
            if is_unnumbered(sample.source):
                continue  # nobody has it for us to ask again
            refused.setdefault(sample.source, RangeSet()).add(sample.sn, sample.sn)
        if last is None and refused:
            self._queue.append(_Waiting([], 0, time.monotonic(), refused=refused))
            self._changed.notify_all()

    def tell(self, event: CoreEvent) -> None:
        """Hand in what is no sample: an answer, or the end of a fetch."""
        with self._changed:
            if isinstance(event, FetchEnded | Inquired | PulledAgain | ResendArrived):
                self._given.add(event)
            else:
                self._events.append(event)
            self._changed.notify_all()

    def pulled_again(self, source: SourceId, epoch: int) -> None:
        """Another cache pulls again what goes here by an epoch that no token declared."""
        self.tell(PulledAgain(source, epoch, moment_now()))

    def declared(self, token: PublisherToken) -> None:
        """A publisher's token says its epoch. On Zenoh's thread."""
        source, epoch, incarnation = token.source, token.epoch, token.incarnation
        if not self._wanted.has_numbering(source, epoch) or is_unnumbered(source):
            return
        now = moment_now()
        since_ns = max(self._began_ns, now.unix_ns - (_FRESH_FRAMES << 33))
        self._heard(EpochDeclared(source, epoch, epoch >= frame(since_ns), now, incarnation))

    def token_gone(self, token: PublisherToken) -> None:
        """A publisher's token went. On Zenoh's thread."""
        source, key_expr = token.source, token.key_expr.text
        if self._wanted.has_numbering(source, token.epoch) and not is_unnumbered(source):
            self._heard(TokenGone(source, token.incarnation, moment_now(), key_expr))

    def hear_native(self, key_expr: str) -> object:
        """Listen to foreign publishers' heartbeats."""

        def beat(source: SourceId, source_sn: int) -> None:
            if is_unnumbered(source):
                return
            self._heard(HeartbeatReceived(source, source_sn, moment_now()))

        return declare_heartbeats(self._session, key_expr, beat)

    def _heard(self, event: EpochDeclared | HeartbeatReceived | TokenGone) -> None:
        with self._changed:
            if self._heard_waiting < self._options.events_max:
                # Behind the samples that came before it: a token says which run they are not of.
                self._queue.append(_Waiting([], 0, time.monotonic(), event))
                self._heard_waiting += 1
                if not isinstance(event, HeartbeatReceived):
                    self._given.heard()
                self._changed.notify_all()
                return
        self.tokens_refused += 1
        _log.warning("too many tokens and heartbeats at once", extra={"source": str(event.source)})

    def run(self) -> None:
        """Run the core until `stop`; raises what makes the storage unusable."""
        holes = self._store.index.sources_with_holes(self._options.engine.sources_max)
        self._carry_out(self._core.handle(Started(tuple(holes), moment_now())))
        wake = self._core.wake_ns()
        while not self.stopped.is_set():
            event = self._next(wake)
            self._busy = True
            try:
                if event is not None:
                    self._carry_out(self._core.handle(event))
                wake = self._core.wake_ns()
                if wake is not None and wake <= time.monotonic_ns():
                    self._carry_out(self._core.handle(Tick(moment_now())))
                    wake = self._core.wake_ns()
            finally:
                self._busy = False

    def _next(self, wake: int | None) -> CoreEvent | None:
        """Wait for an event until the time at which the core wants to be told of it, or longer."""
        pause = _IDLE_SECONDS
        if wake is not None:
            pause = min(pause, max(0.0, (wake - time.monotonic_ns()) / 1e9))
        with self._changed:
            if not self._ready() and not self.stopped.is_set():
                self._changed.wait(pause)
            if self._events:
                return self._events.popleft()
            if self._given:
                return self._given.take()
            return self._oldest() if self._queue and self._core.ready else None

    def _ready(self) -> bool:
        return bool(self._events or self._given) or (bool(self._queue) and self._core.ready)

    def _oldest(self) -> CoreEvent:
        """Take the oldest of what is live; samples that wait together become one commit."""
        first = self._queue.popleft()
        if first.heard is not None:
            self._heard_waiting -= 1
            if not isinstance(first.heard, HeartbeatReceived):
                self._given.handed_in()
            return first.heard
        if first.refused is not None:
            return _not_kept(first.refused)
        samples, batch = first.samples, first.batch
        self._queued_bytes -= first.size
        while self._queue and len(samples) < self._options.batch_samples_max:
            if not self._queue[0].samples:
                break
            following = self._queue.popleft()
            if batch is not None:
                samples, batch = [*samples], None  # the list itself is not ours
            samples += following.samples
            self._queued_bytes -= following.size
        self._changed.notify_all()
        return Arrived(batch or SampleBatch(samples), Origin.LIVE, moment_now())

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Carry effects out in order; what an answer leads to comes before what follows it."""
        todo = deque(effects)
        while todo:
            answered = self._do(todo.popleft())
            if answered is not None:
                todo.extendleft(reversed(self._core.handle(answered)))

    def _do(self, effect: Effect) -> CoreEvent | None:
        match effect:
            case Append():
                return self._commit(effect)
            case SendAck():
                self.acknowledging.send(
                    effect if self.fencing is None else self.fencing.acknowledged(effect)
                )
            case Announce():
                self.acknowledging.announce(effect)
            case AnswerResend():
                for listener in self.on_judged:
                    listener(effect)
            case Ask(ask_id, _, urgent):
                if urgent:
                    return self._answer(effect)
                if not self._lane.submit(partial(self._in_pool, self._answer, effect)):
                    return AskFailed(ask_id, moment_now())
            case Verify(verify_id):
                if not self._lane.submit(partial(self._in_pool, self._verify, effect)):
                    return VerifyFailed(verify_id, moment_now())
            case Fetch(fetch_id, source, _, first, last, native_first):
                self.fetching.start(
                    source,
                    first,
                    last,
                    lambda failed: self.tell(FetchEnded(fetch_id, moment_now(), failed)),
                    native_first,
                )
            case Inquire(inquiry_id, source, first, last):
                ended = partial(self._inquired, inquiry_id, self._given_refused)
                self.fetching.start(source, first, last, ended)
            case ReportMiss() | ReportConflict() | ReportAbsent() | ReportEpochs():
                self._report(effect)
            case _:
                assert_never(effect)
        return None

    def _inquired(self, inquiry_id: int, refused_before: int, failed: bool) -> None:
        whole = self._given_refused == refused_before
        self.tell(Inquired(inquiry_id, moment_now(), failed, whole))

    def _in_pool(self, carry_out: Callable[[EffectT], CoreEvent], effect: EffectT) -> None:
        """Carry out an effect; the core hears of a failure of ours too, and waits for nothing."""
        event: CoreEvent
        if isinstance(effect, Ask):
            event = AskFailed(effect.ask_id, moment_now())
        else:
            event = VerifyFailed(effect.verify_id, moment_now())
        try:
            event = carry_out(effect)
        finally:
            self.tell(event)

    def _answer(self, ask: Ask) -> Answered | AskFailed:
        try:
            answered = answer(self._store, ask.question, forgotten=self._forgotten)
        except DurableCacheError as error:
            if ask.urgent and _ends(error):
                raise
            self._failed(_NOT_ANSWERED, error)
            return AskFailed(ask.ask_id, moment_now())
        return Answered(ask.ask_id, answered, moment_now())

    def _verify(self, verify: Verify) -> Verified | VerifyFailed:
        try:
            found = look_up(self._store, verify.samples)
        except DurableCacheError as error:
            self._failed(_NOT_LOOKED_UP, error)
            return VerifyFailed(verify.verify_id, moment_now())
        return Verified(verify.verify_id, found, moment_now())

    def _failed(self, sentence: str, error: DurableCacheError) -> None:
        self.error = str(error)
        self._failures.tell(sentence, self.error)

    def _forgotten(self, streams: Sequence[Stream]) -> None:
        for listener in self.on_forgotten:
            listener(streams)

    def _report(self, effect: ReportMiss | ReportConflict | ReportAbsent | ReportEpochs) -> None:
        match effect:
            case ReportMiss(source, epoch, first, last):
                about = {"source": str(source), "epoch": epoch, "first": first, "last": last}
                _log.warning("samples missed", extra=about)
                self.misses.append(Miss(time.time(), str(source), epoch, first, last))
            case ReportConflict(offered, _):
                about = {"source": str(offered.source), "sn": offered.sn, "key": repr(offered.key)}
                _log.warning("another payload under a stored identity", extra=about)
            case ReportAbsent(sample):
                about = {"source": str(sample.source), "epoch": sample.epoch, "sn": sample.sn}
                _log.error("a number that was stored is not there; stored anew", extra=about)
            case ReportEpochs(alias, are_one):
                about = {"source": str(alias.source), "epoch": alias.epoch, "other": alias.stored}
                _log.info("two epochs are %s", "one" if are_one else "two after all", extra=about)
                if are_one:
                    for listener in self.on_learned:
                        listener(alias)
            case _:
                assert_never(effect)

    def _commit(self, append: Append) -> Appended | AppendFailed:
        begun = time.monotonic()
        try:
            if not append.moved:
                for listener in self.before_commit:
                    listener(append.batch)
            stored = self._store.commit(append.batch, append.skips)
        except StorageError as error:
            if _ends(error):
                raise  # nothing may be acknowledged behind it (ADR 0091)
            self.error = self.commit_error = str(error)
            with self._changed:
                self._refused_here += len(append.batch)
            self.stopped.wait(_PAUSE_AFTER_FAILURE_SECONDS)
            return AppendFailed(moment_now())
        self.append_seconds += time.monotonic() - begun
        self.commits += 1
        self.appended += len(append.batch) - append.moved
        self.unnumbered += append.unnumbered
        if append.heard:
            self.delays.observe((time.time_ns() - append.heard_since_ns) / 1e9, append.heard)
        self.error = self.commit_error = ""
        for listener in self.on_committed:
            listener(stored)
        return Appended(moment_now())

    def finish(self, timeout_seconds: float) -> None:
        """Commit and acknowledge what was received, then stop.

        What is being moved to another epoch is moved first, where the backend takes it in time:
        until the next start its readers would find it twice.
        """
        now = time.monotonic()
        deadline, moved_by = now + timeout_seconds, now + min(_MOVING_SECONDS, timeout_seconds)
        with self._changed:
            while self.waiting and not self.stopped.is_set() and time.monotonic() < deadline:
                self._changed.wait(0.02)
            while self._moving and not self.stopped.is_set() and time.monotonic() < moved_by:
                self._changed.wait(0.02)
        self.stop()

    @property
    def _moving(self) -> bool:
        return bool(self._core.moving) and not (self.error or self._store.backend_error)

    def stop(self) -> None:
        """Stop the core after the event it is at; idempotent."""
        self.stopped.set()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        self.acknowledging.close()


def _ends(error: DurableCacheError) -> bool:
    """Tell whether an error of journal or index is the last word for this process."""
    return isinstance(error, StorageCorrupt) or (isinstance(error, StorageError) and error.fatal)
