"""Which run of a source samples are of, as far as their numbers and their times show it.

Runs of one source follow each other, and none begins before the one before it has ended (ADR 0115).
A foreign publisher's time is its own to choose, so these rules decide only where nothing that is
stored says otherwise. What is stored is asked for in conversations (`questions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, WRAP_GAP, frame, frame_start_ns
from durable_cache.model.timestamp import ntp64_from_ns, ntp64_to_ns
from durable_cache.protocol.cache.events import Found
from durable_cache.protocol.cache.inquiries import COMPARED_MAX
from durable_cache.protocol.cache.names import are_twins, is_unnamed, under
from durable_cache.protocol.cache.numbering import KnownSource, Numbering
from durable_cache.protocol.cache.questions import (
    Conversation,
    Lookup,
    Numbers,
    NumbersFound,
    NumbersLooked,
    answer_of,
)
from durable_cache.protocol.restarts import RESTART_NTP64, is_later

_SN_END = 1 << 36
_FIRST_MAX = 16
"""So many of a run's first numbers tell when it began: threads of one publisher overlap."""
_NEIGHBOURS_MAX = 16
"""One number may be stored under several keys, where somebody forged it; a few tell enough."""


def adjoin(
    known: KnownSource, epoch: int, other: int, samples: Sequence[Sample] = ()
) -> Conversation[bool]:
    """Tell whether the later of two runs may be the rest of the earlier.

    Who heard the one part of a run and who heard the other name it each for itself, and no number
    in common shows that it is one. `samples` are of `epoch` and not here yet.
    """
    earlier, later = sorted((epoch, other))
    if earlier == EPOCH_UNKNOWN or any(earlier < one < later for one in known.numberings):
        return False
    runs = [known.numberings.get(one) for one in (earlier, later)]
    if any(one is not None and (one.named or one.declared) for one in runs):
        return False
    if any(sample.stamped or not sample.ntp64 for sample in samples):
        return False
    before, after = runs
    sns = {epoch: [sample.sn for sample in samples], other: []}
    ended = max([*sns[earlier], *_ends(before)], default=None)
    began = min([*sns[later], *_ends(after)], default=None)
    if ended is None or began is None or not 0 < began - ended <= known.window_size_samples:
        return False
    given = [sample.ntp64 for sample in samples]
    ended_ntp64 = max(given if epoch == earlier else [], default=0)
    times = given if epoch == later else []
    if before is not None:
        ended_ntp64 = max(ended_ntp64, before.newest_ntp64)
    if after is not None and after.window.held:
        times = [*times, (yield from _beginning(known.source, after))]
    return ended_ntp64 < min(times) + RESTART_NTP64


def sn_of(sample: Sample) -> int:
    """Return a sample's number."""
    return sample.sn


def _ends(numbering: Numbering | None) -> list[int]:
    """Return the lowest and the highest number that is here of a run."""
    if numbering is None or not numbering.window.held:
        return []
    return [numbering.window.held.first or 0, numbering.newest_held]


def begun_between(
    known: KnownSource, fitting: Iterable[Numbering], samples: Iterable[Sample]
) -> Conversation[bool]:
    """Tell whether a run began after what is here without an epoch, and before samples did.

    Runs of one source follow each other: what is later than the beginning of one is of that
    one, or of one after it.
    """
    ours = known.numberings.get(EPOCH_UNKNOWN)
    if ours is None or not is_unnamed(ours) or any(sample.stamped for sample in samples):
        return False
    first = min(sample.ntp64 for sample in samples)
    for other in fitting:
        if ours.newest_ntp64 < (yield from _beginning(known.source, other)) <= first:
            return True
    return False


def belongs(numbering: Numbering, samples: Sequence[Sample]) -> Conversation[bool | None]:
    """Tell whether samples that bear the epoch of a run here are of that run (ADR 0215).

    A number in common decides, else the order of numbers and times; None: nothing contradicts.
    """
    if any(sample.stamped or not sample.ntp64 for sample in samples):
        return None
    held = numbering.window.held
    both = [sample for sample in samples if sample.sn in held]
    differs, elsewhere = False, []
    if both:
        for sample, stored, removed in (yield from _looked_up(numbering, both)):
            if stored is None and not removed:
                elsewhere.append(sample)
            if stored is None or stored.stamped:
                continue
            if (stored.ntp64, stored.timestamp_id) == (sample.ntp64, sample.timestamp_id):
                return True
            differs = True
    differs = differs or (yield from is_of_another_key(numbering, elsewhere))
    newest = numbering.newest_held
    if differs or any(s.sn <= newest and is_later(s, numbering.newest_ntp64) for s in samples):
        return False
    for sample in (min(samples, key=sn_of), max(samples, key=sn_of)):
        if sample.sn > newest and sample.ntp64 >= numbering.newest_ntp64:
            continue  # behind all that is here, by number and by time: no neighbour is looked up
        if (yield from is_out_of_order(numbering, sample)):
            return False
    return None


