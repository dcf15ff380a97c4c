"""What of one source's numbering has come, what is awaited, and what a new number means.

One window belongs to one (source, epoch). It knows numbers only: no payload, no clock.
"""

from __future__ import annotations

from enum import Enum

from durable_cache.model.ranges import RangeSet, SnRange


class Verdict(Enum):
    """What a number that arrives live means to its window."""

    NEW = "new"
    """Not held: the next one, the filling of a gap, or one behind a skip."""
    DUPLICATE = "duplicate"
    """Held already."""
    OLD = "old"
    """Below what the window remembers: only the storage knows whether it is held."""
    BEYOND = "beyond"
    """So far ahead that it must be confirmed before it may move the window."""


class Window:
    """The numbers of one (source, epoch): held, skipped, awaited.

    Awaited is every number from `start` to `top` that is neither held nor skipped. Memory goes with
    the number of runs, at most `runs_max`: beyond that the oldest runs are forgotten, `base` rises,
    and numbers below it are OLD. What is still awaited is not forgotten, however many runs that
    makes: the bound is that of open gaps then. Mutable, owned by one thread.
    """

    __slots__ = (
        "_runs_borne",
        "base",
        "expected",
        "held",
        "runs_max",
        "skipped",
        "span",
        "start",
    )

    def __init__(self, *, span: int = 1 << 17, runs_max: int = 1024) -> None:
        self.held = RangeSet()
        self.skipped = RangeSet()
        self.start: int | None = None
        """The lowest number awaited; None until the first sample or the epoch's declaration."""
        self.expected = -1
        """The highest number known to have been published, come or not."""
        self.base = 0
        self.span = span
        """How far beyond `top` a number may be without confirmation."""
        self.runs_max = runs_max
        self._runs_borne = runs_max

    @property
    def top(self) -> int:
        """The highest number that is held, skipped or known to exist; -1 when there is none."""
        held, skipped = self.held.last, self.skipped.last
        return max(self.expected, -1 if held is None else held, -1 if skipped is None else skipped)

    @property
    def settled(self) -> int:
        """The number at or below which nothing is awaited; -1 when nothing has come."""
        first = self.awaited().first
        return self.top if first is None else first - 1

    def verdict(self, sn: int) -> Verdict:
        """Tell what `sn` means, without changing anything."""
        if sn in self.held:
            return Verdict.DUPLICATE
        if sn < self.base:
            return Verdict.OLD
        if self.start is not None and sn > max(self.top, self.start - 1) + self.span:
            return Verdict.BEYOND
        return Verdict.NEW

    def begin(self, sn: int) -> None:
        """Await everything from `sn` on, unless a lower start is known already."""
        if self.start is None or sn < self.start:
            self.start = sn

    def expect(self, last: int) -> None:
        """Know that `last` was published: what is missing up to it is awaited."""
        self.expected = max(self.expected, last)

    def accept(self, first: int, last: int) -> None:
        """Take `first..last` as held; idempotent; ends the skip of those numbers."""
        if self.start is None:
            self.start = first
        self.held.add(first, last)
        if len(self.skipped):
            self.skipped.remove(first, last)
        if len(self.held) > self._runs_borne:
            self._forget_oldest()

    def reject(self, first: int, last: int) -> None:
        """Take back an `accept` that did not become durable: the numbers are awaited again."""
        self.held.remove(first, last)
        self.begin(first)
        self.expect(last)
        if first < self.base:
            # What is forgotten was settled; it stays so, as skipped: the storage knows what it has.
            self.skipped.add(last + 1, self.base - 1)
            self.base = first

    def skip(self, first: int, last: int) -> None:
        """End the wait for what of `first..last` is not held; idempotent."""
        self.skipped.add(first, last)
        for low, high in self.held.clip(first, last):
            self.skipped.remove(low, high)
        if len(self.skipped) > self._runs_borne:
            self._forget_oldest()

    def awaited(self) -> RangeSet:
        """Return the awaited numbers below `top`, as a new set."""
        if self.start is None:
            return RangeSet()
        missing = self.held.gaps(max(self.start, self.base), self.top)
        for first, last in self.skipped:
            missing.remove(first, last)
        return missing

    def run_at(self, sn: int) -> SnRange | None:
        """Return the unbroken held run around `sn`, or None when it is not held."""
        return self.held.run_at(sn)

    def _forget_oldest(self) -> None:
        """Halve the memory; never raises `base` over a number that is still awaited."""
        runs = list(self.held)
        base = runs[max(1, len(runs) // 2)].first if len(runs) > 1 else self.base
        awaited = self.awaited().first
        base = max(self.base, min(base, self.top) if awaited is None else min(base, awaited))
        self.base = base
        self.held.remove(0, base - 1)
        self.skipped.remove(0, base - 1)
        # Where much is awaited little can go: looking again at each number would cost its square.
        left = max(len(self.held), len(self.skipped))
        self._runs_borne = self.runs_max if left <= self.runs_max else 2 * left
