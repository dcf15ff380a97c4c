"""How large the next append to the backend is, and how long a backend that failed is left alone."""

from __future__ import annotations

_FIRST_PAUSE_SECONDS = 0.1

_APPEND_SECONDS = 2.5
"""How long an append should take at most: a cache that is closed waits for the one under way."""
_SMALLEST_SHARE = 8
_SMALLEST_SAMPLES = 2_500
"""An append is never cut below this many samples, or this part of what the backend asks for: its
fixed cost would then be most of it. Only a deadline cuts further."""


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
        smallest = max(self._most // _SMALLEST_SHARE, min(_SMALLEST_SAMPLES, self._most))
        fitting = smallest
        if self._seconds_each:
            fitting = max(smallest, min(self._most, int(_APPEND_SECONDS / self._seconds_each)))
        if left_seconds is None:
            return fitting
        if self._seconds_each:
            return max(0, min(fitting, int(left_seconds / 2 / self._seconds_each)))
        return fitting if left_seconds > 0 else 0


class RetryPause:
    """How long to wait before a backend that failed is tried again: ever longer, up to a bound."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._seconds = _FIRST_PAUSE_SECONDS

    def failed(self, asked_seconds: float = 0.0) -> float:
        """Return the pause after a failure, at least what the backend asked for."""
        pause = self._seconds
        self._seconds = min(2 * pause, self._seconds_max)
        return max(pause, asked_seconds)

    def succeeded(self) -> None:
        """Begin with a short pause next time."""
        self._seconds = _FIRST_PAUSE_SECONDS