def was_removed(numbering: Numbering, samples: Sequence[Sample]) -> Conversation[bool]:
    """Tell whether samples are what retention or a purge removed of a declared run (ADR 0342).

    As far as their numbers and their times show it: there is nothing to compare them with.
    """
    held, began = numbering.window.held, ntp64_from_ns(frame_start_ns(numbering.epoch))
    if not numbering.incarnation or not all(s.sn in held and s.ntp64 >= began for s in samples):
        return False
    found = yield from _looked_up(numbering, samples)
    return all(one.removed for one in found)


def _looked_up(numbering: Numbering, samples: Iterable[Sample]) -> Conversation[Sequence[Found]]:
    """Return what is stored of a run under the numbers and the keys of samples."""
    looked = yield from answer_of(Lookup(tuple(under(numbering.epoch, samples))), NumbersLooked)
    return looked.found


def compared(other: Numbering, samples: Iterable[Sample]) -> Conversation[bool | None]:
    """Tell whether samples are held under another epoch, all of them; None: not to be told.

    A number has one key: what is held under another is another sample.
    """
    held = other.window.held
    both = [s for s in samples if s.sn in held and s.ntp64 and not s.stamped]
    if not both:
        return None
    same, elsewhere = None, []
    for sample, stored, removed in (yield from _looked_up(other, both)):
        if stored is None and not removed:
            elsewhere.append(sample)
        if stored is None or stored.stamped or stored.key != sample.key:
            continue
        if not are_twins(sample, stored):
            return False
        same = True
    differs = same is None and (yield from is_of_another_key(other, elsewhere))
    return False if differs else same


def same_here(known: KnownSource, one: int, two: int) -> Conversation[bool | None]:
    """Tell whether what is here already under two epochs is the same; None: nothing is."""
    first_run, second_run = known.numberings.get(one), known.numberings.get(two)
    if first_run is None or second_run is None:
        return None
    first = first_run.window.held.intersection(second_run.window.held).first
    if first is None:
        return None
    question = Numbers(known.source, one, first, first + COMPARED_MAX - 1, COMPARED_MAX)
    stored = yield from answer_of(question, NumbersFound)
    return (yield from compared(second_run, stored.samples))


def is_of_another_key(numbering: Numbering, samples: Sequence[Sample]) -> Conversation[bool]:
    """Tell whether a number that is held under one of these samples' numbers has another key."""
    for sample in samples[:_NEIGHBOURS_MAX]:
        question = Numbers(sample.source, numbering.epoch, sample.sn, sample.sn, _NEIGHBOURS_MAX)
        stored = (yield from answer_of(question, NumbersFound)).samples
        if stored and all(one.key != sample.key and not one.stamped for one in stored):
            return True
    return False


def came_before(numbering: Numbering, samples: Iterable[Sample]) -> Conversation[bool]:
    """Tell whether samples were published before a run that is here began."""
    newest = max(sample.ntp64 for sample in samples)
    begun = yield from _beginning(next(iter(samples)).source, numbering)
    return newest < begun


def may_be_of(numbering: Numbering, samples: Iterable[Sample]) -> Conversation[bool]:
    """Tell whether the times of samples agree with their numbers, in a run that has a name."""
    if numbering.named:
        return False
    begun = None
    for sample in samples:
        if not numbering.is_near(sample.sn):
            return False
        if sample.sn > numbering.newest_held:
            if sample.ntp64 <= numbering.newest_ntp64:
                return False
            continue
        if begun is None:
            begun = yield from _beginning(sample.source, numbering)
        before = sample.sn < (numbering.window.held.first or 0)
        if sample.ntp64 > numbering.newest_ntp64 or not (before or sample.ntp64 >= begun):
            return False
    return True


def _beginning(source: SourceId, numbering: Numbering) -> Conversation[int]:
    """Return the earliest time known of a run; where nothing of it is stored, its name's."""
    first = numbering.window.held.first or 0
    question = Numbers(source, numbering.epoch, first, first + _FIRST_MAX - 1, _FIRST_MAX)
    found = yield from answer_of(question, NumbersFound)
    times = [sample.ntp64 for sample in found.samples if not sample.stamped]
    return min(times, default=ntp64_from_ns(frame_start_ns(numbering.epoch)))


