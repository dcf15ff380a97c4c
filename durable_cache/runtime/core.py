"""One cache, put together: engine, admission, epochs and their agreement, without a thread.

Theory of operation. `handle(event)` returns effects, in the order in which a shell carries them
out; their answers and failures come back as events, in any order and at any time. Nothing is
decided outside.

Two queues. What is live goes first: samples, tokens, heartbeats. It waits only for *urgent*
questions, which read the stream index and never a backend. What others gave (fetched, pulled) goes
second, through the agreement on epochs, whose questions may take as long as the backend does; live
samples pass it meanwhile. A `FetchEnded` stays behind the samples of its fetch.

Decisions that ask are conversations (`protocol.cache.questions`): generators that yield a question
and go on with the answer. A question that fails is raised where it was asked. Live events then wait
and are tried again; what others gave is put off, for its gap or its aligner asks again.

The shell keeps the bounds: it hands in no more live samples while `ready` is False.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

import msgspec

from durable_cache.model.clock import Moment, earlier
from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.cache.admission import Admission, part_at_floors
from durable_cache.protocol.cache.agreement import Agreement
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import (
    Alias,
    Append,
    Appended,
    AppendFailed,
    BatchReceived,
    BatchRefused,
    Declared,
    EngineOptions,
    EpochDeclared,
    EpochFreed,
    EpochsAgreed,
    Event,
    Fetch,
    FetchEnded,
    HeartbeatReceived,
    Learned,
    Origin,
    Output,
    Removed,
    ReportAbsent,
    ReportConflict,
    ReportMiss,
    SendAck,
    SourceLoaded,
    Tick,
    TokenGone,
    Verified,
    Verify,
    VerifyFailed,
)
from durable_cache.protocol.cache.names import called_here, heard_twice, named_twice, of_live_runs
from durable_cache.protocol.cache.numbering import KnownSource, pinned
from durable_cache.protocol.cache.questions import (
    Agreed,
    Conversation,
    Declaration,
    Disagreed,
    Done,
    Floors,
    FloorsFound,
    Forget,
    Keep,
    LoadSources,
    Pause,
    SourcesFound,
    Unanswered,
    answer_of,
)
from durable_cache.protocol.wire import with_own_names
from durable_cache.runtime.announcing import Announcing
from durable_cache.runtime.awaiting_tokens import AwaitingTokens
from durable_cache.runtime.behind_tokens import BehindTokens
from durable_cache.runtime.calling import Calling
from durable_cache.runtime.effects import (
    Answered,
    Arrived,
    Ask,
    AskFailed,
    CoreEvent,
    Effect,
    Inquire,
    Inquired,
    NamedTwice,
    NameLeft,
    PulledAgain,
    ReportEpochs,
    ResendArrived,
    Started,
)
from durable_cache.runtime.going_on import GoingOn
from durable_cache.runtime.moving import await_moved, first_moved, renamed, twins_everywhere
from durable_cache.runtime.named_runs import NamedRuns
from durable_cache.runtime.resends import Resends
from durable_cache.runtime.taking_unnumbered import TakingUnnumbered
from durable_cache.runtime.talks import Talks
from durable_cache.runtime.turns import in_turn

_OTHERS = (Origin.RECOVERED, Origin.ALIGNED)
_ANSWERS = (Appended, AppendFailed)


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """A core's bounds and delays; each default carries its reason."""

    engine: EngineOptions = field(default_factory=EngineOptions)
    resources_limit: int | None = None
    """Streams the cache takes; beyond it new ones are refused, counted and reported."""
    ask_retry_seconds: float = 0.25
    """The pause after a question that failed: an index on a full disk fails again at once."""
    move_poll_seconds: float = 0.2
    """How often it is looked whether the backend has what is moved to another epoch."""
    move_polls: int = 150
    """So often; then the move begins anew."""


