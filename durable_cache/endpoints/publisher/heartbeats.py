"""When a publisher says which number is its last, so that a lost tail is noticed."""

from __future__ import annotations


class Heartbeats:
    """Says when a heartbeat is due; owned by the publisher's thread. Times in seconds."""

    def __init__(self, period_seconds: float, *, sporadic: bool) -> None:
        self._period_seconds, self._sporadic = period_seconds, sporadic
        self._next_seconds: float | None = None
        self._said: int | None = None

    def due(self, next_sn: int, now_seconds: float) -> int | None:
        """Return the number to say now, or None.

        A sporadic heartbeat says a number once; a periodic one says it again in every period.
        """
        if self._next_seconds is None:
            self._next_seconds = now_seconds + self._period_seconds
        if now_seconds < self._next_seconds:
            return None
        self._next_seconds = now_seconds + self._period_seconds
        if next_sn == 0 or (self._sporadic and self._said == next_sn):
            return None
        self._said = next_sn
        return next_sn - 1