def is_out_of_order(numbering: Numbering, sample: Sample) -> Conversation[bool]:
    """Tell whether a neighbour by number is none by time (ADR 0363)."""
    held = numbering.window.held
    below, above = held.clip(0, sample.sn - 1).last, held.clip(sample.sn + 1, _SN_END).first
    for sn in (below, above):
        if sn is None:
            continue
        question = Numbers(sample.source, numbering.epoch, sn, sn, _NEIGHBOURS_MAX)
        neighbours = (yield from answer_of(question, NumbersFound)).samples
        times = [stored.ntp64 for stored in neighbours if not stored.stamped]
        if above is None and not neighbours:  # it was removed; of the newest the time is known
            times = [numbering.newest_ntp64]
        for ntp64 in times:
            later = ntp64 - sample.ntp64
            apart = later if sn < sample.sn else -later
            if apart > RESTART_NTP64 and not sample.stamped:
                return True
    return False


def runs_of(batch: SampleBatch) -> Iterator[tuple[SourceId, int, list[Sample]]]:
    """Yield the samples of each source and epoch; what lies before a wrap by itself, and first.

    Without an epoch media may bring two runs together (ADR 0401).
    """
    numberings: dict[tuple[SourceId, int], list[Sample]] = {}
    for (_, source, epoch), samples in batch.by_stream.items():
        numberings.setdefault((source, epoch), []).extend(samples)
    for (source, epoch), samples in numberings.items():
        span = WRAP_GAP if epoch == EPOCH_UNKNOWN else _SN_END
        lowest = min(map(sn_of, samples))
        before = [sample for sample in samples if sample.sn - lowest > span]
        if before:
            yield source, epoch, before
        yield source, epoch, [one for one in samples if one.sn - lowest <= span]


def wrapped_between(known: KnownSource, samples: Iterable[Sample]) -> bool:
    """Tell whether the numbers wrapped between samples and what is here without an epoch.

    They did not where some of it lies on their side of the wrap.
    """
    ours = known.numberings.get(EPOCH_UNKNOWN)
    held = None if ours is None else ours.window.held
    if held is None or held.first is None or held.last is None:
        return False
    sns = [sample.sn for sample in samples]
    return min(sns) - held.last > WRAP_GAP or held.first - max(sns) > WRAP_GAP


def wrapped_within(known: KnownSource, epochs: Iterable[int]) -> bool:
    """Tell whether the numbers wrapped between some that are here by these epochs.

    Then they are of more than one run, also where media brought two together without an epoch.
    """
    here = [known.numberings[epoch].window.held for epoch in epochs if epoch in known.numberings]
    ends = [sn for held in here for sn in (held.first, held.last) if sn is not None]
    return bool(ends) and max(ends) - min(ends) > WRAP_GAP


def by_time(known: KnownSource, fitting: Sequence[Numbering], samples: Sequence[Sample]) -> int:
    """Return how to call samples of a run after the one that is here without an epoch.

    0 where their times do not show that they came after it. It is the name that their run got here
    before, else their own time, as where a live sample shows that a run began. Who gave them
    without a name has a number in common then, and takes it over.
    """
    ours, first = known.numberings[EPOCH_UNKNOWN], min(samples, key=lambda sample: sample.sn)
    if not all(is_later(sample, ours.newest_ntp64) for sample in samples):
        return EPOCH_UNKNOWN
    return fitting[0].epoch if fitting else _own_name(known, first)


def name_behind(known: KnownSource) -> Conversation[int]:
    """Return how to call what is here without an epoch, behind a run that others call so.

    It may be the beginning of a run that has a name here.
    """
    first = known.numberings[EPOCH_UNKNOWN].window.held.first or 0
    question = Numbers(known.source, EPOCH_UNKNOWN, first, _SN_END, _FIRST_MAX)
    stored = (yield from answer_of(question, NumbersFound)).samples
    if not stored or stored[0].stamped:  # its time is not its own, or all of it was removed
        return EPOCH_UNKNOWN
    for epoch, other in sorted(known.numberings.items()):
        if epoch and (yield from may_be_of(other, stored)):
            return epoch
    return _own_name(known, stored[0])


def _own_name(known: KnownSource, first: Sample) -> int:
    """Return the epoch of a sample's own time, or one that is free beside it."""
    epoch = frame(ntp64_to_ns(first.ntp64))
    while known.is_taken(epoch):  # by another run within the same time, and later
        epoch -= 1
    return epoch
