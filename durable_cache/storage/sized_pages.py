"""How a long history is read page by page: whoever reads holds a page at a time.

Pages of fixed length are for what is known to be small; they would be gigabytes of large payloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Page

PAGE_BYTES = 16 << 20
"""What a page of samples is meant to take in memory: four times of it are at hand at once."""
_FIRST_SAMPLES, _SAMPLES_MAX = 1_000, 10_000
"""A page is small while nothing is known of the samples; beyond the greatest nothing is gained."""


class Reading(Protocol):
    """`Storage.read`, or what reads as it does."""

    def __call__(self, selection: Selection, limit: int, cursor: Cursor | None, /) -> Page: ...


def pages(read: Reading, selection: Selection, samples: int) -> Iterator[SampleBatch]:
    """Yield all of a selection, so many samples at once, in its order; raises what `read` raises.

    The next page is read when it is asked for.
    """
    cursor: Cursor | None = None
    while True:
        page = read(selection, samples, cursor)
        yield page.samples
        cursor = page.cursor
        if cursor is None:
            return


def sized_pages(read: Reading, selection: Selection) -> Iterator[list[Sample]]:
    """Yield all of a selection, in pages that take about the same memory, as `pages` does."""
    samples_next = _FIRST_SAMPLES
    cursor: Cursor | None = None
    while True:
        page = read(selection, samples_next, cursor)
        yield list(page.samples)
        if len(page.samples):
            fitting = PAGE_BYTES * len(page.samples) // max(1, page.samples.held_bytes)
            samples_next = max(1, min(fitting, _SAMPLES_MAX))
        cursor = page.cursor
        if cursor is None:
            return
