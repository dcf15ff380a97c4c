"""What a cache asks all others about two epochs of a source, and what it keeps of that question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from durable_cache.model.sample import SourceId

_ASKED_AGAIN_MAX = 10
"""So often others are asked once more whose answer failed; then what they give asks anew."""
Pair = tuple[SourceId, int, int]
"""A source and two of its epochs, the one that would stand first."""


class Inquiry(NamedTuple):
    """Ask every cache for numbers of a source, whatever they call its epoch."""

    inquiry_id: int
    source: SourceId
    first: int
    last: int


@dataclass(slots=True)
class Asked:
    """What others were asked about a pair of epochs: not again before a time, and what was seen."""

    inquiry: Inquiry
    until: float
    in_common: bool
    pause: float
    """How long it is not asked anew: longer each time, for it showed nothing."""
    whole: bool = True
    """Nothing of what others gave since was put off: what did not come, nobody has."""
    again: int = _ASKED_AGAIN_MAX
    """How often it is asked once more where an answer failed."""
