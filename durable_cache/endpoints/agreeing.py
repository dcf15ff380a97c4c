"""Which epochs of a source are one incarnation that two caches named differently.

A foreign publisher declares no epoch, so caches name its restarts themselves. Where one missed the
first samples, or began only later, it has another name for what the other has as well. What another
cache gives shows that: the same key, number, timestamp and content under another epoch. Then it is
asked for everything that is here under the other name: one number with another content says that
they are two, of which one holds some of the other by mistake. Otherwise the lower epoch stands, and
one that says nothing (0) never does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, islice
from time import monotonic
from typing import Any

import msgspec

from durable_cache.errors import StorageError
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, sample_digest
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import Alias
from durable_cache.protocol.cache.numbering import KnownSource, Numbering
from durable_cache.storage.journaled.storage import JournaledStorage

__all__ = ["Agreeing", "are_twins"]

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
_SN_END = 1 << 36
_Pair = tuple[SourceId, int, int]
"""A source and two of its epochs, the one that would stand first."""
KnownOf = Callable[[SourceId], KnownSource]


@dataclass(slots=True)
class _Inquiry:
    """What others were asked about a pair of epochs: not again before a time, and what was seen."""

    until: float
    in_common: bool


class Agreeing:
    """Looks at what other caches give; owned by the engine's thread, `release` and `differ` by any.

    `ask(inquiry_id, source, first, last)` asks every cache for numbers; what they give comes in as
    anything else does, then `answered`. `agree` keeps an agreement durably, False when it could
    not; `revoke` takes one back.
    """

    def __init__(
        self,
        store: JournaledStorage,
        agree: Callable[[Alias], bool],
        revoke: Callable[[Alias], None],
        ask: Callable[[int, SourceId, int, int], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._agree, self._revoke, self._ask, self._clock = agree, revoke, ask, clock
        self._ids = count(1)
        self._inquiries: OrderedDict[_Pair, _Inquiry] = OrderedDict()
        self._asked: OrderedDict[int, _Pair] = OrderedDict()
        self._different: OrderedDict[_Pair, bool] = OrderedDict()
        self._held_back: OrderedDict[SourceId, float] = OrderedDict()
        self._waited_for: OrderedDict[SourceId, bool] = OrderedDict()
        self._agreed = {(one.source, one.stored): one for one in store.index.agreements()}
        for agreement in self._agreed.values():
            if agreement.stored == EPOCH_UNKNOWN:
                self._held_back[agreement.source] = float("inf")

    def release(self, source: SourceId) -> None:
        """What this cache had of the source without an epoch has one now."""
        self._held_back.pop(source, None)

    def differ(self, source: SourceId, winner: int, loser: int) -> None:
        """Two epochs are two after all."""
        self._agreed.pop((source, loser), None)
        self._differ((source, *_lower_first(winner, loser)))

    def settle(self, batch: SampleBatch, known_of: KnownOf) -> SampleBatch:
        """Return what of others' samples may come in now; what is held back is given again."""
        numberings: dict[tuple[SourceId, int], list[Sample]] = {}
        for (_, source, epoch), samples in batch.by_stream.items():
            numberings.setdefault((source, epoch), []).extend(samples)
        kept: list[Sample] = []
        for (source, epoch), samples in numberings.items():
            kept += self._welcome(source, known_of(source), epoch, samples)
        return batch if len(kept) == len(batch) else SampleBatch(kept)

    def answered(self, inquiry_id: int, known_of: KnownOf) -> None:
        """Everything that others gave for an inquiry has come in: decide."""
        pair = self._asked.pop(inquiry_id, None)
        inquiry = None if pair is None else self._inquiries.get(pair)
        if pair is None or inquiry is None or not inquiry.in_common or pair in self._different:
            return
        source, winner, loser = pair
        known = known_of(source)
        lost = known.numberings.get(loser)
        if any(known.canonical(epoch, 0) != epoch for epoch in (winner, loser)):
            return  # one of them has become another meanwhile
        if (lost is not None and lost.declared) or self._differ_here(source, known, winner, lost):
            self._differ(pair)
            return
        agreement = Alias(source, loser, 0, winner)
        if self._agree(agreement):
            self._agreed[source, loser] = agreement
            if loser == EPOCH_UNKNOWN:
                self._hold_back(source, float("inf"))

    def _welcome(
        self, source: SourceId, known: KnownSource, epoch: int, samples: list[Sample]
    ) -> list[Sample]:
        if epoch == EPOCH_UNKNOWN:
            return self._nameless(source, known, samples)
        if known.canonical(epoch, 0) != epoch:
            self._check(source, known, epoch, samples)
            return samples
        for other in [*known.numberings.values()]:
            own = other.epoch == EPOCH_UNKNOWN and _own(known)
            pair = (source, *_lower_first(epoch, other.epoch))
            if other.epoch == epoch or pair in self._different:
                continue
            same = self._compared(other, samples)
            if same is False:
                self._differ(pair)
            elif same or own:
                self._inquire(pair, other.window.held, in_common=same is True)
        return samples

    def _check(
        self, source: SourceId, known: KnownSource, epoch: int, samples: list[Sample]
    ) -> None:
        """Take an agreement back where others' samples under its loser show that it was wrong."""
        agreement = self._agreed.get((source, epoch))
        winner = known.numberings.get(known.canonical(epoch, 0))
        if agreement is None or winner is None or self._compared(winner, samples) is not False:
            return
        self.differ(source, agreement.epoch, epoch)
        self._revoke(agreement)

    def _nameless(
        self, source: SourceId, known: KnownSource, samples: list[Sample]
    ) -> list[Sample]:
        """Return what of samples without an epoch is to come in: not what is here with one."""
        if self._is_held_back(source):
            return []
        elsewhere = [
            other
            for other in known.numberings.values()
            if other.epoch != EPOCH_UNKNOWN and self._compared(other, samples)
        ]
        if source not in self._waited_for and (elsewhere or self._of_another_run(known, samples)):
            # The giver, or this cache, finds out how others call them, and then they have a name.
            _put(self._waited_for, source, True)
            self._hold_back(source, _NAMED_SECONDS)
            return []
        for other in elsewhere:
            samples = [sample for sample in samples if sample.sn not in other.window.held]
        return samples

    def _of_another_run(self, known: KnownSource, samples: list[Sample]) -> bool:
        """Tell whether samples without an epoch are not of the run that is here without one."""
        ours = known.numberings.get(EPOCH_UNKNOWN)
        if ours is None or not _own(known):
            return False  # looked up once for a source: what comes in is of both from then on
        lowest, highest = min(samples, key=_sn), max(samples, key=_sn)
        return any(self._out_of_order(ours.window.held, s) for s in (lowest, highest)) or (
            self._compared(ours, samples) is False
        )

    def _out_of_order(self, held: RangeSet, sample: Sample) -> bool:
        """Tell whether a neighbour by number without an epoch is none by time."""
        below, above = held.clip(0, sample.sn - 1).last, held.clip(sample.sn + 1, _SN_END).first
        try:
            for sn in (below, above):
                for stored in () if sn is None else self._stored(sample.source, sn):
                    later = stored.ntp64 - sample.ntp64 if stored.sn < sample.sn else 0
                    earlier = sample.ntp64 - stored.ntp64 if stored.sn > sample.sn else 0
                    if max(later, earlier) > _APART_NTP64 and not (stored.stamped | sample.stamped):
                        return True
        except StorageError:
            return False
        return False

    def _stored(self, source: SourceId, sn: int) -> list[Sample]:
        return [*self._store.range_of(source, EPOCH_UNKNOWN, sn, sn)]

    def _inquire(self, pair: _Pair, held: RangeSet, *, in_common: bool) -> None:
        """Ask others for what is here under the other name; what is without waits for the end."""
        under_way = self._inquiries.get(pair)
        if under_way is not None and self._clock() < under_way.until:
            under_way.in_common |= in_common
            return
        first, last = held.first, held.last
        if first is None or last is None:
            return
        until = self._clock() + _HELD_BACK_SECONDS
        inquiry_id = next(self._ids)
        _put(self._inquiries, pair, _Inquiry(until, in_common))
        _put(self._asked, inquiry_id, pair)
        if EPOCH_UNKNOWN in pair:
            self._hold_back(pair[0], _HELD_BACK_SECONDS)
        self._ask(inquiry_id, pair[0], first, min(last, first + _COMPARED_MAX - 1))

    def _differ_here(
        self, source: SourceId, known: KnownSource, winner: int, lost: Numbering | None
    ) -> bool:
        """Tell whether what is here already under both has a number with two contents."""
        stands = known.numberings.get(winner)
        if lost is None or stands is None:
            return False
        first = lost.window.held.intersection(stands.window.held).first
        if first is None:
            return False
        stored = self._store.range_of(source, winner, first, first + _COMPARED_MAX - 1)
        try:
            return self._compared(lost, islice(stored, _COMPARED_MAX)) is False
        except StorageError:
            return True

    def _compared(self, other: Numbering, samples: Iterable[Sample]) -> bool | None:
        """Tell whether samples are held under another epoch, all of them; None: not to be told."""
        held = other.window.held
        both = [s for s in samples if s.sn in held and s.ntp64 and not s.stamped]
        wanted = [msgspec.structs.replace(sample, epoch=other.epoch) for sample in both]
        same = None
        try:
            for sample, stored in self._store.find(wanted):
                if stored is None or stored.stamped:
                    continue
                if not are_twins(sample, stored):
                    return False
                same = True
        except StorageError:
            return None  # asked again with the next that comes
        return same

    def _is_held_back(self, source: SourceId) -> bool:
        return self._clock() < self._held_back.get(source, 0.0)

    def _hold_back(self, source: SourceId, seconds: float) -> None:
        until = self._clock() + seconds
        _put(self._held_back, source, max(until, self._held_back.get(source, 0.0)))

    def _differ(self, pair: _Pair) -> None:
        _put(self._different, pair, True)


def are_twins(one: Sample, two: Sample) -> bool:
    """Tell whether samples under one number are the same, whatever their epochs."""
    ours = (one.ntp64, one.timestamp_id, sample_digest(one))
    return ours == (two.ntp64, two.timestamp_id, sample_digest(two))


def _sn(sample: Sample) -> int:
    return sample.sn


def _own(known: KnownSource) -> bool:
    """Tell whether what is held without an epoch was all heard live, by this process."""
    numbering = known.numberings.get(EPOCH_UNKNOWN)
    return (
        numbering is not None
        and bool(numbering.window.held)
        and not numbering.foreign
        and not numbering.declared
    )


def _lower_first(one: int, two: int) -> tuple[int, int]:
    """Return two epochs, the one that stands first; one that says nothing comes last."""
    lower, higher = sorted((one, two), key=lambda epoch: (epoch == EPOCH_UNKNOWN, epoch))
    return lower, higher


def _put(memory: OrderedDict[Any, Any], key: object, value: object) -> None:
    memory[key] = value
    while len(memory) > _REMEMBERED_MAX:
        memory.popitem(last=False)
