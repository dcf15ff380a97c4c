"""What a cache asks and decides to call named runs as those do who give them.

Of two epochs of a named run the later stands (ADR 0116). A run that others give under an epoch
that is free here gets their name for it before its samples come in (ADR 0265).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, EpochsAgreed, Event, NumberingNamed
from durable_cache.protocol.cache.fitting import belongs
from durable_cache.protocol.cache.later_names import later_name
from durable_cache.protocol.cache.numbering import KnownSource
from durable_cache.protocol.cache.questions import (
    Conversation,
    Declaration,
    Disagreed,
    Done,
    Keep,
    answer_of,
)
from durable_cache.protocol.wire import Incarnation


def call_as_others(
    known: KnownSource,
    names: Iterable[Incarnation],
    epochs: Epochs,
    engine_takes: Callable[[Event], None],
) -> Conversation[Alias | None]:
    """Call a run by the later epoch by which others call it; return what is to be moved, if so.

    An epoch that a run left, and by which others call another run, is that one's again as soon as
    nothing of the first is stored under it.
    """
    theirs = [name for name in names if name.source == known.source]
    for source, epoch, incarnation in theirs:
        left = _left(known, epoch, incarnation, epochs)
        if left is not None:
            yield from answer_of(Keep(Disagreed(left)), Done)
            epochs.reuse(source, epoch)
            if known.of_incarnation(incarnation) is None:  # else it goes by that from now on
                yield from _name(NumberingNamed(source, epoch, incarnation), engine_takes)
    later = later_name(known, theirs)
    if later is None:
        return None
    alias, incarnation = later
    declaration = Declaration(alias.source, alias.epoch, incarnation, alias.stored)
    yield from answer_of(Keep(declaration), Done)
    engine_takes(EpochsAgreed(alias.source, alias.stored, alias.epoch))
    return alias


def name_as_given(
    known: KnownSource,
    batch: SampleBatch,
    names: Iterable[Incarnation],
    engine_takes: Callable[[Event], None],
) -> Conversation[None]:
    """Name the runs that others give by their tokens' names; then no other token takes them.

    Not what may be the run whose first samples came here before its token: that tells.
    """
    theirs = {(source, epoch): incarnation for source, epoch, incarnation in names}
    for epoch, given in _by_epoch(known, batch).items():
        incarnation = theirs.get((known.source, epoch), "")
        if not incarnation or known.of_incarnation(incarnation) is not None:
            continue
        if known.canonical(epoch, 0) != epoch or known.can_adopt(epoch, epoch, incarnation):
            continue
        ours = known.numberings.get(epoch)
        if ours is not None:
            if ours.named and ours.expected != incarnation:
                continue
            if (yield from belongs(ours, given)) is False:
                continue
        yield from _name(NumberingNamed(known.source, epoch, incarnation), engine_takes)


def _by_epoch(known: KnownSource, batch: SampleBatch) -> dict[int, list[Sample]]:
    given: dict[int, list[Sample]] = {}
    for (_, source, epoch), samples in batch.by_stream.items():
        if source == known.source:
            given.setdefault(epoch, []).extend(samples)
    return given


def _name(named: NumberingNamed, engine_takes: Callable[[Event], None]) -> Conversation[None]:
    """Which incarnation an epoch is becomes durable before the first sample under it."""
    declaration = Declaration(named.source, named.epoch, named.incarnation)
    yield from answer_of(Keep(declaration), Done)
    engine_takes(named)


def _left(known: KnownSource, epoch: int, incarnation: str, epochs: Epochs) -> Alias | None:
    """Return where the run went that an epoch was the name of, when all of it did.

    None where it is the very run that others call so.
    """
    if epoch in known.numberings or epochs.moved_to(known.source, epoch) is None:
        return None
    standing = known.numberings.get(known.canonical(epoch, 0))
    if standing is None or standing.incarnation in ("", incarnation):
        return None
    return Alias(known.source, epoch, 0, standing.epoch)
