"""What a cache's engine remembers of the append that comes next, and of the unanswered one."""

from __future__ import annotations

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.window import Window
from durable_cache.protocol.cache.events import BatchReceived, Event, Origin, Verified
from durable_cache.protocol.cache.gaps import Gap
from durable_cache.protocol.cache.numbering import Numbering

_FROM_ITS_PUBLISHER = (Origin.LIVE, Origin.LATE, Origin.NATIVE, Origin.RESENT)


class Appending:
    """The outstanding `Append`: which numbers of which numberings, which gaps its skips end."""

    __slots__ = ("gaps", "numberings")

    def __init__(
        self, numberings: list[tuple[SourceId, Numbering, RangeSet]], gaps: tuple[Gap, ...]
    ) -> None:
        self.numberings = numberings
        self.gaps = gaps

    def rename(self, before: Window, numbering: Numbering) -> None:
        """Count what is of a numbering in the one that it became part of."""
        self.numberings = [
            (source, numbering if old.window is before else old, runs)
            for source, old, runs in self.numberings
        ]


class Coming:
    """Where the samples of the next `Append` come from."""

    __slots__ = ("heard", "heard_since_ns", "moved", "unnumbered")

    def __init__(self) -> None:
        self.moved = 0
        """So many are stored under another epoch."""
        self.unnumbered = 0
        """So many came without a number."""
        self.heard = 0
        """So many came from their publisher."""
        self.heard_since_ns = 0
        """When the first of those was received; 0: none was."""

    def count(self, event: Event, accepted: list[Sample], before: int) -> None:
        """Count what an event has put behind the first `before` of `accepted`."""
        count = len(accepted) - before
        if not count or not isinstance(event, BatchReceived | Verified):
            return
        origin = event.origin if isinstance(event, BatchReceived) else Origin.LIVE
        if origin in _FROM_ITS_PUBLISHER:
            self.heard += count
            self.heard_since_ns = self.heard_since_ns or accepted[before].received_ns
        elif origin is Origin.REFILED:
            self.moved += count
        elif origin is Origin.UNNUMBERED:
            self.unnumbered += count
