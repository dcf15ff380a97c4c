"""What a member took over from members that were gone, and what it says when one was not dead.

A network that is cut has members on both sides that take each other for dead (ADR 0156). When they
see each other again, each says what it confirmed meanwhile of sources that the other had: the other
may have processed the same, and neither could know. The other had, too, what a third one left to it
that was out of reach together with it.

Who learns from a cache that it was taken for dead gives up everything and begins anew (ADR 0163).
What caches were known to hold stays confirmed: it joins that with what it reads then. What it
confirmed besides comes again, for its program was told that this counts no more; of sources that
others have by now it says so. And what caches hold may be
hidden by what somebody wrote who knew less, and never went on: so whoever reads where all stand
writes anew where its own sources do, if that says more (ADR 0201).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.members import Sharing, owner_of
from durable_cache.protocol.subscriber.positions import join_positions

_Run = tuple[SourceId, str | int]
"""A run, by its incarnation where it has one."""


class Twice(NamedTuple):
    """Numbers that were confirmed here, and perhaps by a member that was out of reach, too."""

    member: SourceId
    source: SourceId
    first: int
    last: int


class _Taken(NamedTuple):
    """What was begun when members were gone."""

    among: tuple[frozenset[SourceId], ...]
    """Among whom sources were shared before: who began together, and who came since."""
    confirmed: Mapping[_Run, int]
    """To where each run was confirmed that was taken over."""
    at: int = 0
    """Which takeover it was."""

    def may_have(self, member: SourceId, source: SourceId) -> bool:
        """Tell whether a source was a member's when that was taken for dead."""
        return any(owner_of(source, members) == member for members in self.among)

    def first_of(self, position: Position) -> int:
        """Return the first number that was not confirmed when it was taken over."""
        return self.confirmed.get(position.run, -1) + 1

    def followed_by(self, member: SourceId, later: _Taken) -> _Taken:
        """Return what was taken over of a member that was never back: each source as at first.

        What is read at the second time was confirmed here since the first, and that member may have
        confirmed it, too (ADR 0270).
        """
        since = (run for run in later.confirmed if not self.may_have(member, run[0]))
        confirmed = {**{run: later.confirmed[run] for run in since}, **self.confirmed}
        return _Taken((*self.among[:2], *later.among), confirmed, self.at)


class Takeovers:
    """What one member took over of each that is gone; owned by the thread of its `Sharing`."""

    def __init__(self) -> None:
        self._taken: dict[SourceId, _Taken] = {}
        self._noted = 0
        self._known: list[Position] = []
        """Where this member stood when it gave everything up; at most what `Positions` remembers.
        """
        self._left: list[Position] = []
        """Where it stood whenever it stopped something since it took over from who is gone."""

    def note(self, sharing: Sharing, gained: Iterable[Position]) -> None:
        """Before sources are begun: this is where those stand that are gained."""
        self._noted += 1
        taken = _Taken(
            (sharing.began_with, sharing.contenders),
            {one.run: one.confirmed_to for one in gained},
            self._noted,
        )
        for member in frozenset().union(*taken.among) - sharing.members:
            before = self._taken.get(member)
            self._taken[member] = taken if before is None else before.followed_by(member, taken)
        self._take_back(taken.confirmed)

    def rewound(self, before: Iterable[Position], stands: Iterable[Position]) -> None:
        """A rewind began here: what it took back is confirmed a second time from now on."""
        self._leave(before)
        self._take_back({one.run: one.confirmed_to for one in stands})

    def _take_back(self, firsts: Mapping[_Run, int]) -> None:
        """Runs go on from here: what was confirmed behind it is confirmed a second time."""
        self._taken = {
            member: taken._replace(
                confirmed={run: min(to, firsts.get(run, to)) for run, to in taken.confirmed.items()}
            )
            for member, taken in self._taken.items()
        }

    def compare(self, sharing: Sharing, stands: Sequence[Position]) -> list[Twice]:
        """Return what was confirmed here of sources whose owner was not dead but out of reach."""
        found = []
        returned = frozenset(sharing.returned)
        for member in sorted(returned):
            for position in _ever([*stands, *self._left]):
                first = self._first_since(member, returned, position)
                if first is not None:  # also behind one that is open still
                    since = _confirmed(position).clip(first, position.reached)
                    found += [Twice(member, position.source, *run) for run in since]
            sharing.forget(member)
        self._taken = {
            member: self._taken[member] for member in sharing.gone.keys() & self._taken.keys()
        }
        self._leave(stands)
        return found

    def _first_since(
        self, member: SourceId, returned: frozenset[SourceId], position: Position
    ) -> int | None:
        """Return the first number that one who is back may have confirmed, too; None for none.

        It may have a source that was its own, and one of a member that went with it or later and is
        not back: that may have left it to this one.
        """
        taken = self._taken.get(member)
        if taken is None:
            return None
        firsts = (
            one.first_of(position)
            for gone, one in self._taken.items()
            if gone == member or (gone not in returned and one.at >= taken.at)
            if one.may_have(gone, position.source)
        )
        return min(firsts, default=None)

    def give_up(self, stands: Iterable[Position]) -> None:
        """Everything is given up, and begun anew: this is where it stood."""
        self._known = join_positions([*self._known, *stands])
        self._leave(self._known)

    def _leave(self, stands: Iterable[Position]) -> None:
        self._left = _ever([*self._left, *stands]) if self._taken else []

    def unread(self, sharing: Sharing, read: Iterable[Position]) -> list[Twice]:
        """Return what this member confirmed before it gave up, and others will process again."""
        known, self._known = self._known, []
        stands = {one.run: one for one in read}
        found = []
        for position in known:
            owner = owner_of(position.source, sharing.members)
            if owner is None or sharing.owned_then(position.source):
                continue
            lost, told = _confirmed(position), stands.get(position.run)
            if told is not None:
                lost = lost.difference(_confirmed(told))
            found += [Twice(owner, position.source, first, last) for first, last in lost]
        return found

    def unsaid(
        self, sharing: Sharing, stands: Sequence[Position], read: Iterable[Position] | None = None
    ) -> Sequence[Position]:
        """Before something is begun: return what is to be written anew of where this member stands.

        That is what says more than what was `read` of its run; or all, where somebody was met who
        was out of reach: what was written there may come to hide it.
        """
        if sharing.parted:
            return stands
        if read is None:
            return ()
        told = {one.run: one for one in read}
        return [one for one in stands if _says_more(one, told.get(one.run))]

    def forget(self, sharing: Sharing) -> None:
        """Take all that returned as any other: nobody who was out of reach processed anything."""
        for member in sorted(sharing.returned):
            sharing.forget(member)
        self._taken.clear()
        self._known, self._left = [], []


def _ever(positions: Iterable[Position]) -> list[Position]:
    """Return one position for each run: what was ever confirmed, whether taken back or not."""
    return join_positions(msgspec.structs.replace(one, rewinds=0) for one in positions)


def _says_more(position: Position, told: Position | None) -> bool:
    if told is None or position.rewinds != told.rewinds:
        return told is None or position.rewinds > told.rewinds
    return bool(_confirmed(position).difference(_confirmed(told)))


def _confirmed(position: Position) -> RangeSet:
    if position.reached < 0:
        return RangeSet()
    return RangeSet([(0, position.reached)]).difference(RangeSet(position.open))
