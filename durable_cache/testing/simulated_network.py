"""Virtual time and a network that loses, delays, doubles and reorders; one seed is one history."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Generic, Protocol, TypeVar

from durable_cache.protocol.alignment import (
    AlignerEvent,
    AlignerOptions,
    CacheProfile,
    PeerGone,
    PeerSeen,
)

SECOND_NS = 1_000_000_000
START_NS = 1_800_000_000 * SECOND_NS


class Node(Protocol):
    """What the network has to know of a cache."""

    profile: CacheProfile

    @property
    def running(self) -> bool: ...

    def feed(self, event: AlignerEvent) -> None: ...

    def start(self) -> None: ...


NodeT = TypeVar("NodeT", bound=Node)


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How bad the network is, and how the caches are set; everything else goes with the seed."""

    loss: float = 0.1
    duplication: float = 0.05
    delay_seconds: float = 0.05
    delay_seconds_max: float = 2.0
    append_failure: float = 0.02
    """How often a storage does not take what is offered to it."""
    held_back: float = 0.3
    """How often the door makes what peers give of a source wait, as it does where it must find out
    of which of the source's runs that is."""
    held_back_seconds_max: float = 40.0
    idle_tick_seconds: float = 5.0
    aligner: AlignerOptions = field(
        default_factory=lambda: AlignerOptions(
            secret=b"simulation",
            block=1,
            page_items_max=8,
            page_samples_max=16,
            page_bytes_max=4096,
            entry_runs_max=4,
            entries_per_reply_max=8,
            nodes_per_request_max=8,
            streams_per_tick_max=16,
            wants_max=8,
            request_timeout_seconds=3.0,
            retry_seconds_max=40.0,
            content_seconds=30.0,
            audit_seconds=60.0,
            tried_seconds=1e6,
            announce_seconds=(5.0, 10.0, 20.0, 40.0),
        )
    )


class Network(Generic[NodeT]):
    """Virtual time and what is on its way; the same seed gives the same history."""

    def __init__(self, seed: int, options: SimulationOptions | None = None) -> None:
        self.options = options or SimulationOptions()
        self.random = Random(seed)  # noqa: S311  a history is to be repeated
        self.now_ns = 0
        self.caches: dict[str, NodeT] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.healed = False
        self.requests = 0
        """Queries sent so far."""
        self.roots = 0
        self.bytes = 0
        self.faults: list[str] = []
        """What a peer may never do, as it was seen on the wire."""
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def at(self, delay_seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._serial += 1
        at_ns = self.now_ns + round(delay_seconds * SECOND_NS)
        heapq.heappush(self._queue, (at_ns, self._serial, action))

    def run(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        queue = self._queue
        while queue and queue[0][0] <= end_ns:
            self.now_ns, _, action = heapq.heappop(queue)
            action()
        self.now_ns = end_ns

    def delay(self) -> float:
        options = self.options
        if not self.healed and self.random.random() < 0.1:
            return self.random.random() * options.delay_seconds_max
        return self.random.random() * options.delay_seconds

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Bring something from one cache to another, or lose it, or bring it twice."""
        if (source, target) in self.blocked:
            return
        options, random = self.options, self.random
        if not self.healed and random.random() < options.loss:
            return
        self.at(self.delay(), deliver)
        if not self.healed and random.random() < options.duplication:
            self.at(self.delay(), deliver)

    def block(self, source: str, target: str) -> None:
        """Cut one direction between two caches; the target loses sight of the source."""
        if self.healed:
            return
        self.blocked.add((source, target))
        gone, seer = self.caches[source], self.caches[target]
        seer.feed(PeerGone(source, gone.profile.incarnation))

    def unblock(self, source: str, target: str) -> None:
        self.blocked.discard((source, target))
        self.sight(source, target)

    def sight(self, source: str, target: str) -> None:
        """Let the target see the source's liveliness token."""
        seen, seer = self.caches[source], self.caches[target]
        if seen.running and (source, target) not in self.blocked:
            seer.feed(PeerSeen(source, seen.profile.incarnation))

    def heal(self) -> None:
        """End every trouble: links that lost something come back as new."""
        self.healed = True
        self.blocked.clear()
        for cache in self.caches.values():
            if not cache.running:
                cache.start()
        for source in self.caches:
            for target in self.caches:
                if source != target:
                    seen = self.caches[source].profile.incarnation
                    self.caches[target].feed(PeerGone(source, seen))
                    self.sight(source, target)
