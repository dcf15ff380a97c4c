"""Which sequence numbers are held: ranges with both ends included, and sets of them.

May not know what a source, a sample or a clock is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

_FEW_RUNS = 8
"""Taking out so many one by one costs less than walking through all runs."""


class SnRange(NamedTuple):
    """The numbers `first` to `last`, both ends included, as ``_sn=first..last`` writes them."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"

    def holds(self, sn: int) -> bool:
        return self.first <= sn <= self.last


class RangeSet:
    """A set of non-negative numbers kept as sorted, disjoint, maximal runs.

    The cost of every operation goes with the number of runs, never with the count of numbers.
    Mutable and owned by one thread; `copy` before handing it out.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, runs: Iterable[SnRange | tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in runs:
            if self._lasts and first <= self._lasts[-1] + 1:
                self.add(first, last)
            elif first <= last:  # the usual case: rising, with room between them
                self._firsts.append(first)
                self._lasts.append(last)

    @classmethod
    def of(cls, sns: Iterable[int]) -> RangeSet:
        """Build the set of the given numbers, in any order, repeats allowed."""
        held = cls()
        given = list(sns)
        if not given:
            return held
        first, last = given[0], given[-1]
        count = last - first + 1
        if count == len(given) and given == list(range(first, last + 1)):  # the usual case: one run
            held._firsts.append(first)
            held._lasts.append(last)
            return held
        numbers = set(given)
        first = min(numbers)
        last = first - 1
        for sn in sorted(numbers):
            if sn != last + 1:
                held._firsts.append(first)
                held._lasts.append(last)
                first = sn
            last = sn
        held._firsts.append(first)
        held._lasts.append(last)
        return held

    @classmethod
    def of_runs(cls, flat: Sequence[int]) -> RangeSet:
        """Build the set of runs that are sorted, disjoint and maximal: first, last, first, …"""
        held = cls()
        held._firsts, held._lasts = [*flat[::2]], [*flat[1::2]]
        return held

    @classmethod
    def union(cls, sets: Iterable[RangeSet]) -> RangeSet:
        """Build the set of what any of these holds; they may overlap.

        Sorted apart, the ends of runs cover what the runs cover: nothing is inserted one by one.
        """
        parts = [*sets]
        firsts = sorted(chain.from_iterable(part._firsts for part in parts))
        lasts = sorted(chain.from_iterable(part._lasts for part in parts))
        held = cls()
        if firsts:
            later = zip(firsts[1:], lasts[:-1], strict=True)
            begins = [at for at, (first, last) in enumerate(later, 1) if first > last + 1]
            held._firsts = [firsts[0], *(firsts[at] for at in begins)]
            held._lasts = [*(lasts[at - 1] for at in begins), lasts[-1]]
        return held

    def flat(self) -> tuple[int, ...]:
        """Return the runs as first, last, first, last, …"""
        return tuple(chain.from_iterable(zip(self._firsts, self._lasts, strict=True)))

    def pairs(self) -> list[tuple[int, int]]:
        """Return the runs as plain pairs: of many that is a tenth of the time of iterating."""
        return [*zip(self._firsts, self._lasts, strict=True)]

    def add(self, first: int, last: int) -> None:
        """Include `first..last`; nothing happens when `last` is below `first`."""
        if last < first:
            return
        if self._firsts and first == self._lasts[-1] + 1:  # the usual case: the next number
            self._lasts[-1] = last
            return
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def remove(self, first: int, last: int) -> None:
        """Exclude `first..last`."""
        if last < first:
            return
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low >= high:
            return
        left, right = self._firsts[low], self._lasts[high - 1]
        kept = [(left, first - 1)] if left < first else []
        if right > last:
            kept.append((last + 1, right))
        self._firsts[low:high] = [run[0] for run in kept]
        self._lasts[low:high] = [run[1] for run in kept]

    def update(self, other: RangeSet) -> None:
        """Include every run of `other`."""
        if not (self._firsts and other._firsts) or other._firsts[0] > self._lasts[-1] + 1:
            self._firsts += other._firsts  # behind all that is here
            self._lasts += other._lasts
            return
        for first, last in zip(other._firsts, other._lasts, strict=True):
            self.add(first, last)

    def difference(self, other: RangeSet) -> RangeSet:
        """Return what is here and not in `other`, as a new set."""
        if not self._firsts:
            return RangeSet()
        gone = other.clip(self._firsts[0], self._lasts[-1])
        if len(gone) > _FEW_RUNS:
            return self._merged_without(gone)
        left = self.copy()
        for first, last in zip(gone._firsts, gone._lasts, strict=True):
            left.remove(first, last)
        return left

    def _merged_without(self, other: RangeSet) -> RangeSet:
        """Walk through both at once: each removal alone would move what lies behind it."""
        left = RangeSet()
        gone_firsts, gone_lasts = other._firsts, other._lasts
        at, end = 0, len(gone_firsts)
        for first, last in zip(self._firsts, self._lasts, strict=True):
            while at < end and gone_lasts[at] < first:
                at += 1
            rest = first
            while at < end and gone_firsts[at] <= last:
                if gone_firsts[at] > rest:
                    left._firsts.append(rest)
                    left._lasts.append(gone_firsts[at] - 1)
                rest = gone_lasts[at] + 1
                if rest > last:
                    break  # it may reach into the next run
                at += 1
            if rest <= last:
                left._firsts.append(rest)
                left._lasts.append(last)
        return left

    def intersection(self, other: RangeSet) -> RangeSet:
        """Return what is in both, as a new set."""
        both = RangeSet()
        for first, last in other:
            both.update(self.clip(first, last))
        return both

    def clip(self, first: int, last: int) -> RangeSet:
        """Return the part within `first..last`, as a new set."""
        part = RangeSet()
        if last < first:
            return part
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        part._firsts = self._firsts[low:high]
        part._lasts = self._lasts[low:high]
        if part._firsts:
            part._firsts[0] = max(part._firsts[0], first)
            part._lasts[-1] = min(part._lasts[-1], last)
        return part

    def gaps(self, first: int, last: int) -> RangeSet:
        """Return the numbers of `first..last` that are not here, as a new set."""
        missing = RangeSet()
        missing.add(first, last)
        for low, high in self.clip(first, last):
            missing.remove(low, high)
        return missing

    def run_at(self, sn: int) -> SnRange | None:
        """Return the run that holds `sn`, or None."""
        at = bisect_left(self._lasts, sn)
        if at < len(self._firsts) and self._firsts[at] <= sn:
            return SnRange(self._firsts[at], self._lasts[at])
        return None

    def __contains__(self, sn: int) -> bool:
        at = bisect_left(self._lasts, sn)
        return at < len(self._firsts) and self._firsts[at] <= sn

    def __iter__(self) -> Iterator[SnRange]:
        return map(SnRange, self._firsts, self._lasts)

    def __len__(self) -> int:
        """The number of runs (`count` gives the number of numbers)."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"RangeSet({', '.join(map(str, self))})"

    @property
    def count(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def first(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    @property
    def last(self) -> int | None:
        return self._lasts[-1] if self._lasts else None

    def nth_last(self, count: int) -> int | None:
        """Return the `count`-th highest number, or None when there are fewer."""
        for first, last in zip(reversed(self._firsts), reversed(self._lasts), strict=True):
            if last - first + 1 >= count:
                return last - count + 1
            count -= last - first + 1
        return None

    def copy(self) -> RangeSet:
        twin = RangeSet()
        twin._firsts = self._firsts.copy()
        twin._lasts = self._lasts.copy()
        return twin
