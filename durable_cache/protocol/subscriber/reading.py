"""How far a run was read from what caches hold."""

from __future__ import annotations

from dataclasses import dataclass

from durable_cache.protocol.subscriber.following import Numbering

__all__ = ["Reading"]


@dataclass(slots=True)
class Reading:
    """How far history of one (source, epoch) was delivered."""

    first_sn: int
    next_sn: int
    newest_ntp64: int = 0
    numbering: Numbering | None = None
    """It is followed live: what it lacks goes through there."""
    late: bool = False
    """A later numbering is followed already: nothing of this one can come in order."""
    resumed: bool = False
    """It goes on where an earlier life ended: what caches removed since then is a loss."""
    handed_over: bool = False
