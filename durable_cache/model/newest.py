"""Which samples of a key are its newest: the one rule that every reader follows (ADR 0095).

Samples stand in the order of `Sample.time_order`: the HLC timestamp, its id, then identity. The
order is total, so equal timestamps, two sources and two epochs are decided everywhere alike.

A wildcard update is a publication on a key expression with wildcards. It is stored under that
expression, as a stream of its own, and applied when a key is read: in the order of time, a wildcard
put gives its value to the keys that are there, a wildcard delete deletes them. A key is there from
its own put on until it is deleted, so neither creates one, and a put that arrives late and is older
than an update is overtaken by it all the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappush, heapreplace, nlargest
from operator import attrgetter, itemgetter
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from durable_cache.model.key_expression import parse_update
from durable_cache.model.sample import Kind, Sample, key_bytes

_TIME_ORDER = attrgetter("time_order")


class _Place(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


KeyT = TypeVar("KeyT")
PlaceT = TypeVar("PlaceT", bound=_Place)


def is_update(key: str) -> bool:
    """Tell whether what is stored under `key` is a wildcard update: no key holds a ``*``."""
    return "*" in key


def comes_after(sample: Sample, other: Sample) -> bool:
    """Tell whether a sample is the later one of two: timestamps decide all but a few."""
    if sample.ntp64 != other.ntp64:
        return sample.ntp64 > other.ntp64
    return sample.time_order > other.time_order


def newest_per_key(samples: Iterable[Sample], newest: int | None) -> Iterable[Sample]:
    """Keep at most `newest` samples of each key, those last in time order; None keeps all."""
    if newest is None:
        return samples
    keys: dict[str, list[Sample]] = {}
    for sample in samples:
        keys.setdefault(sample.key, []).append(sample)
    return [
        sample for group in keys.values() for sample in nlargest(newest, group, key=_TIME_ORDER)
    ]


class NewestPlaces(Generic[KeyT, PlaceT]):
    """The newest `newest` places of each key, of places that come in any order, one at a time.

    For who reads columns and not samples: a place compares as `Sample.time_order` does.
    """

    def __init__(self, newest: int) -> None:
        self._newest = newest
        self._kept: dict[KeyT, list[PlaceT]] = {}

    def offer(self, key: KeyT, place: PlaceT) -> None:
        """Keep a place while it is among the newest of its key."""
        kept = self._kept.setdefault(key, [])
        if len(kept) < self._newest:
            heappush(kept, place)
        elif kept[0] < place:
            heapreplace(kept, place)

    def oldest(self, key: KeyT) -> PlaceT | None:
        """Return what a place must be newer than to be kept; None while any is."""
        kept = self._kept.get(key)
        return kept[0] if kept is not None and len(kept) == self._newest else None

    def __iter__(self) -> Iterator[PlaceT]:
        for kept in self._kept.values():
            yield from kept


def values_of(own: Sequence[Sample], updates: Sequence[Sample], newest: int) -> list[Sample]:
    """Return the last `newest` changes of one key, oldest first, an update's under the key's name.

    `own` are the key's newest samples, so many or all there are, at least one; `updates` name it.
    """
    key = own[0].key
    there = False
    changes: list[Sample] = []
    for sample in sorted((*own, *updates), key=_TIME_ORDER):
        if sample.key == key:
            changes.append(sample)
        elif there:
            changes.append(msgspec.structs.replace(sample, key=key))
        else:
            continue
        there = sample.kind is Kind.PUT
    return changes[-newest:]


def latest_values(samples: Iterable[Sample]) -> list[Sample]:
    """Return the newest value of each key among samples and wildcard updates, in order of keys."""
    given = [*samples]
    naming = NamingUpdates(sample for sample in given if is_update(sample.key))
    own = newest_per_key((sample for sample in given if not is_update(sample.key)), 1)
    latest = (values_of([sample], [*naming.of(sample.key, sample)], 1)[0] for sample in own)
    return sorted(latest, key=lambda sample: key_bytes(sample.key))


class NamingUpdates:
    """Wildcard updates by the keys they name; immutable."""

    def __init__(self, updates: Iterable[Sample]) -> None:
        by_expression: dict[str, list[Sample]] = {}
        for sample in sorted(updates, key=_TIME_ORDER):
            by_expression.setdefault(sample.key, []).append(sample)
        # The newest first: a key that is newer than most updates is compared with few.
        self._named = sorted(
            (
                (named[-1].time_order, named, expression, expression.prefix)
                for text, named in by_expression.items()
                if (expression := parse_update(text)) is not None
            ),
            key=itemgetter(0),
            reverse=True,
        )

    def of(self, key: str, since: Sample) -> Iterator[Sample]:
        """Yield the updates that name `key` and are newer than `since`, in no order."""
        place = since.time_order
        for last, updates, expression, prefix in self._named:
            if last <= place:
                return
            if key.startswith(prefix) and expression.matches(key):
                yield from updates[bisect_right(updates, place, key=_TIME_ORDER) :]
