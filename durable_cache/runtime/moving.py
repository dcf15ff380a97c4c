"""What a cache asks while it moves samples from an epoch that lost to the one that stands."""

from __future__ import annotations

import msgspec

from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Cursor
from durable_cache.protocol.cache.events import Alias
from durable_cache.protocol.cache.names import are_twins
from durable_cache.protocol.cache.questions import (
    Conversation,
    Lookup,
    MovedPage,
    NumbersLooked,
    ReadToMove,
    answer_of,
)

__all__ = ["renamed", "twins_everywhere"]


def renamed(alias: Alias, cursor: Cursor | None) -> Conversation[MovedPage]:
    """Return a page of what stands under the old epoch, under the new one."""
    page = yield from answer_of(ReadToMove(alias, cursor), MovedPage)
    under_new = (msgspec.structs.replace(sample, epoch=alias.epoch) for sample in page.batch)
    return MovedPage(SampleBatch(under_new), page.cursor)


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
