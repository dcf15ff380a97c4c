"""How long is a tail asked for again where nobody answers in time?"""

from __future__ import annotations

import pytest

from durable_cache.protocol.subscriber.events import (
    AnswerersGone,
    DeliveryOptions,
    FetchFailed,
)
from tests.unit.subscriber_reader import FRESH, OTHER, SOURCE, Reader, sample
from tests.unit.test_subscriber_tails import NAME, appeared, gone, reader_of
from tests.unit.test_subscriber_told import over, told


def fail(reader: Reader) -> None:
    """Let the question under way end without an answer."""
    (fetch,) = reader.fetches
    reader.fetches.clear()
    reader.handle(FetchFailed(fetch.fetch_id, reader.now))


@pytest.mark.parametrize("occasion", ["a cache tells", "the token is back", "a cache appears"])
def test_long_after_a_token_went_a_question_that_failed_is_asked_again(occasion: str) -> None:
    """A busy cache did not answer in time, and the last samples were gone (seed 101616)."""
    reader = reader_of()
    over(reader)
    reader.wait(100)
    match occasion:
        case "a cache tells":
            told(reader, 2)
        case "the token is back":
            reader.declared(FRESH, NAME)
            reader.wait(0)
        case _:
            appeared(reader)
    fail(reader)
    reader.wait(2)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH), sample(2, FRESH))
    assert reader.story == [0, 1, 2]


def test_who_read_history_for_long_first_asks_again_as_well() -> None:
    """A cache that errs answered history after the time for which a tail is asked (seed 114744)."""
    reader = reader_of(options=DeliveryOptions(gap_timeout_seconds=2))
    over(reader)
    reader.wait(100)
    reader.handle(AnswerersGone(reader.now))
    appeared(reader)
    for _ in range(5):
        reader.page([], whole=False)
        reader.wait(1)
        assert not reader.fetches
    reader.page([])
    reader.wait(0.2)
    fail(reader)
    reader.wait(2)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]


def test_the_end_of_a_source_that_rests_is_asked_for_once_there_is_room() -> None:
    """All that were followed waited for something as it was due (seed 156226)."""
    reader = reader_of(options=DeliveryOptions(sources_max=1, gap_timeout_seconds=30))
    gone(reader)
    reader.live(sample(0, source=OTHER), sample(3, source=OTHER))
    reader.wait(3)
    assert {fetch.source for fetch in reader.fetches} == {OTHER}, "there is no room"
    reader.answer(sample(1, source=OTHER), sample(2, source=OTHER))
    reader.wait(20)
    asked = [fetch for fetch in reader.fetches if fetch.source == SOURCE]
    assert [(fetch.first, fetch.last) for fetch in asked] == [(1, 1000)]
