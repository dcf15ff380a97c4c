"""What a subscriber asks for where the last numbers of a source may have passed it by."""

from __future__ import annotations

from durable_cache.model.sample import SourceId
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    DeliveryOptions,
    FetchFailed,
    TokenGone,
)
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import FRESH, OTHER, SOURCE, Reader, sample

NAME = "0000000a"


def reader_of(*sources: SourceId, options: DeliveryOptions | None = None) -> Reader:
    """Return one that was given number 0 of each source."""
    reader = Reader(options)
    for source in sources or (SOURCE,):
        reader.declared(FRESH, NAME, source)
        reader.live(sample(0, FRESH, source=source))
    return reader


def gone(reader: Reader, source: SourceId = SOURCE) -> None:
    reader.handle(TokenGone(source, NAME, reader.now))


def appeared(reader: Reader) -> None:
    reader.handle(AnswererAppeared(reader.now))
    reader.wait(0)


def test_nothing_is_asked_while_tokens_stay() -> None:
    reader = reader_of()
    appeared(reader)
    reader.wait(100)
    assert not reader.fetches


def test_a_tail_is_asked_for_when_the_token_is_back() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(0.5)
    assert reader.wanted == []
    reader.declared(FRESH, NAME)
    reader.wait(0)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH), sample(2, FRESH))
    assert reader.story == [0, 1, 2]
    reader.wait(100)
    assert not reader.fetches


def test_a_tail_longer_than_a_question_is_asked_for_until_nothing_follows() -> None:
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0)
    reader.answer(*(sample(sn, FRESH) for sn in range(1, 1001)))
    reader.wait(0)
    assert reader.wanted == [(1001, 2000)], "until nothing follows"
    reader.answer(sample(1001, FRESH))
    reader.wait(100)
    assert not reader.fetches
    assert reader.story == [*range(1002)]


def test_a_source_that_goes_on_publishing_is_asked_about_once() -> None:
    """Each answer met later numbers than were known when it was asked for, and was asked again."""
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0)
    reader.live(sample(1, FRESH), sample(2, FRESH))
    reader.answer(sample(1, FRESH))
    reader.wait(100)
    assert reader.story == [0, 1, 2]
    assert not reader.fetches


def test_a_tail_is_asked_for_when_the_token_stays_away() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(1.1)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]


def test_where_nobody_answers_a_tail_is_asked_for_until_a_cache_does() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(1.1)
    for _ in range(100):
        reader.answer(answerers=0)
        reader.wait(2.1)
        if not reader.fetches:
            break
    assert not reader.fetches, "one day it waits for a cache"
    appeared(reader)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]


def test_an_answer_that_is_not_whole_is_no_answer() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(1.1)
    reader.answer(whole=False)
    reader.wait(0.2)
    assert reader.wanted == [(1, 1000)]
    reader.handle(FetchFailed(reader.fetches.pop(0).fetch_id, reader.now))
    reader.wait(0.5)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]


def test_what_changes_while_a_question_is_under_way_is_asked_about_again() -> None:
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0)
    gone(reader)
    reader.answer()
    reader.wait(1.1)
    assert reader.wanted == [(1, 1000)]


def test_an_open_gap_is_asked_for_first_and_the_tail_behind_it() -> None:
    reader = reader_of()
    reader.live(sample(2, FRESH))
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0.1)
    assert reader.wanted == [(1, 1)]
    reader.answer(sample(1, FRESH))
    reader.wait(0.5)
    assert reader.wanted == [(3, 1002)]


def test_a_restart_of_the_router_asks_for_few_tails_at_a_time() -> None:
    sources = [SourceId("ab", at) for at in range(1, 101)]
    reader = reader_of(*sources)
    for source in sources:
        gone(reader, source)
    asked = set()
    appeared(reader)
    while reader.fetches:
        assert len(reader.fetches) <= 16
        asked.add(reader.fetches[0].source)
        reader.answer()
        reader.wait(0)
    assert asked == set(sources)


def test_as_many_sources_are_in_doubt_as_places_are_remembered() -> None:
    reader = reader_of(SOURCE, OTHER, options=DeliveryOptions(places_max=1))
    gone(reader)
    gone(reader, OTHER)
    reader.wait(1.1)
    assert [fetch.source for fetch in reader.fetches] == [OTHER]


def test_without_recovery_nothing_is_asked() -> None:
    reader = reader_of(options=DeliveryOptions(recovery=False))
    gone(reader)
    reader.declared(FRESH, NAME)
    appeared(reader)
    assert not reader.fetches


def test_the_tail_of_a_run_is_asked_for_before_the_next_begins_and_then_that_of_the_next() -> None:
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH + 1, "0000000b")
    reader.wait(0)
    assert reader.wanted == [(1, 1000)]
    reader.answer()
    reader.wait(0)
    assert reader.wanted == [(0, 999)]
    names = (Incarnation(SOURCE, FRESH + 1, "0000000b"),)
    reader.answer(sample(0, FRESH + 1, at=9), names=names)
    reader.answer()
    assert reader.story == [0, 0]
