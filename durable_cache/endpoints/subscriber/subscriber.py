"""A subscriber that gets every sample once, in its source's order, or is told what it missed.

Threads, all owned by the subscriber: *receive* decodes what Zenoh's channel holds; *deliver* works
when nothing comes; *ask* asks caches. Of the first two, one at a time has the mailbox's turn: it
runs the pure engine, calls the user's code, and reads tokens and heartbeats. While *receive* is
held up by the user's code, *deliver* receives in its place (ADR 0210).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event as Flag
from threading import Lock, Thread, current_thread
from typing import NamedTuple, assert_never

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.closing import Closing
from durable_cache.endpoints.session import (
    DeclaredKeys,
    Decoder,
    Origins,
    Session,
    Token,
    TokenChanges,
    ZError,
    close_at_exit,
    declare_heartbeats_polled,
    declare_native_token,
    declare_subscriber,
    source_of,
    start_thread,
    take_heartbeats,
    take_token_changes,
    tokens_watched,
    undeclare,
    watch_tokens_polled,
    zid_of,
)
from durable_cache.endpoints.subscriber.channels import (
    Callback,
    Delivery,
    Listener,
    Receiving,
    Sink,
    sink_of,
)
from durable_cache.endpoints.subscriber.losing import Losing, LossListener
from durable_cache.endpoints.subscriber.mailbox import NEVER_NS, Mailbox
from durable_cache.endpoints.subscriber.questions import Questions, newest_asked
from durable_cache.endpoints.subscriber.receiver import Receiver
from durable_cache.endpoints.subscriber.subjects import SubjectsSeen
from durable_cache.endpoints.subscriber.tokens_in_order import TokensInOrder, Waited
from durable_cache.model.arguments import (
    bounded,
    check_domain,
    check_fields,
    check_number,
    read_timeout,
)
from durable_cache.model.clock import Moment
from durable_cache.model.delivery import DeliveryMode
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.losses import LossRow, LossTable
from durable_cache.protocol.modes import EXACTLY_ONCE, Mode, Passed
from durable_cache.protocol.subscriber.arriving import ArrivingEngine
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    AskBeginning,
    AskHistory,
    Declared,
    Deliver,
    DeliveryOptions,
    Event,
    Fetch,
    HeartbeatReceived,
    Missed,
    Output,
    Received,
    TimePassed,
    TokenGone,
)
from durable_cache.protocol.wire import (
    PublisherToken,
    own_key,
    parse_publisher_token,
    tokens_about,
)

_log = logging.getLogger(__name__)
_TOKENS_SECONDS_MAX = 1.0
"""How long routers are waited for that say which caches there are; they answer within a trip."""
_LISTED_SECONDS = 2.0
"""How long after our start tokens that come may be of publishers that were there before us."""
_CACHES_MET_MAX = 1024
"""Tokens of caches that are remembered; of one that is forgotten it is asked what it holds."""
_LOOK_NS = 10_000_000
"""How long names and heartbeats may wait while samples come one by one."""
_LEFT_SECONDS = 0.02
"""How often it is looked whether everything that came before the end is delivered."""
_IDLE_SECONDS = 0.1
"""How often tokens and heartbeats are looked at while nothing else comes."""


class Miss(NamedTuple):
    """Samples that will not be delivered: `count` numbers of a source from `first` to `last`."""

    source: SourceId
    epoch: int
    first: int
    last: int

    @property
    def nb(self) -> int:
        """How many; zenoh.ext's name for it."""
        return self.last - self.first + 1


class MissListener(Listener[Miss]):
    """What `sample_miss_listener` returns: where misses are received from, until `undeclare`."""


