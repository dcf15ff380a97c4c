"""Which epochs of a source are one incarnation that two caches named differently.

A foreign publisher declares no epoch, so caches name its restarts themselves. Where a cache missed
the first samples, or began only later, it has another name for what the other has as well. What
another cache gives shows that: the same key, number, timestamp and content under another epoch.
Then it is asked for everything that is here under the other name: one number with another content
says that they are two, of which one holds samples of the other by mistake. Otherwise the lower
epoch stands, and one that says nothing (0) never does (ADR 0048).

Where two caches have samples of a source without an epoch, numbers in common tell whether they are
of one run, too (ADR 0098). Timestamps do not: a publisher chooses its own, and they may go back.
They only give the occasion to ask. Where they are of two, the later run is called by its own
time (ADR 0112).

Pure: what is stored is asked for in conversations (`questions`); a question that stays unanswered
puts the samples off that raised it, for they are given again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeVar

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, sample_digest
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, frame, frame_start_ns
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.cache.events import Alias
from durable_cache.protocol.cache.numbering import KnownSource, Numbering
from durable_cache.protocol.cache.questions import (
    Agreed,
    Conversation,
    Disagreed,
    Done,
    Keep,
    Lookup,
    Numbers,
    NumbersFound,
    NumbersLooked,
    answer_of,
)
from durable_cache.protocol.restarts import is_later
from durable_cache.protocol.wire import Incarnation

__all__ = ["Agreement", "Inquiry", "are_twins", "called_here"]

_COMPARED_MAX = 20_000
"""So many numbers are asked for and compared before two epochs are taken for one: the oldest, for
what is under a wrong name came after what is rightly under it."""
_REMEMBERED_MAX = 4096
_HELD_BACK_SECONDS = 10.0
"""An answer to the question how others call what is here takes less."""
_NAMED_SECONDS = 300.0
"""How long what another has without an epoch, and is of another run than ours, waits for its name:
caches align with each of the others within a few minutes."""
_APART_NTP64 = 1 << 32
"""Threads of one publisher invert timestamps by less than a second."""
_UNDECIDED_SECONDS = 30.0
"""How long samples without an epoch wait where no answer tells of which run they are: half of what
the cache waits before it reports them missed."""
_IN_COMMON_MAX = 1_000
"""So many numbers next to those that others give are asked for, to see whether they are of one run:
what both caches heard before they were parted is among them."""
_SN_END = 1 << 36
_HALF = SOURCE_SN_MODULUS // 2
_NEIGHBOURS_MAX = 16
"""One number may be stored under several keys, where somebody forged it; a few tell enough."""
_Pair = tuple[SourceId, int, int]
"""A source and two of its epochs, the one that would stand first."""
KnownOf = Callable[[SourceId], KnownSource]
KeyT = TypeVar("KeyT")
_ValueT = TypeVar("_ValueT")


class Inquiry(NamedTuple):
    """Ask every cache for numbers of a source, whatever they call its epoch."""

    inquiry_id: int
    source: SourceId
    first: int
    last: int


@dataclass(slots=True)
class _Asked:
    """What others were asked about a pair of epochs: not again before a time, and what was seen."""

    until: float
    in_common: bool


class Agreement:
    """Looks at what other caches give before it comes in; owned by one thread.

    `settle` and `answered` are conversations. `inquiries` holds what is to be asked of others: what
    they give comes in as anything else does, then `answered` is called. `agreed` holds what was
    agreed on since it was last taken.
    """

    def __init__(self, known_of: KnownOf, agreements: Iterable[Alias] = ()) -> None:
        self._known_of = known_of
        self._now = 0.0
        self._ids = count(1)
        self._inquiries: OrderedDict[_Pair, _Asked] = OrderedDict()
        self._asked: OrderedDict[int, _Pair] = OrderedDict()
        self._different: OrderedDict[_Pair, bool] = OrderedDict()
        self._held_back: OrderedDict[SourceId, float] = OrderedDict()
        self._waited_for: OrderedDict[SourceId, bool] = OrderedDict()
        self._undecided: OrderedDict[SourceId, float] = OrderedDict()
        self._agreed = {(alias.source, alias.stored): alias for alias in agreements}
        self.inquiries: list[Inquiry] = []
        self.agreed: list[Alias] = []
        self.revoked: list[Alias] = []
        for alias in self._agreed.values():
            if alias.stored == EPOCH_UNKNOWN:
                self._held_back[alias.source] = float("inf")

    def agree(self, alias: Alias) -> Conversation[None]:
        """Take two epochs for one, durably; what is stored under the loser is then moved."""
        yield from answer_of(Keep(Agreed(alias)), Done)
        self._agreed[alias.source, alias.stored] = alias
        self.agreed.append(alias)
        if alias.stored == EPOCH_UNKNOWN:
            self._hold_back(alias.source, float("inf"))

    def release(self, source: SourceId) -> None:
        """What this cache had of the source without an epoch has one now."""
        self._held_back.pop(source, None)

    def differ(self, source: SourceId, winner: int, loser: int) -> None:
        """Two epochs are two after all."""
        self._agreed.pop((source, loser), None)
        self._differ((source, *_lower_first(winner, loser)))

    def settle(self, batch: SampleBatch, now: Moment) -> Conversation[SampleBatch]:
        """Return what of others' samples may come in now; what is held back is given again."""
        self._now = now.monotonic_ns / 1e9
        numberings: dict[tuple[SourceId, int], list[Sample]] = {}
        for (_, source, epoch), samples in batch.by_stream.items():
            numberings.setdefault((source, epoch), []).extend(samples)
        kept: list[Sample] = []
        as_given = True
        for (source, epoch), samples in numberings.items():
            welcome = yield from self._welcome(source, epoch, samples)
            as_given &= len(welcome) == len(samples) and welcome[0].epoch == epoch
            kept += welcome
        return batch if as_given else SampleBatch(kept)

    def answered(self, inquiry_id: int) -> Conversation[None]:
        """Everything that others gave for an inquiry has come in: decide."""
        pair = self._asked.pop(inquiry_id, None)
        inquiry = None if pair is None else self._inquiries.get(pair)
        if pair is None or inquiry is None:
            return
        source, winner, loser = pair
        if winner == loser:
            self._nameless_answered(pair, inquiry)
            return
        if not inquiry.in_common or pair in self._different:
            return
        known = self._known_of(source)
        lost = known.numberings.get(loser)
        if any(known.canonical(epoch, 0) != epoch for epoch in (winner, loser)):
            return  # one of them has become another meanwhile
        declared = lost is not None and (lost.declared or bool(lost.incarnation))
        if declared or (yield from self._differ_here(source, known, winner, lost)):
            self._differ(pair)
            return
        yield from self.agree(Alias(source, loser, 0, winner))

    def _welcome(
        self, source: SourceId, epoch: int, samples: list[Sample]
    ) -> Conversation[list[Sample]]:
        known = self._known_of(source)
        if epoch == EPOCH_UNKNOWN:
            return (yield from self._nameless(source, known, samples))
        if known.canonical(epoch, 0) != epoch:
            yield from self._check(source, known, epoch, samples)
            return samples
        for other in [*known.numberings.values()]:
            own = _is_unnamed(other) and not other.foreign
            pair = (source, *_lower_first(epoch, other.epoch))
            if (
                other.epoch == epoch
                or pair in self._different
                or _both_declared(known, epoch, other)
            ):
                continue
            same = yield from self._compared(other, samples)
            if same is False:
                self._differ(pair)
            elif same or own:
                self._inquire(pair, other.window.held, in_common=same is True)
        return samples

    def _check(
        self, source: SourceId, known: KnownSource, epoch: int, samples: list[Sample]
    ) -> Conversation[None]:
        """Take an agreement back where others' samples under its loser show that it was wrong."""
        alias = self._agreed.get((source, epoch))
        winner = known.numberings.get(known.canonical(epoch, 0))
        if alias is None or winner is None:
            return
        if (yield from self._compared(winner, samples)) is False:
            yield from answer_of(Keep(Disagreed(alias)), Done)
            self.differ(source, alias.epoch, epoch)
            self.revoked.append(alias)

    def _nameless(
        self, source: SourceId, known: KnownSource, samples: list[Sample]
    ) -> Conversation[list[Sample]]:
        """Return what of samples without an epoch may come in: not what is here under one."""
        if self._now < self._held_back.get(source, 0.0):
            yield from self._compare_nameless(source, known, samples)
            return []
        elsewhere: list[Numbering] = []
        for other in [*known.numberings.values()]:
            named = other.epoch != EPOCH_UNKNOWN
            elsewhere += [other] if named and (yield from self._compared(other, samples)) else []
        apart = _wrapped_between(known, samples)
        if apart or source not in self._waited_for:
            same = False if apart else (yield from self._of_one_run(source, known, samples))
            if same is False and not elsewhere and (epoch := self._named_by_time(known, samples)):
                return [msgspec.structs.replace(sample, epoch=epoch) for sample in samples]
            if elsewhere or same is False:
                # The giver, or this cache, finds out how others call them: then they have a name.
                self._await_name(source)
                return []
            if same is None:
                return []
        for other in elsewhere:
            samples = [sample for sample in samples if sample.sn not in other.window.held]
        return samples

    def _of_one_run(
        self, source: SourceId, known: KnownSource, samples: list[Sample]
    ) -> Conversation[bool | None]:
        """Tell whether samples without an epoch belong to the run that is here without one.

        None while others are asked for numbers in common.
        """
        ours = known.numberings.get(EPOCH_UNKNOWN)
        if ours is None or not _is_unnamed(ours):
            return True
        same = yield from self._compared(ours, samples)
        if same is not None:
            return same
        held = ours.window.held
        lowest, highest = min(samples, key=_sn), max(samples, key=_sn)
        in_order = not (yield from self._out_of_order(held, lowest))
        if in_order and not (yield from self._out_of_order(held, highest)):
            return True
        if source not in self._undecided:
            _put(self._undecided, source, self._now + _UNDECIDED_SECONDS)
        if self._now >= self._undecided[source]:
            return True
        below, above = held.clip(0, lowest.sn).last, held.clip(lowest.sn, _SN_END).first
        if below is not None:
            held = held.clip(max(0, below - _IN_COMMON_MAX + 1), below)
        elif above is not None:
            held = held.clip(above, above + _IN_COMMON_MAX - 1)
        self._inquire((source, EPOCH_UNKNOWN, EPOCH_UNKNOWN), held, in_common=False)
        return None

    def _named_by_time(self, known: KnownSource, samples: list[Sample]) -> int:
        """Return how to call samples of a run after the one that is here without an epoch.

        0 where their times do not show that they came after it. It is their own time, as where a
        live sample shows that a run began, or the name that their run got here before. Who gave
        them without a name has a number in common then, and takes it over.
        """
        ours, first = known.numberings[EPOCH_UNKNOWN], min(samples, key=_sn)
        if not all(is_later(sample, ours.newest_ntp64) for sample in samples):
            return EPOCH_UNKNOWN
        for epoch, other in sorted(known.numberings.items()):
            if epoch and not other.named and all(_may_be_of(other, sample) for sample in samples):
                return epoch
        epoch = frame(ntp64_to_ns(first.ntp64))
        while epoch in known.numberings:  # of another run within the same time, and later
            epoch -= 1
        return epoch

    def _compare_nameless(
        self, source: SourceId, known: KnownSource, samples: list[Sample]
    ) -> Conversation[None]:
        """Note whether what others give for an inquiry is what is here, without an epoch too."""
        pair = (source, EPOCH_UNKNOWN, EPOCH_UNKNOWN)
        inquiry, ours = self._inquiries.get(pair), known.numberings.get(EPOCH_UNKNOWN)
        if inquiry is None or ours is None or pair in self._different:
            return
        same = yield from self._compared(ours, samples)
        if same is False:
            self._differ(pair)
        inquiry.in_common |= same is True

    def _nameless_answered(self, pair: _Pair, inquiry: _Asked) -> None:
        """Let samples without an epoch in when they were shown to be of the run that is here."""
        source = pair[0]
        if pair in self._different:
            self._await_name(source)
        elif inquiry.in_common:
            _put(self._waited_for, source, True)
            if self._held_back.get(source, 0.0) <= inquiry.until:
                self.release(source)

    def _await_name(self, source: SourceId) -> None:
        _put(self._waited_for, source, True)
        self._hold_back(source, _NAMED_SECONDS)

    def _out_of_order(self, held: RangeSet, sample: Sample) -> Conversation[bool]:
        """Tell whether a neighbour by number without an epoch is none by time."""
        below, above = held.clip(0, sample.sn - 1).last, held.clip(sample.sn + 1, _SN_END).first
        for sn in (below, above):
            if sn is None:
                continue
            question = Numbers(sample.source, EPOCH_UNKNOWN, sn, sn, _NEIGHBOURS_MAX)
            neighbours = yield from answer_of(question, NumbersFound)
            for stored in neighbours.samples:
                later = stored.ntp64 - sample.ntp64
                apart = later if sn < sample.sn else -later
                if apart > _APART_NTP64 and not (stored.stamped | sample.stamped):
                    return True
        return False

    def _inquire(self, pair: _Pair, held: RangeSet, *, in_common: bool) -> None:
        """Ask others for what is here under the other name; what is without waits for the end."""
        under_way = self._inquiries.get(pair)
        if under_way is not None and self._now < under_way.until:
            under_way.in_common |= in_common
            return
        first, last = held.first, held.last
        if first is None or last is None:
            return
        inquiry_id = next(self._ids)
        _put(self._inquiries, pair, _Asked(self._now + _HELD_BACK_SECONDS, in_common))
        _put(self._asked, inquiry_id, pair)
        if EPOCH_UNKNOWN in pair:
            self._hold_back(pair[0], _HELD_BACK_SECONDS)
        last = min(last, first + _COMPARED_MAX - 1)
        self.inquiries.append(Inquiry(inquiry_id, pair[0], first, last))

    def _differ_here(
        self, source: SourceId, known: KnownSource, winner: int, lost: Numbering | None
    ) -> Conversation[bool]:
        """Tell whether what is here already under both has a number with two contents."""
        stands = known.numberings.get(winner)
        if lost is None or stands is None:
            return False
        first = lost.window.held.intersection(stands.window.held).first
        if first is None:
            return False
        last = first + _COMPARED_MAX - 1
        question = Numbers(source, winner, first, last, _COMPARED_MAX)
        stored = yield from answer_of(question, NumbersFound)
        return (yield from self._compared(lost, stored.samples)) is False

    def _compared(self, other: Numbering, samples: Iterable[Sample]) -> Conversation[bool | None]:
        """Tell whether samples are held under another epoch, all of them; None: not to be told."""
        held = other.window.held
        both = [s for s in samples if s.sn in held and s.ntp64 and not s.stamped]
        if not both:
            return None
        renamed = tuple(msgspec.structs.replace(sample, epoch=other.epoch) for sample in both)
        looked = yield from answer_of(Lookup(renamed), NumbersLooked)
        same = None
        for sample, stored, _ in looked.found:
            if stored is None or stored.stamped or stored.key != sample.key:
                continue
            if not are_twins(sample, stored):
                return False
            same = True
        return same

    def _hold_back(self, source: SourceId, seconds: float) -> None:
        until = self._now + seconds
        _put(self._held_back, source, max(until, self._held_back.get(source, 0.0)))

    def _differ(self, pair: _Pair) -> None:
        _put(self._different, pair, True)


