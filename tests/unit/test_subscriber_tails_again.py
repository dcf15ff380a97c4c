"""How long is a tail asked for again where nobody answers in time?"""

from __future__ import annotations

import pytest

from durable_cache.protocol.subscriber.events import FetchFailed
from tests.unit.subscriber_reader import FRESH, Reader, sample
from tests.unit.test_subscriber_tails import NAME, appeared, reader_of
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
