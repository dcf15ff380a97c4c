"""What is known of runs: by source and epoch, and all of one source at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TypeVar

from durable_cache.model.sample import SourceId

_Key = tuple[SourceId, int]
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class RunTable(MutableMapping[_Key, ValueT]):
    """A mapping in the order in which runs came; bounded by its owner, see `shorten`."""

    def __init__(self) -> None:
        self._runs: dict[_Key, ValueT] = {}
        self._of: dict[SourceId, dict[int, ValueT]] = {}

    def of(self, source: SourceId) -> Mapping[int, ValueT]:
        """Return the runs of one source by epoch, without a look at those of others."""
        return self._of.get(source, {})

    def __getitem__(self, key: _Key) -> ValueT:
        return self._runs[key]

    def __setitem__(self, key: _Key, value: ValueT) -> None:
        self._runs[key] = value
        self._of.setdefault(key[0], {})[key[1]] = value

    def __delitem__(self, key: _Key) -> None:
        del self._runs[key]
        runs = self._of[key[0]]
        del runs[key[1]]
        if not runs:
            del self._of[key[0]]

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)


def shorten(table: MutableMapping[KeyT, ValueT], places_max: int) -> None:
    """Forget the oldest entries beyond a bound."""
    while len(table) > places_max:
        del table[next(iter(table))]
