"""Is what is being moved to another epoch read once and in order, however far the move has come?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import StorageUnavailable
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Cursor, Order, Selection, SnBounds
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias
from durable_cache.runtime.reading import NamedReading, OneState
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage

ONE, TWO = SourceId("a1", 1), SourceId("b2", 1)
BEFORE, STANDS = 3, 5
"""Epochs of two runs: what is being moved is of the later one."""
SELECTIONS = [
    Selection(),
    Selection(order=Order.TIME),
    Selection(KeyExpression("b")),
    Selection(zid="a1", eid=1, sns=SnBounds(2, 9)),
    Selection(zid="a1", eid=1, epoch=STANDS, order=Order.TIME),
    Selection(newest=1),
    Selection(newest=2),
    Selection(newest=2, order=Order.TIME),
    Selection(KeyExpression("a"), newest=3, order=Order.TIME),
]


class Moving:
    """A storage whose samples of one epoch are moved to another, step by step."""

    def __init__(self, stored: int, from_sn: int = 0) -> None:
        self.alias = Alias(ONE, stored, from_sn, STANDS)
        self.store = JournaledStorage(MemoryStorage(), None)
        self.epochs = Epochs([self.alias])
        self.reading = NamedReading(self.store, self.epochs, self.store.read)
        self.whole = MemoryStorage()
        self._old: list[Sample] = []

    def put(self, samples: list[Sample]) -> None:
        """Store samples; those of the epoch that lost are to be moved."""
        self.store.commit(SampleBatch(samples))
        self._old += (s for s in samples if s.source == ONE and s.epoch == self.alias.stored)
        self.whole.append(self.epochs.canonical_batch(SampleBatch(samples)))

    def go_on(self, steps: int) -> None:
        """Store so many anew; with nothing left, remove what was moved."""
        store, alias = self.store, self.alias
        chosen, self._old = self._old[:steps], self._old[steps:]
        store.commit(self.epochs.canonical_batch(SampleBatch(chosen)))
        if steps > 2:
            assert store.drain_all(10)
        if not self._old and not alias.from_sn and steps and store.drain_all(10):
            store.forget(ONE, alias.stored)
            self.epochs.moved(alias)
            if alias.stored == 0:
                self.epochs.free(ONE, 0)


def sample_of(key: str, source: SourceId, epoch: int, sn: int) -> Sample:
    return Sample(key, source, epoch, sn, b"%d" % sn, ntp64=100 + 10 * epoch + sn * 7 % 13)


def named(sample: Sample) -> Sample:
    return msgspec.structs.replace(sample, epoch=STANDS)


def pages(
    moving: Moving, selection: Selection, limit: int, steps: list[int], cursor: Cursor | None = None
) -> list[Sample]:
    found: list[Sample] = []
    while True:
        page = moving.reading.read(selection, limit, cursor)
        assert len(page.samples) <= limit
        assert len(page.samples) or page.cursor is None
        found += page.samples
        cursor = page.cursor
        if cursor is None:
            return found
        moving.go_on(steps.pop() if steps else 0)


numbers = st.tuples(st.sampled_from("abc"), st.integers(0, 12))


@given(
    st.lists(numbers, max_size=12, unique_by=lambda number: number[1]),
    st.lists(numbers, max_size=8, unique_by=lambda number: number[1]),
    st.lists(numbers, max_size=4, unique_by=lambda number: number[1]),
    st.lists(st.integers(0, 4), max_size=12),
    st.sampled_from(SELECTIONS),
    st.integers(1, 5),
    st.sampled_from([0, 4]),
    st.sampled_from([0, 0, 6]),
)
def test_each_sample_is_read_once_and_in_order_however_far_the_move_has_come(
    old: list[tuple[str, int]],
    new: list[tuple[str, int]],
    others: list[tuple[str, int]],
    steps: list[int],
    selection: Selection,
    limit: int,
    stored: int,
    from_sn: int,
) -> None:
    moving = Moving(stored, from_sn)
    moving.put([sample_of(key, ONE, stored, sn) for key, sn in old])
    moving.put([sample_of(key, ONE, STANDS, sn + 13) for key, sn in new])
    moving.put([sample_of(key, ONE, BEFORE, sn) for key, sn in others])
    moving.put([sample_of(key, TWO, stored, sn) for key, sn in others])
    moving.go_on(steps.pop() if steps else 0)
    expected = moving.whole.read(selection, 1000).samples.samples
    assert tuple(pages(moving, selection, limit, steps)) == tuple(expected)


def test_what_was_stored_twice_is_one_of_the_newest() -> None:
    moving = Moving(0)
    moving.put([sample_of("a", ONE, 0, sn) for sn in range(4)])
    moving.go_on(4)
    (*_, third, last) = moving.reading.read(Selection(newest=2), 10).samples
    assert [third.sn, last.sn] == [s.sn for s in moving.whole.read(Selection(newest=2), 9).samples]


def test_a_wildcard_update_that_is_moved_is_given_to_whom_it_concerns() -> None:
    """Whoever asked for the newest of other keys was given it, too (seed 33684)."""
    moving = Moving(0)
    moving.put([sample_of("a/**", ONE, 0, 1), sample_of("a/1", ONE, 0, 2)])
    for selected, sns in ("b/**", []), ("a/1", [1, 2]), ("a/**", [1, 2]), ("a/2", [1]):
        for order in Order:
            selection = Selection(KeyExpression(selected), newest=3, order=order)
            assert sorted(one.sn for one in moving.reading.read(selection, 9).samples) == sns


def test_a_page_that_ended_under_the_old_name_goes_on_under_the_new_one() -> None:
    moving = Moving(0)
    moving.put([sample_of("a", ONE, 0, sn) for sn in range(10)])
    place = sample_of("a", ONE, 0, 4).order
    for _ in range(4):
        rest = pages(moving, Selection(), 3, [], place)
        assert [(sample.epoch, sample.sn) for sample in rest] == [(5, sn) for sn in range(5, 10)]
        moving.go_on(4)
    assert [info.stream.epoch for info in moving.store.index.all_infos()] == [STANDS]


def test_where_runs_lie_between_both_names_the_asker_begins_anew() -> None:
    moving = Moving(0)
    moving.put([sample_of("a", ONE, 0, sn) for sn in range(10)])
    moving.put([sample_of("a", ONE, BEFORE, sn) for sn in range(10)])
    place = sample_of("a", ONE, 0, 4)
    with pytest.raises(StorageUnavailable, match="ask again"):
        moving.reading.read(Selection(), 3, place.order)
    by_time = Selection(order=Order.TIME)
    rest = pages(moving, by_time, 3, [], place.time_order)
    whole = moving.whole.read(by_time, 99).samples
    assert rest == [sample for sample in whole if sample.time_order > named(place).time_order]


def test_an_answer_that_gave_a_run_under_another_name_ends_with_an_error() -> None:
    moving = Moving(0)
    moving.put([sample_of(key, ONE, 0, sn) for key in "ab" for sn in range(5)])
    epochs = Epochs()
    reading = NamedReading(moving.store, epochs, moving.store.read)
    answer, other = OneState(reading.read, epochs), OneState(reading.read, epochs)
    first = answer.read(Selection(), 5)
    assert {sample.epoch for sample in first.samples} == {0}
    epochs.learn(moving.alias)
    with pytest.raises(StorageUnavailable, match="ask again"):
        answer.read(Selection(), 5, first.cursor)
    page = other.read(Selection(), 9)
    assert {sample.epoch for sample in page.samples} == {STANDS}
    epochs.moved(moving.alias)
    epochs.free(ONE, 0)
    other.read(Selection(), 9, page.cursor)


def test_an_answer_ends_with_an_error_when_two_runs_turn_out_not_to_be_one() -> None:
    moving = Moving(4)
    moving.put([sample_of("a", ONE, 4, sn) for sn in range(10)])
    answer = OneState(moving.reading.read, moving.epochs)
    first = answer.read(Selection(), 5)
    moving.epochs.free(ONE, 4)
    with pytest.raises(StorageUnavailable, match="ask again"):
        answer.read(Selection(), 5, first.cursor)
