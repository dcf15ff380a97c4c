"""How fast something that is numbered grows, from one look at it to the next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import NamedTuple

_BETWEEN_SECONDS_MIN = 0.5
"""Who asks sooner is told what was found last: several may look at once."""
_BETWEEN_SECONDS_MAX = 60.0
"""What nobody looked at for longer has no rate until the next look."""


class _Look(NamedTuple):
    seconds: float
    last: int
    per_second: float | None


class Rates:
    """Remembers the last number of up to `names_max` things that were looked at; any thread."""

    def __init__(self, names_max: int = 20_000) -> None:
        self._names_max = names_max
        self._looks: OrderedDict[Hashable, _Look] = OrderedDict()
        self._lock = Lock()

    def per_second(
        self, name: Hashable, last: int, above: Callable[[int], int], now_seconds: float
    ) -> float | None:
        """Return the new numbers a second since the look before; None at the first.

        `above(n)` counts the numbers above `n`. What fills a gap further down is not counted.
        """
        with self._lock:
            before = self._looks.get(name)
        if before is not None and now_seconds - before.seconds < _BETWEEN_SECONDS_MIN:
            return before.per_second
        rate = None
        if before is not None and now_seconds - before.seconds <= _BETWEEN_SECONDS_MAX:
            new = above(before.last) if last > before.last else 0
            rate = round(new / (now_seconds - before.seconds), 2)
        with self._lock:
            self._looks[name] = _Look(now_seconds, last, rate)
            self._looks.move_to_end(name)
            while len(self._looks) > self._names_max:
                self._looks.popitem(last=False)
        return rate
