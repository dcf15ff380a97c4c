"""How a page is cut from samples that are already in memory: order and cursor."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Stream
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Held, Page

__all__ = ["held_of", "page_of"]


def page_of(
    samples: Iterable[Sample], selection: Selection, limit: int, cursor: Cursor | None
) -> Page:
    """Return the first `limit` samples after `cursor`, in the selection's order."""
    place = selection.place
    later = samples if cursor is None else (s for s in samples if place(s) > cursor)
    found = heapq.nsmallest(limit + 1, later, key=place)
    page = found[:limit]
    return Page(SampleBatch(page), place(page[-1]) if len(found) > limit else None)


def held_of(stream: Stream, samples: Sequence[Sample]) -> Held:
    """Return what a storage holds of `stream`, given its samples; there is at least one."""
    return Held(
        stream,
        RangeSet.of(sample.sn for sample in samples),
        max(sample.ntp64 for sample in samples),
        max(sample.received_ns for sample in samples),
    )
