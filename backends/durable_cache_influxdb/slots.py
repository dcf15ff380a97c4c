"""At which point of a series does a sample stand, so that no two samples share one?

A point is (tags, nanosecond). A sample stands at its own nanosecond under ordinal 0, unless another
sample of its stream stands there already. Then its sn takes the place of the low bits of its time:
ten bits under ordinal 1 (within 1.1 µs), twenty under 2 (within 1.1 ms), and all 35 bits that an sn
can have under 3 (within 35 s), where no two samples of a stream can ever meet. So a stream has at
most four series, whatever its timestamps are. Unnumbered samples, whose number is their timestamp,
are apart under 1 already, unless somebody makes up timestamps that meet: the last of those is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SN_BITS = 35
_LOW_BITS = (0, 10, 20, SN_BITS)
ORDINALS = range(len(_LOW_BITS))
SHIFT_NS_MAX = 1 << SN_BITS
"""A point is less than this away from its sample's time, under any ordinal."""


class Slot(NamedTuple):
    """An ordinal and a time: with the stream, the identity of a point."""

    ordinal: int
    time_ns: int


def slots_of(unix_ns: int, sn: int) -> list[Slot]:
    """Return where a sample may stand, best first; the last is its alone."""
    return [
        Slot(at, unix_ns >> bits << bits | sn & (1 << bits) - 1)
        for at, bits in enumerate(_LOW_BITS)
    ]


def choose(unix_ns: int, sn: int, taken: Mapping[Slot, int]) -> Slot | None:
    """Return the first slot that is free or already this sn's; a retry gets the same one.

    None where there is none, which only numbers of more than 35 bits can come to.
    """
    free = (slot for slot in slots_of(unix_ns, sn) if taken.get(slot, sn) == sn)
    return next(free, None)
