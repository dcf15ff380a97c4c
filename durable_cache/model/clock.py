"""What time it is, as an argument: the pure rooms ask no clock."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Moment"]


class Moment(NamedTuple):
    """When something happened, as the shell's clocks say."""

    monotonic_ns: int
    """For waiting; never goes back."""
    unix_ns: int
    """For epochs; may jump."""
