"""By which epochs a cache calls the runs of a source, and which of two names stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.run_name import run_of, run_of_id
from durable_cache.model.sample import Sample, SampleBatch, SourceId, sample_digest
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.numbering import KnownSource, Numbering
from durable_cache.protocol.wire import Incarnation

KnownOf = Callable[[SourceId], KnownSource]


def named_too(known: KnownSource) -> list[int]:
    """Return under which epochs numbers are here that are here without one, too."""
    ours = known.numberings.get(EPOCH_UNKNOWN)
    if ours is None or not is_unnamed(ours):
        return []
    held = ours.window.held
    others = (other for other in known.numberings.values() if other is not ours)
    return [other.epoch for other in others if held.intersection(other.window.held)]


def beyond_live(known: KnownSource, sns: RangeSet | None = None) -> list[int]:
    """Return epochs under which some numbers of the live run are here, too: perhaps it is one run.

    `sns`: only these. Others gave it under a later name before it came live, or under the very name
    that it was to get here: then it goes by the next one (ADR 0321).
    """
    live = known.numberings.get(known.current)
    if live is None or live.named or live.declared:
        return []
    held = live.window.held if sns is None else sns
    others = [other for other in known.numberings.values() if may_be_live(known, other.epoch)]
    return [other.epoch for other in others if held.intersection(other.window.held)]


def may_be_live(known: KnownSource, epoch: int) -> bool:
    """Tell whether others may call the run of live samples by an epoch."""
    return epoch > known.current or epoch == known.current - 1 > EPOCH_UNKNOWN


def heard_twice(batch: SampleBatch, sources: Iterable[KnownSource]) -> list[SourceId]:
    """Return the sources of which numbers came live that are here under another name (ADR 0213).

    Only what others gave has a later epoch than live samples: there is nearly never one.
    """
    found: list[SourceId] = []
    for known in sources:
        if len(known.numberings) < 2:  # asked for with every batch
            continue
        if not any(may_be_live(known, epoch) for epoch in known.numberings):
            continue
        sns = RangeSet.of([sample.sn for sample in batch if sample.source == known.source])
        if beyond_live(known, sns):
            found.append(known.source)
    return found


def named_twice(sources: Iterable[KnownSource]) -> list[SourceId]:
    """Return the sources of which one run may be here under two names."""
    return [known.source for known in sources if named_too(known) or beyond_live(known)]


def called_here(batch: SampleBatch, names: Sequence[Incarnation], known_of: KnownOf) -> SampleBatch:
    """Return what another gave under the epochs by which its runs go here.

    A run that has no epoch here, and comes under that of another run, is left out: under its
    number another sample may be here already.
    """
    names_of = {(source, epoch): name for source, epoch, name in names}
    keys = {(one.source, one.epoch, one.timestamp_id) for one in batch}
    epochs: dict[tuple[SourceId, int, str], int | None] = {}
    for source, epoch, timestamp_id in keys:
        run = run_of_id(timestamp_id)
        name = names_of.get((source, epoch), "") if run is None else run.incarnation
        if not name:
            continue
        known = known_of(source)
        own = known.of_incarnation(name)
        taken = known.numberings.get(known.canonical(epoch, 0))
        if own is not None:
            epochs[source, epoch, timestamp_id] = own.epoch
        elif taken is not None and taken.is_of_another(name):
            epochs[source, epoch, timestamp_id] = None
    if all(called == epoch for (_, epoch, _), called in epochs.items()):
        return batch
    found = ((s, epochs.get((s.source, s.epoch, s.timestamp_id), s.epoch)) for s in batch)
    return SampleBatch(
        sample if epoch == sample.epoch else msgspec.structs.replace(sample, epoch=epoch)
        for sample, epoch in found
        if epoch is not None
    )


def of_live_runs(batch: SampleBatch, known_of: KnownOf) -> SampleBatch:
    """Give samples from publishers' own caches the epochs that these publish under.

    Where it is not known which run that is, they are left out: their gap is asked for again.
    """
    known = {source: known_of(source) for source in {sample.source for sample in batch}}
    return SampleBatch(
        msgspec.structs.replace(sample, epoch=epoch)
        for sample in batch
        if (epoch := _epoch_of(sample, known[sample.source])) is not None
    )


def _epoch_of(sample: Sample, known: KnownSource) -> int | None:
    if run_of(sample) is not None:
        named = known.named_by(sample)
        return None if named is None else named.epoch
    return None if known.doubt or known.may_be_later(sample) else known.epoch_of(sample)


def is_unnamed(numbering: Numbering) -> bool:
    """Tell whether something is held without an epoch, of a run that nobody declared."""
    unknown = numbering.epoch == EPOCH_UNKNOWN and not numbering.declared
    return unknown and bool(numbering.window.held)


def are_twins(first: Sample, second: Sample) -> bool:
    """Tell whether samples under one number are the same, whatever their epochs."""
    ours = (first.ntp64, first.timestamp_id, sample_digest(first))
    return ours == (second.ntp64, second.timestamp_id, sample_digest(second))


def both_declared(known: KnownSource, epoch: int, other: Numbering) -> bool:
    """Tell whether the source's own tokens say that two epochs are two."""
    numbering = known.numberings.get(epoch)
    return numbering is not None and bool(numbering.incarnation and other.incarnation)


def together(known: KnownSource, epochs: Iterable[int], samples: Iterable[Sample]) -> RangeSet:
    """Return the numbers that are here of some runs, and those of samples."""
    numbers = RangeSet.of([sample.sn for sample in samples])
    for epoch in epochs:
        if epoch in known.numberings:
            numbers.update(known.numberings[epoch].window.held)
    return numbers


def later_first(one: int, two: int) -> tuple[int, int]:
    """Return two epochs, the one that stands first; one that says nothing comes last."""
    return max(one, two), min(one, two)


def under(epoch: int, samples: Iterable[Sample]) -> list[Sample]:
    return [msgspec.structs.replace(sample, epoch=epoch) for sample in samples]