class CacheCore:
    """One cache's decisions; owned by one thread. `epochs` may be read by any.

    `aliases`, `agreements` and `streams` are what the index knows; `screen(batch, origin)` leaves
    out what the storage has no place for, as wildcard updates beyond their bound.
    """

    def __init__(
        self,
        options: CoreOptions | None = None,
        *,
        aliases: Iterable[Alias] = (),
        agreements: Iterable[Alias] = (),
        streams: Iterable[Stream] = (),
        screen: Callable[[SampleBatch, Origin], SampleBatch] | None = None,
    ) -> None:
        self._options = options or CoreOptions()
        agreements = tuple(agreements)
        self.epochs = Epochs((*aliases, *agreements))
        self._engine = CacheEngine(self._options.engine, epochs=self.epochs)
        timeout = self._options.engine.gap_timeout_seconds
        self._agreement = Agreement(self._engine.known, agreements, gap_timeout_seconds=timeout)
        self._admission = Admission(self._options.resources_limit, streams)
        self._screen = screen
        self._awaiting_tokens = AwaitingTokens(self._engine, self._options.engine)
        claims = self._awaiting_tokens.claims
        tokens_max = self._options.engine.tokens_max
        self._announcing = Announcing(tokens_max, claims, lambda: self._engine.doubted)
        self._calling = Calling(self._engine, claims, self._engine_takes, self._renamed)
        self._resends = Resends(
            self._engine,
            claims,
            load=self._load,
            declare=self._declare,
            within_limit=self._within_limit,
            take=self._engine_takes,
            note=self._announcing.note,
        )
        self._live: deque[CoreEvent] = deque()
        self._given: deque[CoreEvent | NamedTwice | NameLeft] = deque()
        self._to_move: deque[Alias] = deque(sorted((*aliases, *agreements), key=first_moved))
        self._busy_given = self._busy_moving = False
        self._busy_live: CoreEvent | None = None
        self._effects: list[Effect] = []
        self._going_on = GoingOn(self._awaiting_tokens)
        self._talks = Talks(self._put_out, self._going_on.ended)
        self._unnumbered = TakingUnnumbered(
            self._engine.counts,
            self._options.engine,
            self._talks,
            put_out=self._put_out,
            store=self._store_unnumbered,
        )
        self._behind_tokens = BehindTokens(self._options.engine.doubtful_samples_max)
        self._named_runs = NamedRuns(self._engine, self._options.engine)
        self._retry_live_ns = self._move_ns = self._appends_failed = 0
        self._now = Moment(0, 0)
        self.counts = self._engine.counts
        self._refused = 0
        """Samples that `screen` or `resources_limit` kept out."""
        self.streams_refused = 0
        """Those of them that `resources_limit` kept out."""
        self.put_off = 0
        """Samples that could not be judged, mostly what others gave: they are asked for again."""

    @property
    def ready(self) -> bool:
        """Whether live samples may be handed in: nothing live waits for an answer."""
        return not self._live and self._busy_live is None

    @property
    def refused(self) -> int:
        """Samples that were kept out: there was no place for them, or no way to compare them."""
        return self._refused + self._unnumbered.refused

    @property
    def given_waiting(self) -> int:
        """How many samples that others gave wait to be looked at."""
        return sum(len(e.batch) for e in self._given if isinstance(e, Arrived | ResendArrived))

    @property
    def gaps_open(self) -> int:
        return len(self._engine.gaps)

    def gaps_by_source(self) -> dict[SourceId, int]:
        return self._engine.gaps.by_source()

    @property
    def sources(self) -> int:
        """How many sources have their windows in memory."""
        return self._engine.sources

    @property
    def doubtful(self) -> int:
        """How many live samples wait for a look-up or for a token."""
        waiting = self._behind_tokens.held + self._awaiting_tokens.held + self._named_runs.held
        return self._engine.doubtful + waiting

    @property
    def moving(self) -> int:
        """How many epochs wait for their samples to be moved to the one that stands."""
        return len(self._to_move) + self._busy_moving

    def wake_ns(self) -> int | None:
        """Return the monotonic time at which the next `Tick` is of use, or None."""
        wake = earlier(self._engine.wake_ns(), self._talks.wake_ns())
        if self._busy_live is None:
            waits = self._retry_live_ns if self._live else self._awaiting_tokens.wake_ns()
            wake = earlier(earlier(wake, waits), self._named_runs.wake_ns())
        if self._to_move and not self._busy_moving:
            wake = earlier(wake, self._move_ns)
        return wake

    def handle(self, event: CoreEvent) -> list[Effect]:
        """Take one event and return what to do, in order. Total for every order of events."""
        self._now = event.now
        self._talks.now_ns = event.now.monotonic_ns
        self.counts.losses.now_ns = event.now.unix_ns
        if isinstance(event, _ANSWERS):
            self._announcing.answered()
        match event:  # what comes with every batch first
            case Appended() | VerifyFailed() | Tick():
                self._engine_takes(event)
            case Arrived():
                (self._given if event.origin in _OTHERS else self._live).append(event)
            case Answered(ask_id, answer):
                self._talks.resume(ask_id, answer)
            case AskFailed(ask_id):
                self._talks.resume(ask_id, None)
            case AppendFailed():
                self._appends_failed += 1
                self._unnumbered.forget()
                self._engine_takes(event)
            case Verified():
                live = {one: one.current for one in map(self._engine.known, self._engine.doubted)}
                self._engine_takes(event)
                begun = (known for known, epoch in live.items() if known.current != epoch)
                self._given.extend(map(NamedTwice, named_twice(begun)))
                released = self._behind_tokens.released(self._engine.doubted, event.now)
                self._live.extendleft(reversed(released))
            case FetchEnded() | Inquired() | PulledAgain() | ResendArrived():
                self._given.append(event)
            case Started() | BatchRefused() | HeartbeatReceived() | EpochDeclared() | TokenGone():
                self._live.append(event)
            case _:
                assert_never(event)
        self._go_on()
        effects, self._effects = self._effects, []
        return effects

    def _go_on(self) -> None:
        """Begin what can be begun now."""
        now_ns = self._now.monotonic_ns
        self._talks.go_on()
        if self.ready:
            self._live += self._awaiting_tokens.over(self._now)
            self._given += self._named_runs.over(self._now)
        while self._live and self._busy_live is None and now_ns >= self._retry_live_ns:
            event = self._behind_tokens.hold_back(self._live.popleft())
            if event is None or self._take_at_once(event):
                continue
            self._busy_live = event
            self._talks.begin(
                self._take_live(event), partial(self._live_failed, event), urgent=True
            )
        while self._given and not self._busy_given:
            given = self._given.popleft()
            self._busy_given = True
            self._talks.begin(self._take_given(given), lambda: None)
        if self._to_move and not self._busy_moving and now_ns >= self._move_ns:
            alias = self._to_move.popleft()
            self._busy_moving = True
            self._talks.begin(self._move(alias), partial(self._move_later, alias))

    def _live_failed(self, event: CoreEvent) -> None:
        """The index could not be read: what waits keeps its place and is tried again."""
        self._live.appendleft(event)
        self._busy_live = None
        self._retry_live_ns = self._now.monotonic_ns + round(self._options.ask_retry_seconds * 1e9)

    def _take_live(self, event: CoreEvent) -> Conversation[None]:
        match event:
            case Started(sources):
                yield from self._load(sources)
            case Arrived(batch, origin, now, _):
                batch = yield from self._unnumbered.take(batch)
                yield from self._load(batch.sources)
                if origin is Origin.NATIVE:
                    live = of_live_runs(batch, self._engine.known)
                    batch = yield from self._not_removed(live)
                begun = [*self._named_runs.begun_by(batch, now)] if origin is Origin.LIVE else []
                if begun:  # as if their tokens had come before it
                    self._live.extendleft((Arrived(batch, origin, now), *reversed(begun)))
                else:
                    batch, left_out = self._named_runs.keep(batch, now)
                    self.put_off += left_out
                    self._take_loaded(batch, origin, now)
            case TokenGone(source, incarnation):
                yield from self._load((source,))
                self._awaiting_tokens.gone(source, incarnation)
                self._effects += self._announcing.gone(event, self._engine.known(source))
            case EpochDeclared(source):
                yield from self._load((source,))
                waited, left_out = self._awaiting_tokens.shown(event)
                self.put_off += left_out
                if waited:
                    self._live.extendleft(reversed(waited))
                elif not self._engine.holds_up_tokens(source):
                    yield from self._declare(event)
                    self._live.extendleft(self._named_runs.shown(event))
                else:  # of which run the samples before it are is not known yet
                    self._behind_tokens.begin(event)
                    self._named_runs.expect(event)
            case HeartbeatReceived(source):
                yield from self._load((source,))
                if not self._awaiting_tokens.keeps_number(event, self._now):
                    self._engine_takes(event)
            case BatchRefused(refused):
                yield from self._load(dict.fromkeys(source for source, _ in refused))
                self._engine_takes(self._awaiting_tokens.keep_refused(event, self._now))
            case _:
                raise AssertionError(f"{event} is no live event")
        self._busy_live = None

    def _take_at_once(self, event: CoreEvent) -> bool:
        """Take live samples of which nothing is to be asked; False otherwise, and nothing done."""
        if not (isinstance(event, Arrived) and event.origin is Origin.LIVE):
            return False
        batch = event.batch
        if self._engine.unknown(batch.sources):
            return False
        if self._going_on.includes(batch):
            self._store_live(batch, Origin.LIVE, event.now)
            return True
        if any(map(is_unnumbered, batch.sources)) or not self._named_runs.are_known(batch):
            return False
        self._take_loaded(batch, Origin.LIVE, event.now)
        self._going_on.begin(batch)
        return True

    def _take_loaded(self, batch: SampleBatch, origin: Origin, now: Moment) -> None:
        if origin is Origin.LIVE:
            batch, behind = self._awaiting_tokens.keep(batch, self._now)
            self._announcing.note(behind, Origin.LATE)
        self._store_live(batch, origin, now)

    def _store_live(self, batch: SampleBatch, origin: Origin, now: Moment) -> None:
        """Take samples that wait for no token."""
        batch = self._within_limit(batch, origin)
        if batch.samples:
            self._announcing.note(batch, origin)
            self._engine_takes(BatchReceived(batch, origin, now))
            twice = heard_twice(batch, map(self._engine.known, batch.sources))
            self._given += map(NamedTwice, twice)

    def _store_unnumbered(self, batch: SampleBatch) -> SampleBatch:
        new = self._within_limit(batch, Origin.UNNUMBERED)
        if len(new):
            self._engine_takes(BatchReceived(new, Origin.UNNUMBERED, self._now))
        return new

    def _load(self, sources: Iterable[SourceId]) -> Conversation[None]:
        wanted = tuple(sources)
        # While an answer was awaited an append may have ended, and one of these made room.
        while unknown := tuple(self._engine.unknown(wanted)):
            loaded = yield from answer_of(LoadSources(unknown), SourcesFound)
            for source in unknown:
                self._engine_takes(SourceLoaded(source, loaded.states.get(source, ()), self._now))
            self._given.extend(map(NamedTwice, named_twice(map(self._engine.known, unknown))))

    def _not_removed(self, batch: SampleBatch) -> Conversation[SampleBatch]:
        """Leave out what retention or a purge removed; the sources of the rest are loaded then."""
        removed = yield from answer_of(Floors(tuple(batch.by_stream)), FloorsFound)
        kept, below = part_at_floors(batch, removed.floors)
        yield from self._load(batch.sources)
        if len(below):
            self._engine_takes(Removed(below))
        return kept

    def _within_limit(self, batch: SampleBatch, origin: Origin) -> SampleBatch:
        live = origin in (Origin.LIVE, Origin.LATE, Origin.NATIVE)
        screened = batch if self._screen is None else self._screen(batch, origin)
        admitted = self._admission.admit(screened, self._current if live else None)
        if admitted is not batch:
            self._refused += len(batch) - len(admitted)
            self.streams_refused += len(screened) - len(admitted)
        return admitted

    def _current(self, source: SourceId) -> int:
        return self._engine.known(source).current

    def _declare(self, event: EpochDeclared) -> Conversation[None]:
        """Take a token; which incarnation an epoch is must be durable before samples under it."""
        known = self._engine.known(event.source)
        incarnation = event.incarnation
        if incarnation and known.of_incarnation(incarnation) is None:
            with pinned(known):
                yield from self._calling.make_free(known, event.epoch)
                epoch = known.epoch_for(event.epoch, incarnation)
                adopts = known.can_adopt(epoch, event.epoch, incarnation)
                instead_of = known.current if adopts else None
                declaration = Declaration(event.source, epoch, incarnation, instead_of)
                yield from answer_of(Keep(declaration), Done)
        self._engine_takes(event)

    def _take_given(self, event: CoreEvent | NamedTwice | NameLeft) -> Conversation[None]:
        try:
            match event:
                case Arrived():
                    yield from self._take_from_others(event)
                case FetchEnded():
                    self._engine_takes(event)
                case ResendArrived():
                    answer = yield from self._resends.judge(event)
                    self._effects.append(answer)
                case NamedTwice(source):
                    yield from self._look_at(source, self._agreement.name_own(source, self._now))
                case PulledAgain(source, epoch, now):
                    yield from self._load((source,))
                    self._agreement.name_pulled(source, epoch, now)
                case NameLeft(source):
                    yield from self._look_at(source, self._calling.go_on(source))
                case Inquired(inquiry_id, _, failed, whole):
                    if failed or not self._agreement.inquiries.is_answered(inquiry_id, whole=whole):
                        self._talks.begin(self._inquire_again(inquiry_id), lambda: None)
                    elif (about := self._agreement.inquiries.about(inquiry_id)) is not None:
                        answered = self._agreement.answered(inquiry_id, whole=whole)
                        yield from self._look_at(about, answered)
                case _:
                    raise AssertionError(f"{event} is nothing that others gave")
        finally:
            self._take_agreements()
            self._busy_given = False

    def _take_from_others(self, event: Arrived) -> Conversation[None]:
        numbered = yield from self._unnumbered.take(event.batch)
        given = in_turn(numbered, (self._busy_live, *self._live))
        if len(given) < len(numbered):
            self.put_off += len(numbered) - len(given)
            self._agreement.inquiries.missed_some()
        yield from self._load(given.sources)
        every = [*map(self._engine.known, given.sources)]
        try:
            with pinned(*every):
                yield from self._let_in(event, given, every)
        except Unanswered:
            self.put_off += len(given)
            self._agreement.inquiries.missed_some()
            raise

    def _let_in(
        self, event: Arrived, given: SampleBatch, every: Sequence[KnownSource]
    ) -> Conversation[None]:
        """Call what others gave as it goes here, and take what may come in now."""
        names = with_own_names(event.names, given)
        event = msgspec.structs.replace(event, names=names)
        self._agreement.hear_names(event.names)
        for known in every:
            yield from self._calling.as_others(known, event)
        called = called_here(given, event.names, self._engine.known)
        self.put_off += len(given) - len(called)
        for known in every:
            yield from self._calling.as_given(known, called, event.names)
        batch = yield from self._agreement.settle(called, self._now)
        batch = yield from self._not_removed(batch)
        batch = self._within_limit(batch, event.origin)
        if len(batch):
            self._engine_takes(BatchReceived(batch, event.origin, self._now))

    def _renamed(self, alias: Alias) -> None:
        """Move what goes by another epoch now."""
        self._effects.append(ReportEpochs(alias, are_one=True))
        self._admission.moved(alias.source, alias.stored, alias.epoch)
        self._to_move.append(alias)

    def _look_at(self, source: SourceId, look: Conversation[None]) -> Conversation[None]:
        """Have a conversation about a source that is in memory, and stays there meanwhile."""
        yield from self._load((source,))
        with pinned(self._engine.known(source)):
            yield from look

    def _inquire_again(self, inquiry_id: int) -> Conversation[None]:
        yield Pause(self._options.engine.fetch_retry_seconds_max)
        self._agreement.inquiries.ask_again(inquiry_id, self._now)
        self._take_agreements()

    def _take_agreements(self) -> None:
        agreement = self._agreement
        self._effects += [Inquire(*inquiry) for inquiry in agreement.inquiries.take()]
        for alias in agreement.agreed:
            self._engine_takes(EpochsAgreed(alias.source, alias.stored, alias.epoch))
            self._renamed(alias)
        for alias in agreement.revoked:
            self._engine_takes(EpochFreed(alias.source, alias.stored))
            self.epochs.reuse(alias.source, alias.stored)
            self._effects.append(ReportEpochs(alias, are_one=False))
        agreement.agreed, agreement.revoked = [], []

    def _move(self, alias: Alias) -> Conversation[None]:
        """Store anew what stands under an epoch that lost, then remove it there (ADR 0048).

        Nothing is removed before the backend has its twin; a crash in between repeats work.
        """
        yield from answer_of(Keep(Agreed(alias)), Done)
        failed, options = self._appends_failed, self._options
        some = yield from self._store_anew(alias)
        yield from await_moved(
            alias,
            options.move_polls,
            options.move_poll_seconds,
            lambda: self._appends_failed != failed,
        )
        right = not some or (yield from twins_everywhere(alias))
        if right:
            yield from answer_of(Forget(alias), Done)
            self.epochs.moved(alias)
            if self._calling.waits(alias.source):
                self._given.append(NameLeft(alias.source))
        else:
            yield from answer_of(Keep(Disagreed(alias)), Done)
            self._agreement.differ(alias.source, alias.epoch, alias.stored)
            self._effects.append(ReportEpochs(alias, are_one=False))
        if not right or alias.stored == EPOCH_UNKNOWN:
            self._engine_takes(EpochFreed(alias.source, alias.stored))
            self._agreement.release(alias.source)
        self._busy_moving = False

    def _store_anew(self, alias: Alias) -> Conversation[bool]:
        """Store what stands under the old epoch under the new one; tells whether there was any."""
        cursor, some = None, False
        while True:
            page = yield from renamed(alias, cursor)
            if len(page.batch):
                some = True
                kept = yield from self._not_removed(page.batch)
                self._engine_takes(BatchReceived(kept, Origin.REFILED, self._now))
            cursor = page.cursor
            if cursor is None:
                return some

    def _move_later(self, alias: Alias) -> None:
        self._to_move.appendleft(alias)
        self._busy_moving = False
        self._move_ns = self._now.monotonic_ns + round(self._options.move_poll_seconds * 1e9)

    def _engine_takes(self, event: Event) -> None:
        for output in self._engine.handle(event):
            self._put_out(output)

    def _put_out(self, output: Output | Ask) -> None:
        match output:
            case SendAck():
                self._effects += (output, *self._announcing.durable(output))
            case Append(batch):
                self._announcing.appends(batch)
                self._effects.append(output)
            case Ask() | Fetch() | Verify() | ReportMiss() | ReportConflict() | ReportAbsent():
                self._effects.append(output)
            case Learned(alias):
                self._admission.moved(alias.source, alias.stored, alias.epoch)
                self._to_move.append(alias)
            case Declared():
                return  # `_declare` kept it before the engine was told
            case _:
                assert_never(output)
