"""A reliable pipe: a durable consumer at one end, frames for single caches at the other (ADR 0161).

The shell around `PipeEngine`. One thread of ours, `dc-pipe`, owns the engine: the consumer's thread
and Zenoh's put what comes into its queue and never wait. What may be in the queue is bounded by
what the consumer hands out unconfirmed, and by the frames that are under way. In the other modes
(ADR 0195) another subscriber has the consumer's place; where it confirms nothing, its thread waits
while as much is under way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from queue import Empty, SimpleQueue
from threading import Condition, current_thread
from typing import NamedTuple, assert_never

from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.closing import Closing
from durable_cache.endpoints.pipe.claiming import Claiming
from durable_cache.endpoints.pipe.explaining import Explaining
from durable_cache.endpoints.pipe.options import PipeOptions
from durable_cache.endpoints.pipe.processing import Processing
from durable_cache.endpoints.pipe.taking import take_from
from durable_cache.endpoints.publisher.in_reach import CachesInReach, resend
from durable_cache.endpoints.session import (
    Session,
    beat,
    close_at_exit,
    start_thread,
    take_token_changes,
    undeclare,
    watch_tokens_polled,
)
from durable_cache.errors import Closed, OutcomeUnknown, RemoteProtocolError
from durable_cache.model.arguments import read_timeout
from durable_cache.model.delivery import DeliveryRates
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.losses import LossRow
from durable_cache.protocol.pipe.engine import PipeEngine
from durable_cache.protocol.pipe.events import (
    Claim,
    Confirm,
    Event,
    GaveUp,
    Output,
    Taken,
    Withdraw,
)
from durable_cache.protocol.publisher.events import AckReceived, HandedOver, Resend, Tick
from durable_cache.protocol.resends import RefusalReason
from durable_cache.protocol.wire import decode_ack, tokens_about

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.05
"""How often tokens and positions are looked at, and what is due to be sent again."""
_BATCH = 1_000
"""How many of the things that come are taken at once; samples that come together are one."""
_Item = tuple[Sample, ...] | Event | Callable[[], None]
_JOIN_SECONDS_MAX = 5.0
_TOO_FEW = (
    "too few caches of the target network are in reach: is one running there that stores the key "
    "expression?"
)
_SHORT_SECONDS = 5.0
"""For so long too few caches are in reach before that is told: one may restart."""


class PipeStatus(NamedTuple):
    """How a pipe stands; counts are since it was declared."""

    taken: int
    """Samples that came out of the source network."""
    passed: int
    """Samples that as many caches of the target network hold as were wanted."""
    confirmed: int
    """Samples that were confirmed to the source network, those given up too; in a mode that
    confirms nothing there, that are held or given up."""
    given_up: int
    """Samples that a cache of the target network will never take; the log names each."""
    repeated: int
    """Samples that were sent to a cache again, which may have had them."""
    lost: int
    """Samples that were sent once, and that too few caches acknowledged: only in a mode that sends
    nothing again. They may be held all the same."""
    unnumbered: int
    """Samples without a number, as ordinary publications are: they are not carried."""
    missed: int
    """Samples that were lost before the pipe, and reported to it."""
    caches: int
    """Caches of the target network in reach that are served."""
    caches_left_out: int
    """Caches of the target network in reach beyond `caches_max`: no sample is sent to them."""
    failure: str
    """Why the pipe is not as far as it could be: too few caches in reach, one that did not take the
    last frame, positions that were not written, a consumer that is not known; empty where none."""
    rates: DeliveryRates
    """R and UR of the pipe: from what it took to what is held behind it."""
    route: DeliveryRates
    """R and UR from the publishers to the target network's caches."""

    @property
    def under_way(self) -> int:
        """Samples that were taken and are neither confirmed nor lost."""
        return self.taken - self.confirmed - self.lost

    @property
    def unprocessed(self) -> int:
        """Samples that enough caches hold and the consumer `processed_by` did not confirm yet."""
        return self.passed + self.given_up - self.confirmed


