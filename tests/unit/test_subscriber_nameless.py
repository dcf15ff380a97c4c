"""Runs without a name that history gives of a source that is followed by then, by any epoch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import DeliveryOptions
from tests.unit.subscriber_reader import EPOCH, FRESH, Reader, sample


@pytest.fixture(params=[0, EPOCH, FRESH], ids=["without an epoch", "long ago", "by its time"])
def called(request: pytest.FixtureRequest) -> int:
    """By which epoch whoever answers calls the run."""
    assert isinstance(request.param, int)
    return request.param


def follows_before_history() -> Reader:
    """Return one whose first question for history nobody answered whole in time."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([], whole=False)
    reader.wait(1)
    while reader.engine.reads_history:
        reader.wait(1)
    reader.live(*(sample(sn, at=4 + sn / 10) for sn in range(1, 4)))
    assert reader.story == [1, 2, 3]
    ask_again(reader)
    return reader


def ask_again(reader: Reader) -> None:
    """Wait until history is asked for anew; earlier questions are not answered any more."""
    while not reader.asked:
        reader.wait(10)
    del reader.asked[:-1]


def test_what_was_passed_on_live_is_not_given_again(called: int) -> None:
    reader = follows_before_history()
    reader.page([sample(sn, called, at=4 + sn / 10) for sn in range(4)])
    assert reader.story == [1, 2, 3, (0, 0)]
    reader.live(sample(4, at=4.4))
    assert reader.story == [1, 2, 3, (0, 0), 4]


def test_a_run_that_ended_before_is_reported_and_followed_no_further(called: int) -> None:
    reader = follows_before_history()
    reader.page([sample(sn, called, at=1 + sn / 10) for sn in range(3, 6)])
    reader.live(sample(4, at=4.4))
    assert reader.story == [1, 2, 3, (3, 5), 4]


def test_what_a_run_that_ended_since_had_before_it_was_followed_is_reported(called: int) -> None:
    """Its first samples come with history, which nobody answered in time (seed 22439)."""
    reader = follows_before_history()
    reader.live(sample(0, at=9))
    while reader.fetches:
        reader.answer()
    assert reader.story == [1, 2, 3, 0]
    reader.page([sample(sn, called, at=4 + sn / 10) for sn in range(4)])
    reader.live(sample(1, at=9.1))
    assert reader.story == [1, 2, 3, 0, (0, 0), 1]


def test_a_run_that_began_since_comes_after(called: int) -> None:
    reader = follows_before_history()
    reader.page([sample(sn, called, at=9 + sn / 10) for sn in range(2)])
    reader.live(sample(2, at=9.2))
    assert reader.story == [1, 2, 3, 0, 1, 2]


def test_a_run_that_ended_while_it_was_followed_is_not_reported(called: int) -> None:
    reader = follows_before_history()
    reader.live(sample(0, at=9))
    reader.answer(answerers=1)
    assert reader.story == [1, 2, 3, 0]
    reader.page([sample(sn, called, at=4 + sn / 10) for sn in range(1, 4)])
    reader.live(sample(1, at=9.1))
    assert reader.story == [1, 2, 3, 0, 1]


def test_a_run_that_waits_is_not_passed_on_before_its_turn(called: int) -> None:
    reader = follows_before_history()
    reader.live(sample(0, at=9))
    reader.page([sample(sn, called, at=9 + sn / 10) for sn in range(2)])
    assert reader.story == [1, 2, 3]
    reader.answer(sample(4, at=4.4))
    assert reader.story == [1, 2, 3, 4, 0, 1]


def test_what_was_read_before_a_live_sample_is_not_reported_when_it_is_read_again() -> None:
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([sample(sn, at=sn) for sn in range(3)], whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    reader.live(sample(4, at=4))
    reader.live(sample(3, at=3))
    ask_again(reader)
    reader.page([sample(sn, at=sn) for sn in range(5)])
    assert reader.story == [0, 1, 2, 3, 4]


def test_what_was_published_before_a_wrap_is_none_of_the_run_behind_it() -> None:
    last = SOURCE_SN_MODULUS - 1
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([sample(0, FRESH, at=9), sample(1, FRESH, at=9.1)], whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    reader.live(sample(2, at=9.2))
    ask_again(reader)
    reader.page([sample(last - 1, at=8.8), sample(last, at=8.9)])
    reader.live(sample(3, at=9.3))
    assert reader.story == [0, 1, 2, (last - 1, last), 3]


def test_an_earlier_run_than_the_one_that_was_read_is_reported(called: int) -> None:
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([sample(sn, 8, at=9 + sn / 10) for sn in range(2)], whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    reader.live(sample(2, at=9.2))
    ask_again(reader)
    reader.page([sample(sn, called, at=4 + sn / 10) for sn in range(2)])
    reader.live(sample(3, at=9.3))
    assert reader.story == [0, 1, 2, (0, 1), 3]


def test_what_came_of_the_run_before_is_not_given_again_as_the_first_of_the_next() -> None:
    reader = Reader(history=True)
    before, later = sample(0, 5, at=9), [sample(1, 6, at=20), sample(2, 6, at=20.1)]
    reader.live(*(replace(one, epoch=0) for one in (before, *later)))
    reader.page([before, *later])
    assert [(one.epoch, one.sn) for one in reader.delivered_samples] == [(5, 0), (6, 1), (6, 2)]
    assert reader.story == [0, 1, 2]


def test_nor_where_the_run_before_was_on_another_page() -> None:
    reader = Reader(DeliveryOptions(history_page_samples=2), history=True)
    before, later = sample(0, 5, at=9), [sample(1, 6, at=20), sample(2, 6, at=20.1)]
    reader.live(*(replace(one, epoch=0) for one in (before, *later)))
    reader.page([before], cut_after=before)
    reader.page(later)
    assert reader.story == [0, 1, 2]
