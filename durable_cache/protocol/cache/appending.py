"""What a cache's engine remembers of the append that is not answered yet."""

from __future__ import annotations

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId
from durable_cache.protocol.cache.gaps import Gap
from durable_cache.protocol.cache.numbering import Numbering

__all__ = ["Appending"]


class Appending:
    """The outstanding `Append`: which numbers of which numberings, which gaps its skips end."""

    __slots__ = ("gaps", "numberings")

    def __init__(
        self, numberings: list[tuple[SourceId, Numbering, RangeSet]], gaps: tuple[Gap, ...]
    ) -> None:
        self.numberings = numberings
        self.gaps = gaps
