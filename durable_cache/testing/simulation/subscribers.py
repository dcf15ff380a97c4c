"""A subscriber on the simulated network: the real engine, with everything around it played."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import assert_never

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.standings import FROM_THE_BEGINNING, Standings, decode_beginning
from durable_cache.protocol.subscriber.dropped import Dropped
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswererAppeared,
    AnswerersGone,
    AnswerPart,
    AskBeginning,
    AskHistory,
    BeginningTold,
    Declared,
    Deliver,
    DeliveryOptions,
    Event,
    Fetch,
    Fetched,
    HeartbeatReceived,
    HistoryPage,
    Missed,
    Output,
    Received,
    TimePassed,
    TokenGone,
)
from durable_cache.testing.simulation.caches import HISTORY, SimCache, answerers_of
from durable_cache.testing.simulation.network import Network, Node, Outcome, Token
from durable_cache.testing.simulation.promises import SubscriberPromise
from durable_cache.testing.simulation.publishers import Heartbeat, Listener, PublisherToken
from durable_cache.testing.simulation.questions import Heard, Question
from durable_cache.testing.simulation.world import World

_WAKE_SECONDS_MIN = 0.02
_LOOK_SECONDS_MAX = 0.1
"""How long what tokens say is not looked at while nothing else comes."""


@dataclass(frozen=True, slots=True)
class SubscriberPlan:
    """How a subscriber is set."""

    name: str
    key_expr: KeyExpression
    delivery: DeliveryOptions = field(default_factory=DeliveryOptions)
    history: int | None = None
    """None asks for none, 0 for all there is, else for so many of each key."""
    query_timeout_seconds: float = 2.0
    consumer_seconds: float = 0.0
    """How long each batch takes the consumer."""
    payload_bytes_max: int = 1 << 30
    """What is larger is not delivered, but reported."""
    waiting_max: int = 1 << 30
    """Batches between the network and the consumer; beyond it samples are dropped, but the last
    of each source."""

    def is_too_large(self, sample: Sample) -> bool:
        """Tell whether a sample is reported, not delivered."""
        return len(sample.payload) > self.payload_bytes_max


class _Said(IntEnum):
    """Who says what a subscriber looks at between two events."""

    PUBLISHERS = 0
    CACHES = 1
    HEARTBEATS = 2


class SimSubscriber(Listener):
    """One subscriber; it runs once, from `start` to the end or to `died`."""

    def __init__(
        self, world: World, network: Network, plan: SubscriberPlan, promise: SubscriberPromise
    ) -> None:
        super().__init__(world, network, plan.name)
        self.plan, self.key_expr, self.promise = plan, plan.key_expr, promise
        wanted, newest = plan.history is not None, plan.history or 0
        self._engine = SubscriberEngine(plan.delivery, history=wanted, newest=newest)
        self._inbox: list[Sample] = []
        self._dropped: Dropped[Callable[[], Event]] = Dropped()
        self._waiting: deque[Callable[[], Event]] = deque()
        self._said: list[deque[Callable[[], Event]]] = [deque() for _ in _Said]
        """What tokens and heartbeats say, in the order in which a subscriber looks at them."""
        self._taking = self._working = self._looking = False
        self._samples_wait = 0
        """How many batches of samples wait."""
        self._gave = False
        """Whether the consumer has something to do."""
        self._wake_ns: int | None = None
        self._in_reach: set[Token] = set()
        """The tokens of caches."""
        self._met: dict[str, Moment | None] = {}
        """The caches that were in reach at some time."""
        self._too_large: dict[tuple[SourceId, int], RangeSet] = {}
        """Numbers of which an answer said that they are too large, as they were asked for."""

    def name_of(self, source: SourceId, epoch: int) -> str:
        """Return the name of the run that it calls by an epoch; empty where it knows none."""
        return self._engine.run_names.known((source, epoch))

    def start(self) -> None:
        """Declare it."""
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        self.promise.began(self)
        self._met = {cache.name: None for cache in self.promise.caches_in_reach()}
        if self.plan.history is not None:
            self.world.occur("late joiner asks for history")
        self._do(
            self._engine.start(self._now, answerers_known=bool(self.promise.caches_in_reach()))
        )
        self._schedule_wake()
        self.network.show_all(self.name)

    @property
    def lags(self) -> bool:
        return self.plan.consumer_seconds > 0

    def died(self, how: str) -> None:
        if self.running:
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1
            self.promise.ended()

    def arrived(self, sample: Sample) -> None:
        """Take a live sample off the network."""
        if self.plan.is_too_large(sample):
            self.world.occur("payload too large")
        self._inbox.append(msgspec.structs.replace(sample, epoch=0, received_ns=self._now.unix_ns))
        if not self._taking:
            self._taking = True
            self.later(self.world.random.random() * 0.002, self._take)

    def _take(self) -> None:
        """Put what came behind what waits; of what finds no room keep the last of each source."""
        self._taking = False
        while self._dropped and self._has_room:
            self._wait(*self._dropped.take())
        every, self._inbox = self._inbox, []
        if not every:
            return
        said = self._said[_Said.PUBLISHERS]
        tokens = [*said]
        said.clear()
        if self._has_room and not self._dropped:
            self._wait(tokens, every)
            return
        self.world.occur("slow consumer drops")
        samples, _ = _sorted_out(self.plan, every)
        self._dropped.add(tokens, sorted(samples, key=self.promise.place))

    @property
    def _has_room(self) -> bool:
        return len(self._waiting) < self.plan.waiting_max

    def _wait(self, tokens: Sequence[Callable[[], Event]], every: Sequence[Sample]) -> None:
        """Let samples wait for their turn, and with them what tokens did before."""
        samples, oversized = _sorted_out(self.plan, every)
        if len({sample.source for sample in samples}) > 1:
            self.world.occur("batch of several sources")
        self._samples_wait += 1

        def received() -> Event:
            self._samples_wait -= 1
            for token in tokens:
                self._handle(token())
            for sample in every:  # the number and time of what is too large show a restart, too
                self.promise.hears(sample)
            return Received(samples, self._now, oversized)

        self._handle_soon(received)

    def token_changed(self, token: Token, alive: bool) -> None:
        value = token.value
        if value == HISTORY:
            if alive:
                self._in_reach.add(token)
                strange = token.owner not in self._met
                gone = self._met.get(token.owner)
                self._met[token.owner] = None
                self._say(_Said.CACHES, lambda: AnswererAppeared(self._now, strange, gone))
            elif self._in_reach == {token}:
                self._say(_Said.CACHES, lambda: AnswerersGone(self._now))
            if not alive:
                self._in_reach.discard(token)
                self._met[token.owner] = self._now
        elif isinstance(value, PublisherToken) and value.key_expr.intersects(self.key_expr):
            if alive:
                self.follows(value.source, value.run)
                self.promise.saw(value)
            self._say(_Said.PUBLISHERS, lambda: self._told(value, alive=alive))

    def _told(self, token: PublisherToken, *, alive: bool) -> Event:
        source, incarnation = token.source, token.incarnation
        if alive:
            return Declared(source, token.epoch, incarnation, self._now)
        return TokenGone(source, incarnation, self._now)

    def beaten(self, beat: Heartbeat) -> None:
        def beaten() -> Event:
            self.promise.hears_of(beat.numbering, beat.sn)
            return HeartbeatReceived(beat.source, beat.sn, self._now)

        self._say(_Said.HEARTBEATS, beaten)

    def told(self, source: SourceId, epoch: int, sn: int) -> None:
        self._say(
            _Said.HEARTBEATS, lambda: HeartbeatReceived(source, sn, self._now, stored_as=epoch)
        )

    def _say(self, said: _Said, event: Callable[[], Event]) -> None:
        """Take note of what is looked at before the next event, or soon where none comes."""
        self._said[said].append(event)
        if not self._looking:
            self._looking = True
            self.later(self.world.random.random() * _LOOK_SECONDS_MAX, self._look)

    def _look(self) -> None:
        self._looking = False
        if not self._working:
            self._look_around()
            self._go_on()

    def _look_around(self) -> None:
        for who, said in enumerate(self._said):
            if who == _Said.PUBLISHERS and self._samples_wait:
                continue  # what tokens did before those came waits with them (ADR 0398)
            if who == _Said.PUBLISHERS and self._dropped:
                for token in self._dropped.take_tokens():
                    self._handle(token())
                continue
            while said:
                self._handle(said.popleft()())

    def _handle_soon(self, event: Callable[[], Event]) -> None:
        self._waiting.append(event)
        if not self._working:
            self._working = True
            self.later(0.0001, self._work)

    def _work(self) -> None:
        self._working = False
        self._look_around()
        if self._waiting:
            self._handle(self._waiting.popleft()())
        self._go_on()

    def _go_on(self) -> None:
        """Go on with what waits, once the consumer has done its part."""
        busy, self._gave = self._gave and self.lags, False
        if busy or self._waiting or self._dropped:
            self._working = True
            self.later(0.0001 + busy * self.plan.consumer_seconds, self._work)
        elif any(self._said) and not self._looking:  # it waited for samples that waited
            self._looking = True
            self.later(_LOOK_SECONDS_MAX, self._look)
        if self._dropped and not self._taking and self._has_room:
            self._take()
        self._schedule_wake()

    def _handle(self, event: Event) -> None:
        """Hand in an event; history may end with it, also with time that passes."""
        complete = self._engine.history_complete
        reads_history = self._engine.reads_history
        outputs = self._engine.handle(event)
        if reads_history:
            self.promise.history_given(outputs)
        self._do(outputs)
        if self._engine.history_complete and not complete:
            self.promise.history_read()

    def _schedule_wake(self) -> None:
        wake_ns = self._engine.wake_ns()
        if wake_ns is None or (self._wake_ns is not None and self._wake_ns <= wake_ns):
            return
        self._wake_ns = wake_ns
        pause = max(_WAKE_SECONDS_MIN, (wake_ns - self.world.now_ns) / 1e9)
        self.later(pause, lambda: self._wake(wake_ns))

    def _wake(self, wake_ns: int) -> None:
        if self._wake_ns != wake_ns:
            return  # something earlier came in between
        self._wake_ns = None
        if self._working and self.lags:
            return  # its consumer holds it up; it looks afterwards
        self._look_around()
        self._handle(TimePassed(self._now))
        if self._working:
            self._schedule_wake()
        else:
            self._go_on()

    @property
    def _now(self) -> Moment:
        return self.world.moment(self.skew_ns)

    @property
    def history_complete(self) -> bool:
        return self._engine.history_complete

    def _do(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            match output:
                case Deliver(samples):
                    self._gave = True
                    self.promise.delivered(samples)
                case Missed(source, epoch, first, last):
                    self.promise.missed(source, epoch, first, last)
                case Fetch():
                    self._fetch(output)
                case AskHistory():
                    self._ask_history(output)
                case AskBeginning():
                    self._ask_beginning(output)
                case _:
                    assert_never(output)

    def _fetch(self, fetch: Fetch) -> None:
        too_large = self._too_large.setdefault((fetch.source, fetch.epoch), RangeSet())
        asked = fetch.last is None or too_large.gaps(fetch.first, fetch.last)
        if not (asked or self._engine.dropped):  # what found no room is asked for again
            numbers = f"{fetch.source} {fetch.first}..{fetch.last}"
            self.world.fail(f"{self.name} asks again for what is too large: {numbers}")
        question = Question(self.key_expr, fetch.source, fetch.first, fetch.last, after=fetch.after)
        heard = Heard(question)

        def end(outcome: Outcome) -> None:
            native = replace(question, after=None, native=True)
            also = Heard(native)

            def finish(_: Outcome) -> None:
                answer = _answer(self.plan, heard, outcome, also)
                too_large.update(_oversized(answer, fetch))
                self._handle_soon(lambda: Fetched(fetch.fetch_id, answer, self._now))

            self._ask(native, also, finish)

        self._ask(question, heard, end)

    def _ask_history(self, ask: AskHistory) -> None:
        if ask.after is None and ask.since_ns is None:
            self.promise.history_begins()
        question = Question(
            self.key_expr,
            newest=(self.plan.history or None) if ask.since_ns is None or ask.as_wanted else None,
            after=ask.after,
            in_time=True,
            since_ns=ask.since_ns,
            samples_max=ask.samples_max,
        )
        heard = Heard(question)

        def end(outcome: Outcome) -> None:
            answer = _answer(self.plan, heard, outcome)
            self._handle_soon(lambda: HistoryPage(ask.question_id, answer, self._now))

        self._ask(question, heard, end)

    def _ask_beginning(self, ask: AskBeginning) -> None:
        told: list[int] = []
        standings = Standings(ask.standings)
        asked: list[tuple[Node, Callable[[], Iterator[bytes]]]] = [
            (cache, _telling_beginning(cache, self.key_expr, standings))
            for cache in self.network.nodes.values()
            if isinstance(cache, SimCache)
        ]

        def end(outcome: Outcome) -> None:
            unknown = not outcome.whole or outcome.errors
            ntp64 = FROM_THE_BEGINNING if unknown else min(told, default=FROM_THE_BEGINNING)
            self.world.occur("cache that was never in reach")
            self._handle_soon(lambda: BeginningTold(ask.question_id, ntp64, self._now))

        def hear(frame: bytes) -> None:
            told.append(decode_beginning(frame))

        self.network.ask(self, asked, self.plan.query_timeout_seconds, hear, end)

    def _ask(self, question: Question, heard: Heard, end: Callable[[Outcome], None]) -> None:
        if self.world.tracing:
            self.world.say(f"{self.name} asks {question}")
        answerers = answerers_of(self.network, question)
        self.network.ask(self, answerers, self.plan.query_timeout_seconds, heard.hear, end)


def _telling_beginning(
    cache: SimCache, key_expr: KeyExpression, standings: Standings
) -> Callable[[], Iterator[bytes]]:
    return lambda: cache.answer_beginning(key_expr, standings)


def _answer(plan: SubscriberPlan, heard: Heard, outcome: Outcome, *others: Heard) -> Answer:
    parts: list[AnswerPart] = []
    for part in (part for one in (heard, *others) for part in one.parts):
        taken, left = _sorted_out(plan, part.samples)
        parts.append(AnswerPart(taken, part.absent, part.incarnations, left))
    return Answer(
        tuple(parts),
        outcome.whole,
        not outcome.errors,
        heard.cut_after,
    )


def _sorted_out(
    plan: SubscriberPlan, samples: Iterable[Sample]
) -> tuple[list[Sample], list[Sample]]:
    """Return what a subscriber takes, and what is too large for it, without its payload."""
    taken: list[Sample] = []
    left: list[Sample] = []
    for sample in samples:
        if plan.is_too_large(sample):
            left.append(msgspec.structs.replace(sample, payload=b"", attachment=None))
        else:
            taken.append(sample)
    return taken, left


def _oversized(answer: Answer, fetch: Fetch) -> RangeSet:
    """Return the numbers that are too large of the run that was asked for, as caches call it.

    None where it has no epoch: an earlier run has none, either.
    """
    if fetch.epoch == EPOCH_UNKNOWN:
        return RangeSet()
    every = (sample for part in answer.parts for sample in part.oversized)
    asked = fetch.source, fetch.epoch
    return RangeSet.of(sample.sn for sample in every if (sample.source, sample.epoch) == asked)
