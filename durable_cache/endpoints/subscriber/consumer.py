"""A durable consumer: a subscriber that goes on where it stood before a crash (ADR 0152).

The thread that delivers hands samples out; in `auto` mode it confirms each whose handler returned,
in `manual` mode the program does, in any thread. *confirm* writes where the consumer stands, one
batch at a time: what changes meanwhile is in the next one. `_lock` guards the positions and is
never held while the program's code runs or anything is sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import Condition, RLock, Thread, current_thread

import msgspec

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import Session, ZError, start_thread, zid_of
from durable_cache.endpoints.subscriber.asked import (
    ConsumerName,
    Counts,
    KeptPosition,
    Rewind,
)
from durable_cache.endpoints.subscriber.channels import (
    Callback,
    Delivery,
    FifoChannel,
    confirmed_by,
)
from durable_cache.endpoints.subscriber.keeping import Keeping
from durable_cache.endpoints.subscriber.rewinding import RewindTo, check_target, points_of
from durable_cache.endpoints.subscriber.subscriber import (
    Miss,
    ReliableSubscriber,
    SubscriberOptions,
)
from durable_cache.errors import Closed, ConfigError, DurableCacheError, Fenced, OutcomeUnknown
from durable_cache.model.arguments import check_kind, check_text, read_timeout, refused
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId, by_run
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.consumers import (
    DeadLetter,
    Position,
    encode_position,
    fence_of_one_alone,
)
from durable_cache.protocol.losses import LossTable
from durable_cache.protocol.standings import encode_standings
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.positions import Positions, standings_of
from durable_cache.protocol.subscriber.resuming import ResumingEngine

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 0.5
"""The pause after a position could not be written."""
_LOOK_SECONDS = 0.05
"""How often delivery that waits for confirmations looks around."""
_WAITS_SECONDS = 5.0
"""How long delivery waits for confirmations before it says so."""


class ReliableConsumer(ReliableSubscriber):
    """A running durable consumer; a context manager, and iterable where it delivers to a channel.

    Everything that caches hold is delivered, then what is published; what was confirmed is not
    delivered again. What was handed out and not confirmed comes again after a crash, or a `close`.
    """

    _shares = False  # whether other members may have some sources

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        handler: object,
        options: SubscriberOptions,
        name: ConsumerName,
    ) -> None:
        self.consumer = name.consumer
        self._by_itself = name.confirm == "auto"
        self._bounds = name.options
        self._lock = RLock()  # a signal's handler may close within a call of its own thread
        self._changed = Condition(self._lock)
        self._called: Callback[Sample] | None = None
        """What is called for each sample in `auto` mode."""
        self._ending = self._ended = self._told_full = False
        self._writing = self._hurried = self._waits_for_room = False
        self._rewind: Rewind | None = None
        """What the thread that delivers is to begin anew from."""
        self._before = Counts()
        """What the engines before a rewind counted."""
        self._fenced: Fenced | None = None
        """Why caches take no position of ours any more."""
        self._lost: Fenced | None = None
        """Why what was confirmed counts no more, until somebody who waits for it is told."""
        self._told = False  # that all that is confirmed counts no more
        self._lapses = 0
        """How often everything was given up, for others took this one for dead."""
        self._dead_letters = 0
        self._batches = 0
        """How many batches of positions caches hold."""
        self.confirm_error = ""
        """Why positions could not be written the last time; empty where they were."""
        self._asking = Asking(
            session,
            zid_of(session),
            timeout_seconds=options.query_timeout_seconds,
            payload_bytes_max=options.payload_bytes_max,
        )
        self._keeping = Keeping(
            session,
            options.domain,
            name.consumer,
            key_expr,
            name.options,
            options.query_timeout_seconds,
        )
        found = [] if name.options.shared else self._keeping.positions
        self._positions = Positions(str(key_expr), found, runs_max=name.options.runs_max)
        self._positions.fence = fence_of_one_alone(found)
        self._positions.put_back(self._keeping.unwritten)
        self._delivery = options.delivery
        self._resuming = ResumingEngine(options.delivery, found)
        try:
            super().__init__(session, key_expr, handler, options)
        except BaseException:
            self._keeping.close()
            raise
        self._writer: Thread = start_thread(self._run_confirm, "dc-subscriber-confirm")

    def _make_engine(self, options: SubscriberOptions) -> SubscriberEngine:
        return self._resuming

    def _open(self, handler: object) -> tuple[Delivery[Sample], object]:
        sink, given = super()._open(handler)
        self._called = confirmed_by(sink, by_itself=self._by_itself)
        return sink, given

    def _loss_table(self) -> LossTable:
        return msgspec.structs.replace(super()._loss_table(), consumer=self.consumer)

    @property
    def unconfirmed(self) -> int:
        """How many samples were handed out and are not confirmed."""
        return self._positions.in_hand

    @property
    def dead_letters(self) -> int:
        """How many samples went to the dead letters since the consumer was declared."""
        return self._dead_letters

    def confirm(self, *samples: Sample) -> None:
        """Say that samples are processed: they are not delivered again, once caches hold that.

        Samples are confirmed as they were received, in any order; confirming twice changes nothing.
        Samples without a number have no position: caches give them again at every start. `flush`
        waits until caches hold it. Raises Closed, LocalProtocolError for what was not delivered
        here, ConfigError where each handler that returns confirms by itself.
        """
        if self._by_itself:
            raise ConfigError('confirm="auto" confirms by itself: choose confirm="manual"')
        for sample in samples:
            if not isinstance(sample, Sample):
                raise refused("sample", sample, "a sample of this subscriber")
        with self._changed:
            if self._ending:
                raise Closed(f"consumer {self.consumer!r} is closed")
            written, self._told = not self._positions.changed, False
            try:
                self._positions.confirm(*samples)
            finally:  # one that is refused leaves those before it confirmed
                if written or self._waits_for_room:
                    self._changed.notify_all()

    def position(self, sample: Sample) -> KeptPosition:
        """Return where the sample's run stands once the sample is confirmed, to be kept elsewhere.

        A program that stores it in the transaction that holds the sample's effect, and gives all
        that it stored to `ConsumerOptions.positions` at its next start, processes each sample once.
        Of one run, confirm a sample before the position of the next one is asked for. Raises
        LocalProtocolError for what was not delivered here, and for a sample without a number.
        """
        check_kind("sample", sample, Sample, "a sample of this subscriber")
        with self._lock:
            position = self._positions.standing_with(sample)
        run = position.incarnation or str(position.epoch)
        return KeptPosition(f"{position.source}/{run}", encode_position(position))

    def reject(self, sample: Sample, reason: str, *, timeout_seconds: float | None = None) -> None:
        """Give up processing a sample: it goes to the dead letters, then counts as confirmed.

        Returns once caches hold the letter; a sample that is confirmed already stays as it is.
        Raises OutcomeUnknown where caches do not acknowledge in time, and the sample stays open: it
        may be rejected again. Otherwise raises what `confirm` raises.
        """
        check_kind("sample", sample, Sample, "a sample of this subscriber")
        check_text("reason", reason)
        timeout_seconds = read_timeout(timeout_seconds)
        if self._by_itself:
            raise ConfigError('confirm="auto" rejects after attempts_max: choose confirm="manual"')
        with self._lock:
            if not self._positions.is_open(sample):
                return
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        letter = DeadLetter(reason, 1, sample)
        if not self._bury(
            letter, lambda: not self._ended and (end is None or time.monotonic() < end)
        ):
            raise OutcomeUnknown(
                f"the dead letter of sample {sample.sn} of {sample.source} is not known to be held"
            )
        self.confirm(sample)

    def rewind(
        self,
        to: RewindTo = None,
        *,
        source: SourceId | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Deliver again what was confirmed, from `to` on and in order, then go on.

        `to` is a sample; a number, of `source` where more than one was delivered; a time, with its
        zone, for all sources; or None for all that caches keep. It is in force, and what waited to
        be received is dropped, once this returns; caches hold it then. Called by the handler, it is
        in force when the handler returns. What was received before cannot be confirmed any more.

        Raises ConfigError where caches no longer keep the number, or it was not reached;
        StorageUnavailable, to be tried again, where they do not answer; OutcomeUnknown where they
        do not acknowledge in time, and delivery goes on from there all the same; Fenced where a
        source went to another member meanwhile, and nothing was rewound; Closed.
        """
        check_target(to, source)
        timeout_seconds = read_timeout(timeout_seconds)
        with self._changed:
            known = self._positions.all()
            if isinstance(to, Sample):
                epoch = self._positions.epoch_of(to)
                to = to if epoch is None else msgspec.structs.replace(to, epoch=epoch)
        wanted = Rewind(points_of(self._asking, self.key_expr, known, to, source))
        by_handler = current_thread() in self._threads
        with self._changed:
            if not by_handler:
                self._changed.wait_for(lambda: self._rewind is None or self._ending)
            if self._ending:
                raise Closed(f"consumer {self.consumer!r} is closed")
            self._rewind = wanted
            self._changed.notify_all()
        if by_handler:
            return
        wanted.wait(timeout_seconds, self.consumer, self._may_wait)
        self._await_written(timeout_seconds)
        if self._lapses != wanted.lapses:
            raise Fenced(
                f"consumer {self.consumer!r}: others took this member for dead before caches held "
                "the rewind; rewind again"
            )

    def _may_wait(self) -> bool:
        """Empty the channel that delivery may stand before; tell whether a rewind may come."""
        self._discard()
        return not self._stopped.is_set()

    def _discard(self) -> None:
        """Drop what is delivered and not received, and what is on its way there."""
        if isinstance(self._sink, FifoChannel):
            self._sink.discard()

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until caches hold every confirmation made before this call.

        Raises Closed, or OutcomeUnknown when the time is over: they may be held all the same.
        Raises Fenced where another member has a source by now: what is confirmed counts no more.
        """
        self._await_written(read_timeout(timeout_seconds))
        with self._changed:
            lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def _await_written(self, timeout_seconds: float | None) -> None:
        """Wait until caches hold what is confirmed; raises what `flush` does."""
        with self._changed:
            lapses = self._lapses
            target = self._batches + (self._positions.changed > 0) + self._writing
            self._hurried = self._positions.changed > 0
            self._changed.notify_all()
            held = self._changed.wait_for(
                lambda: (
                    self._batches >= target or self._ended or self._fenced or self._lapses != lapses
                ),
                timeout_seconds,
            )
            if self._lapses != lapses and self._lost is not None:
                lost, self._lost = self._lost, None
                raise lost
            if self._batches >= target:
                return
            if self._fenced is not None:
                self._told = not self._by_itself  # a handler that returns goes on confirming
                raise self._fenced
        if held:
            raise Closed(f"consumer {self.consumer!r} is closed")
        raise OutcomeUnknown(
            f"the positions of consumer {self.consumer!r} are not known to be held by "
            f"{self._bounds.acknowledgements} caches; they may be all the same"
            + (f" ({self.confirm_error})" if self.confirm_error else "")
        )

    @property
    def delivered(self) -> int:
        return self._before.delivered + super().delivered

    @property
    def missed(self) -> int:
        """How many samples were given up and reported."""
        return self._before.missed + super().missed

    @property
    def duplicates(self) -> int:
        """How many repeats were dropped."""
        return self._before.duplicates + super().duplicates

    # The thread that delivers

    @property
    def _halts(self) -> bool:
        """Whether nothing more is to be handed out as it stands."""
        return self._ending or self._rewind is not None

    def _turn(self) -> None:
        """Begin anew where a rewind was asked for."""
        with self._changed:
            wanted = self._rewind
            if wanted is None or self._ending:
                return
            before, wanted.lapses = self._positions.all(), self._lapses
            try:
                stands = self._positions.rewind(wanted.points, shared=self._shares)
                self._rewound(before, stands)
            except Fenced as error:
                wanted.refused = error
                _log.warning("consumer %r: %s", self.consumer, error)
                stands = self._positions.rewind({})  # what was held back meanwhile comes again
            self._resume(stands)
            self._discard()
            self._rewind = None
            self._changed.notify_all()
        wanted.done.set()
        self._begin_anew()

    def _rewound(self, before: Sequence[Position], stands: Sequence[Position]) -> None:
        """A rewind is in force, and this is where all runs stood and stand; under the lock."""

    def _resume(self, known: Sequence[Position]) -> None:
        """Put an engine that stands there in the place of the one before; under the lock."""
        self._before = Counts(self.delivered, self.missed, self.duplicates)
        self._resuming = ResumingEngine(self._delivery, known, earlier=self._resuming)
        self._engine = self._resuming

    def _begin_anew(self) -> None:
        self._met_caches.clear()  # this engine asked none of those that are out of reach
        self._begin()
        for event in self._publishers_now():
            self._handle(event)

    def _between(self) -> None:
        """Look around between two samples, and while delivery waits; for who shares."""

    def _admitted(self, samples: Sequence[Sample]) -> Iterable[Sample]:
        """Yield those that are handled here, each when its handler is to be called."""
        return samples

    def _of(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """Return those that are handed out here."""
        return samples

    def _standing(self) -> Sequence[Position]:
        """Return where all stand that history is read behind; under the lock."""
        return self._positions.all()

    def _before_history(self) -> None:
        """Ask from when on caches hold something behind the positions."""
        with self._lock:
            standings = standings_of(self._standing())
        if not standings or not self._resuming.may_begin_later:
            return
        with suppress(DurableCacheError, ZError):  # history tells, read from its beginning
            question = encode_standings(standings)
            self._resuming.begin_at(*self._asking.behind(str(self.key_expr), question))

    def _deliver(self, samples: Sequence[Sample]) -> None:
        with self._changed:
            runs = by_run(samples)
            for source, epoch in runs:
                self._learn(source, epoch)
            if self._by_itself:
                samples = self._positions.unconfirmed(samples, runs)
        if self._by_itself:
            self._handle_each(samples)
        else:
            self._hand_out(samples)

    def _learn(self, source: SourceId, epoch: int) -> None:
        if not is_unnumbered(source):
            self._positions.call(source, epoch, self._resuming.run_of(source, epoch))

    def _handle_each(self, samples: Sequence[Sample]) -> None:
        """Call the handler for each; what it is not done with stays unconfirmed."""
        positions, called = self._positions, self._called
        if called is None:
            return
        if self._halts:
            return
        for sample, returned in called.each(self._admitted(samples)):
            if returned or (self._is_done(called, sample) and self._of((sample,))):
                if positions.handled(sample):
                    with self._changed:
                        positions.join_many()
                        self._changed.notify_all()
            else:
                with self._changed:
                    positions.hand_out(*self._of((sample,)))
                    self._changed.notify_all()
                self._await_room()
            if self._ending or self._rewind is not None:  # `_halts`, for every sample
                return

    def _is_done(self, called: Callback[Sample], sample: Sample) -> bool:
        """Call the handler that raised again and again; then see to a dead letter."""
        attempts = 1
        while True:
            if self._bounds.attempts_max is None:
                return False
            if attempts >= self._bounds.attempts_max:
                return self._is_buried(DeadLetter(called.last_error, attempts, sample))
            self._pause(self._bounds.attempt_seconds)
            if self._halts:
                return False
            outcomes = [returned for _, returned in called.each(self._admitted((sample,)))]
            if all(outcomes):
                return bool(outcomes)  # none where the sample is another member's by now
            attempts += 1

    def _pause(self, seconds: float) -> None:
        """Wait before a handler is called again; handovers go on meanwhile."""
        end = time.monotonic() + seconds
        while not self._halts and (left := end - time.monotonic()) > 0:
            self._between()
            with self._changed:
                self._changed.wait_for(lambda: self._halts, min(left, _LOOK_SECONDS))

    def _is_buried(self, letter: DeadLetter) -> bool:
        """Write a dead letter until caches hold it; False where delivery ends before."""
        told = False

        def may_wait() -> bool:
            self._between()
            return not self._halts and bool(self._of((letter.sample,)))

        while may_wait():
            try:
                if self._bury(letter, may_wait):
                    return True
            except (DurableCacheError, ZError) as error:
                if not told:
                    about = {"consumer": self.consumer, "reason": str(error)}
                    _log.warning("delivery waits: a dead letter could not be written", extra=about)
                told = True
                self._pause(_RETRY_SECONDS)
        return False

    def _bury(self, letter: DeadLetter, may_wait: Callable[[], bool]) -> bool:
        if not self._keeping.bury(letter, may_wait):
            return False
        with self._lock:
            self._dead_letters += 1
        sample = letter.sample
        about = {"consumer": self.consumer, "source": str(sample.source), "sn": sample.sn}
        _log.error("a sample went to the dead letters", extra={**about, "reason": letter.reason})
        return True

    def _hand_out(self, samples: Sequence[Sample]) -> None:
        at = 0
        while at < len(samples):
            self._await_room()
            with self._changed:
                if self._halts:
                    return
                room = self._bounds.unconfirmed_max - self._positions.in_hand
                fresh = self._positions.hand_out(*self._of(samples[at : at + room]))
                at += room
                self._changed.notify_all()
            self._sink.deliver(fresh)

    def _await_room(self) -> None:
        """Wait until less is unconfirmed than may be."""

        def has_room() -> bool:
            return self._halts or self._positions.in_hand < self._bounds.unconfirmed_max

        began = time.monotonic()
        while True:
            self._between()
            with self._changed:
                self._waits_for_room = not has_room()
                if self._changed.wait_for(has_room, _LOOK_SECONDS):
                    self._waits_for_room = self._told_full = False
                    return
            if not self._told_full and time.monotonic() - began >= _WAITS_SECONDS:
                self._told_full = True
                about = {"consumer": self.consumer, "samples": self._positions.in_hand}
                _log.warning("delivery waits: too many samples are not confirmed", extra=about)

    def _report(self, miss: Miss) -> None:
        """Report what was not confirmed in an earlier life; the position passes over it."""
        with self._changed:
            if self._halts:  # what comes before was perhaps not handed out
                return
            self._learn(miss.source, miss.epoch)
            lost = self._positions.pass_over(*miss)
            self._changed.notify_all()
        for first, last in lost:
            super()._report(miss._replace(first=first, last=last))

    # The confirm thread

    def _run_confirm(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._positions.changed or self._ended)
                if self._ended:
                    return
                batch = self._positions.take()
                self._writing, self._hurried = True, False
            written = False
            try:
                written = self._keeping.write(batch, lambda: not self._ended)
                self.confirm_error, self._fenced = "", None
            except (DurableCacheError, ZError) as error:
                if not self.confirm_error:
                    about = {"consumer": self.consumer, "reason": str(error)}
                    _log.warning("positions could not be written; tried again", extra=about)
                self.confirm_error = str(error)
                self._fenced = error if isinstance(error, Fenced) else None
            pause = self._bounds.confirm_seconds if written else _RETRY_SECONDS
            with self._changed:
                self._writing = False
                if written:
                    self._batches += 1
                else:
                    self._positions.put_back(batch)
                self._changed.notify_all()
                self._changed.wait_for(self._may_go_on, pause)

    def _may_go_on(self) -> bool:
        return self._ended or (self._hurried and not self.confirm_error)

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Stop delivery, write what is confirmed, undeclare; idempotent.

        What is not written when the time is over comes again at the next start: the log says so.
        Raises the error of a thread that failed.
        """
        timeout_seconds = read_timeout(timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            if self._ending:  # once: where the session was closed, our own thread closes, too
                return
            self._ending = True
            self._changed.notify_all()
        try:
            super().close(timeout_seconds)
        finally:
            self._finish(max(0.1, deadline - time.monotonic()))

    undeclare = close

    def _finish(self, timeout_seconds: float) -> None:
        try:
            self.flush(timeout_seconds)
        except (OutcomeUnknown, Fenced) as error:
            _log.warning("what was confirmed last may be delivered again: %s", error)
        except Closed:
            return
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            if self._writer is not current_thread():
                self._writer.join(timeout_seconds)
            self._keeping.close()
