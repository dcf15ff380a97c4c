"""What a cache asks all others about two epochs of a source, and what it keeps of that question."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId

COMPARED_MAX = 20_000
"""So many numbers are asked for and compared before two epochs are taken for one: the oldest, for
what is under a wrong name came after what is rightly under it."""
HELD_BACK_SECONDS = 10.0
"""An answer to the question how others call what is here takes less."""
_PAUSE_SECONDS_MAX = 300.0
_REMEMBERED_MAX = 4096

_ASKED_AGAIN_MAX = 10
"""So often others are asked once more whose answer failed; then what they give asks anew."""
Pair = tuple[SourceId, int, int]
"""A source and two of its epochs, the one that would stand first."""


class Inquiry(NamedTuple):
    """Ask every cache for numbers of a source, whatever they call its epoch."""

    inquiry_id: int
    source: SourceId
    first: int
    last: int


@dataclass(slots=True)
class Asked:
    """What others were asked about a pair of epochs: not again before a time, and what was seen."""

    inquiry: Inquiry
    until: float
    in_common: bool
    pause: float
    """How long it is not asked anew: longer each time, for it showed nothing."""
    whole: bool = True
    """Nothing of what others gave since was put off: what did not come, nobody has."""
    overlap: bool = False
    """What others gave shows that neither is the rest of the other."""
    behind: bool = False
    """What is here without an epoch lies behind a wrap of what others have so."""
    proof_sns: int = 0
    """How many numbers of one, next to the other, were asked for last to prove them to be one."""
    again: int = _ASKED_AGAIN_MAX
    """How often it is asked once more where an answer failed."""


class Inquiries:
    """What others are asked about epochs, one question at a time for each pair."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._of: OrderedDict[Pair, Asked] = OrderedDict()
        self._under_way: OrderedDict[int, Pair] = OrderedDict()
        self._new: list[Inquiry] = []

    def take(self) -> list[Inquiry]:
        """Take what is to be asked now."""
        new, self._new = self._new, []
        return new

    def of(self, pair: Pair) -> Asked | None:
        """Return what was asked last about a pair."""
        return self._of.get(pair)

    def ask(self, pair: Pair, held: RangeSet, now_seconds: float, *, in_common: bool) -> bool:
        """Ask for numbers from the first to the last of these, unless it is too soon; tell which.

        What a question under way is about and what a number in common showed meanwhile is noted.
        """
        before = self._of.get(pair)
        if before is not None and now_seconds < before.until:
            shown = in_common and not before.in_common
            before.in_common |= in_common
            if not shown or before.inquiry.inquiry_id in self._under_way:
                return False
        first, last = held.first, held.last
        if first is None or last is None:
            return False
        last = min(last, first + COMPARED_MAX - 1)
        inquiry = Inquiry(next(self._ids), pair[0], first, last)
        pause = HELD_BACK_SECONDS if before is None else 2 * before.pause
        pause = min(pause, _PAUSE_SECONDS_MAX)
        self._of[pair] = asked = Asked(inquiry, now_seconds + pause, in_common, pause)
        asked.proof_sns = 0 if before is None else before.proof_sns
        self._under_way[inquiry.inquiry_id] = pair
        for memory in (self._of, self._under_way):
            while len(memory) > _REMEMBERED_MAX:
                memory.popitem(last=False)
        self._new.append(inquiry)
        return True

    def to_prove(self, pair: Pair) -> int:
        """Return for how many numbers to ask to prove a pair to be one: for more each time.

        Not where there was no room for the answer: it brings them nearer (ADR 0380).
        """
        asked = self._of.get(pair)
        if asked is None:
            return 1
        return min(10 * asked.proof_sns if asked.whole else asked.proof_sns, COMPARED_MAX) or 1

    def proves(self, pair: Pair, sns: int) -> None:
        """Note for how many numbers is asked to prove a pair to be one."""
        if pair in self._of:
            self._of[pair].proof_sns = sns

    def about(self, inquiry_id: int) -> SourceId | None:
        """Return which source an inquiry is about; None where it was forgotten."""
        pair = self._under_way.get(inquiry_id)
        return None if pair is None else pair[0]

    def is_behind(self, pair: Pair) -> None:
        """What is here without an epoch lies behind what others have so (ADR 0399)."""
        if pair in self._of:
            self._of[pair].behind = True

    def is_answered(self, inquiry_id: int, *, whole: bool) -> bool:
        """Tell whether an inquiry can be decided, as far as what others gave for it came in.

        What did not come in may be what shows two runs to be two (ADR 0355).
        """
        asked = self._asked(inquiry_id)
        if asked is None or not asked.in_common or asked.again == 0:
            return True
        return whole and asked.whole

    def take_answered(self, inquiry_id: int, *, whole: bool) -> tuple[Pair | None, Asked | None]:
        """Take a question that is answered; None where it was forgotten."""
        pair = self._under_way.pop(inquiry_id, None)
        asked = None if pair is None else self._of.get(pair)
        if asked is not None:
            asked.whole &= whole
        return pair, asked

    def ask_again(self, inquiry_id: int, now: Moment) -> None:
        """Ask once more what somebody failed to answer, unless it was asked anew meanwhile."""
        asked = self._asked(inquiry_id)
        if asked is None or asked.inquiry.inquiry_id != inquiry_id or asked.again == 0:
            return
        asked.again -= 1
        asked.whole = True
        asked.until = max(asked.until, now.monotonic_ns / 1e9 + HELD_BACK_SECONDS)
        self._new.append(asked.inquiry)

    def missed_some(self) -> None:
        """Something that others gave could not be looked at: no answer under way is whole."""
        for pair in self._under_way.values():
            if pair in self._of:
                self._of[pair].whole = False

    def overlap(self, pair: Pair) -> None:
        """What others gave of one epoch does not go on where the other ends."""
        if pair in self._of:
            self._of[pair].overlap = True

    def forget(self, source: SourceId, epoch: int) -> None:
        """Forget what was asked about an epoch that is another run's now."""
        for pair in [pair for pair in self._of if pair[0] == source and epoch in pair[1:]]:
            del self._of[pair]

    def _asked(self, inquiry_id: int) -> Asked | None:
        pair = self._under_way.get(inquiry_id)
        return None if pair is None else self._of.get(pair)