def called_here(batch: SampleBatch, names: Sequence[Incarnation], known_of: KnownOf) -> SampleBatch:
    """Return what another gave under the epochs by which its runs go here.

    A run that has no epoch here, and comes under that of another run, is left out: under its
    number another sample may be here already.
    """
    epochs: dict[tuple[SourceId, int], int | None] = {}
    sources = {sample.source for sample in batch} if names else set()
    for source, epoch, name in names:
        if source not in sources:
            continue
        known = known_of(source)
        own = known.of_incarnation(name)
        taken = known.numberings.get(known.canonical(epoch, 0))
        if own is not None:
            epochs[source, epoch] = own.epoch
        elif taken is not None and taken.incarnation:
            epochs[source, epoch] = None
    if all(called == epoch for (_, epoch), called in epochs.items()):
        return batch
    found = ((s, epochs.get((s.source, s.epoch), s.epoch)) for s in batch)
    return SampleBatch(
        sample if epoch == sample.epoch else msgspec.structs.replace(sample, epoch=epoch)
        for sample, epoch in found
        if epoch is not None
    )


def are_twins(first: Sample, second: Sample) -> bool:
    """Tell whether samples under one number are the same, whatever their epochs."""
    ours = (first.ntp64, first.timestamp_id, sample_digest(first))
    return ours == (second.ntp64, second.timestamp_id, sample_digest(second))


