"""How a page is cut from samples that are already in memory: order and cursor."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import cast

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Stream
from durable_cache.model.selection import Cursor, Order, Selection
from durable_cache.storage.contract import Held, Page


def page_of(
    samples: Iterable[Sample], selection: Selection, limit: int, cursor: Cursor | None
) -> Page:
    """Return the first `limit` samples after `cursor`, in the selection's order."""
    place = selection.place
    later: Iterable[Sample]
    if selection.order is Order.TIME:
        later = _next_in_time(samples, limit, cursor)
    else:
        later = samples if cursor is None else (s for s in samples if place(s) > cursor)
    found = heapq.nsmallest(limit + 1, later, key=place)
    page = found[:limit]
    return Page(SampleBatch(page), place(page[-1]) if len(found) > limit else None)


def _next_in_time(samples: Iterable[Sample], limit: int, cursor: Cursor | None) -> Sequence[Sample]:
    """Return at least the next page in order of time, by numbers alone as far as they tell."""
    if cursor is None:
        later = list(samples)
    else:
        at = cast("int", cursor[0])
        later = [s for s in samples if s.ntp64 > at or (s.ntp64 == at and s.time_order > cursor)]
    if len(later) <= limit:
        return later
    last = sorted([sample.ntp64 for sample in later])[limit]
    return [sample for sample in later if sample.ntp64 <= last]


def held_of(stream: Stream, samples: Sequence[Sample]) -> Held:
    """Return what a storage holds of `stream`, given its samples; there is at least one."""
    return Held(
        stream,
        RangeSet.of(sample.sn for sample in samples),
        max(sample.ntp64 for sample in samples),
        max(sample.received_ns for sample in samples),
    )
