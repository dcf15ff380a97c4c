"""Which awaited ranges are open, when to ask for each, and when to give one up.

A gap is OPEN until a fetch for it is due, FETCHING until the fetch ends, then OPEN again after a
pause that doubles. It ends FILLED when nothing of it is awaited any more, or MISSED when its time
is over and no fetch for it is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count, islice
from operator import attrgetter

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId
from durable_cache.model.window import Window
from durable_cache.protocol.cache.events import EngineOptions, Fetch

_SECOND_NS = 1_000_000_000
_LAST = attrgetter("last")
_NEAR = 128
"""So many numbers that are here already cost less to get once more than another question."""
_STRETCH = 4096
"""What one question asks for at most where it joins gaps: a page of small samples."""
_GRACE = 2
"""A fetch that never ends is given up after so many gap timeouts."""
_MANY = 100
"""So many gaps are looked through at every step without a thought."""
_PART = 0.1
"""Gaps that began within the same such part of the gap timeout may be given up together."""


class GapState(Enum):
    OPEN = "open"
    FETCHING = "fetching"


@dataclass(slots=True)
class Gap:
    """One awaited range of one numbering; the window says what of it is still missing."""

    source: SourceId
    epoch: int
    window: Window
    first: int
    last: int
    opened_ns: int
    due_ns: int
    overlaps: bool = False
    """Nobody named its run, and others may call it otherwise: a number that is here is asked for
    with it, which shows theirs to be this one."""
    state: GapState = GapState.OPEN
    pause_ns: int = 0
    fetches: int = 0
    answered: bool = False
    """Everybody in reach was asked for it and answered, if only that he does not have it."""
    missing: int = 0
    """How many numbers were awaited when last looked at."""
    missing_when_asked: int = 0

    def awaited(self) -> RangeSet:
        """Return what of it is neither here nor settled otherwise, as a new set."""
        missing = self.window.held.gaps(max(self.first, self.window.base), self.last)
        for first, last in self.window.skipped.clip(self.first, self.last):
            missing.remove(first, last)
        return missing

    def narrow(self) -> bool:
        """Shrink to what is still awaited; False when nothing is."""
        missing = self.awaited()
        if missing.first is None or missing.last is None:
            return False
        self.first, self.last, self.missing = missing.first, missing.last, missing.count
        return True

    def is_over(self, now_ns: int, timeout_ns: int) -> bool:
        """Tell whether it was awaited for long enough, and asked for."""
        waited_ns = now_ns - self.opened_ns
        if waited_ns >= _GRACE * timeout_ns:
            return self.fetches > 0
        return waited_ns >= timeout_ns and self.answered and self.state is GapState.OPEN


class Gaps:
    """The open gaps of all windows of a cache; bounded by `gaps_open_max`.

    While nothing can be stored every batch opens a gap, and none can be given up. Gaps that lie
    side by side are waited for as one, therefore, and beyond the bound those of one stretch of a
    numbering (ADR 0346). Then the oldest are given up first.

    `shows_run` tells, for a source and a number, which number that is here is to be asked of its
    publisher with what follows, so that it shows which run that is of.
    """

    def __init__(
        self,
        options: EngineOptions,
        shows_run: Callable[[SourceId, int], int | None] = lambda _, __: None,
    ) -> None:
        self._options = options
        self._shows_run = shows_run
        self._gaps: list[Gap] = []
        self._fetching: dict[int, list[Gap]] = {}
        self._ids = count(1)
        self._join_above = min(_MANY, options.gaps_open_max)

    def __len__(self) -> int:
        return len(self._gaps)

    def __iter__(self) -> Iterator[Gap]:
        return iter(self._gaps)

    def by_source(self) -> dict[SourceId, int]:
        """Return how many numbers each source has open at most; any thread may ask, roughly."""
        awaited: dict[SourceId, int] = {}
        for gap in self._gaps:
            awaited[gap.source] = awaited.get(gap.source, 0) + gap.last - gap.first + 1
        return awaited

    def open(self, gap: Gap) -> None:
        """Begin to wait for a range."""
        self._gaps.append(gap)
        if len(self._gaps) > self._join_above:
            self._join()

    def _join(self) -> None:
        """Wait for gaps as one; and not again before there are many more."""
        part_ns = max(1, round(_PART * self._options.gap_timeout_seconds * _SECOND_NS))

        def is_beside(first: Gap, last: int, gap: Gap) -> bool:
            together = gap.opened_ns // part_ns == first.opened_ns // part_ns
            return together and gap.first <= last + 1

        self._gaps = _joined(self._gaps, is_beside)
        most = self._options.gaps_open_max
        if len(self._gaps) > most:
            self._gaps = _joined(self._gaps, _is_of_one_stretch)
        held = len(self._gaps)
        self._join_above = max(min(max(_MANY, 2 * held), most), held + held // 10)

    def covers(self, window: Window, first: int, last: int) -> bool:
        """Tell whether one open gap awaits a whole range already."""
        return any(g.window is window and g.first <= first and last <= g.last for g in self._gaps)

    def waits_for(self, window: Window) -> bool:
        """Tell whether some gap is open in `window`."""
        return any(gap.window is window for gap in self._gaps)

    def move(self, old: Window, new: Window, epoch: int) -> None:
        """Wait in `new`, of another epoch, for what was awaited in `old`."""
        for gap in self._gaps:
            if gap.window is old:
                gap.window, gap.epoch = new, epoch

    def tail(self, source: SourceId, epoch: int, first: int) -> Fetch:
        """Ask for everything from `first` on, without awaiting it."""
        return self._begin([], source, epoch, first, None)

    def single(self, source: SourceId, epoch: int, sn: int) -> Fetch:
        """Ask for one number, without awaiting it: does anybody know it?"""
        return self._begin([], source, epoch, sn, sn)

    def _begin(
        self, gaps: list[Gap], source: SourceId, epoch: int, first: int, last: int | None
    ) -> Fetch:
        fetch_id = next(self._ids)
        self._fetching[fetch_id] = gaps
        return Fetch(fetch_id, source, epoch, first, last, self._shows_run(source, first))

    def ended(self, fetch_id: int, now_ns: int, *, failed: bool = False) -> set[SourceId]:
        """A fetch is over: ask again at once where it brought some, else after a pause.

        Returns of whom it asked in vain.
        """
        filled: set[int] = set()
        asked = self._fetching.pop(fetch_id, ())
        for gap in asked:
            gap.answered |= not failed
            if gap.narrow():
                self._ask_again(gap, now_ns)
            else:
                filled.add(id(gap))
        if filled:
            self._gaps = [gap for gap in self._gaps if id(gap) not in filled]
        return {gap.source for gap in asked} if failed else set()

    def _ask_again(self, gap: Gap, now_ns: int) -> None:
        progress = gap.missing < gap.missing_when_asked
        gap.state = GapState.OPEN
        retry_ns = round(self._options.fetch_retry_seconds * _SECOND_NS)
        most_ns = round(self._options.fetch_retry_seconds_max * _SECOND_NS)
        gap.pause_ns = retry_ns if progress else min(max(retry_ns, gap.pause_ns * 2), most_ns)
        gap.due_ns = now_ns if progress else now_ns + gap.pause_ns
        if progress:
            gap.opened_ns = now_ns

    def due(self, now_ns: int, given_up: Collection[Gap] = ()) -> list[Fetch]:
        """Return the fetches to start now, none for `given_up`; drops the gaps that are filled."""
        self._gaps = [gap for gap in self._gaps if gap.narrow()]
        room = self._options.fetches_max - len(self._fetching)
        if room <= 0:
            return []
        over = {id(gap) for gap in given_up}
        waiting = (gap for gap in self._gaps if gap.state is GapState.OPEN and id(gap) not in over)
        due = [gap for gap in waiting if gap.due_ns <= now_ns]
        return [self._fetch(together) for together in islice(_together(due, _is_near), room)]

    def _fetch(self, together: list[Gap]) -> Fetch:
        for gap in together:
            gap.state = GapState.FETCHING
            gap.fetches += 1
            gap.missing_when_asked = gap.missing
        gap, last = together[0], max(gap.last for gap in together)
        last += gap.overlaps and last + 1 in gap.window.held
        return self._begin(together, gap.source, gap.epoch, gap.first, last)

    def expired(self, now_ns: int) -> list[Gap]:
        """Return the gaps whose time is over, oldest first; they stay until `close`.

        A gap that nobody could be asked for has twice the time: an error is no answer.
        """
        timeout_ns = round(self._options.gap_timeout_seconds * _SECOND_NS)
        crowded = self._crowded_out()
        return [gap for gap in self._gaps if id(gap) in crowded or gap.is_over(now_ns, timeout_ns)]

    def _crowded_out(self) -> set[int]:
        """Return the gaps beyond `gaps_open_max`: the oldest of the sources that have most.

        So a source that opens thousands costs another none of its own.
        """
        over = len(self._gaps) - self._options.gaps_open_max
        if over <= 0:
            return set()
        by_source: dict[SourceId, list[Gap]] = {}
        for gap in self._gaps:
            by_source.setdefault(gap.source, []).append(gap)
        low, high = 0, max(len(gaps) for gaps in by_source.values())
        while low < high:  # the largest share that leaves enough above it
            share = (low + high + 1) // 2
            beyond = sum(max(0, len(gaps) - share) for gaps in by_source.values())
            low, high = (share, high) if beyond >= over else (low, share - 1)
        crowded = {
            id(gap) for gaps in by_source.values() for gap in gaps[: max(0, len(gaps) - low)]
        }
        return {id(gap) for gap in [g for g in self._gaps if id(g) in crowded][:over]}

    def close(self, given_up: Collection[Gap]) -> None:
        """Forget gaps that were given up; some may have been filled meanwhile."""
        if given_up:
            over = {id(gap) for gap in given_up}
            self._gaps = [gap for gap in self._gaps if id(gap) not in over]

    def wake_ns(self) -> int | None:
        """Return the monotonic time of the next thing to do, or None."""
        if not self._gaps:  # asked for with every batch
            return None
        timeout_ns = round(self._options.gap_timeout_seconds * _SECOND_NS)
        times = [
            gap.due_ns if gap.state is GapState.OPEN else gap.opened_ns + _GRACE * timeout_ns
            for gap in self._gaps
        ]
        return min(times, default=None)


def _is_of_one_stretch(first: Gap, _last: int, gap: Gap) -> bool:
    return gap.last - first.first < _STRETCH


def _is_near(first: Gap, last: int, gap: Gap) -> bool:
    return gap.first - last <= _NEAR and _is_of_one_stretch(first, last, gap)


def _together(gaps: Iterable[Gap], belongs: Callable[[Gap, int, Gap], bool]) -> Iterator[list[Gap]]:
    """Yield gaps of one numbering that belong together: each to the first, and to their end."""
    windows: dict[int, list[Gap]] = {}
    for gap in gaps:
        windows.setdefault(id(gap.window), []).append(gap)
    for of_one in windows.values():
        together: list[Gap] = []
        last = -1
        for gap in sorted(of_one, key=lambda gap: gap.first):
            if together and not belongs(together[0], last, gap):
                yield together
                together = []
            together.append(gap)
            last = max(last, gap.last)
        yield together


def _joined(gaps: list[Gap], belongs: Callable[[Gap, int, Gap], bool]) -> list[Gap]:
    """Return those that belong together as one each, oldest first; not what is asked for now."""
    waiting = [gap for gap in gaps if gap.state is GapState.OPEN]
    asked = [gap for gap in gaps if gap.state is not GapState.OPEN]
    joined = [_as_one(together) for together in _together(waiting, belongs)]
    return sorted([*asked, *joined], key=lambda gap: gap.opened_ns)


def _as_one(together: list[Gap]) -> Gap:
    """Return a gap for several, given up when the last of them would be; none is asked later."""
    first, *more = together
    if not more:
        return first
    return replace(
        first,
        last=max(map(_LAST, together)),
        opened_ns=max(gap.opened_ns for gap in together),
        due_ns=min(gap.due_ns for gap in together),
        pause_ns=min(gap.pause_ns for gap in together),
        fetches=min(gap.fetches for gap in together),
        answered=all(gap.answered for gap in together),
    )