def _both_declared(known: KnownSource, epoch: int, other: Numbering) -> bool:
    """Tell whether the source's own tokens say that two epochs are two."""
    numbering = known.numberings.get(epoch)
    return numbering is not None and bool(numbering.incarnation and other.incarnation)


def _sn(sample: Sample) -> int:
    return sample.sn


def _is_unnamed(numbering: Numbering) -> bool:
    """Tell whether something is held without an epoch, of a run that nobody declared."""
    unknown = numbering.epoch == EPOCH_UNKNOWN and not numbering.declared
    return unknown and bool(numbering.window.held)


def _wrapped_between(known: KnownSource, samples: Iterable[Sample]) -> bool:
    """Tell whether the numbers wrapped between samples and what is here without an epoch."""
    ours = known.numberings.get(EPOCH_UNKNOWN)
    held = None if ours is None else ours.window.held
    if held is None or held.first is None or held.last is None:
        return False
    sns = [sample.sn for sample in samples]
    return max(sns) - held.first > _HALF or held.last - min(sns) > _HALF


def _may_be_of(numbering: Numbering, sample: Sample) -> bool:
    """Tell whether a sample's time agrees with its number, in a run that was named by its time."""
    if not numbering.is_near(sample.sn):
        return False
    if sample.sn > numbering.newest_held:
        return sample.ntp64 > numbering.newest_ntp64
    before = sample.sn < (numbering.window.held.first or 0)
    begun = ntp64_to_ns(sample.ntp64) >= frame_start_ns(numbering.epoch)
    return (before or begun) and sample.ntp64 <= numbering.newest_ntp64


def _lower_first(one: int, two: int) -> tuple[int, int]:
    """Return two epochs, the one that stands first; one that says nothing comes last."""
    lower, higher = sorted((one, two), key=lambda epoch: (epoch == EPOCH_UNKNOWN, epoch))
    return lower, higher


def _put(memory: OrderedDict[KeyT, _ValueT], key: KeyT, value: _ValueT) -> None:
    memory[key] = value
    while len(memory) > _REMEMBERED_MAX:
        memory.popitem(last=False)
