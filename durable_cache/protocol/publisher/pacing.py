"""How far a publisher's numbers may run ahead of what is acknowledged, while acknowledgements come.

Theory of operation (ADR 0275). A publisher that is faster than its caches keeps everything waiting
that may wait, and an acknowledgement's delay is what waits divided by what is acknowledged a
second. So there is a window, kept as TCP Vegas keeps one. Where the newest sample of every
acknowledgement within a span waited longer than the shortest delay known and what was chosen more,
samples stand in a queue: the window becomes what is acknowledged in that time. Where some did not,
and the window was used, it grows by a quarter.

What is ahead is counted from the highest number acknowledged: what is older is lost or late, is
sent once more, and says nothing of how full the way is. Where no acknowledgement comes the window
holds nobody up, for it would save no delay.
"""

from __future__ import annotations

from math import inf

SILENCE_NS = 250_000_000
"""After so long without a new number acknowledged, no put waits for the window."""
_SECOND_NS = 1_000_000_000
_SPAN_NS = 50_000_000
"""How often a window is judged: by several commits of a busy cache."""
_BEGINS_WITH = 4_000
_SAMPLES_MIN = 1_000
"""With fewer, commits are so small that what a commit costs by itself decides. Who puts fewer than
4,000 a second is never held up, as so many are put within a silence."""


class Pacing:
    """One publisher's window; with `delay_seconds` None there is none."""

    __slots__ = (
        *("limit", "_advanced", "_ahead_most", "_began_ns", "_delay_ns", "_heard_ns", "_highest"),
        *("_shortest_ns", "_shortest_ever_ns", "_window"),
    )

    def __init__(self, delay_seconds: float | None) -> None:
        self._delay_ns = None if delay_seconds is None else round(delay_seconds * _SECOND_NS)
        self.begin()

    def begin(self) -> None:
        """Learn anew: another numbering began, or other caches acknowledge."""
        self.limit = inf
        """The lowest number whose put waits; infinite where nothing new is acknowledged."""
        self._window = _BEGINS_WITH
        self._highest = -1
        self._shortest_ever_ns = inf
        self._begin_span(0)
        self._heard_ns = 0

    def _begin_span(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._advanced = self._ahead_most = 0
        self._shortest_ns = inf

    def acknowledged(self, sn: int, next_sn: int, since_ns: int, now_ns: int) -> None:
        """Take in that a number that was put at `since_ns` is acknowledged, up to `next_sn`."""
        if self._delay_ns is None or sn <= self._highest:
            return  # sent once more
        if self._highest < 0 or now_ns - self._heard_ns > SILENCE_NS:
            self._begin_span(now_ns)
        else:
            self._advanced += sn - self._highest
            self._ahead_most = max(self._ahead_most, next_sn - 1 - self._highest)
        self._highest, self._heard_ns = sn, now_ns
        self._shortest_ns = min(self._shortest_ns, now_ns - since_ns)
        self._shortest_ever_ns = min(self._shortest_ever_ns, now_ns - since_ns)
        span_ns = now_ns - self._began_ns
        if span_ns >= _SPAN_NS:
            self._judge(span_ns, self._shortest_ever_ns + self._delay_ns)
            self._begin_span(now_ns)
        self.limit = sn + 1 + self._window

    def _judge(self, span_ns: int, wanted_ns: float) -> None:
        if self._shortest_ns > wanted_ns:
            within = round(self._advanced * wanted_ns / span_ns)
            self._window = max(_SAMPLES_MIN, min(self._window, within))
        elif 2 * self._ahead_most >= self._window:
            self._window += self._window // 4

    def silent_ns(self, now_ns: int) -> int:
        """Return for how long the window holds puts up at most; 0 where it holds up none.

        It then waits for the next number that is acknowledged.
        """
        left_ns = self._heard_ns + SILENCE_NS - now_ns
        if left_ns <= 0:
            self.limit = inf
        return max(0, left_ns)