@dataclass(frozen=True, slots=True)
class SubscriberOptions:
    """How a reliable subscriber works; see `declare_reliable_subscriber`."""

    history: str | None = None
    """Parameters of the historical query; None asks for none."""
    delivery: DeliveryOptions = DeliveryOptions()
    domain: str = "default"
    query_timeout_seconds: float = 5.0
    channel_samples: int = 100_000
    """Samples between Zenoh and this subscriber."""
    payload_bytes_max: int = 64 << 20
    overrun_seconds: float = 2.0
    """How long a slow consumer may hold up Zenoh; then samples are dropped and recovered."""
    events_max: int = 256
    """Batches and answers between the threads."""
    allowed_origin: Origins = Origins.ANY
    """Whose samples are taken as they are published; history and recovery ask everybody."""
    joins_late: bool = False
    """What publishers that are there already put before is not awaited, however recent it is."""
    detectable: bool = False
    """Show the subscriber to programs that look for zenoh.ext's advanced subscribers."""
    mode: Mode = EXACTLY_ONCE

    @property
    def delivery_mode(self) -> DeliveryMode:
        """The mode in force: what recovers nothing delivers at most once, as it was chosen."""
        exactly = self.mode.delivery is DeliveryMode.EXACTLY_ONCE
        if exactly and not self.delivery.recovery:
            return DeliveryMode.AT_MOST_ONCE
        return self.mode.delivery

    def checked(self) -> SubscriberOptions:
        """Return the options themselves; ConfigError names what no subscriber can work with."""
        check_fields(self)
        check_domain(self.domain)
        for name in ("channel_samples", "payload_bytes_max", "events_max"):
            check_number(name, getattr(self, name), 1, whole=True)
        for name in ("query_timeout_seconds", "overrun_seconds"):
            check_number(name, getattr(self, name), 0, whole=False)
        self.delivery.check()
        return bounded(self)


