"""Did the promise hold? Compares what was put, held, delivered and missed; knows no session.

Every rule is a sentence of the promise: an acknowledged sample is held by every cache once they are
quiet, caches are equal, a subscriber is given each sample once, in the order of its source, as it
was put; what it was not given it was told to miss, and it misses nothing that is held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Delivered", "Place", "Seen", "Told", "judge"]

_SHOWN = 4


class Place(NamedTuple):
    """The identity of a sample."""

    source: str
    epoch: int
    sn: int


class Delivered(NamedTuple):
    """One sample that a subscriber was given; the payload of a delete is None."""

    place: Place
    payload: str | None


@dataclass(slots=True)
class Told:
    """What publishers said before they were killed."""

    put: dict[Place, str | None] = field(default_factory=dict)
    acknowledged: set[Place] = field(default_factory=set)

    @classmethod
    def of(cls, lines: Sequence[str]) -> Told:
        """Read the lines of a log; the last one may be cut."""
        told = cls()
        for line in lines:
            match line.split(" "):
                case ["P", source, epoch, sn, payload] if payload.endswith("\n"):
                    place = Place(source, int(epoch), int(sn))
                    assert place not in told.put, f"{place} was given twice"
                    text = payload.rstrip("\n")
                    told.put[place] = None if text == "-" else text
                case ["A", source, epoch, sn] if sn.endswith("\n"):
                    told.acknowledged.add(Place(source, int(epoch), int(sn)))
                case _:
                    assert not line.endswith("\n"), line
        return told

    def add(self, other: Told) -> None:
        assert not self.put.keys() & other.put.keys(), "two publishers were given one number"
        self.put |= other.put
        self.acknowledged |= other.acknowledged


@dataclass(slots=True)
class Seen:
    """What one subscriber was given, in that order, and what it was told to miss."""

    delivered: list[Delivered] = field(default_factory=list)
    missed: set[Place] = field(default_factory=set)


def judge(
    told: Told, held: Mapping[str, Mapping[Place, str | None]], seen: Mapping[str, Seen]
) -> list[str]:
    """Return every way in which the promise was broken, in words; none when it held."""
    anywhere: dict[Place, str | None] = {}
    for places in held.values():
        anywhere |= places
    return [
        *_of_caches(told, held, anywhere),
        *(
            f"{name} {what}"
            for name, one in seen.items()
            for what in _of_subscriber(told, anywhere, one)
        ),
    ]


def _of_caches(
    told: Told,
    held: Mapping[str, Mapping[Place, str | None]],
    anywhere: Mapping[Place, str | None],
) -> Iterator[str]:
    for name, places in held.items():
        yield from _unless_none(
            f"{name} lost what was acknowledged", told.acknowledged - places.keys()
        )
        yield from _unless_none(f"{name} lacks what others hold", anywhere.keys() - places.keys())
        other = {at for at, payload in places.items() if told.put.get(at, payload) != payload}
        yield from _unless_none(f"{name} holds another payload", other)


def _of_subscriber(told: Told, held: Mapping[Place, str | None], seen: Seen) -> Iterator[str]:
    given = {one.place for one in seen.delivered}
    last: dict[tuple[str, int], int] = defaultdict(lambda: -1)
    not_in_order = set()
    for place, _ in seen.delivered:
        if place.sn <= last[place[:2]]:
            not_in_order.add(place)
        last[place[:2]] = place.sn
    yield from _unless_none("was given twice or out of order", not_in_order)
    yield from _unless_none(
        "was given another payload",
        {place for place, payload in seen.delivered if told.put.get(place, payload) != payload},
    )
    yield from _unless_none("was given what it misses", given & seen.missed)
    must = told.acknowledged | held.keys()
    yield from _unless_none("lacks silently", must - given - seen.missed)
    yield from _unless_none("misses what is held", seen.missed & held.keys())


def _unless_none(what: str, places: Set[Place]) -> Iterator[str]:
    if not places:
        return
    runs: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place in sorted(places):
        runs[place[:2]].append(place.sn)
    named = [
        f"{source} epoch {epoch}: {len(sns)} of {sns[0]}..{sns[-1]}"
        for (source, epoch), sns in runs.items()
    ]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    yield f"{what}: {'; '.join(named[:_SHOWN])}{more}"
