"""What a delivery mode passes on of what arrives: Ockam's four modes as one decision (ADR 0191).

Pure, and of one run of one source: the decision knows numbers, neither samples nor who delivers
them. Whoever carries samples, a subscriber or a pipe, has an `Arrivals` for each run and asks it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple, assert_never

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import bounded, check_fields, check_kind, check_number, refused
from durable_cache.model.delivery import DeliveryMode
from durable_cache.model.ranges import RangeSet, SnRange

_IDS_MAX = 1 << 17
"""As far ahead as a number is believed, so far behind is remembered."""


class Deduplication(StrEnum):
    """What at-most-once knows a repeat by."""

    ID = "id"
    """Each number of a window is passed on once, whatever the order in which numbers come."""
    INDEX = "index"
    """Only a number above the last one is passed on: what comes late is discarded."""


@dataclass(frozen=True, slots=True)
class ModeOptions:
    """How a delivery mode works; each default carries its reason. None: as the mode has it."""

    deduplication: Deduplication | str | None = None
    """At-most-once: by "index", the default, for it keeps one number a source; or by "id"."""
    next_only: bool = False
    """At-most-once by index: only the next consecutive index is passed on. What follows a loss
    is discarded until somebody sends the missing number again, or the source begins anew."""
    ids_max: int = _IDS_MAX
    """Numbers below the highest of which is known whether they came. By id, one that is further
    below is discarded: nobody knows whether it is a repeat."""
    retries: int | None = None
    """At-least-once: how often a sample is handed over again that nobody confirmed; 3, for what
    fails four times fails for a reason of its own."""
    confirm_timeout_seconds: float | None = None
    """At-least-once: how long a confirmation is waited for; 10 s, longer than most handlers take.
    """
    unconfirmed_max: int = 10_000
    """At-least-once: samples handed over and not confirmed; delivery waits while there are so many.
    """

    def checked(self) -> ModeOptions:
        """Return the options themselves; ConfigError names what no mode can work with."""
        check_fields(self)
        if self.deduplication is not None and self.deduplication not in tuple(Deduplication):
            raise refused("deduplication", self.deduplication, '"id" or "index"')
        for name in ("ids_max", "unconfirmed_max"):
            check_number(name, getattr(self, name), 1, whole=True)
        if self.retries is not None:
            check_number("retries", self.retries, 0, whole=True)
        seconds = self.confirm_timeout_seconds
        if seconds is not None and not seconds > 0:
            raise refused("confirm_timeout_seconds", seconds, "a number of seconds above 0")
        return bounded(self)


@dataclass(frozen=True, slots=True)
class Mode:
    """A delivery mode with its options, none of which contradicts it."""

    delivery: DeliveryMode
    deduplication: Deduplication | None = None
    """None where repeats are passed on, or numbers are passed on in order alone."""
    next_only: bool = False
    ids_max: int = _IDS_MAX
    retries: int = 0
    confirm_timeout_seconds: float = 0.0
    unconfirmed_max: int = 0

    @classmethod
    def of(cls, mode: DeliveryMode | str, options: ModeOptions | None = None) -> Mode:
        """Read a mode by its name; ConfigError says which option to leave out, or what to choose.

        It raises for a mode that is none, too.
        """
        delivery = _named(mode)
        given = (options or ModeOptions()).checked()
        unique_only = delivery is DeliveryMode.AT_MOST_ONCE
        repeats_only = delivery is DeliveryMode.AT_LEAST_ONCE
        _refuse("deduplication", given.deduplication is not None and not unique_only, delivery)
        _refuse("next_only", given.next_only and not unique_only, delivery)
        _refuse("retries", given.retries is not None and not repeats_only, delivery)
        waits = given.confirm_timeout_seconds is not None
        _refuse("confirm_timeout_seconds", waits and not repeats_only, delivery)
        known_by = Deduplication(given.deduplication or Deduplication.INDEX)
        if given.next_only and known_by is Deduplication.ID:
            raise ConfigError(
                'next_only is about the index: choose deduplication="index", or leave next_only out'
            )
        seconds = given.confirm_timeout_seconds
        return cls(
            delivery,
            known_by if unique_only else None,
            given.next_only,
            given.ids_max,
            (3 if given.retries is None else given.retries) if repeats_only else 0,
            (10.0 if seconds is None else seconds) if repeats_only else 0.0,
            given.unconfirmed_max if repeats_only else 0,
        )

    @property
    def recovers(self) -> bool:
        """Whether what is missing is asked for, and waited for."""
        return self.delivery.is_reliable

    @property
    def confirms(self) -> bool:
        """Whether a sample is handed over until it is confirmed."""
        return self.delivery is DeliveryMode.AT_LEAST_ONCE


EXACTLY_ONCE = Mode(DeliveryMode.EXACTLY_ONCE)
"""What a subscriber does of itself."""

_OF_MODE = {
    "deduplication": DeliveryMode.AT_MOST_ONCE,
    "next_only": DeliveryMode.AT_MOST_ONCE,
    "retries": DeliveryMode.AT_LEAST_ONCE,
    "confirm_timeout_seconds": DeliveryMode.AT_LEAST_ONCE,
}


def _named(mode: DeliveryMode | str) -> DeliveryMode:
    if isinstance(mode, DeliveryMode):
        return mode
    try:
        return DeliveryMode.named(check_kind("mode", mode, str, "the name of a delivery mode"))
    except ValueError as error:
        raise ConfigError(f"mode: {error}") from None


def _refuse(name: str, contradicts: bool, delivery: DeliveryMode) -> None:
    if contradicts:
        raise ConfigError(
            f'{name} is an option of mode="{_OF_MODE[name].words}": choose that mode, or leave '
            f'{name} out with mode="{delivery.words}"'
        )


class Passed(Enum):
    """As what a sample is passed on."""

    FIRST = "first"
    AGAIN = "again"
    """It was passed on before, or nobody knows any more whether it was."""
    FOUND = "found"
    """It was passed on never before, and is counted among those that are lost."""


class Arrival(NamedTuple):
    """What to do about a number that came."""

    passed: Passed | None
    """None: discard its sample."""
    lost: SnRange | None = None
    """Numbers that are now known to have been sent and were not passed on; itself, if so, too."""


_FIRST = Arrival(Passed.FIRST)


@dataclass(slots=True, eq=False)
class Arrivals:
    """The numbers of one run as a mode without recovery passes them on; owned by one thread.

        first        floor         seen    top
          v            v            v       v
          0 1 2 …    [ 5 6 _ 8 _ 10 11 _ _ ]      `_` is in `missing`: sent, and not passed on

    Below the floor, `ids_max` numbers under the top, it is not known which of them came.
    """

    mode: Mode
    first: int | None = None
    """The lowest number that is known to have been sent, for us too; None before one came."""
    top: int = -1
    """The highest number known to have been sent."""
    seen: int = -1
    """The highest number that came."""
    last: int = -1
    """The highest number that was passed on."""
    missing: RangeSet = field(default_factory=RangeSet)

    def take(self, sn: int) -> Arrival:
        """Take a number that came, and tell what becomes of its sample."""
        if sn == self.top + 1 and self.last == self.top and self.first is not None:
            self.top = self.seen = self.last = sn
            return _FIRST
        told = sn in self.missing
        lost = self._reach(sn)
        fresh = sn in self.missing
        self.seen = max(self.seen, sn)
        if not self._passes(sn, fresh=fresh):
            return Arrival(None, lost) if told or not fresh else Arrival(None, _with(lost, sn))
        self.last = max(self.last, sn)
        self.missing.remove(sn, sn)
        if not fresh:
            return Arrival(Passed.AGAIN)
        return Arrival(Passed.FOUND if told else Passed.FIRST, lost)

    def tell(self, sn: int) -> SnRange | None:
        """Learn that a number was sent, without its sample; return what is lost by that."""
        if self.first is not None and sn <= self.top:
            return None
        return _with(self._reach(sn), sn)

    def _passes(self, sn: int, *, fresh: bool) -> bool:
        match self.mode.deduplication:
            case None:
                return True
            case Deduplication.ID:
                return fresh
            case Deduplication.INDEX:
                return sn == self.last + 1 if self.mode.next_only else sn > self.last
            case _:
                assert_never(self.mode.deduplication)

    def _reach(self, sn: int) -> SnRange | None:
        """Know that a number was sent, and return those that were sent with it, as far as new."""
        first, top = self.first, self.top
        gap: SnRange | None = None
        if first is None:
            self.first = self.top = sn
            self.last = sn - 1
            self.missing.add(sn, sn)
        elif sn > top:
            gap = SnRange(top + 1, sn - 1) if sn > top + 1 else None
            self.missing.add(top + 1, sn)
            self.top = sn
        elif self._begins_before(sn, first):
            gap = SnRange(sn + 1, first - 1) if first > sn + 1 else None
            self.missing.add(sn, first - 1)
            self.first = sn
        if (self.missing.first or 0) <= self.top - self.mode.ids_max:
            self.missing.remove(0, self.top - self.mode.ids_max)
        return gap

    def _begins_before(self, sn: int, first: int) -> bool:
        """Tell whether a number below the first that came is one of ours that came late."""
        by_index = self.mode.deduplication is Deduplication.INDEX
        return sn < first and sn > self.top - self.mode.ids_max and not by_index


def _with(gap: SnRange | None, sn: int) -> SnRange:
    """Return a gap and the number behind it."""
    return SnRange(sn if gap is None else gap.first, sn)
