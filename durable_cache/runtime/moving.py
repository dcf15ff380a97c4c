"""What a cache asks while it moves samples from an epoch that lost to the one that stands."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Cursor
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import Alias
from durable_cache.protocol.cache.names import are_twins
from durable_cache.protocol.cache.questions import (
    Conversation,
    IsMoved,
    Lookup,
    MovedPage,
    MovedSoFar,
    NumbersLooked,
    Pause,
    ReadToMove,
    Unanswered,
    answer_of,
)

_REFUSED_SECONDS = 2.0
"""Before what was refused on the way is read and stored once more: a disk may still be full."""


def first_moved(alias: Alias) -> tuple[bool, int]:
    """Order moves: an epoch may go to another that goes to a third; the last goes first."""
    return alias.stored != EPOCH_UNKNOWN, -alias.stored


def renamed(alias: Alias, cursor: Cursor | None) -> Conversation[MovedPage]:
    """Return a page of what stands under the old epoch, under the new one."""
    page = yield from answer_of(ReadToMove(alias, cursor), MovedPage)
    under_new = (msgspec.structs.replace(sample, epoch=alias.epoch) for sample in page.batch)
    return MovedPage(SampleBatch(under_new), page.cursor)


def await_moved(
    alias: Alias, polls: int, poll_seconds: float, is_refused: Callable[[], bool]
) -> Conversation[None]:
    """Look `polls` times whether the backend has all that is moved; raise Unanswered for a move
    that is to begin anew.

    So it is soon after a commit `is_refused`: what it held never comes by waiting.
    """
    for _ in range(polls):
        if (yield from answer_of(IsMoved(alias), MovedSoFar)).all:
            return
        if is_refused():
            yield Pause(_REFUSED_SECONDS)
            break
        yield Pause(poll_seconds)
    raise Unanswered


def twins_everywhere(alias: Alias) -> Conversation[bool]:
    """Tell whether nothing would be lost: no number has another content under the other."""
    cursor = None
    while True:
        page = yield from renamed(alias, cursor)
        looked = yield from answer_of(Lookup(tuple(page.batch.samples)), NumbersLooked)
        for sample, stored, removed in looked.found:
            if not removed and not (stored is not None and are_twins(sample, stored)):
                return False
        cursor = page.cursor
        if cursor is None:
            return True
