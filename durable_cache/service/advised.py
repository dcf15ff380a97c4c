"""How much the subscribers of a domain say that they lost, for metrics."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from durable_cache.endpoints.session import Session, hear_at_once, undeclare
from durable_cache.errors import RemoteProtocolError
from durable_cache.model.sample import SourceId
from durable_cache.protocol.advisories import decode_advisory
from durable_cache.protocol.wire import own_key

_SUBSCRIBERS_MAX = 10_000
"""Subscribers whose totals are told apart; those of the others are kept as one sum."""


class Advised:
    """Adds up advisories; each bears its subscriber's total, so one that is lost changes nothing.

    Counting runs on Zenoh's thread.
    """

    def __init__(self, session: Session, domain: str) -> None:
        self._lock = Lock()
        self._totals: OrderedDict[SourceId, int] = OrderedDict()
        self._before = 0
        self.unreadable = 0
        """Messages that are none."""
        self._listening = hear_at_once(session, own_key(domain, "loss", "*"), self.heard)

    @property
    def lost(self) -> int:
        """How many samples subscribers lost, as far as they said since the service began."""
        with self._lock:
            return self._before + sum(self._totals.values())

    def heard(self, payload: bytes) -> None:
        """Take an advisory."""
        try:
            advisory = decode_advisory(payload)
        except RemoteProtocolError:
            self.unreadable += 1
            return
        with self._lock:
            known = self._totals.get(advisory.subscriber, 0)
            self._totals[advisory.subscriber] = max(known, advisory.total)
            if len(self._totals) > _SUBSCRIBERS_MAX:
                self._before += self._totals.popitem(last=False)[1]

    def close(self) -> None:
        """Hear no more; idempotent."""
        undeclare(self._listening)
