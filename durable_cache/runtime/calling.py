"""What a cache asks and decides to call a named run by the later epoch of two (ADR 0116)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, EpochsAgreed, Event, NumberingNamed
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

__all__ = ["call_as_others"]


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
            yield from answer_of(Keep(Declaration(source, epoch, incarnation)), Done)
            engine_takes(NumberingNamed(source, epoch, incarnation))
    later = later_name(known, theirs)
    if later is None:
        return None
    alias, incarnation = later
    declaration = Declaration(alias.source, alias.epoch, incarnation, alias.stored)
    yield from answer_of(Keep(declaration), Done)
    engine_takes(EpochsAgreed(alias.source, alias.stored, alias.epoch))
    return alias


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
