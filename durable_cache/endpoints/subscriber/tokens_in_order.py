"""What publishers' tokens do, in order with the samples that wait for a slow program (ADR 0398).

Tokens and samples come from Zenoh on two ways. While the program keeps up, tokens are looked at
before each sample: what was declared before a sample came is known before it. While samples wait,
what tokens did before a batch came waits with it. A token that came behind is not looked at first:
a sample that names no run would be taken for one of a run that began after it came.

Theory of operation. Changes are taken by whoever puts samples into the mailbox, and by who has the
turn. Both hold `_lock`, so that changes keep their order: who puts holds it until they are in the
mailbox, and who has the turn takes none while samples wait there. Who has the turn never waits for
the lock: it may be held by one that waits for room, which only the turn makes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.session import (
    Session,
    TokenChanges,
    take_token_changes,
    undeclare,
    watch_tokens_polled,
)
from durable_cache.endpoints.subscriber.mailbox import Mailbox
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample
from durable_cache.protocol.subscriber.dropped import Dropped
from durable_cache.protocol.subscriber.events import Event, Received
from durable_cache.protocol.wire import tokens_about


class Waited(NamedTuple):
    """Samples that waited in the mailbox, and what publishers' tokens did before they came."""

    tokens: TokenChanges
    received: Received


class TokensInOrder:
    """The tokens of publishers that a subscriber watches; any thread, as the methods say."""

    def __init__(
        self,
        session: Session,
        domain: str,
        key_expr: KeyExpression,
        mailbox: Mailbox[Event | Waited],
    ) -> None:
        self._watch = watch_tokens_polled(session, tokens_about(domain, "pub", key_expr))
        self._mailbox, self._lock = mailbox, Lock()
        self._dropped: Dropped[tuple[str, bool]] = Dropped()
        self.has_dropped = False
        """Whether samples were dropped that nobody heard of yet."""

    def put(self, received: Received, timeout_seconds: float) -> bool:
        """Put samples into the mailbox behind what tokens did; False where there was no room.

        Then the last of each source is kept, and put there before what comes next. For whoever
        receives.
        """
        until = time.monotonic() + timeout_seconds
        with self._lock:
            tokens = take_token_changes(self._watch)
            while self._dropped and self._put(_told(*self._dropped.first), until):
                self._dropped.take()
            self.has_dropped = bool(self._dropped)
            if not self.has_dropped and self._put(Waited(tokens, received), until):
                return True
            self._dropped.add(tokens, received.samples)
            self.has_dropped = True
            return False

    def _put(self, waited: Waited, until: float) -> bool:
        return self._mailbox.put(waited, max(0.0, until - time.monotonic()))

    def take_dropped(self) -> Waited | None:
        """Return the last of what was dropped first, if something was.

        For who has the turn, where nothing is in the mailbox.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return _told(*self._dropped.take()) if self._dropped else None
        finally:
            self.has_dropped = bool(self._dropped)
            self._lock.release()

    def before(self, event: Event | Waited | None) -> tuple[TokenChanges, Event | None]:
        """Return what tokens did before an event, and the event. For who has the turn."""
        return event if isinstance(event, Waited) else (self.take(), event)

    def take(self) -> TokenChanges:
        """Return what tokens did since the last call, unless samples wait. For who has the turn."""
        lock = self._lock
        if not lock.acquire(False):
            return ()
        try:
            if self._mailbox.is_empty or not _has_samples(self._mailbox.waiting):
                if self.has_dropped:  # an answer that came behind it goes before it
                    return self._dropped.take_tokens()
                return take_token_changes(self._watch)
            return ()
        finally:
            lock.release()

    def undeclare(self) -> None:
        """Watch them no more; idempotent."""
        undeclare(self._watch)


def _has_samples(waiting: Sequence[Event | Waited]) -> bool:
    return any(isinstance(event, Waited) for event in waiting)


def _told(tokens: TokenChanges, samples: Sequence[Sample]) -> Waited:
    return Waited(tokens, Received(samples, moment_now()))
