"""Virtual time, chance, what went wrong and what happened: everything that one seed decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Protocol

from durable_cache.model.clock import Moment

SECOND_NS = 1_000_000_000
START_NS = 1_800_000_000 * SECOND_NS
_WRONG_MAX = 20
"""So many findings of one history are kept; the first is what a reader looks at."""

_STEPS_MAX = 60_000
"""No history has a tenth of it unless somebody asks for ever."""


class Crash(BaseException):
    """A process ends here, between two steps of its own; nothing in the process may catch it."""


class Process(Protocol):
    """What an action belongs to; it is left out when that has ended."""

    running: bool
    life: int

    def guard(self, action: Callable[[], None]) -> None:
        """Do something of this process."""


class World:
    """One history's clock, random numbers, findings and counts; owned by one thread."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.random = Random(f"history {seed}")  # noqa: S311  a history is to be repeated
        self.now_ns = 0
        self.healed = False
        """Whether all trouble is over: from then on everything must come right."""
        self.events = 0
        """What happened to somebody so far: arrivals, answers, faults, publications."""
        self.steps = 0
        self.occurred: Counter[str] = Counter()
        """How often each kind of fault and event occurred."""
        self.wrong: list[str] = []
        """What broke the promise, in the order it was seen."""
        self.trace: list[str] = []
        self.tracing = tracing
        self._queue: list[tuple[int, int, Callable[[], None], Process | None, int]] = []
        self._serial = 0

    def at(
        self, delay_seconds: float, action: Callable[[], None], process: Process | None = None
    ) -> None:
        """Do something after so much virtual time, in a process if that lives on until then."""
        self._serial = serial = self._serial + 1
        when_ns = self.now_ns
        if delay_seconds > 0:
            when_ns += round(delay_seconds * SECOND_NS)
        life = 0 if process is None else process.life
        heappush(self._queue, (when_ns, serial, action, process, life))

    def run(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        queue = self._queue
        while queue and queue[0][0] <= end_ns:
            self.now_ns, _, action, process, life = heappop(queue)
            if process is None:
                action()
            elif process.running and process.life == life:
                process.guard(action)
            self.steps += 1
            if self.steps > _STEPS_MAX:
                self.fail("never comes to rest")
                queue.clear()
        self.now_ns = end_ns

    def moment(self, skew_ns: int = 0) -> Moment:
        """Return now as a process sees it whose wall clock is off by `skew_ns`."""
        return Moment(self.now_ns, START_NS + self.now_ns + skew_ns)

    def chance(self, probability: float) -> bool:
        """Tell whether something that rarely happens does; nothing does once all is healed."""
        return not self.healed and probability > 0 and self.random.random() < probability

    def occur(self, kind: str) -> None:
        """Count a fault or event by its kind."""
        self.events += 1
        self.occurred[kind] += 1
        if self.tracing:
            self.say(f"* {kind}")

    def say(self, text: str) -> None:
        """Write a line of the trace; call it only where `tracing`, for the text costs time."""
        self.trace.append(f"{self.now_ns / SECOND_NS:10.4f} {text}")

    def fail(self, finding: str) -> None:
        """Keep what broke the promise."""
        if len(self.wrong) < _WRONG_MAX:
            self.wrong.append(f"{self.now_ns / SECOND_NS:.4f} s: {finding}")
        if self.tracing:
            self.say(f"WRONG {finding}")