class ReliablePipe(Closing):
    """A running pipe; a context manager. Close it before its sessions. Any thread."""

    def __init__(
        self, source: Session, target: Session, key_expr: KeyExpression, options: PipeOptions
    ) -> None:
        self.key_expr = key_expr
        self.name = options.name
        self.mode = options.delivery
        """The delivery mode in force."""
        self._options = options
        self._target = target
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._engine = PipeEngine(options.engine_options())
        self._changed = Condition()
        self._settled = 0
        """How many of the samples that were taken are confirmed; `_changed` tells of it."""
        self._handed_out = 0
        self._unnumbered = 0
        self._says_left_out = self._says_lost = True
        self._short_since: float | None = None
        """Since when fewer caches are in reach than must hold a sample; None while enough are."""
        self._told_short = False
        self._closed = False
        self.error: BaseException | None = None
        """Why the pipe carries nothing any more; None while it does."""
        self._caches = CachesInReach(options.target_domain, key_expr, options.caches_max)
        self._tokens = watch_tokens_polled(
            target, tokens_about(options.target_domain, "history", key_expr)
        )
        self._processing: Processing | None = None
        self._explaining = Explaining(source, self._engine.has_carried, self._queue.put)
        self._claiming = Claiming(
            target, key_expr, options.target_domain, self._acknowledged, self._explaining.take
        )
        try:
            if options.processed_by is not None:
                self._processing = Processing(target, options.target_domain, options.processed_by)
            self._taking = take_from(source, key_expr, self._take, options)
        except BaseException:
            self._undeclare()
            raise
        self._thread = start_thread(self._run, "dc-pipe")
        close_at_exit(self, target)

    def status(self) -> PipeStatus:
        """Return how the pipe stands."""
        engine, subscriber = self._engine, self._taking.subscriber
        done = engine.passed + engine.given_up + engine.lost
        rates = DeliveryRates.measured(
            done, engine.passed + (engine.repeated if engine.passed else 0), engine.passed
        )
        rows = subscriber.losses
        before = reduce(LossRow.joined, rows).rates if rows else None
        return PipeStatus(
            engine.taken,
            engine.passed,
            engine.confirmed,
            engine.given_up,
            engine.repeated,
            engine.lost,
            self._unnumbered,
            subscriber.missed,
            engine.caches,
            self._caches.left_out,
            self._failure(),
            rates,
            DeliveryRates.over([rates] if before is None else [before, rates]),
        )

    @property
    def is_caught_up(self) -> bool:
        """Whether history was read, all of it is confirmed, and a cache of the target is there."""
        return (
            self._taking.subscriber.history_complete
            and self._settled == self._handed_out
            and self._engine.caches > 0
        )

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until all that the pipe took before this call is confirmed to the source network.

        Raises Closed, or OutcomeUnknown when the time is over: it goes on being carried.
        """
        timeout_seconds = read_timeout(timeout_seconds)
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._changed:
            target = self._handed_out
            self._changed.wait_for(lambda: self._closed or self._settled >= target, timeout_seconds)
            left = target - self._settled
        if self._closed:
            raise Closed(f"pipe {self.name!r} is closed")
        if left > 0:
            failure = self._failure()
            raise OutcomeUnknown(
                f"pipe {self.name!r}: {left} samples are not known to be held by "
                f"{self._options.acknowledgements} caches of the target network"
                + (f" ({failure})" if failure else "")
            )
        self._taking.flush(None if end is None else max(0.0, end - time.monotonic()))

    def _failure(self) -> str:
        """Return why the pipe is not as far as it could be, the first that holds; empty if none."""
        if self.error is not None:
            return f"the pipe failed: {self.error}"
        there, wanted = self._engine.caches, self._options.acknowledgements
        if there < wanted:
            return f"{_TOO_FEW} ({there} of {wanted})"
        processing = "" if self._processing is None else self._processing.failure
        return self._engine.last_failure or self._taking.failure or processing

    def _take(self, samples: Sequence[Sample]) -> None:
        """Take samples; on the consumer's thread."""
        numbered = [sample for sample in samples if not is_unnumbered(sample.source)]
        if len(numbered) < len(samples):
            if not self._unnumbered:
                _log.warning("samples without a number are not carried")
            self._unnumbered += len(samples) - len(numbered)
        while numbered:
            with self._changed:
                some = numbered
                if not self.mode.is_reliable:  # else the subscriber knows what is unconfirmed
                    self._changed.wait_for(self._has_room)
                    some = numbered[: max(1, self._room)]
                self._handed_out += len(some)
            self._queue.put(tuple(some))
            numbered = numbered[len(some) :]

    @property
    def _room(self) -> int:
        """How many samples more may be under way."""
        under_way = self._handed_out - self._settled
        return self._options.consumer_options.unconfirmed_max - under_way

    def _has_room(self) -> bool:
        """Tell whether less is under way than may be, or nothing is carried any more."""
        return self._room > 0 or self._closed or self.error is not None

    def _acknowledged(self, payload: bytes) -> None:
        """Take an acknowledgement; on Zenoh's thread."""
        try:
            self._queue.put(AckReceived(decode_ack(payload)))
        except RemoteProtocolError:
            return  # a damaged acknowledgement is no answer

    # The pipe's thread

    def _run(self) -> None:
        looked = 0.0
        try:
            while not self._closed:
                for event in _events(self._next()):
                    if callable(event):
                        event()
                    else:
                        self._do(self._engine.handle(event))
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    looked = time.monotonic()
                    self._look()
        except BaseException as error:  # a panic in Zenoh is no Exception
            if self._closed:
                return
            # What is under way stays unconfirmed: it comes again to whoever starts the pipe again.
            _log.exception("pipe %r failed", self.name)
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _next(self) -> list[_Item]:
        """Wait for something, then take what is there."""
        items: list[_Item] = []
        wait = True
        while len(items) < _BATCH:
            try:
                item = self._queue.get(wait, _LOOK_SECONDS)
            except Empty:
                break
            if item is None:
                break
            items.append(item)
            wait = False
        return items

    def _look(self) -> None:
        """See which caches are in reach, what was processed, and do what is due."""
        events: list[Event] = [*self._caches.changes(take_token_changes(self._tokens))]
        if self._processing is not None:
            events += self._processing.look(waiting=self._engine.passed > self._engine.confirmed)
        for event in (*events, Tick(moment_now())):
            self._do(self._engine.handle(event))
        self._tell_of_caches(time.monotonic())
        if self._engine.lost and self._says_lost:
            self._says_lost = False
            _log.warning(
                "samples were sent once and are not known to be held; the status counts them",
                extra={"pipe": self.name, "samples": self._engine.lost, "reason": self._failure()},
            )
        if self._caches.left_out and self._says_left_out:
            self._says_left_out = False
            _log.warning(
                "more caches are in reach than the pipe serves; raise caches_max",
                extra={"pipe": self.name, "caches_max": self._options.caches_max},
            )

    def _tell_of_caches(self, now: float) -> None:
        """Say once that too few caches are in reach, and once that enough are again."""
        there, wanted = self._engine.caches, self._options.acknowledgements
        about = {"pipe": self.name, "caches": there, "acknowledgements": wanted}
        if there >= wanted:
            if self._told_short:
                _log.warning("caches of the target network are in reach again", extra=about)
            self._short_since, self._told_short = None, False
        elif self._short_since is None:
            self._short_since = now
        elif not self._told_short and now - self._short_since >= _SHORT_SECONDS:
            self._told_short = True
            _log.warning(_TOO_FEW, extra=about)

    def _do(self, outputs: Iterable[Output]) -> None:
        domain, timeout = self._options.target_domain, self._options.answer_timeout_seconds
        for output in outputs:
            match output:
                case Claim(sample, attempt):
                    run = self._taking.run_of(sample)
                    claimed = self._claiming.claim(run, sample, attempt, moment_now())
                    self._do(self._engine.handle(claimed))
                case Withdraw(of, incarnation):
                    self._claiming.withdraw(of, incarnation)
                case Resend():
                    resend(self._target, domain, output, timeout, self._queue.put)
                case HandedOver(of, last_sn):
                    beat(self._target, str(self.key_expr), of, last_sn)
                case Confirm(samples):
                    self._confirm(samples)
                case GaveUp():
                    self._report(output)
                case _:
                    assert_never(output)

    def _confirm(self, samples: tuple[Sample, ...]) -> None:
        try:
            self._taking.confirm(samples)
        except Closed:
            return  # they come again
        with self._changed:
            self._settled += len(samples)
            self._changed.notify_all()

    def _report(self, gave_up: GaveUp) -> None:
        sample = gave_up.sample
        _log.error(
            "a cache of the target network will never take a sample",
            extra={
                "pipe": self.name,
                "key": sample.key,
                "source": str(sample.source),
                "sn": sample.sn,
                "cache": gave_up.cache_id,
                "reason": RefusalReason(gave_up.reason).name.lower(),
            },
        )

    def close(self) -> None:
        """Stop, write what is confirmed, undeclare; idempotent.

        What is under way comes again at the next start. Raises the error of a thread that failed.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._queue.put(None)
        if self._thread is not current_thread():
            self._thread.join(_JOIN_SECONDS_MAX)
        try:
            self._taking.subscriber.close()
        finally:
            self._undeclare()
        if self.error is not None:
            raise self.error

    def _undeclare(self) -> None:
        self._claiming.close()
        self._explaining.close()
        if self._processing is not None:
            self._processing.close()
        undeclare(self._tokens)


def _events(items: Iterable[_Item]) -> Iterator[Event | Callable[[], None]]:
    """Yield what came, in its order; samples that came together as one event."""
    samples: list[Sample] = []
    for item in items:
        if isinstance(item, tuple):
            samples += item
            continue
        if samples:
            yield Taken(tuple(samples), moment_now())
            samples = []
        yield item
    if samples:
        yield Taken(tuple(samples), moment_now())
