"""By which epochs an answerer calls a run, where no token names it.

Observers of a foreign source name a run by the time of the first sample that they saw of it, and
may have seen different ones. What an answerer says of numbers that are missing is believed where a
sample in the same answer shows that both mean one run. Where none does, the number that was
delivered before the hole is asked for with it the next time: it shows it. An answerer may lack that
one: then twice as many are asked for with the hole, and so on (ADR 0310).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from durable_cache.model.run_name import run_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, WRAP_GAP, frame
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.restarts import RESTART_NTP64, is_later
from durable_cache.protocol.subscriber.events import AnswerPart
from durable_cache.protocol.wire import Absence

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.following import Numbering
    from durable_cache.protocol.subscriber.reading import Reading

_SHOWN_BY_MAX = 256
"""Numbers asked for with a hole, so that one of them shows the run."""
NamedCopy = tuple[str, str, int, int]
"""The name of a run, and a sample's key, number and time."""
_NOT_BEGUN = (SOURCE_SN_MODULUS, 0)
"""Of a run of which nothing was passed on."""


class Owns(Protocol):
    """Tells, given an answerer's names, whether a sample is of a numbering."""

    def __call__(self, sample: Sample, names: Mapping[tuple[SourceId, int], str]) -> bool: ...


def called_by(
    numbering: Numbering, part: AnswerPart, first: int, last: int, owns: Owns
) -> set[int]:
    """Return the epochs by which an answerer calls a numbering; notes where no sample shows it.

    A run without a name that goes by 0 here, for nothing tells when it began, may go by another
    epoch there and one before it by 0: what the samples of this answer show goes before that, and
    what those of an answer before showed; and it goes behind what they show of an earlier run (ADR
    0335). Where the same numbers are said to be absent by another epoch, too, it goes by neither.
    """
    names = part.names()
    following, newest_ntp64 = numbering.next_sn or 0, numbering.newest_ntp64
    shown: set[int] = set()
    others: set[int] = set()
    for sample in part.samples:
        if sample.source != numbering.source or not first <= sample.sn <= last:
            continue
        passed_on = sample.sn < following
        if passed_on and not numbering.incarnation:
            ours = numbering.lies_among(sample)
        else:
            ours = owns(sample, names) and not (passed_on and sample.ntp64 > newest_ntp64)
        (shown if ours else others).add(sample.epoch)
        if not ours and _is_of_before(sample, *(numbering.began or _NOT_BEGUN)):
            numbering.known_after = max(sample.epoch, numbering.known_after)
    if numbering.incarnation:
        called = {numbering.epoch} | shown
    else:
        usual = numbering.known_as or numbering.epoch
        called = shown or ({usual} if usual > numbering.known_after else set())
        numbering.known_as = max(shown - others, default=0) or numbering.known_as
    called -= others
    called_otherwise = not numbering.incarnation and any(
        absence.source == numbering.source
        and absence.epoch not in called
        and max(absence.first, first, following) <= min(absence.last, last)
        for absence in part.absent
    )
    if called_otherwise:
        asked_before = max(0, numbering.behind_passed_on - first)
        numbering.shown_by = max(numbering.shown_by, min(2 * asked_before or 1, _SHOWN_BY_MAX))
    unshown = called_otherwise and not shown and called == {EPOCH_UNKNOWN}
    return set() if unshown else called


def _is_of_before(sample: Sample, first: int, began_ntp64: int) -> bool:
    """Tell whether a number that a run had since it began here comes with an earlier time."""
    earlier = not sample.stamped and sample.ntp64 + RESTART_NTP64 < began_ntp64
    return sample.sn >= first and earlier


def is_of_a_later(numbering: Numbering, samples: Iterable[Sample]) -> bool:
    """Tell whether samples show a run that began after what was passed on of a nameless one."""
    following, newest = numbering.next_sn or 0, numbering.newest_ntp64
    passed_on = numbering.behind_passed_on  # the last that are missing were published later
    return any(
        following - sample.sn > WRAP_GAP or (sample.sn < passed_on and is_later(sample, newest))
        for sample in samples
    )


