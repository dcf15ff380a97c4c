"""What time it is, as an argument: the pure rooms ask no clock."""

from __future__ import annotations

import msgspec

__all__ = ["Moment"]


class Moment(msgspec.Struct, frozen=True, gc=False):
    """When something happened, as the shell's clocks say.

    A struct, as samples are: there is one of these for every put.
    """

    monotonic_ns: int
    """For waiting; never goes back."""
    unix_ns: int
    """For epochs; may jump."""
