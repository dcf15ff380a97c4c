"""What a cache makes of samples that a publisher sent once more, to it alone.

Nothing in a resend is believed before it is compared: with the live tokens of the source it claims
to come from, with the numberings known of that source, and, number by number, with what is stored.
What is stored as it was sent is acknowledged once more; what is new is taken as any sample is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.window import Verdict, Window
from durable_cache.protocol.cache.admission import part_at_floors
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.epochs import found_under_any_name
from durable_cache.protocol.cache.events import (
    BatchReceived,
    Compared,
    EpochDeclared,
    Event,
    NumberingNamed,
    Origin,
    Removed,
)
from durable_cache.protocol.cache.numbering import KnownSource, Numbering, pinned
from durable_cache.protocol.cache.questions import (
    Conversation,
    Declaration,
    Done,
    Floors,
    FloorsFound,
    Keep,
    Lookup,
    NumbersLooked,
    Unanswered,
    answer_of,
)
from durable_cache.protocol.resends import RefusalReason, ResendRefusal
from durable_cache.runtime.effects import AnswerResend, ResendArrived


class _WithinLimit(Protocol):
    def __call__(self, batch: SampleBatch, origin: Origin, /) -> SampleBatch: ...


class _Refusals:
    """The numbers of one resend that are not taken, by reason."""

    def __init__(self) -> None:
        self._numbers: dict[RefusalReason, RangeSet] = {}

    def add(self, reason: RefusalReason, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self._numbers.setdefault(reason, RangeSet()).add(sample.sn, sample.sn)

    def told(self) -> tuple[ResendRefusal, ...]:
        return tuple(
            ResendRefusal(run.first, run.last, reason)
            for reason, runs in self._numbers.items()
            for run in runs
        )


class Resends:
    """The part of a core that judges resends; owned by the core's thread.

    `claims(source)` tells which live tokens of a source came here: an answer to the question for
    them, which comes with a resend, now and then ends before a token that is in it.
    """

    def __init__(
        self,
        engine: CacheEngine,
        claims: Callable[[SourceId], frozenset[str]],
        *,
        load: Callable[[Iterable[SourceId]], Conversation[None]],
        declare: Callable[[EpochDeclared], Conversation[None]],
        within_limit: _WithinLimit,
        take: Callable[[Event], None],
        note: Callable[[SampleBatch, Origin], None],
    ) -> None:
        """`note` sees what is believed, before it is taken."""
        self._engine = engine
        self._claims = claims
        self._load = load
        self._declare = declare
        self._within_limit = within_limit
        self._take = take
        self._note = note

    def judge(self, event: ResendArrived) -> Conversation[AnswerResend]:
        """Take what may be taken; the answer says what may not. Never raises `Unanswered`."""
        refusals = _Refusals()
        try:
            yield from self._load((event.source,))
            known = self._engine.known(event.source)
            with pinned(known):
                yield from self._judge(event, known, refusals)
        except Unanswered:
            refusals.add(RefusalReason.LATER, event.batch)
        return AnswerResend(event.number, (*event.refused, *refusals.told()))

    def _judge(
        self, event: ResendArrived, known: KnownSource, refusals: _Refusals
    ) -> Conversation[None]:
        reason = _claimed(event, self._claims(event.source))
        if reason is None and known.doubt is not None:
            reason = RefusalReason.LATER  # of which run its live samples are is not known yet
        if reason is None:
            yield from self._name(event, known)
            reason = _unnamed(event, known)
        numbering = known.of_incarnation(event.incarnation)
        if reason is not None or numbering is None:
            refusals.add(reason or RefusalReason.LATER, event.batch)
            return
        named = _named(event.batch, numbering.epoch)
        self._note(named, Origin.RESENT)
        held = yield from self._take_new(event, named, numbering, refusals)
        if held:
            yield from self._compare(event, numbering, held, refusals)

    def _name(self, event: ResendArrived, known: KnownSource) -> Conversation[None]:
        """Know the numbering by its incarnation; that is durable before a sample of it is taken."""
        source, epoch, incarnation = event.source, event.epoch, event.incarnation
        if known.of_incarnation(incarnation) is not None:
            return
        if event.claims and incarnation in event.claims:
            # Its token is on its way here, or was missed: this is as good.
            yield from self._declare(EpochDeclared(source, epoch, False, event.now, incarnation))
            return
        epoch = known.canonical(epoch, 0)
        taken = known.numberings.get(epoch)
        if taken is None or not taken.incarnation:
            yield from answer_of(Keep(Declaration(source, epoch, incarnation)), Done)
            self._take(NumberingNamed(source, epoch, incarnation))

    def _take_new(
        self,
        event: ResendArrived,
        batch: SampleBatch,
        numbering: Numbering,
        refusals: _Refusals,
    ) -> Conversation[tuple[Sample, ...]]:
        """Take the numbers that did not come before; return those that did, to be compared."""
        removed = yield from answer_of(Floors(tuple(batch.by_stream)), FloorsFound)
        new, held = batch, list[Sample]()
        if not numbering.are_next(batch.samples):
            new = SampleBatch(_new_of(batch, numbering.window, held, refusals))
        allowed, below = part_at_floors(new, removed.floors)
        admitted = self._within_limit(allowed, Origin.RESENT)
        refusals.add(RefusalReason.REMOVED, below)
        if admitted is not allowed:
            refusals.add(RefusalReason.FULL, _left_out(allowed, admitted))
        if len(below):
            self._take(Removed(below))
        under_way = self._engine.under_way(event.source, numbering)
        if len(admitted):
            self._take(BatchReceived(admitted, Origin.RESENT, event.now))
        return tuple(sample for sample in held if sample.sn not in under_way)

    def _compare(
        self,
        event: ResendArrived,
        numbering: Numbering,
        held: tuple[Sample, ...],
        refusals: _Refusals,
    ) -> Conversation[None]:
        asked = self._engine.epochs.with_other_names(held)
        looked = yield from answer_of(Lookup(asked), NumbersLooked)
        of_held = tuple(found_under_any_name(looked.found, len(held)))
        for found in of_held:
            if found.stored is not None and not found.same:
                refusals.add(RefusalReason.CONFLICT, (found.sample,))
            elif found.removed and found.sample.sn not in numbering.window.held:
                refusals.add(RefusalReason.REMOVED, (found.sample,))
        self._take(Compared(event.source, event.incarnation, of_held))


def _named(batch: SampleBatch, epoch: int) -> SampleBatch:
    """Return samples by the epoch that their run goes by here."""
    if all(sample.epoch == epoch for sample in batch):
        return batch
    return SampleBatch(msgspec.structs.replace(sample, epoch=epoch) for sample in batch)


def _new_of(
    batch: SampleBatch, window: Window, held: list[Sample], refusals: _Refusals
) -> list[Sample]:
    """Return what did not come before; `held` gets the rest, but for what is refused."""
    new: list[Sample] = []
    for sample in batch:
        match window.verdict(sample.sn):
            case Verdict.NEW:
                new.append(sample)
            case Verdict.DUPLICATE | Verdict.OLD:
                held.append(sample)
            case Verdict.BEYOND:
                refusals.add(RefusalReason.LATER, (sample,))
    return new


def _claimed(event: ResendArrived, seen: frozenset[str]) -> RefusalReason | None:
    """Tell why a resend is not to be believed, whatever it holds."""
    if event.claims is None:
        return RefusalReason.LATER
    if event.sender == event.source.zid or (event.sender, event.incarnation) in event.carriers:
        return None
    carried = {incarnation for _, incarnation in event.carriers}
    return RefusalReason.CLAIMED if (event.claims | seen) - carried else None


def _unnamed(event: ResendArrived, known: KnownSource) -> RefusalReason | None:
    """Tell why a numbering has no name here after all."""
    if known.of_incarnation(event.incarnation) is not None:
        return None
    taken = known.numberings.get(known.canonical(event.epoch, 0))
    return RefusalReason.EPOCH_TAKEN if taken and taken.incarnation else RefusalReason.LATER


def _left_out(whole: Iterable[Sample], kept: SampleBatch) -> list[Sample]:
    numbers = {sample.sn for sample in kept}
    return [sample for sample in whole if sample.sn not in numbers]
