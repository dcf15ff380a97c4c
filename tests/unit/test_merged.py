"""Are backend and backlog read as one storage, whatever is where?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds
from durable_cache.storage.contract import Page, Storage
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.journal import Entry
from durable_cache.storage.journaled.merged import MergedReading
from durable_cache.storage.memory import MemoryStorage

SOURCES = [SourceId("a1", 1), SourceId("b2", 1)]
numbers = st.tuples(st.sampled_from("abc"), st.sampled_from(SOURCES), st.integers(0, 12))
SELECTIONS = [
    Selection(),
    Selection(KeyExpression("b")),
    Selection(zid="a1", eid=1, sns=SnBounds(3, 9)),
    Selection(newest=1),
    Selection(newest=2),
]


def sample_of(number: tuple[str, SourceId, int]) -> Sample:
    key, source, sn = number
    return Sample(key, source, 1, sn, b"x" * 50, ntp64=100 + sn * 7 % 13)


def pages(read: MergedReading | Storage, selection: Selection, limit: int) -> list[Sample]:
    found: list[Sample] = []
    cursor: Cursor | None = None
    while True:
        page = read.read(selection, limit, cursor)
        assert len(page.samples) <= limit
        assert len(page.samples) or page.cursor is None
        found += page.samples
        cursor = page.cursor
        if cursor is None:
            return found


def test_numbers_of_every_key_are_found_behind_verbatim_chunks_too() -> None:
    """As a consumer's positions are, which no wildcard names (ADR 0283)."""
    backend = MemoryStorage()
    keys = ["@x/a", "a", "b/@y/c", "a", "@x/a", "@x/b"]
    held = [Sample(key, SOURCES[0], 1, sn, b"x") for sn, key in enumerate(keys)]
    other = Sample("@x/a", SOURCES[1], 1, 0, b"x")
    backend.append(SampleBatch([*held[:4], other]))
    backlog = Backlog(1 << 20)
    backlog.push(Entry(1, SampleBatch(held[4:]), ()))
    streams = {sample.stream for sample in (*held, other)}
    merged = MergedReading(
        backend,
        backlog,
        lambda _: (),
        lambda source, epoch: [s for s in streams if (s.source, s.epoch) == (source, epoch)],
    )
    absent = Sample("@x/b", SOURCES[0], 1, 0, b"x")
    assert merged.find([*held, absent]) == [*((one, one) for one in held), (absent, None)]
    found = [*merged.range_of(SOURCES[0], 1, 1, 4)]
    assert sorted(sample.sn for sample in found) == [1, 2, 3, 4]
    for limit in (1, 2, 100):
        cursor: Cursor | None = None
        run: list[int] = []
        while True:
            page = merged.read_run(SOURCES[0], 1, limit, cursor)
            run += [sample.sn for sample in page.samples]
            cursor = page.cursor
            if cursor is None:
                break
        assert run == [1, 3, 0, 4, 5, 2]
    assert backlog.numbers_of(SOURCES[0])[1].runs == RangeSet([(4, 5)])


@given(
    st.lists(numbers, max_size=15),
    st.lists(st.lists(numbers, min_size=1, max_size=4), max_size=6),
    st.sampled_from([1000, 1 << 20]),
    st.integers(1, 5),
)
def test_pages_are_those_of_one_storage(
    stored: list[tuple[str, SourceId, int]],
    commits: list[list[tuple[str, SourceId, int]]],
    bytes_max: int,
    limit: int,
) -> None:
    backend, whole = MemoryStorage(), MemoryStorage()
    backend.append(SampleBatch(map(sample_of, stored)))
    whole.append(SampleBatch(map(sample_of, stored)))
    journal = [Entry(at, SampleBatch(map(sample_of, c)), ()) for at, c in enumerate(commits, 1)]
    backlog = Backlog(bytes_max, lambda after, many: journal[after : after + many])
    for entry in journal:
        backlog.push(entry)
        whole.append(entry.batch)
    merged = MergedReading(backend, backlog, lambda _: ())
    for selection in SELECTIONS:
        for order in Order:
            asked = replace(selection, order=order)
            assert pages(merged, asked, limit) == pages(whole, asked, limit)


class Counting(MemoryStorage):
    """Counts the samples it was made to read."""

    read_samples = 0

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        page = super().read(selection, limit, cursor)
        self.read_samples += len(page.samples)
        return page


@pytest.mark.parametrize("order", Order)
def test_a_page_of_the_newest_reads_no_more_than_it_needs(order: Order) -> None:
    backend, backlog = Counting(), Backlog(1 << 20)
    backend.append(SampleBatch(Sample(f"k{n:04d}", SOURCES[0], 1, n, b"") for n in range(2000)))
    backlog.push(Entry(1, SampleBatch([Sample("k0003", SOURCES[0], 1, 5000, b"")]), ()))
    merged = MergedReading(backend, backlog, lambda _: ())
    page = merged.read(Selection(newest=1, order=order), 10)
    assert len(page.samples) == 10
    assert backend.read_samples <= 30


def test_a_page_takes_no_more_of_what_was_spilled_than_it_is_long(tmp_path: Path) -> None:
    read_back: list[int] = []
    journal = [
        Entry(at, SampleBatch([Sample("a", SOURCES[at % 2], 1, at, b"x" * 500)]), ())
        for at in range(1, 101)
    ]

    def entries_after(after: int, limit: int) -> Sequence[Entry]:
        found = journal[after : after + limit]
        read_back.extend(entry.entry_id for entry in found)
        return found

    backlog = Backlog(5000, lambda after, limit: list(entries_after(after, limit)))
    for entry in journal:
        backlog.push(entry)
    merged = MergedReading(MemoryStorage(), backlog, lambda _: ())
    assert len(merged.read(Selection(), 10).samples) == 10
    assert len(pages(merged, Selection(), 10)) == 100
    read_back.clear()
    named = Selection(KeyExpression("nothing"))
    assert pages(merged, named, 10) == []
    assert read_back == []  # by its sketch no entry can hold it