class ReliableSubscriber(Receiving[Sample], Closing):
    """A running subscriber (RFC, "The ReliableSubscriber"); a context manager and iterable.

    Samples are ours (`durable_cache.Sample`). A callback runs on the subscriber's own thread, never
    on Zenoh's.
    """

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        handler: object,
        options: SubscriberOptions,
    ) -> None:
        history, domain = options.history, options.domain
        self._session = session
        self._sink, self._handler = self._open(handler)
        self.key_expr = key_expr
        self._domain = domain
        listed_seconds = _LISTED_SECONDS if options.joins_late else 0.0
        self._listed_until_seconds = time.monotonic() + listed_seconds
        self._miss_sinks: list[Sink[Miss]] = []
        self.mode = options.delivery_mode
        """The delivery mode in force."""
        self._engine = self._make_engine(options)
        self._history_complete = history is None
        own_zid = zid_of(session)
        asking = Asking(
            session,
            own_zid,
            timeout_seconds=options.query_timeout_seconds,
            payload_bytes_max=options.payload_bytes_max,
        )
        self._questions = Questions(asking, str(key_expr), history or "", self._tell)
        self._mailbox: Mailbox[Event | Waited] = Mailbox(options.events_max)
        self._stopped, self._closing = Flag(), Lock()
        self._error: BaseException | None = None
        self._threads: list[Thread] = []
        self._warned = False
        self._look_ns = 0
        """When to look around again; monotonic."""
        self._publishers = TokensInOrder(session, domain, key_expr, self._mailbox)
        self._caches = watch_tokens_polled(session, tokens_about(domain, "history", self.key_expr))
        self._known_publishers: dict[str, PublisherToken] = {}
        """The tokens that are there, at most `sources_max`: an engine that begins anew hears them.
        A router answers who watches and asks with nothing, at times."""
        self._publishers_max = options.delivery.sources_max
        self._known_caches: set[str] = set()
        """The tokens of the caches in reach."""
        self._met_caches: dict[str, Moment | None] = {}
        """When the token of each went; None where it is there."""
        self._heartbeats = declare_heartbeats_polled(session, f"{key_expr}/@adv/pub/**")
        self._subscriber = declare_subscriber(
            session, str(key_expr), options.allowed_origin, options.channel_samples
        )
        self._receiver = Receiver(
            self._subscriber,
            Decoder(own_zid, options.payload_bytes_max, DeclaredKeys(session)),
            self._mailbox,
            self._publishers,
            options.overrun_seconds,
            self._stopped,
        )
        self._engine.subjects.of_one_key = key_expr.is_key
        self.subjects = SubjectsSeen(session, lambda: self._engine.subjects)
        """What came, and what was lost, of publishers that count each key by itself."""
        losses, bounds = self._engine.losses, options.delivery
        self._losing = Losing(
            session, key_expr, domain, self.source, losses, bounds, self._loss_table
        )
        self._shown: Token | None = None
        if options.detectable:
            self._shown = declare_native_token(session, str(key_expr), self.source, "sub")
        self._spawn("ask", self._questions.run)
        self._spawn("deliver", self._run)
        self._spawn("receive", self._receive)
        close_at_exit(self, session)

    def _make_engine(self, options: SubscriberOptions) -> SubscriberEngine | ArrivingEngine:
        if not options.mode.recovers:
            return ArrivingEngine(options.mode, options.delivery)
        history = options.history
        newest = newest_asked(history)
        return SubscriberEngine(options.delivery, history=history is not None, newest=newest)

    def _open(self, handler: object) -> tuple[Delivery[Sample], object]:
        """Return where to deliver, and what the user receives samples from."""
        return sink_of(handler, Sample, self._session)

    @property
    def source(self) -> SourceId:
        """The subscriber's own EntityGlobalId."""
        return source_of(self._subscriber)

    @property
    def missed(self) -> int:
        """How many samples were given up and reported."""
        return self._engine.missed

    @property
    def delivered(self) -> int:
        return self._engine.delivered

    @property
    def duplicates(self) -> int:
        """How many repeats were dropped; what an answer to its own question repeats is none."""
        return self._engine.duplicates

    @property
    def overrun(self) -> int:
        """Samples that a slow consumer left no time for; they come back from caches."""
        return self._receiver.overrun

    @property
    def gaps_open(self) -> int:
        """How many sources wait for something missing."""
        return self._engine.gaps_open

    @property
    def history_complete(self) -> bool:
        """Whether history came whole, and was delivered; True where none was asked for."""
        return self._history_complete

    @property
    def callback_errors(self) -> int:
        """How often a callback or a miss listener raised; delivery went on each time."""
        sinks = (self._sink, *self._miss_sinks)
        return (
            self._losing.errors
            + self.subjects.errors
            + sum(sink.errors for sink in sinks if isinstance(sink, Callback))
        )

    @property
    def losses(self) -> Sequence[LossRow]:
        """What happened to each source's samples, as `durable-cache loss` shows it; any thread."""
        return self._engine.losses.rows()

    def _loss_table(self) -> LossTable:
        """Return what is answered to who asks for losses; any thread."""
        name, key_expr, rows = str(self.source), str(self.key_expr), tuple(self.losses)
        return LossTable(name, key_expr, rows, self.mode.words, self.subjects.counts)

    def loss_listener(self, handler: object = None) -> LossListener:
        """Tell `handler` how much is lost: the first loss at once, then at most once a second.

        Takes what a subscriber takes; advisories are received from the returned listener where it
        is a channel. Raises ConfigError at once for what cannot be told.
        """
        return self._losing.listen(handler)

    def sample_miss_listener(self, handler: object = None) -> MissListener:
        """Tell `handler` of every loss, before what follows it is delivered.

        Takes what a subscriber takes; misses are received from the returned listener where it is
        a channel. Raises ConfigError at once for what cannot be told.
        """
        sink, given = sink_of(handler, Miss, self._session)
        self._miss_sinks.append(sink)
        return MissListener(sink, given, self._miss_sinks.remove)

    declare_sample_miss_listener = sample_miss_listener

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception as error:
                _log.exception("the subscriber's thread %r failed", name)
                if self._error is None and not self._stopped.is_set():
                    self._error = error

        self._threads.append(start_thread(guarded, f"dc-subscriber-{name}"))

    def _receive(self) -> None:
        """Receive until the end; where it is the session that was closed, end as it did."""
        self._receiver.run(self._drive)
        while self._mailbox.waiting or self._mailbox.is_taken:
            if self._stopped.wait(_LEFT_SECONDS):
                return
        if not self._stopped.is_set():
            _log.info("the session of the subscriber on %s was closed", self.key_expr)
            self.close()

    def _next(self) -> Event | Waited | None:
        """Return the next event; when there is none, what is left of samples that overran us."""
        return self._mailbox.take() or self._publishers.take_dropped()

    def _tell(self, event: Event) -> None:
        while not self._stopped.is_set():
            if self._mailbox.put(event, 0.2):
                return  # else the engine is behind: look again whether it stopped

    def _begin(self) -> None:
        """Start the engine, knowing which caches there are."""
        pattern = tokens_about(self._domain, "history", self.key_expr)
        with suppress(ZError):  # the session is closing
            there = tokens_watched(
                self._session, self._caches, pattern, _TOKENS_SECONDS_MAX, self._known_caches
            )
            self._known_caches = set(filter(self._may_answer, there))
            self._met_caches.update(dict.fromkeys(self._known_caches))
        in_reach = bool(self._known_caches)
        self._before_history()
        self._do(self._engine.start(moment_now(), answerers_known=in_reach))

    def _before_history(self) -> None:
        """Prepare the engine for its start; for who goes on."""

    def _turn(self) -> None:
        """Look at what the program asked for, or others said, between two events; for who does."""

    def _wake_ns(self) -> int:
        """Return the monotonic time at which there is something to do; for who has more to do."""
        engine_ns, losing_ns = self._engine.wake_ns(), self._losing.wake_ns()
        if engine_ns is None:
            return NEVER_NS if losing_ns is None else losing_ns
        return engine_ns if losing_ns is None else min(engine_ns, losing_ns)

    def _run(self) -> None:
        self._begin()
        self._drive(None)
        while True:
            has_turn = self._mailbox.await_turn(_IDLE_SECONDS)
            if self._stopped.is_set():
                return
            if has_turn:
                self._drive(self._next())
            else:
                self._receiver.receive_instead()

    def _drive(self, event: Event | Waited | None) -> None:
        """Handle an event, and what else is due, and give the turn back."""
        wake_ns = NEVER_NS
        try:
            wake_ns = self._step(event)
            # Who receives may wait for room, which only we can make, or have dropped something.
            while self._receiver.has_taken_more and not self._stopped.is_set():
                if (event := self._next()) is None:
                    break
                wake_ns = self._step(event)
        finally:
            self._mailbox.end_turn(wake_ns)

    def _step(self, event: Event | Waited | None) -> int:
        """Handle an event, and what else is due; return when there is more to do."""
        self._turn()
        # What was declared before these samples came is known before they are looked at.
        publishers, event = self._publishers.before(event)
        caches = take_token_changes(self._caches)
        is_soon = isinstance(event, Received) and event.now.monotonic_ns < self._look_ns
        looks_around = not is_soon
        if looks_around or publishers or caches:
            for said in self._said(publishers, caches, looks_around):
                self._handle(said)
        if event is not None:
            self._handle(event)
        wake_ns = self._wake_ns()
        if wake_ns < NEVER_NS and wake_ns <= (now_ns := time.monotonic_ns()):
            # The program's code takes its time: what waits for a token may have it by now.
            publishers = self._publishers.take()
            for said in self._said(publishers, take_token_changes(self._caches), False):
                self._handle(said)
            self._handle(TimePassed(moment_now()))
            self._losing.publish(now_ns)
            wake_ns = self._wake_ns()
        if self._questions.history_error and not self._warned:
            self._warn()
        return wake_ns

    def _said(
        self, publishers: TokenChanges, caches: TokenChanges, looks_around: bool
    ) -> Iterator[Event]:
        """Yield what tokens say, and heartbeats where it is time to look at those, and at names."""
        if looks_around:
            self._look_ns = time.monotonic_ns() + _LOOK_NS
            self._losing.look()
        for key, alive in publishers:
            self._note_publisher(key, alive=alive)
            token = parse_publisher_token(key, self._domain)
            if token is None or not token.key_expr.intersects(self.key_expr):
                continue
            self._known_publishers.pop(key, None)
            if alive:
                self._known_publishers[key] = token
                while len(self._known_publishers) > self._publishers_max:
                    del self._known_publishers[next(iter(self._known_publishers))]
                self._losing.declared(token)
                listed = time.monotonic() < self._listed_until_seconds
                yield Declared(token.source, token.epoch, token.incarnation, moment_now(), listed)
            else:
                yield TokenGone(token.source, token.incarnation, moment_now())
        for key, alive in caches:
            if not self._may_answer(key):
                continue
            if alive and key not in self._known_caches:
                self._known_caches.add(key)
                strange, gone = self._meet(key)
                yield AnswererAppeared(moment_now(), strange, gone)
            elif not alive and key in self._known_caches:
                self._known_caches.remove(key)
                self._met_caches[key] = moment_now()
                if not self._known_caches:
                    yield AnswerersGone(moment_now())
        beats = take_heartbeats(self._heartbeats) if looks_around else ()
        for source, last, first, stored_as in beats:
            yield HeartbeatReceived(source, last, moment_now(), first, stored_as)

    def _meet(self, key: str) -> tuple[bool, Moment | None]:
        """Tell whether the token of a cache was never seen, as far as is known, or when it went."""
        strange, gone = key not in self._met_caches, self._met_caches.pop(key, None)
        self._met_caches[key] = None
        while len(self._met_caches) > _CACHES_MET_MAX:
            del self._met_caches[next(iter(self._met_caches))]
        return strange, gone

    def _publishers_now(self) -> Iterator[Event]:
        """Yield which publishers show their token now, for an engine that begins anew."""
        for _, token in sorted(self._known_publishers.items()):
            yield Declared(token.source, token.epoch, token.incarnation, moment_now())

    def _note_publisher(self, key: str, *, alive: bool) -> None:
        """See a publisher's token come or go; for who needs to know more than the engine does."""

    def _may_answer(self, key: str) -> bool:
        """Tell whether the token's cache stores what is subscribed to."""
        rest = key.removeprefix(own_key(self._domain, "history", "")).split("/", 2)
        try:
            return len(rest) == 3 and KeyExpression(rest[2]).intersects(self.key_expr)
        except ValueError:
            return False

    def _handle(self, event: Event) -> None:
        if isinstance(event, Received):
            ready = self._engine.take_next(event)
            if ready is not None:  # as nearly always
                self._pass_on(ready, Passed.FIRST, unsure=False)
                return
        self._do(self._engine.handle(event))

    def _do(self, outputs: Iterable[Output]) -> None:
        if self._engine.subjects.untold:
            self.subjects.tell()
        for output in outputs:
            match output:
                case Deliver(samples, unsure, passed):
                    self._pass_on(samples, passed, unsure=unsure)
                case Fetch() | AskHistory() | AskBeginning():
                    self._questions.ask(output)
                case Missed(source, epoch, first, last):
                    self._report(Miss(source, epoch, first, last))
                case _:
                    assert_never(output)
        self._history_complete = self._engine.history_complete

    def _pass_on(self, samples: Sequence[Sample], passed: Passed, *, unsure: bool) -> None:
        losses = self._engine.losses
        losses.passed_on(samples, passed)
        self._deliver(losses.after_misses(samples, unsure=unsure))

    def _deliver(self, samples: Sequence[Sample]) -> None:
        self._sink.deliver(samples)

    def _report(self, miss: Miss) -> None:
        _log.error(
            "samples missed",
            extra={"source": str(miss.source), "first": miss.first, "last": miss.last},
        )
        self._losing.missed(miss.source, miss.nb)
        for sink in tuple(self._miss_sinks):
            sink.deliver((miss,))

    def _warn(self) -> None:
        """Say once why history is not whole, when live samples go through without it."""
        if self._engine.history_complete:
            self._questions.history_error = ""
        elif not self._engine.reads_history:
            self._warned = True
            _log.warning(
                "history of %s is not complete: %s; it is asked for again every few seconds while "
                "a cache is in reach, and when a cache or a publisher appears",
                self.key_expr,
                self._questions.history_error,
            )

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Undeclare; what was delivered to a channel can still be taken. Idempotent.

        Threads that do not end in time, as in a callback that never returns, are named in the log.
        Raises the error of a thread that failed.
        """
        timeout_seconds = read_timeout(timeout_seconds)
        if not self._closing.acquire(blocking=False):  # for good: closed once, by one thread
            return
        self._stopped.set()
        self._receiver.receive_rest()
        undeclare(self._subscriber, self._publishers, self._caches, self._heartbeats)
        if self._shown is not None:
            undeclare(self._shown)
        self._questions.stop()
        for sink in (self._sink, *self._miss_sinks):
            sink.close()
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            if thread is not current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        left = self._left_behind()
        self._engine.subjects.unsubscribed(left)
        self._losing.close(left, moment_now())
        self.subjects.close()
        late = [thread.name for thread in self._threads if thread.is_alive()]
        if late and current_thread() not in self._threads:
            _log.warning("closing %s: %s did not end in time", self.key_expr, ", ".join(late))
        error, self._error = self._error, None
        if error is not None:
            raise error

    undeclare = close

    def _left_behind(self) -> list[Sample]:
        """Return the samples that came when nobody was there any more to take them."""
        left: list[Sample] = []
        while (event := self._mailbox.take()) is not None:
            if isinstance(event, Waited):
                left += event.received.samples
        return left
