"""A map that forgets what was not written for a while, by turning over as a whole.

It has two halves. What is written goes into the newer one; what is looked up may be in either. When
the newer half is full and old enough, the older one is forgotten and the newer takes its place. So
what is forgotten was not written for at least the time that a half is kept, and no entry has a
clock or a place in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import getsizeof
from typing import Generic, TypeVar

_KeyT = TypeVar("_KeyT")
_ValueT = TypeVar("_ValueT")
_ROUNDED = 16
"""Python's allocator hands out memory in multiples of it."""


def held_size(value: object) -> int:
    """Return the bytes of memory that an object takes, what it refers to not counted."""
    return -(-getsizeof(value) // _ROUNDED) * _ROUNDED


class RotatingMap(Generic[_KeyT, _ValueT]):
    """Bounded by size and time; owned by one thread. Any may ask how large it is.

    `bytes_max` is what both halves may take together. What is written within one `kept_ns` stays,
    however much that is: then they take more. Times are monotonic nanoseconds.
    """

    def __init__(
        self, bytes_max: int, kept_ns: int, size_of: Callable[[_KeyT, _ValueT], int]
    ) -> None:
        """`size_of` returns what a key and its value take, as `held_size` counts."""
        self._half_max, self._kept_ns, self._size_of = bytes_max // 2, kept_ns, size_of
        self._newer: dict[_KeyT, _ValueT] = {}
        self._older: dict[_KeyT, _ValueT] = {}
        self._newer_bytes = self._older_bytes = 0
        self._in_older_only = 0
        self._began_ns: int | None = None
        self.turns = 0
        """How often the halves turned over."""

    def __len__(self) -> int:
        return len(self._newer) + self._in_older_only

    @property
    def bytes(self) -> int:
        """What the map takes, entries that are in both halves counted twice, for they are."""
        tables = getsizeof(self._newer) + getsizeof(self._older)
        return tables + self._newer_bytes + self._older_bytes

    def get(self, key: _KeyT) -> _ValueT | None:
        """Return the value of a key; None where it was never written, or is forgotten."""
        value = self._newer.get(key)
        return self._older.get(key) if value is None else value

    def put(self, key: _KeyT, value: _ValueT, now_ns: int) -> dict[_KeyT, _ValueT]:
        """Write a value; return what is forgotten for it, most often nothing.

        A later value of a key takes as much memory as the first.
        """
        if key in self._newer:
            self._newer[key] = value
            return {}
        forgotten = self._turn_over(now_ns, key)
        self._in_older_only -= key in self._older
        self._newer[key] = value
        self._newer_bytes += self._size_of(key, value)
        return forgotten

    def items(self) -> Iterator[tuple[_KeyT, _ValueT]]:
        """Yield each key once, with its value."""
        yield from self._newer.items()
        for key, value in self._older.items():
            if key not in self._newer:
                yield key, value

    def _turn_over(self, now_ns: int, written: _KeyT) -> dict[_KeyT, _ValueT]:
        if self._began_ns is None:
            self._began_ns = now_ns
        full = self._newer_bytes + getsizeof(self._newer) >= self._half_max
        if not full or now_ns - self._began_ns < self._kept_ns:
            return {}
        newer = self._newer
        forgotten = {
            key: value for key, value in self._older.items() if key not in newer and key != written
        }
        self._older, self._older_bytes = self._newer, self._newer_bytes
        self._newer, self._newer_bytes = {}, 0
        self._in_older_only = len(self._older)
        self._began_ns = now_ns
        self.turns += 1
        return forgotten
