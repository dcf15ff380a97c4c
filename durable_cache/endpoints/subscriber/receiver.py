"""How samples come from Zenoh's channel to a subscriber's engine, and what a slow program costs.

Whoever receives holds a lock until what it took is in place, so samples keep their order. That is
the *receive* thread, which handles what it received itself where it can (`mailbox`). While it is
held up by the program's code, *deliver* receives in its place, so that Zenoh is not held up: what
comes waits in the mailbox, and what finds no room there in time is dropped, to be recovered from
caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event as Flag
from threading import Lock

from durable_cache.endpoints.session import (
    Decoder,
    RawSample,
    ZenohSubscriber,
    receive_now,
    receive_soon,
)
from durable_cache.endpoints.subscriber.mailbox import Mailbox
from durable_cache.endpoints.subscriber.tokens_in_order import TokensInOrder, Waited
from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample
from durable_cache.protocol.subscriber.events import Event, Received

_BATCH_SAMPLES_MAX = 2000
"""Samples that are taken from Zenoh's channel at once."""
_HELD_UP_NS = 20_000_000
"""So long the program's code may take before another thread receives."""


class Receiver:
    """Takes samples from Zenoh; shared by a subscriber's *receive* and *deliver* threads."""

    def __init__(
        self,
        subscriber: ZenohSubscriber,
        decoder: Decoder,
        mailbox: Mailbox[Event | Waited],
        tokens: TokensInOrder,
        overrun_seconds: float,
        stopped: Flag,
    ) -> None:
        """Samples that find no room for `overrun_seconds` are dropped."""
        self._subscriber, self._decoder = subscriber, decoder
        self._mailbox, self._tokens = mailbox, tokens
        self._overrun_seconds, self._stopped = overrun_seconds, stopped
        self._receiving = Lock()
        self._driven_since_ns = 0
        """When *receive* took the turn last; monotonic."""
        self.overrun = 0
        """Samples that were dropped."""

    @property
    def has_taken_more(self) -> bool:
        """Whether another thread receives now, or samples were dropped that nobody heard of yet."""
        return self._receiving.locked() or self._tokens.has_dropped

    def run(self, drive: Callable[[Received], None]) -> None:
        """Receive until the end; call `drive` with the turn, for samples that nothing is before."""
        while True:
            with self._receiving:
                taken = receive_soon(self._subscriber, _BATCH_SAMPLES_MAX)
                if not taken:
                    return
                received = self._decoded(taken)
                drives = not self._stopped.is_set() and self._mailbox.try_turn()
                if not drives:
                    self._put(received, self._overrun_seconds)
            if drives:
                self._driven_since_ns = received.now.monotonic_ns
                drive(received)

    def receive_instead(self) -> None:
        """Take what comes while the thread that receives is held up by the program's code."""
        while self._is_held_up() and self._take_some(self._overrun_seconds):
            pass

    def receive_rest(self) -> None:
        """Take what is there when nobody wants more, as far as there is room."""
        while self._take_some(0.0):
            pass

    def _take_some(self, overrun_seconds: float) -> bool:
        """Take a batch without waiting; False where there is none, or another thread receives."""
        if not self._receiving.acquire(blocking=False):
            return False
        try:
            taken = receive_now(self._subscriber, _BATCH_SAMPLES_MAX)
            if taken:
                self._put(self._decoded(taken), overrun_seconds)
            return bool(taken)
        finally:
            self._receiving.release()

    def _is_held_up(self) -> bool:
        held_up_ns = time.monotonic_ns() - self._driven_since_ns
        return held_up_ns >= _HELD_UP_NS and self._mailbox.is_taken

    def _decoded(self, taken: list[RawSample]) -> Received:
        now = Moment(time.monotonic_ns(), time.time_ns())
        oversized: list[Sample] = []
        samples = self._decoder.decode(taken, now.unix_ns, keep_plain=True, left_out=oversized)
        return Received(samples, now, oversized)

    def _put(self, received: Received, overrun_seconds: float) -> None:
        if not self._tokens.put(received, overrun_seconds):
            self.overrun += len(received.samples)
