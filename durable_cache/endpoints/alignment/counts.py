"""What alignment did since the cache was declared, and what it found last, for people."""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple, TypeVar

from durable_cache.protocol.alignment import (
    ComparisonEnded,
    PeerStatus,
)

_PEERS_MAX = 64


class Differences(NamedTuple):
    """What the last comparison with a peer found."""

    streams: int = 0
    missing: int = 0
    """Samples that the peer has and this cache lacks and would keep."""


class AlignmentCounts:
    """Counts of one cache's alignment; any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.sessions = self.failed_sessions = 0
        self.bytes_sent = self.bytes_received = 0
        self.samples_refused = 0
        self.offers_refused = self.comparisons_dropped = self.left_out = 0
        self.refusals: dict[str, str] = {}
        """Why a peer is not aligned with, by its cache_id; at most one each of 64."""
        self.found: dict[str, Differences] = {}
        self.pulled_from: dict[str, int] = {}
        self._unequal_since: dict[str, float | None] = {}

    def sent(self, payload: bytes) -> None:
        """Count a message of ours."""
        with self._lock:
            self.bytes_sent += len(payload)

    def received(self, payload: bytes) -> None:
        """Count a message of another's."""
        with self._lock:
            self.bytes_received += len(payload)

    def refused(self, peer: str, reason: str) -> None:
        """Remember why a peer is not aligned with."""
        if peer in self.refusals or len(self.refusals) < _PEERS_MAX:
            self.refusals[peer] = reason

    def pulled(self, peer: str, samples: int) -> None:
        """Count what a peer gave."""
        _put(self.pulled_from, peer, self.pulled_from.get(peer, 0) + samples)

    def left_out_now(self, count: int) -> bool:
        """Take in how often a stream had no place; returns whether that is new."""
        begins = not self.left_out and count > 0
        self.left_out = max(self.left_out, count)
        return begins

    def ended(self, session: ComparisonEnded) -> None:
        """Take in what a comparison did and found."""
        self.sessions += 1
        self.failed_sessions += bool(session.error)
        self.samples_refused += session.samples_refused
        if not session.error:
            found = Differences(session.streams_different, session.samples_missing)
            _put(self.found, session.peer, found)

    def difference(self, peer: str) -> Differences:
        """Return what the last comparison with a peer found."""
        return self.found.get(peer, Differences())

    def note(self, peers: Iterable[PeerStatus]) -> None:
        """Take in which peers in reach are equal now."""
        now = time.monotonic()
        since = self._unequal_since
        self._unequal_since = {
            peer.cache_id: None if peer.equal else since.get(peer.cache_id) or now
            for peer in peers
            if peer.live
        }

    def lags(self) -> dict[str, float]:
        """Return for how many seconds each peer in reach has not been found equal."""
        now = time.monotonic()
        return {peer: 0.0 if at is None else now - at for peer, at in self._unequal_since.items()}


_Value = TypeVar("_Value")


def _put(by_peer: dict[str, _Value], peer: str, value: _Value) -> None:
    """Remember something of a peer, of at most 64 of them."""
    if peer not in by_peer and len(by_peer) >= _PEERS_MAX:
        by_peer.pop(next(iter(by_peer)))
    by_peer[peer] = value
