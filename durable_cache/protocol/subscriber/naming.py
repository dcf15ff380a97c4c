"""By which epochs an answerer calls a run, where no token names it.

Observers of a foreign source name a run by the time of the first sample that they saw of it, and
may have seen different ones. What an answerer says of numbers that are missing is believed where a
sample in the same answer shows that both mean one run. Where an answer holds nothing but absences,
the number that was delivered before the hole is asked for with it the next time: it shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.events import AnswerPart

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.following import Numbering

__all__ = ["Owns", "asked_from", "called_by"]


class Owns(Protocol):
    """Tells, given an answerer's names, whether a sample is of a numbering."""

    def __call__(self, sample: Sample, names: Mapping[tuple[SourceId, int], str]) -> bool: ...


def called_by(
    numbering: Numbering, part: AnswerPart, first: int, last: int, owns: Owns
) -> set[int]:
    """Return the epochs by which an answerer calls a numbering; notes where no sample shows it."""
    names = part.names()
    following = numbering.next_sn or 0
    called: set[int] = {numbering.epoch}
    others: set[int] = set()
    for sample in part.samples:
        if sample.source != numbering.source or not first <= sample.sn <= last:
            continue
        # What has been delivered is no later than the latest that was.
        delivered = sample.sn >= following or sample.ntp64 <= numbering.newest_ntp64
        (called if delivered and owns(sample, names) else others).add(sample.epoch)
    called -= others - {numbering.epoch}
    numbering.called_otherwise |= not numbering.incarnation and any(
        absence.source == numbering.source
        and absence.epoch not in called
        and max(absence.first, first, following) <= min(absence.last, last)
        for absence in part.absent
    )
    return called


def asked_from(numbering: Numbering) -> int:
    """Return from which number on to ask for what is missing."""
    following = numbering.next_sn or 0
    begins = following == (numbering.first_sn or 0)
    return following - 1 if numbering.called_otherwise and not begins else following
