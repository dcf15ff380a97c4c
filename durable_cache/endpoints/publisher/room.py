"""Where puts wait: for room among what is unacknowledged, and for their turn at full speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Condition, Thread, current_thread
from typing import Protocol

from durable_cache.endpoints.publisher.options import PublisherOptions
from durable_cache.endpoints.waking import runs_event_loop
from durable_cache.errors import Closed, DurableCacheError, LocalProtocolError, Unacknowledged
from durable_cache.model.key_expression import KeyExpression
from durable_cache.protocol.publisher.engine import PublisherEngine


class RoomOwner(Protocol):
    """The publisher as those who wait for room know it."""

    changed: Condition
    """Notified when something is acknowledged and when the publisher is closed."""
    closed: bool
    key_expr: KeyExpression


class Room:
    """How many puts a publisher takes; a put may wait unless it is in a callback or event loop.

    Two things are waited for. Room: beyond the bounds chosen a put raises when its time is over.
    And, below them, the window of ADR 0275: a put that waited its time for it goes on.
    """

    def __init__(
        self,
        owner: RoomOwner,
        engine: PublisherEngine,
        jobs: SimpleQueue[Callable[[], None] | None],
        options: PublisherOptions,
    ) -> None:
        self._owner = owner
        self._engine = engine
        self._pacing = engine.pacing
        self._jobs = jobs
        self._options = options
        bounds = options.engine_options()
        self.jobs_max = options.queries_waiting_max + bounds.unacknowledged_max
        """So many jobs may wait; beyond, a put waits until callbacks are called."""
        self.thread: Thread | None = None
        """Whose callbacks make room by returning."""

    def refusal(self) -> DurableCacheError:
        """Return why a put is not taken now."""
        on = self._owner.key_expr
        if self._owner.closed:
            return Closed(f"the publisher on {on} is closed")
        return LocalProtocolError(
            f"a put on {on} within another one, as a signal's handler makes it: set a flag there, "
            "or raise, and put afterwards"
        )

    def holds_up(self) -> bool:
        """Tell whether the next put is beyond the window, and waits for it."""
        if self._engine.next_sn < self._pacing.limit:
            return False
        return self._pacing.silent_ns(time.monotonic_ns()) > 0 and self._may_wait

    @property
    def _may_wait(self) -> bool:
        return current_thread() is not self.thread and not runs_event_loop()

    @property
    def _is_there(self) -> bool:
        return self._engine.has_room and self._jobs.qsize() <= self.jobs_max

    def wait(self, deadline: float) -> bool:
        """Wait until a put may be tried once more; False: it waits for its turn no longer.

        Raises Unacknowledged where there is no room at the deadline, on the monotonic clock.
        """
        owner, pacing = self._owner, self._pacing
        with owner.changed:
            left = deadline - time.monotonic() if self._may_wait else 0.0
            if self._is_there:
                silent = pacing.silent_ns(time.monotonic_ns()) / 1e9
                return owner.changed.wait_for(
                    lambda: owner.closed or self._engine.next_sn < pacing.limit,
                    max(0.0, min(left, silent)),
                )
            if left > 0 and owner.changed.wait_for(
                lambda: owner.closed or self._is_there, min(left, TIMEOUT_MAX)
            ):
                return True
            waiting = self._engine.unacknowledged
        raise Unacknowledged(
            f"{waiting} samples on {owner.key_expr} wait for {self._options.acknowledgements} "
            "acknowledgements each: is a cache in reach? unacknowledged_max, "
            "unacknowledged_bytes_max and put_timeout_seconds say how many may wait, and how long "
            "a put does (in an event loop not at all: await receipts)"
        )

    def await_acknowledged(self, timeout_seconds: float | None) -> bool:
        """Wait until what was put before this call is acknowledged; whether it is."""
        called_ns = time.monotonic_ns()
        if current_thread() is self.thread:
            timeout_seconds = 0.0  # in a callback: what is waited for is done on this thread

        def acknowledged() -> bool:
            since_ns = self._engine.waits_since_ns()
            return since_ns is None or since_ns > called_ns

        owner = self._owner
        with owner.changed:
            owner.changed.wait_for(lambda: owner.closed or acknowledged(), timeout_seconds)
            return acknowledged()
