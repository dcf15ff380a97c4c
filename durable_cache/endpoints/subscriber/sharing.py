"""A durable consumer that shares its sources with other members of its name (ADR 0156).

All of it runs where samples are delivered, between two of them. What a member loses it stops at
once; what is in hand of it may still be confirmed for `handover_seconds`; then positions are
written, and the member's token says so. What a member gains it begins as after a rewind: with
positions that are read anew, a fence above all that were, and an engine that reads history behind
them. What was in hand before stays in hand.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.session import Session, ZError
from durable_cache.endpoints.subscriber.asked import ConsumerName, KeptPosition
from durable_cache.endpoints.subscriber.channels import FifoChannel
from durable_cache.endpoints.subscriber.consumer import ReliableConsumer
from durable_cache.endpoints.subscriber.mailbox import NEVER_NS
from durable_cache.endpoints.subscriber.membership import Membership
from durable_cache.endpoints.subscriber.subscriber import Miss, SubscriberOptions
from durable_cache.errors import (
    Closed,
    DurableCacheError,
    Fenced,
    LocalProtocolError,
    OutcomeUnknown,
)
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import Position, next_fence
from durable_cache.protocol.losses import LossTable
from durable_cache.protocol.members import Sharing
from durable_cache.protocol.subscriber.events import (
    Answer,
    Declared,
    Event,
    Fetched,
    HeartbeatReceived,
    HistoryPage,
    Received,
    TokenGone,
)
from durable_cache.protocol.takeovers import Takeovers, Twice

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.02
"""How often tokens of members are looked at between two samples."""
_RETRY_SECONDS = 0.5
"""The pause after positions could not be read or written."""
_FLUSH_SECONDS = 2.0
"""How long caches are waited for before delivery of what stays goes on meanwhile."""


class SharingConsumer(ReliableConsumer):
    """One member of a consumer; as a ReliableConsumer, of the sources that are its own."""

    _shares = True

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        handler: object,
        options: SubscriberOptions,
        name: ConsumerName,
    ) -> None:
        self._begun = self._told_error = False
        self._look_seconds = self._retry_seconds = self._stop_seconds = 0.0
        """When to look at tokens, when to try again, and when what is lost is in hand no more."""
        self._refused = 0
        """How often in a row caches refused the positions with which sources were to be begun."""
        self._withdrawn = 0
        """Samples of what is lost that were taken back from the channel."""
        self._elsewhere: list[Position] = []
        """Where others stood when positions were read last."""
        self._last: dict[SourceId, Sample] = {}
        """What came last of each source: who gains it knows that caches will have so much."""
        self._last_max = options.delivery.sources_max
        self._takeovers = Takeovers()
        self.processed_twice = 0
        """Numbers confirmed here of sources whose owner was taken for dead, and was not."""
        self._query_seconds = options.query_timeout_seconds
        super().__init__(session, key_expr, handler, options, name)

    @property
    def member(self) -> SourceId:
        """By what the others know this one: the source of the publisher of its positions."""
        return self._membership.own

    @property
    def members(self) -> tuple[SourceId, ...]:
        """The members that are known to live, this one among them, by their publishers' sources."""
        return tuple(sorted(self._membership.sharing.members))

    @property
    def agreed(self) -> bool:
        """Whether all members act by the same set of them, and this one began what is its own."""
        return self._membership.agreed and self._membership.sharing.has_begun

    def owns(self, source: SourceId) -> bool:
        """Tell whether this member processes a source now."""
        return self._membership.sharing.owns(source)

    @property
    def _membership(self) -> Membership:
        membership = self._keeping.membership
        if membership is None:
            raise AssertionError("who shares has a membership")
        return membership

    def _loss_table(self) -> LossTable:
        return msgspec.structs.replace(super()._loss_table(), processed_twice=self.processed_twice)

    # What the program says of a sample

    def confirm(self, *samples: Sample) -> None:
        """As `ReliableConsumer.confirm`; Fenced for a sample whose source another member has."""
        with self._telling_of_handover(samples):
            super().confirm(*samples)

    def position(self, sample: Sample) -> KeptPosition:
        with self._telling_of_handover((sample,)):
            return super().position(sample)

    def reject(self, sample: Sample, reason: str, *, timeout_seconds: float | None = None) -> None:
        with self._telling_of_handover((sample,)):
            super().reject(sample, reason, timeout_seconds=timeout_seconds)

    @contextmanager
    def _telling_of_handover(self, samples: Iterable[Sample]) -> Iterator[None]:
        try:
            yield
        except LocalProtocolError as error:
            for sample in samples:
                if not self.owns(sample.source):
                    raise Fenced(
                        f"sample {sample.sn} of {sample.source} is not confirmed: another member "
                        f"of consumer {self.consumer!r} has that source now, and processes it"
                    ) from error
            raise

    # The thread that delivers

    def _begin(self) -> None:
        if self._begun:
            super()._begin()

    def _wake_ns(self) -> int:
        return super()._wake_ns() if self._begun else NEVER_NS

    def _turn(self) -> None:
        self._look_seconds = 0.0
        self._between()
        if self._membership.agreed and not self._membership.sharing.has_begun:
            self._take_over()
        if self._begun and self._membership.sharing.contenders:
            super()._turn()  # a rewind waits until there is something to go back in

    def _between(self) -> None:
        now = time.monotonic()
        if now < self._look_seconds or self._ending:
            return
        self._look_seconds = now + _LOOK_SECONDS
        membership = self._membership
        membership.look()
        if self._fenced is not None:
            self._lapse()
        if membership.sharing.must_stop and self._has_stopped(now):
            membership.sharing.stopped()
        membership.show()

    def _admitted(self, samples: Sequence[Sample]) -> Iterable[Sample]:
        for sample in samples:
            self._between()
            if self._halts:
                return
            if self._admits(sample):
                yield sample

    def _admits(self, sample: Sample) -> bool:
        """Tell, before its handler is called, whether a sample is handled here; may wait."""
        return self.owns(sample.source)

    def _standing(self) -> Sequence[Position]:
        return [*self._positions.all(), *self._elsewhere]

    def _has_stopped(self, now_seconds: float) -> bool:
        """Tell whether nothing of what is lost is under way, and caches hold what is confirmed."""
        if not self._begun:
            return True
        if now_seconds < self._retry_seconds:
            return False
        if isinstance(self._sink, FifoChannel):
            self._withdrawn += self._sink.withdraw(self._is_lost)
        self._stop_seconds = self._stop_seconds or now_seconds + self._bounds.handover_seconds
        with self._lock:
            in_hand = self._positions.in_hand_of(lambda source: not self.owns(source))
        waits = not self._by_itself and in_hand > self._withdrawn
        if waits and now_seconds < self._stop_seconds:
            return False
        try:
            self._await_written(_FLUSH_SECONDS)
        except (OutcomeUnknown, Fenced, Closed) as error:
            self._put_off(error, now_seconds)
            return False
        self._compare()
        with self._changed:
            self._positions.go_on(self.owns)
            self._changed.notify_all()
        self._withdrawn, self._stop_seconds, self._told_error = 0, 0.0, False
        return True

    def _rewound(self, before: Sequence[Position], stands: Sequence[Position]) -> None:
        self._takeovers.rewound(before, stands)

    def _lapse(self) -> None:
        """Give up all sources, for caches take no position of ours: others took us for dead.

        They are begun anew with a fence of our own, those that are ours by then.
        """
        self._membership.sharing.lapse()
        with self._changed:
            self._lapses += 1
            if (self._positions.changed or self._writing) and not self._told:
                self._lost = self._fenced or Fenced(
                    f"consumer {self.consumer!r}: another member claimed a source, and what was "
                    "confirmed here since is processed there, too"
                )
            self._fenced, self._told = None, False
            self._takeovers.give_up(self._positions.all())
            self._positions.go_on(self.owns)
            self._changed.notify_all()
        if isinstance(self._sink, FifoChannel):
            self._sink.withdraw(self._is_lost)
        self._withdrawn, self._stop_seconds = 0, 0.0

    def _is_lost(self, sample: Sample) -> bool:
        return not self.owns(sample.source)

    def _take_over(self) -> None:
        """All members act by one set of them: begin what that gives to this one."""
        sharing = self._membership.sharing
        if not sharing.gains:
            with self._changed:
                self._write_anew(sharing)
            sharing.begin()
            return
        now = time.monotonic()
        if now < self._retry_seconds:
            return
        try:
            read, fence = self._read_anew()
            gained = [
                msgspec.structs.replace(position, fence=fence)
                for position in self._keeping.joined(read)
                if self._is_gained(position.source)
            ]
            if not self._keeping.write(gained, self._for_a_while()):
                raise OutcomeUnknown("caches do not acknowledge positions")
        except (DurableCacheError, ZError) as error:
            self._refused += isinstance(error, Fenced)
            self._put_off(error, now)
            return
        self._told_error, self._refused = False, 0
        with self._changed:
            if self._ending:
                return
            self._takeovers.note(sharing, gained)
            twice = self._takeovers.unread(sharing, read)
            self._write_anew(sharing, read)
            sharing.begin()
            self._positions.fence = max(fence, self._positions.fence)
            known = self._positions.go_on(self.owns, gained)
            self._elsewhere = [one for one in read if not self.owns(one.source)]
            self._resume(known)
        self._begun = True
        self._say_twice(twice)
        self._begin_anew()
        self._handle(Received(self._ahead_of(known), moment_now()))

    def _write_anew(self, sharing: Sharing, read: Sequence[Position] | None = None) -> None:
        """Write where this member stands if caches may not know; under the lock."""
        self._positions.put_back(self._takeovers.unsaid(sharing, self._positions.all(), read))
        self._changed.notify_all()

    def _read_anew(self) -> tuple[list[Position], int]:
        """Return where all sources stand, and the fence under which those that are gained begin."""
        read = self._keeping.read_now(self._query_seconds)
        return read, next_fence(read, self._refused)

    def _is_gained(self, source: SourceId) -> bool:
        return self._membership.sharing.owned_then(source) and not self.owns(source)

    def _for_a_while(self) -> Callable[[], bool]:
        end = time.monotonic() + _FLUSH_SECONDS
        return lambda: not self._ending and time.monotonic() < end

    def _compare(self) -> None:
        """Report what was processed here of sources whose owner was not dead but out of reach."""
        sharing = self._membership.sharing
        with self._lock:
            stands = self._positions.all()
        self._say_twice(self._takeovers.compare(sharing, stands))

    def _say_twice(self, found: Iterable[Twice]) -> None:
        for twice in found:
            self.processed_twice += twice.last - twice.first + 1
            who, what = str(twice.member), str(twice.source)
            about = {"consumer": self.consumer, "member": who, "source": what}
            _log.error(
                "samples were processed here and by a member that was out of reach",
                extra={**about, "first": twice.first, "last": twice.last},
            )

    def _ahead_of(self, known: Iterable[Position]) -> list[Sample]:
        """Return what came last of each source, where that is ahead of where it stands."""
        reached = {one.source: one.reached for one in sorted(known, key=lambda one: one.epoch)}
        return [one for one in self._last.values() if one.sn > reached.get(one.source, -1)]

    def _put_off(self, error: Exception, now_seconds: float) -> None:
        """Say once why sources wait for their next owner, and try again soon."""
        self._retry_seconds = now_seconds + _RETRY_SECONDS
        if not self._told_error:
            about = {"consumer": self.consumer, "reason": str(error)}
            _log.warning("sources wait for a handover; tried again", extra=about)
        self._told_error = True

    # What is taken in, and handed out

    def _handle(self, event: Event) -> None:
        match event:
            case Received(samples, now, oversized):
                self._note(samples)
                event = Received(self._of(samples), now, self._of(oversized))
            case Declared(source) | TokenGone(source) | HeartbeatReceived(source):
                if not self.owns(source):
                    return
            case HistoryPage(_, answer) | Fetched(_, answer):
                event = replace(event, answer=self._ours(answer))
            case _:
                pass
        if self._begun:
            super()._handle(event)

    def _note(self, samples: Sequence[Sample]) -> None:
        self._last.update((sample.source, sample) for sample in samples)
        while len(self._last) > self._last_max:
            del self._last[next(iter(self._last))]

    def _of(self, samples: Sequence[Sample]) -> list[Sample]:
        owned = {source for source in {one.source for one in samples} if self.owns(source)}
        return [sample for sample in samples if sample.source in owned]

    def _ours(self, answer: Answer) -> Answer:
        parts = tuple(
            replace(
                part,
                samples=self._of(part.samples),
                absent=tuple(absence for absence in part.absent if self.owns(absence.source)),
                oversized=self._of(part.oversized),
            )
            for part in answer.parts
        )
        return replace(answer, parts=parts)

    def _deliver(self, samples: Sequence[Sample]) -> None:
        super()._deliver(self._of(samples))

    def _report(self, miss: Miss) -> None:
        if self.owns(miss.source):
            super()._report(miss)