def is_of_an_earlier(numbering: Numbering | Reading, samples: Iterable[Sample]) -> bool:
    """Tell whether samples show a run that ended before a nameless one was passed on."""
    following = numbering.next_sn or 0
    began = numbering.began or _NOT_BEGUN
    return any(
        sample.sn - following > WRAP_GAP or _is_of_before(sample, *began) for sample in samples
    )


def frame_beside(sample: Sample, is_taken: Callable[[int], bool], *, over: bool) -> int:
    """Return the frame of a sample's time, or the next one that no run goes by.

    That is an earlier one for a run that is `over`, and else a later one.
    """
    epoch = frame(ntp64_to_ns(sample.ntp64))
    while is_taken(epoch):
        epoch += -1 if over else 1
    return epoch


def came_with_token(sample: Sample, numbering: Numbering, wait_seconds: float) -> bool:
    """Tell whether a sample of a named run may be of the one before, as far as it came soon.

    Nobody named its run, nor does it itself (ADR 0366), and it was received before its token was
    seen, or at most so long after.
    """
    until_ns = numbering.declared_ns + round(wait_seconds * 1e9)
    nameless = not sample.epoch and run_of(sample) is None
    return bool(numbering.incarnation) and nameless and sample.received_ns <= until_ns


def is_left_over(
    sample: Sample, ended: Numbering, begun: Numbering, window: int, since_ntp64: int = 0
) -> bool:
    """Tell whether a number is of a run that ended, not of the one that began and holds it.

    It was published together with the last of it, or before the other began: it goes on where the
    run ended, is one of the last that were missed there (ADR 0269), or is one that was passed on.
    `since_ntp64` is when a lower number of the other was published, if one is known.
    """
    following = ended.next_sn or 0
    left_over = abs(sample.ntp64 - ended.newest_ntp64) <= RESTART_NTP64
    since_ntp64 = max(since_ntp64, 0 if begun.began is None else begun.began[1])
    earlier = sample.ntp64 + RESTART_NTP64 < since_ntp64
    if earlier and ended.has_passed_on(sample):
        return True
    if sample.sn >= following:
        left_over |= earlier and (sample.sn == following or ended.newest_ntp64 < sample.ntp64)
        left_over &= sample.sn - following <= window
    else:
        left_over |= sample.ntp64 < begun.began_ntp64_min
        left_over &= ended.gone_from is not None and ended.gone_from <= sample.sn
    return left_over and not sample.stamped


def repeats_behind_token(
    held: Sample, live: Sample, before: Numbering, begun: Numbering, wait_seconds: float
) -> bool:
    """Tell whether what waits under the token of a run was passed on as of the one before.

    A lower number that was published later shows that it is not of the run it waits in.
    """
    later = not live.stamped and held.ntp64 + RESTART_NTP64 < live.ntp64 and live.sn < held.sn
    return later and came_with_token(held, begun, wait_seconds) and before.has_passed_on(held)


def of_run(numbering: Numbering, others: Iterable[Numbering], part: AnswerPart) -> AnswerPart:
    """Return what of a part may be of a run without a name, as far as what is held here shows it.

    In one answer a run has one name. What bears the name of a sample that is held in another run
    (`others`) is of that: a thread of its publisher may have stamped it a little earlier than the
    first that came. And of a run that begins, what is held shows its name, and what is another's:
    one may have come and gone since the one before, of which nothing came here, and its times lie
    between the two (ADR 0274).
    """
    source = numbering.source
    if numbering.incarnation:
        return part
    called, names = _called_as_held(numbering, part), part.names()
    left = {
        epoch
        for other in others
        if other is not numbering
        for epoch in _called_as_held(other, part)
        if other.incarnation in ("", names.get((source, epoch)))
    } - called
    if numbering.is_at_its_first:
        left |= _called_otherwise(numbering, part) - called
    begins = bool(called) and numbering.is_at_its_first
    if not left and not begins:
        return part

    def may_be(one: Sample | Absence) -> bool:
        shown = one.epoch in called if begins else one.epoch not in left
        return one.source != source or shown

    return replace(
        part,
        samples=[*filter(may_be, part.samples)],
        absent=tuple(filter(may_be, part.absent)),
    )


