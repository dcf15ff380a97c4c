"""How a pipe learns what a durable consumer of the target network has processed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import Session, hear_polled, take_heard, undeclare, zid_of
from durable_cache.errors import Closed, RemoteProtocolError
from durable_cache.model.sample import Kind, Sample
from durable_cache.protocol.consumers import decode_position, positions_key_expr
from durable_cache.protocol.pipe.events import Positioned

_ASK_SECONDS = 1.0
"""How often caches are asked while something waits: the newest position may have passed by."""
_QUERY_TIMEOUT_SECONDS = 1.0
_UNKNOWN = (
    "has confirmed nothing in the target network: does a durable consumer of that name run there, "
    "and does a cache there store its positions?"
)


class Processing:
    """The positions of one consumer; owned by the pipe's thread."""

    def __init__(self, session: Session, domain: str, consumer: str) -> None:
        self._key_expr = str(positions_key_expr(domain, consumer))
        self._asking = Asking(session, zid_of(session), timeout_seconds=_QUERY_TIMEOUT_SECONDS)
        self._heard = hear_polled(session, self._key_expr)
        self._asked = 0.0
        self._consumer, self._is_known = consumer, False
        self.failure = ""
        """Why what waits may wait for ever; empty where nothing does, or the consumer is known."""

    def look(self, *, waiting: bool) -> Iterator[Positioned]:
        """Yield positions that came since, and all of them now and then while something waits."""
        payloads = [payload for _, payload in take_heard(self._heard)]
        if payloads:
            self._asked = time.monotonic()
        elif waiting and time.monotonic() - self._asked >= _ASK_SECONDS:
            payloads = list(self._read())
            self._asked = time.monotonic()
            if not (payloads or self._is_known):
                self.failure = f"{self._consumer!r} {_UNKNOWN}"
        self._is_known = self._is_known or bool(payloads)
        if self._is_known or not waiting:
            self.failure = ""
        for payload in payloads:
            try:
                yield Positioned(decode_position(payload))
            except RemoteProtocolError:
                continue  # a damaged position confirms nothing

    def _read(self) -> Iterator[bytes]:
        after: Sample | None = None
        while True:
            try:
                page = self._asking.page(self._key_expr, "*", "_max=1", after)
            except Closed:
                return
            after = page.following(after)
            yield from (s.payload for s in page.ordered() if s.kind is Kind.PUT)
            if after is None:
                return

    def close(self) -> None:
        undeclare(self._heard)
