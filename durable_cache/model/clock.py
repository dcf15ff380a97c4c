"""What time it is, as an argument: the pure rooms ask no clock."""

from __future__ import annotations

import msgspec


class Moment(msgspec.Struct, frozen=True, gc=False):
    """When something happened, as the shell's clocks say.

    A struct, as samples are: there is one of these for every put.
    """

    monotonic_ns: int
    """For waiting; never goes back."""
    unix_ns: int
    """For epochs; may jump."""


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two times; None is never."""
    if one is None or (other is not None and other < one):
        return other
    return one
