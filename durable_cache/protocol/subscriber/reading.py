"""How far a run was read from what caches hold, and where reading began."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.following import Numbering

__all__ = ["Reading", "Seam"]

_FIRST_PAGE_SAMPLES = 500
"""A page that is there within a few milliseconds; each one after it may hold twice as many."""


@dataclass(slots=True)
class Reading:
    """How far history of one (source, epoch) was delivered."""

    first_sn: int
    next_sn: int
    newest_ntp64: int = 0
    began: tuple[int, int] | None = None
    """The number and the time of the first sample that was passed on."""
    numbering: Numbering | None = None
    """It is followed live: what it lacks goes through there."""
    late: bool = False
    """A later numbering is followed already: nothing of this one can come in order."""
    resumed: bool = False
    """It goes on where an earlier life ended: what caches removed since then is a loss."""
    end_sought: bool = False
    """What follows its last sample was asked for: a later run is on a page."""
    handed_over: bool = False

    def has_read(self, sample: Sample) -> bool:
        """Tell whether a sample lies among the numbers and the times that were delivered."""
        return self.first_sn <= sample.sn < self.next_sn and sample.ntp64 <= self.newest_ntp64


@dataclass(slots=True)
class Seam:
    """A place in order of time from which on history is read.

    Before it lies nothing that is still to be delivered, but samples of `sources`, whose clocks
    went back: those are asked for by number.
    """

    place: Sample
    sources: Collection[SourceId]
    """Those that an earlier life knew: each goes on with the one run that it knew last."""
    answerers: int
    """How many said from when on there is something."""
    page: int = _FIRST_PAGE_SAMPLES

    def page_samples(self, samples_max: int) -> int:
        """Return how much to ask for next: little at first, for somebody waits for it."""
        page, self.page = self.page, min(2 * self.page, samples_max)
        return min(page, samples_max)
