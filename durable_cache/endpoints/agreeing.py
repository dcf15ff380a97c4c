"""Which epochs of a source are one incarnation that two caches named differently.

A foreign publisher declares no epoch, so caches name its restarts themselves. Where one missed the
first samples, or began only later, it has another name for what the other has as well. What another
cache gives shows that: the same key, number, timestamp and content under another epoch. Then the
lower epoch stands, and one that says nothing (0) never does.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from durable_cache.errors import StorageError
from durable_cache.model.sample import Sample, SampleBatch, SourceId, sample_digest
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.events import Alias
from durable_cache.protocol.numbering import KnownSource, Numbering
from durable_cache.storage.journaled import JournaledStorage

__all__ = ["Agreeing"]

_COMPARED = 3
_REMEMBERED_MAX = 4096
_HELD_BACK_SECONDS = 10.0
"""An answer to the question whether our unknown epoch is the peer's takes less."""


class Agreeing:
    """Looks at what other caches give; owned by the engine's thread, `release` by any."""

    def __init__(
        self,
        store: JournaledStorage,
        agree: Callable[[Alias], bool],
        ask: Callable[[SourceId, int], None],
    ) -> None:
        self._store = store
        self._agree = agree
        self._ask = ask
        self._different: OrderedDict[tuple[SourceId, int, int], bool] = OrderedDict()
        self._held_back: OrderedDict[SourceId, float] = OrderedDict()
        self._waited_for: OrderedDict[SourceId, bool] = OrderedDict()
        for agreement in store.index.agreements():
            if agreement.stored == EPOCH_UNKNOWN:
                self._held_back[agreement.source] = float("inf")

    def release(self, source: SourceId) -> None:
        """What this cache had of the source without an epoch has one now."""
        self._held_back.pop(source, None)

    def settle(
        self, batch: SampleBatch, known_of: Callable[[SourceId], KnownSource]
    ) -> SampleBatch:
        """Return what of others' samples may come in now; what is held back is given again."""
        numberings: dict[tuple[SourceId, int], list[Sample]] = {}
        for (_, source, epoch), samples in batch.by_stream.items():
            numberings.setdefault((source, epoch), []).extend(samples)
        kept: list[Sample] = []
        for (source, epoch), samples in numberings.items():
            kept += self._welcome(source, known_of(source), epoch, samples)
        return batch if len(kept) == len(batch) else SampleBatch(kept)

    def _welcome(
        self, source: SourceId, known: KnownSource, epoch: int, samples: list[Sample]
    ) -> list[Sample]:
        if epoch == EPOCH_UNKNOWN:
            return self._nameless(source, known, samples)
        if known.canonical(epoch, 0) != epoch:
            return samples
        for other in [*known.numberings.values()]:
            pair = (source, epoch, other.epoch)
            own = other.epoch == EPOCH_UNKNOWN and _own(known)
            if other.epoch == epoch or pair in self._different:
                continue
            if other.epoch == EPOCH_UNKNOWN and not own:
                continue
            match self._compared(other, samples):
                case True if self._may_be_one(known, epoch, other):
                    self._one_incarnation(source, epoch, other.epoch)
                    return samples
                case True | False:
                    self._differ(pair)
                case None if own:
                    self._inquire(source, other)
                case None:
                    pass
        return samples

    def _nameless(
        self, source: SourceId, known: KnownSource, samples: list[Sample]
    ) -> list[Sample]:
        """Return what of samples without an epoch is to come in: not what is here with one."""
        if self._is_held_back(source):
            return []
        for other in known.numberings.values():
            if other.epoch == EPOCH_UNKNOWN or not self._compared(other, samples):
                continue
            if source not in self._waited_for:
                # The giver finds out too, and perhaps has them under our epoch then.
                self._waited_for[source] = True
                _bound(self._waited_for)
                self._hold_back(source, _HELD_BACK_SECONDS)
                return []
            samples = [sample for sample in samples if sample.sn not in other.window.held]
        return samples

    def _inquire(self, source: SourceId, own: Numbering) -> None:
        """Ask how others call what we hold without an epoch, before theirs mixes with it."""
        if not self._is_held_back(source):
            self._hold_back(source, _HELD_BACK_SECONDS)
            self._ask(source, own.window.held.first or 0)

    def _may_be_one(self, known: KnownSource, given: int, other: Numbering) -> bool:
        """Tell whether the epoch that would lose may: not one that its publisher declared."""
        lost = known.numberings.get(_lower_first(given, other.epoch)[1])
        return lost is None or not lost.declared

    def _one_incarnation(self, source: SourceId, given: int, other: int) -> None:
        winner, loser = _lower_first(given, other)
        if self._agree(Alias(source, loser, 0, winner)) and loser == EPOCH_UNKNOWN:
            self._hold_back(source, float("inf"))

    def _compared(self, other: Numbering, samples: Iterable[Sample]) -> bool | None:
        """Tell whether samples are held under another epoch; None where that cannot be told."""
        held = other.window.held
        both = [s for s in samples if s.sn in held and s.ntp64 and not s.stamped][:_COMPARED]
        wanted = [msgspec.structs.replace(sample, epoch=other.epoch) for sample in both]
        try:
            for sample, stored in self._store.find(wanted):
                if stored is None or stored.stamped:
                    continue
                theirs = (sample.ntp64, sample.timestamp_id, sample_digest(sample))
                return theirs == (stored.ntp64, stored.timestamp_id, sample_digest(stored))
        except StorageError:
            return None  # asked again with the next that comes
        return None

    def _is_held_back(self, source: SourceId) -> bool:
        return time.monotonic() < self._held_back.get(source, 0.0)

    def _hold_back(self, source: SourceId, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._held_back[source] = max(until, self._held_back.get(source, 0.0))
        _bound(self._held_back)

    def _differ(self, pair: tuple[SourceId, int, int]) -> None:
        self._different[pair] = True
        _bound(self._different)


def _own(known: KnownSource) -> bool:
    """Tell whether what is held without an epoch was all heard live, by this process."""
    numbering = known.numberings.get(EPOCH_UNKNOWN)
    return (
        numbering is not None
        and known.current == EPOCH_UNKNOWN
        and not numbering.foreign
        and not numbering.declared
    )


def _lower_first(one: int, two: int) -> list[int]:
    """Return two epochs, the one that stands first; one that says nothing comes last."""
    return sorted((one, two), key=lambda epoch: (epoch == EPOCH_UNKNOWN, epoch))


def _bound(memory: OrderedDict[Any, Any]) -> None:
    while len(memory) > _REMEMBERED_MAX:
        memory.popitem(last=False)