def of_others(
    run: Numbering, parts: Sequence[AnswerPart], times_tell: Callable[[Sample], bool]
) -> Callable[[Sample], bool]:
    """Return what tells of a sample without a name that it is of another run than a named one.

    Its time does (`times_tell`), or that an answerer has a copy as of another run.
    """
    if not run.incarnation:
        return times_tell
    named = named_otherwise(run, parts)
    return lambda sample: times_tell(sample) or (sample.sn, sample.ntp64) in named


def named_otherwise(run: Numbering, parts: Sequence[AnswerPart]) -> set[tuple[int, int]]:
    """Return number and time of what an answer gives as of named runs of the source but of `run`.

    Who has a copy without that name, or as of this run, took what was faster than its token for the
    last of the run before (ADR 0278).
    """
    found: set[tuple[int, int]] = set()
    for part in parts:
        names = part.names().items()
        others = {key for key, name in names if key[0] == run.source and name != run.incarnation}
        found.update(
            (sample.sn, sample.ntp64)
            for sample in (part.samples if others else ())
            if (sample.source, sample.epoch) in others and not sample.stamped
        )
    return found


def by_last_name(part: AnswerPart) -> AnswerPart:
    """Return a part with each sample once, where an answerer gives it as of two runs.

    Such a cache took what was faster than its token for the last of the run before, and has it from
    others by its name since. It is of the later run (ADR 0278).
    """
    named = {(source, epoch) for source, epoch, _ in part.incarnations}
    if len(named) == len({source for source, _ in named}):
        return part
    last: dict[tuple[SourceId, str, int, int], int] = {}
    for one in part.samples:
        if (one.source, one.epoch) in named and not one.stamped:
            copy = one.source, one.key, one.sn, one.ntp64
            last[copy] = max(one.epoch, last.get(copy, 0))

    def is_last(one: Sample) -> bool:
        known = last.get((one.source, one.key, one.sn, one.ntp64), one.epoch)
        return one.epoch == known or (one.source, one.epoch) not in named

    return replace(part, samples=[*filter(is_last, part.samples)])


def _called_as_held(numbering: Numbering, part: AnswerPart) -> set[int]:
    """Return by which epochs samples come that are held in a run."""
    return {
        sample.epoch
        for sample, held in _beside_held(numbering, part)
        if (held.key, held.ntp64) == (sample.key, sample.ntp64)
    }


def _called_otherwise(numbering: Numbering, part: AnswerPart) -> set[int]:
    """Return by which epochs others come under numbers that are held in a run."""
    return {
        sample.epoch
        for sample, held in _beside_held(numbering, part)
        if not (held.stamped or sample.stamped) and held.ntp64 != sample.ntp64
    }


def _beside_held(numbering: Numbering, part: AnswerPart) -> Iterator[tuple[Sample, Sample]]:
    """Yield what comes under numbers that are held in a run, each with what is held."""
    pending = numbering.pending
    for sample in part.samples if pending else ():
        if sample.source == numbering.source and (held := pending.get(sample.sn)) is not None:
            yield sample, held


def given_by_name(parts: Iterable[AnswerPart]) -> set[NamedCopy]:
    """Return the samples that somebody gives by the name of their run, each with that name."""
    return {
        (name, one.key, one.sn, one.ntp64)
        for part in parts
        for names in (part.names(),)
        for one in part.samples
        if not one.stamped and (name := names.get((one.source, one.epoch)))
    }
