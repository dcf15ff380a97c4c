"""How many samples one append to the backend may have, so that nobody waits for it too long."""

from __future__ import annotations

__all__ = ["Pace"]

_APPEND_SECONDS = 2.5
"""How long an append should take at most: a cache that is closed waits for the one under way."""
_SMALLEST_SHARE = 8
"""An append is never cut below this part of what the backend asks for, for its fixed cost would
then be most of it; only a deadline cuts further."""


class Pace:
    """Learns from each append what a sample costs; owned by whoever drains."""

    def __init__(self, samples_max: int) -> None:
        self._most = samples_max
        self._seconds_each = 0.0

    def took(self, samples: int, seconds: float) -> None:
        """Note what an append took, the index included."""
        if samples:
            self._seconds_each = seconds / samples

    def samples(self, left_seconds: float | None = None) -> int:
        """Return how many samples the next append may have; 0 when the time left is too short.

        The first is a small one, for nothing is known of the backend yet.
        """
        fitting = smallest = max(1, self._most // _SMALLEST_SHARE)
        if self._seconds_each:
            fitting = max(smallest, min(self._most, int(_APPEND_SECONDS / self._seconds_each)))
        if left_seconds is None:
            return fitting
        if self._seconds_each:
            return max(0, min(fitting, int(left_seconds / 2 / self._seconds_each)))
        return fitting if left_seconds > 0 else 0
