"""By which epochs an answerer calls a run, where no token names it.

Observers of a foreign source name a run by the time of the first sample that they saw of it, and
may have seen different ones. What an answerer says of numbers that are missing is believed where a
sample in the same answer shows that both mean one run. Where an answer holds nothing but absences,
the number that was delivered before the hole is asked for with it the next time: it shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.restarts import RESTART_NTP64, is_later
from durable_cache.protocol.subscriber.events import AnswerPart
from durable_cache.protocol.wire import Absence

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.following import Numbering

__all__ = [
    "Owns",
    "called_by",
    "came_with_token",
    "is_left_over",
    "is_of_a_later",
    "is_of_an_earlier",
    "of_run",
]


_HALF = SOURCE_SN_MODULUS // 2
"""Numbers so far apart lie on either side of a wrap (ADR 0110)."""


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
    called -= others
    numbering.called_otherwise |= not numbering.incarnation and any(
        absence.source == numbering.source
        and absence.epoch not in called
        and max(absence.first, first, following) <= min(absence.last, last)
        for absence in part.absent
    )
    return called


def is_of_a_later(numbering: Numbering, samples: Iterable[Sample]) -> bool:
    """Tell whether samples show a run that began after what was passed on of a nameless one."""
    following, newest = numbering.next_sn or 0, numbering.newest_ntp64
    return any(
        following - sample.sn > _HALF or (sample.sn < following and is_later(sample, newest))
        for sample in samples
    )


def is_of_an_earlier(numbering: Numbering, samples: Iterable[Sample]) -> bool:
    """Tell whether samples show a run that ended before a nameless one was passed on."""
    following = numbering.next_sn or 0
    first, began = numbering.began or (SOURCE_SN_MODULUS, 0)
    return any(
        sample.sn - following > _HALF
        or (sample.sn >= first and not sample.stamped and sample.ntp64 + RESTART_NTP64 < began)
        for sample in samples
    )


def came_with_token(sample: Sample, numbering: Numbering, wait_seconds: float) -> bool:
    """Tell whether a sample of a named run may be of the one before, as far as it came soon.

    Nobody named its run, and it was received before its token was seen, or at most so long after.
    """
    until_ns = numbering.declared_ns + round(wait_seconds * 1e9)
    return bool(numbering.incarnation) and not sample.epoch and sample.received_ns <= until_ns


def is_left_over(sample: Sample, ended: Numbering, window: int) -> bool:
    """Tell whether a number goes on where a run ended, published together with its last."""
    ahead = sample.sn - (ended.next_sn or 0)
    apart = abs(sample.ntp64 - ended.newest_ntp64)
    return 0 <= ahead <= window and apart <= RESTART_NTP64 and not sample.stamped


def of_run(numbering: Numbering, part: AnswerPart) -> AnswerPart:
    """Return what of a part is of a run that begins, where the part shows how it is called there.

    Another run may have come and gone since the one before, of which nothing came here: its times
    lie between the two. What is held tells them apart, for it is in the part under one name.
    """
    source = numbering.source
    if numbering.incarnation or numbering.next_sn != numbering.first_sn:
        return part
    called = {
        sample.epoch
        for sample in part.samples
        if sample.source == source
        and (held := numbering.pending.get(sample.sn)) is not None
        and (held.key, held.ntp64) == (sample.key, sample.ntp64)
    }
    if not called:
        return part

    def is_of_it(one: Sample | Absence) -> bool:
        return one.source != source or one.epoch in called

    return replace(
        part,
        samples=[*filter(is_of_it, part.samples)],
        absent=tuple(filter(is_of_it, part.absent)),
    )
