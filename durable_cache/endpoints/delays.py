"""How long something took, counted so that many caches can be added up: a histogram."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""From one free fsync to what Zenoh's askers wait at most."""


@dataclass(frozen=True, slots=True)
class DelaysSeen:
    """What was counted so far."""

    total_seconds: float = 0.0
    count: int = 0
    up_to: tuple[int, ...] = (0,) * len(BOUNDS_SECONDS)
    """How many took no longer than each of `BOUNDS_SECONDS`."""


class Delays:
    """A histogram in the making; written by one thread, read by any."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._total_seconds = 0.0

    def observe(self, seconds: float, count: int) -> None:
        """Count that `count` took `seconds` each; a clock set back counts as no time."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += count
        self._total_seconds += max(0.0, seconds) * count

    def seen(self) -> DelaysSeen:
        """Return what was counted so far."""
        counts = list(self._counts)
        up_to = tuple(sum(counts[: at + 1]) for at in range(len(BOUNDS_SECONDS)))
        return DelaysSeen(self._total_seconds, sum(counts), up_to)
