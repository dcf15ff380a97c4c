"""When what nobody had is asked for again: another may have got it since (ADR 0364).

Who is in reach and lacks a number too may get it later, from a cache that this one does not reach.
Both know it then and their sums are equal: nothing shows that one has what the other lacks.
"""

from __future__ import annotations

from typing import NamedTuple

from durable_cache.protocol.alignment.ledger import Ledger

_PAUSE_NS = 60 * 10**9
_LOOKS = 2
"""After one minute, and two more."""
_LOOK_EVERY_NS = 10 * 10**9


class _Look(NamedTuple):
    serial: int
    """Of the stream's unrecoverable numbers, when this was planned."""
    due_ns: int
    pause_ns: int
    left: int


class Again:
    """The streams of which numbers are asked for again; owned by an aligner's `Choice`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._looks: dict[int, _Look] = {}
        self._next_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Tell whether peers are to be asked again, and count what that is as new."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + _LOOK_EVERY_NS
        since = self._ledger.unrecoverable_since
        self._looks = {place: look for place, look in self._looks.items() if place in since}
        due = False
        for place, serial in [*since.items()]:
            look = self._looks.get(place)
            if look is None or look.serial != serial:
                self._looks[place] = _Look(serial, now_ns + _PAUSE_NS, _PAUSE_NS, _LOOKS)
            elif look.left and now_ns >= look.due_ns:
                pause_ns = 2 * look.pause_ns
                serial = self._ledger.count_as_new(place)  # noqa: PLW2901
                self._looks[place] = _Look(serial, now_ns + pause_ns, pause_ns, look.left - 1)
                due = True
        return due
