"""What of a source waits until the storage has said whether a number was there before.

A live number at or below the top may be a repeat, a conflict, or the first sign that the numbering
began anew. What follows it must not be counted before that is known: it would be joined to the old
run. So the source's live samples are held back, within a bound, until the look-up is answered; one
that fails is tried again with growing pauses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId

__all__ = ["Doubt"]


@dataclass(slots=True)
class Doubt:
    """One look-up under way and the live samples of its source behind it."""

    verify_id: int
    source: SourceId
    samples: tuple[Sample, ...]
    """What is looked up, each under the epoch that was current then."""
    behind: list[Sample] = field(default_factory=list)
    refused: RangeSet = field(default_factory=RangeSet)
    """Numbers that came while there was no room to hold them: awaited afterwards."""
    asked: bool = False
    due_ns: int = 0
    pause_ns: int = 0

    @property
    def held(self) -> int:
        """How many samples wait."""
        return len(self.samples) + len(self.behind)
