"""A subscriber that gets every sample once, in its source's order, or is told what it missed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Any, NamedTuple, Self, assert_never

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.channels import Callback, Channel, Sink, sink_of
from durable_cache.endpoints.options import parse_key_expr
from durable_cache.endpoints.session import (
    NO_SOURCE,
    Decoder,
    Origins,
    Session,
    ZError,
    close_at_exit,
    declare_subscriber,
    receive,
    start_thread,
    undeclare,
    watch_tokens,
    zid_of,
)
from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.delivery import Delivery
from durable_cache.protocol.requests import Deliver, DeliveryOptions, Missed, Output, Request
from durable_cache.protocol.wire import own_key, parse_publisher_token

__all__ = ["Miss", "MissListener", "ReliableSubscriber", "declare_reliable_subscriber"]

_log = logging.getLogger(__name__)
_HISTORY_RETRY_SECONDS = 0.1
"""The first pause before history is asked for again; doubles up to a second."""


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


class MissListener:
    """What `sample_miss_listener` returns: where misses are received from, until `undeclare`."""

    def __init__(
        self, sink: Sink[Miss], handler: object, forget: Callable[[Sink[Miss]], None]
    ) -> None:
        self._sink, self.handler, self._forget = sink, handler, forget

    def recv(self, timeout_seconds: float | None = None) -> Miss:
        """Wait for the next miss; raises Closed, or TimeoutError when time is over."""
        return self._channel().recv(timeout_seconds)

    def try_recv(self) -> Miss | None:
        """Return the next miss if there is one."""
        return self._channel().try_recv()

    def __iter__(self) -> Iterator[Miss]:
        return iter(self._channel())

    def undeclare(self) -> None:
        """Tell of no further misses; idempotent."""
        with suppress(ValueError):
            self._forget(self._sink)
        self._sink.close()

    def _channel(self) -> Channel[Miss]:
        if isinstance(self._sink, Callback):
            raise ConfigError("this listener is told through a callback")
        return self._sink


class _Received(NamedTuple):
    samples: list[Sample]


class _Declared(NamedTuple):
    source: SourceId
    epoch: int


class _Answered(NamedTuple):
    request_id: int
    samples: list[Sample]


class _Ended(NamedTuple):
    request_id: int
    more: bool


class _History(NamedTuple):
    samples: list[Sample]


_Work = _Received | _Declared | _Answered | _Ended | _History


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
    history_samples_max: int = 1_000_000
    """Samples of the historical query, held until it is over: about 1 GB of small ones."""
    history_timeout_seconds: float = 10.0
    """How long live samples wait for history that nobody answers whole: a link comes up and a
    cache restarts within seconds."""


class ReliableSubscriber:
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
        self._sink, self._handler = sink_of(handler, Sample)
        self._session = session
        self.key_expr = key_expr
        self._domain = domain
        self._miss_sinks: list[Sink[Miss]] = []
        self._delivery = Delivery(options.delivery, awaiting_history=history is not None)
        own_zid = zid_of(session)
        self._decoder = Decoder(own_zid, options.payload_bytes_max)
        self._asking = Asking(session, own_zid, timeout_seconds=options.query_timeout_seconds)
        self._work: Queue[_Work] = Queue(maxsize=256)
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._overrun_seconds = options.overrun_seconds
        self._history_samples_max = options.history_samples_max
        self._history_timeout_seconds = options.history_timeout_seconds
        self.history_complete = history is None
        """Whether somebody answered the question for history whole; True where none was asked."""
        self.history_cut = False
        """Whether caches hold more history than `history_samples_max`; the rest was not asked for.

        What follows of a source that was reached is recovered as a gap with its next sample.
        """
        self._stopped = Event()
        self._threads: list[Thread] = []
        self._tokens = watch_tokens(session, own_key(domain, "pub", "**"), self._token_changed)
        self._subscriber = declare_subscriber(
            session, str(key_expr), Origins.ANY, options.channel_samples
        )
        self._spawn("deliver", self._run)
        self._spawn("receive", self._run_receive)
        for at in range(2):
            self._spawn(f"recover-{at}", self._run_requests)
        if history is not None:
            self._spawn("history", lambda: self._run_history(history))
        close_at_exit(self, session)

    @property
    def missed(self) -> int:
        """How many samples were given up and reported."""
        return self._delivery.missed

    @property
    def delivered(self) -> int:
        return self._delivery.delivered

    @property
    def duplicates(self) -> int:
        """How many repeats were dropped."""
        return self._delivery.duplicates

    @property
    def gaps_open(self) -> int:
        """How many sources wait for something missing."""
        return self._delivery.gaps_open

    @property
    def callback_errors(self) -> int:
        """How often a callback or a miss listener raised; delivery went on each time."""
        sinks = (self._sink, *self._miss_sinks)
        return sum(sink.errors for sink in sinks if isinstance(sink, Callback))

    @property
    def handler(self) -> Any:
        """What samples are received from, or the handler of ``(callback, handler)``."""
        return self._handler

    def recv(self, timeout_seconds: float | None = None) -> Sample:
        """Wait for the next sample; raises Closed, or TimeoutError when time is over."""
        return self._channel().recv(timeout_seconds)

    def try_recv(self) -> Sample | None:
        """Return the next sample if there is one."""
        return self._channel().try_recv()

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._channel())

    def _channel(self) -> Channel[Sample]:
        if isinstance(self._sink, Callback):
            raise ConfigError("this subscriber delivers to a callback")
        return self._sink

    def sample_miss_listener(self, handler: object = None) -> MissListener:
        """Tell `handler` of every loss, before what follows it is delivered.

        Takes what a subscriber takes; misses are received from the returned listener where it is
        a channel. Raises ConfigError at once for what cannot be told.
        """
        sink, given = sink_of(handler, Miss)
        self._miss_sinks.append(sink)
        return MissListener(sink, given, self._miss_sinks.remove)

    declare_sample_miss_listener = sample_miss_listener

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        self._threads.append(start_thread(run, f"subscriber-{name}"))

    def _run_receive(self) -> None:
        overrun: dict[SourceId, Sample] = {}
        while taken := receive(self._subscriber, 2000):
            samples = self._decoder.decode(taken, time.time_ns(), keep_plain=True)
            if overrun:
                samples = [*overrun.values(), *samples]
            try:
                self._work.put(_Received(samples), timeout=self._overrun_seconds)
            except Full:
                # The last of each source stays: it shows the gap that caches will fill.
                overrun = {sample.source: sample for sample in samples}
            else:
                overrun = {}

    def _token_changed(self, key: str, alive: bool) -> None:
        token = parse_publisher_token(key, self._domain)
        if alive and token is not None and token.key_expr.intersects(self.key_expr):
            self._tell(_Declared(token.source, token.epoch))

    def _tell(self, work: _Work) -> None:
        while not self._stopped.is_set():
            try:
                self._work.put(work, timeout=0.2)
            except Full:
                continue  # the engine is behind: look again whether it stopped
            return

    def _run(self) -> None:
        while not self._stopped.is_set():
            wake = self._delivery.wake_ns()
            pause = 0.5
            if wake is not None:
                pause = min(pause, max(0.0005, (wake - time.monotonic_ns()) / 1e9))
            try:
                work = self._work.get(timeout=pause)
            except Empty:
                work = None
            now_ns = time.monotonic_ns()
            if work is not None:
                self._do(self._handle(work, now_ns))
            if (wake := self._delivery.wake_ns()) is not None and wake <= now_ns:
                self._do(self._delivery.tick(now_ns))

    def _handle(self, work: _Work, now_ns: int) -> list[Output]:
        match work:
            case _Received(samples):
                plain = [sample for sample in samples if sample.source == NO_SOURCE]
                if plain:
                    self._sink.deliver(plain)
                    samples = [sample for sample in samples if sample.source != NO_SOURCE]
                return self._delivery.live(samples, now_ns, time.time_ns())
            case _Declared(source, epoch):
                return self._delivery.declared(source, epoch)
            case _Answered(request_id, samples):
                return self._delivery.recovered(request_id, samples, now_ns)
            case _Ended(request_id, more):
                return self._delivery.ended(request_id, more, now_ns)
            case _History(samples):
                return self._delivery.history(samples, now_ns, time.time_ns())
            case _:
                assert_never(work)

    def _do(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            match output:
                case Deliver(samples):
                    self._sink.deliver(samples)
                case Request():
                    self._requests.put(output)
                case Missed(source, epoch, first, last):
                    self._report(Miss(source, epoch, first, last))
                case _:
                    assert_never(output)

    def _report(self, miss: Miss) -> None:
        _log.error(
            "samples missed",
            extra={"source": str(miss.source), "first": miss.first, "last": miss.last},
        )
        for sink in tuple(self._miss_sinks):
            sink.deliver((miss,))

    def _run_requests(self) -> None:
        while (request := self._requests.get()) is not None:
            more = False
            try:
                more = self._request(request)
            except (DurableCacheError, ZError):
                _log.debug("a request for missing samples failed", exc_info=True)
            self._tell(_Ended(request.request_id, more))

    def _request(self, request: Request) -> bool:
        last = "" if request.last is None else str(request.last)
        parameters = f"_sn={request.first}..{last}"
        key_expr = str(self.key_expr)
        gathered = self._asking.caches(key_expr, str(request.source), parameters)
        wanted = None if request.last is None else request.last - request.first + 1
        samples = list(gathered.samples.values())
        if wanted is None or len(samples) < wanted:
            native = self._asking.publisher(key_expr, request.source, parameters).native
            samples += native
        self._tell(_Answered(request.request_id, samples))
        return gathered.cut_after is not None

    def _run_history(self, parameters: str) -> None:
        """Ask for history until somebody answered it whole, or `history_timeout_seconds` are over.

        An answer with an error, one cut off half-way and none at all are asked for again, from
        where the last whole page ended.
        """
        samples: list[Sample] = []
        after: Sample | None = None
        deadline = time.monotonic() + self._history_timeout_seconds
        pause_seconds = _HISTORY_RETRY_SECONDS
        while not self._stopped.is_set():
            try:
                page = self._asking.caches(str(self.key_expr), "*", parameters, after)
            except DurableCacheError:
                _log.debug("the historical query failed", exc_info=True)
                page = None
            if page is not None and page.whole:
                samples += page.ordered()
                pause_seconds = _HISTORY_RETRY_SECONDS
                if len(samples) > self._history_samples_max:
                    self._cut_history(samples)
                    break
                self.history_complete = page.cut_after is None
                if self.history_complete or page.cut_after == after:
                    break
                after = page.cut_after
            elif time.monotonic() + pause_seconds > deadline:
                samples += page.ordered() if page is not None else []
                reasons = "nobody answered" if page is None or not page.errors else page.errors[0]
                _log.warning("history of %s is not complete: %s", self.key_expr, reasons)
                break
            else:
                self._stopped.wait(pause_seconds)
                pause_seconds = min(2 * pause_seconds, 1.0)
        self._tell(_History(samples))

    def _cut_history(self, samples: list[Sample]) -> None:
        """Keep the bound and say so: the caller asked for all."""
        del samples[self._history_samples_max :]
        self.history_cut = True
        _log.error(
            "history of %s is cut after history_samples_max = %d samples; "
            "ask for less (history=N), or read it with `durable-cache replay`",
            self.key_expr,
            self._history_samples_max,
        )

    def close(self) -> None:
        """Undeclare; what was delivered to a channel can still be taken. Idempotent."""
        if self._stopped.is_set():
            return
        undeclare(self._subscriber)
        undeclare(self._tokens)
        self._stopped.set()
        for _ in range(2):
            self._requests.put(None)
        for sink in (self._sink, *self._miss_sinks):
            sink.close()
        for thread in self._threads:
            thread.join(timeout=1.0)

    undeclare = close

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def declare_reliable_subscriber(  # noqa: PLR0913  # one call, as zenoh.ext has it
    session: Session,
    key_expr: str,
    handler: object = None,
    *,
    history: bool | int = False,
    recovery: bool = True,
    periodic_queries: float | None = None,
    gap_timeout_seconds: float = 30.0,
    query_timeout_seconds: float = 5.0,
    domain: str = "default",
    channel_samples: int = 100_000,
    payload_bytes_max: int = 64 << 20,
    history_samples_max: int = 1_000_000,
    history_timeout_seconds: float = 10.0,
    options: DeliveryOptions | None = None,
) -> ReliableSubscriber:
    """Declare a subscriber that recovers what it misses (RFC, "The ReliableSubscriber").

    `handler` is a callable, a FifoChannel or RingChannel, or None for a FIFO to receive from.
    `history` True asks for all that caches hold first, a number for so many samples per key; at
    most `history_samples_max`, and `history_cut` tells when that was not all.
    `periodic_queries` is the period in seconds in which missed tails are asked for. `options` sets
    everything else and is overridden by the named arguments. Raises ConfigError on a bad argument.
    """
    parsed = parse_key_expr(key_expr)
    if periodic_queries is not None and periodic_queries <= 0:
        raise ConfigError("periodic_queries is a number of seconds above 0")
    if history_samples_max < 1:
        raise ConfigError("history_samples_max begins at 1")
    chosen = options or DeliveryOptions(
        recovery=recovery,
        periodic_queries_seconds=periodic_queries,
        gap_timeout_seconds=gap_timeout_seconds,
    )
    asked = None if history is False else "" if history is True else f"_max={history}"
    return ReliableSubscriber(
        session,
        parsed,
        handler,
        SubscriberOptions(
            asked,
            chosen,
            domain,
            query_timeout_seconds,
            channel_samples,
            payload_bytes_max,
            history_samples_max=history_samples_max,
            history_timeout_seconds=history_timeout_seconds,
        ),
    )
