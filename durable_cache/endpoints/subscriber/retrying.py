"""A subscriber in the mode at-least-once: what nobody confirms in time is handed over again.

The thread that delivers hands samples over, the first time and again; in `auto` mode it confirms
each whose handler returned, in `manual` mode the program does, in any thread. `_changed` guards
what is not confirmed and is never held while the program's code runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from threading import Condition

from durable_cache.endpoints.session import Session
from durable_cache.endpoints.subscriber.asked import Confirm
from durable_cache.endpoints.subscriber.channels import Callback, Delivery, confirmed_by
from durable_cache.endpoints.subscriber.subscriber import (
    Miss,
    ReliableSubscriber,
    SubscriberOptions,
)
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_kind
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample
from durable_cache.protocol.modes import Passed
from durable_cache.protocol.retries import Retries

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.1
"""How often who waits for confirmations looks whether the subscriber is closed."""


class RetryingSubscriber(ReliableSubscriber):
    """A running subscriber that delivers at least once; a context manager, and iterable.

    What comes first comes in its source's order; what is handed over again comes late.
    """

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        handler: object,
        options: SubscriberOptions,
        confirm: Confirm,
    ) -> None:
        self._by_itself = confirm == "auto"
        self._changed = Condition()
        self._retries = Retries(options.mode)
        self._given_up = 0
        self._called: Callback[Sample] | None = None
        """What is called for each sample in `auto` mode."""
        super().__init__(session, key_expr, handler, options)

    def _open(self, handler: object) -> tuple[Delivery[Sample], object]:
        sink, given = super()._open(handler)
        self._called = confirmed_by(sink, by_itself=self._by_itself)
        return sink, given

    @property
    def unconfirmed(self) -> int:
        """How many samples were handed over and are not confirmed; any thread."""
        return self._retries.unconfirmed

    @property
    def missed(self) -> int:
        """How many samples were reported: given up, or handed over and never confirmed."""
        return super().missed + self._given_up

    def confirm(self, *samples: Sample) -> None:
        """Say that samples are processed: they are not handed over again; any thread.

        Samples are confirmed as they were received, in any order; confirming twice, or after the
        sample was given up, changes nothing. Raises ConfigError where each handler that returns
        confirms by itself.
        """
        if self._by_itself:
            raise ConfigError('confirm="auto" confirms by itself: choose confirm="manual"')
        for sample in samples:
            check_kind("sample", sample, Sample, "a sample of this subscriber")
        with self._changed:
            for sample in samples:
                self._retries.confirm(sample)
            self._changed.notify_all()

    # The thread that delivers

    def _wake_ns(self) -> int:
        with self._changed:
            retry_ns = self._retries.wake_ns()
            return super()._wake_ns() if retry_ns is None else min(super()._wake_ns(), retry_ns)

    def _turn(self) -> None:
        """Hand over again what is due, and report what was handed over often enough."""
        with self._changed:
            again, given_up = self._retries.due(time.monotonic_ns())
        if again:
            self._engine.losses.passed_on(again, Passed.AGAIN)
            self._hand_over(again)
        for sample in given_up:
            self._give_up(sample)

    def _deliver(self, samples: Sequence[Sample]) -> None:
        at = 0
        while at < len(samples) and not self._stopped.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._retries.room, _LOOK_SECONDS)
                some = samples[at : at + self._retries.room]
                self._retries.hand_over(some, time.monotonic_ns())
            at += len(some)
            self._hand_over(some)
            self._turn()

    def _hand_over(self, samples: Sequence[Sample]) -> None:
        called = self._called
        if called is None:
            self._sink.deliver(samples)
            return
        for sample in samples:
            raised = called.errors
            called.deliver((sample,))
            if called.errors == raised:
                with self._changed:
                    self._retries.confirm(sample)

    def _give_up(self, sample: Sample) -> None:
        _log.error(
            "a sample was never confirmed",
            extra={"source": str(sample.source), "sn": sample.sn, "key": sample.key},
        )
        self._given_up += 1
        self._engine.losses.in_vain(sample.source)
        self._report(Miss(sample.source, sample.epoch, sample.sn, sample.sn))
