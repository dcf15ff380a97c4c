"""A run without a name is the named one where no restart fits between what was published of both.

A cache that saw no token of a run whose samples do not name it has some of it without a name; the
program gives timestamps that go back a little (ADR 0374).
"""

from __future__ import annotations

import pytest

from durable_cache.model.sample import Sample
from durable_cache.protocol.subscriber.events import AnswererAppeared, AnswerPart, Declared
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import FRESH, SOURCE, Reader, sample

NAMES = (Incarnation(SOURCE, FRESH, "0000000a"),)
LAST = (1 << 32) - 1
BEHIND = FRESH + 1
"""What a cache calls a run that it heard later than one that another calls by `FRESH`."""


def read(nameless: list[Sample], named: list[Sample]) -> Reader:
    """Return a reader that was given a page: what two caches have of a source."""
    reader = Reader(history=True)
    reader.seconds = 3.0
    reader.handle(Declared(SOURCE, FRESH, NAMES[0].incarnation, reader.now))
    reader.page_of(AnswerPart(nameless), AnswerPart(named, incarnations=NAMES))
    return reader


def test_what_was_published_within_a_tenth_of_a_second_is_of_one_run() -> None:
    reader = read([sample(2, at=1.95)], [sample(0, FRESH, at=2.0)])
    assert reader.delivered == []
    assert reader.wanted == [(1, 1)]
    reader.answer(sample(1, FRESH, at=2.0), names=NAMES)
    assert reader.delivered == [0, 1, 2]


def test_what_was_published_longer_before_is_of_the_run_before() -> None:
    reader = read([sample(2, at=1.85)], [sample(0, FRESH, at=2.0)])
    assert reader.delivered == [2, 0]


def test_a_number_with_two_times_is_of_two_runs() -> None:
    nameless = [sample(0, at=1.9), sample(1, at=1.95)]
    reader = read(nameless, [sample(0, FRESH, at=2.0)])
    assert reader.delivered == [0, 1, 0]


def test_what_lies_before_a_wrap_is_of_the_run_before() -> None:
    reader = read([sample(LAST, at=1.95)], [sample(0, FRESH, at=2.0)])
    assert reader.delivered == [LAST, 0]


def test_two_names_of_a_foreign_run_that_go_on_in_each_other_are_one() -> None:
    """One cache calls it by the time of its first sample, the other lost all before (seed 6961)."""
    reader = Reader(history=True, newest=3)
    reader.page([sample(sn, FRESH, at=50 + sn) for sn in (7, 8, 9)], [sample(10, at=60)])
    while reader.fetches:
        reader.answer()
    assert reader.story == [8, 9, 10]
    assert len({one.epoch for one in reader.delivered_samples}) == 1


def test_they_are_two_where_one_answerer_calls_them_so() -> None:
    reader = Reader(history=True)
    reader.page(
        [*(sample(sn, FRESH, at=50 + sn) for sn in (7, 8, 9)), sample(10, FRESH + 1, at=60)]
    )
    while reader.fetches:
        reader.answer()
    assert len({one.epoch for one in reader.delivered_samples}) == 2


def test_and_where_the_higher_number_is_the_earlier_one() -> None:
    reader = Reader(history=True)
    reader.page([sample(sn, FRESH, at=80 + sn) for sn in (7, 8, 9)], [sample(10, at=60)])
    while reader.fetches:
        reader.answer()
    assert reader.delivered == [10, 7, 8, 9]


def test_what_has_no_epoch_and_goes_on_behind_a_run_is_that_run() -> None:
    """The cache pulled what it lacked, but its own has no epoch yet (seed 77990)."""
    reader = Reader(history=True)
    reader.page([*(sample(sn, FRESH, at=50 + sn) for sn in (7, 8, 9)), sample(10, at=60)])
    while reader.fetches:
        reader.answer()
    assert reader.story == [7, 8, 9, 10]
    assert len({one.epoch for one in reader.delivered_samples}) == 1


def test_so_is_what_comes_on_the_next_page() -> None:
    """It was reported as of a run before, and given by its epoch then (seed 51612)."""
    named = [sample(sn, FRESH, at=50 + sn) for sn in (7, 8, 9)]
    reader = Reader(history=True)
    reader.page(named, cut_after=named[-1])
    reader.page([sample(sn, at=50 + sn) for sn in (12, 13)])
    assert reader.wanted == [(10, 11)]
    reader.answer(sample(10, FRESH, at=60), sample(11, FRESH, at=61))
    assert reader.story == [7, 8, 9, 10, 11, 12, 13]


def test_it_is_not_where_it_was_published_before() -> None:
    named = [sample(sn, FRESH, at=50 + sn) for sn in (7, 8, 9)]
    reader = Reader(history=True)
    reader.page(named, cut_after=named[-1])
    reader.page([sample(12, at=58)])
    assert reader.wanted == []
    assert reader.story == [7, 8, 9, (12, 12)]
    assert [miss.epoch for miss in reader.missed] == [0]


def test_what_has_no_epoch_and_lies_before_a_run_is_another_one() -> None:
    """The cache gave the later one its epoch when it saw that another run began."""
    reader = Reader(history=True)
    reader.page([*(sample(sn, at=50 + sn) for sn in (7, 8, 9)), sample(10, FRESH, at=60)])
    while reader.fetches:
        reader.answer()
    assert [one.epoch for one in reader.delivered_samples] == [0, 0, 0, FRESH]


def test_what_lies_behind_a_wrap_is_not_what_was_given_before_it() -> None:
    """Two caches have something without an epoch: each on one side of the wrap (seed 78540)."""
    before, behind = sample(LAST, at=40), [sample(sn, FRESH, at=50 + sn) for sn in (0, 1, 2)]
    reader = Reader(history=True)
    reader.handle(AnswererAppeared(reader.now))
    reader.page([before, *behind])
    reader.page([sample(3, at=60), sample(4, at=61)], [before, *behind])
    while reader.fetches:
        reader.answer()
    assert reader.story == [LAST, 0, 1, 2, 3, 4]


def two_names(first: int) -> Reader:
    """Return a reader that was given what two caches have of a foreign source."""
    reader = Reader(history=True)
    earlier = [sample(sn, FRESH, at=50 + sn) for sn in (0, 1, 2)]
    reader.page(earlier, [sample(first, BEHIND, at=70)])
    return reader


def test_what_lies_between_two_names_of_what_may_be_one_run_is_asked_for() -> None:
    """They may be two runs: then the numbers were published, too (seed 176925)."""
    reader = two_names(6)
    assert reader.wanted == [(3, 5)]
    reader.answer(*(sample(sn, BEHIND, at=69) for sn in (3, 4, 5)))
    assert reader.story == [0, 1, 2, 3, 4, 5, 6]


def test_and_reported_where_nobody_has_it() -> None:
    reader = two_names(6)
    while reader.fetches:
        reader.answer()
        reader.wait(1)
    assert reader.story == [0, 1, 2, (3, 5), 6]


@pytest.mark.parametrize(("first", "at"), [(1, 70.0), (6, 51.5), (LAST, 70.0)])
def test_no_number_of_a_run_that_is_another_one_is_asked_for(first: int, at: float) -> None:
    """Its number is not higher, it is not later, or a wrap lies between."""
    reader = Reader(history=True)
    earlier = [sample(sn, FRESH, at=50 + sn) for sn in (0, 1, 2)]
    reader.page(earlier, [sample(first, BEHIND, at=at)])
    assert not reader.wanted
