"""What a cache tells a subscriber of a source whose token has gone (ADR 0347, 0350)."""

from __future__ import annotations

from durable_cache.model.sample import SourceId
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    DeliveryOptions,
    HeartbeatReceived,
    Missed,
)
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import FRESH, OTHER, SOURCE, Reader, sample
from tests.unit.test_subscriber_tails import gone, reader_of


def told(reader: Reader, sn: int, source: SourceId = SOURCE, epoch: int = FRESH) -> None:
    reader.handle(HeartbeatReceived(source, sn, reader.now, stored_as=epoch))
    reader.wait(0)


def over(reader: Reader) -> None:
    """See its token go, and nothing follow by what was answered then."""
    gone(reader)
    reader.wait(1)
    reader.answer()
    reader.wait(10)
    assert not reader.fetches


def test_what_a_cache_stored_since_is_asked_for_when_it_says_so() -> None:
    reader = reader_of()
    over(reader)
    told(reader, 2)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH), sample(2, FRESH))
    reader.wait(100)
    assert not reader.fetches
    assert reader.story == [0, 1, 2]


def test_a_number_that_a_cache_tells_of_another_run_is_not_missed() -> None:
    reader = reader_of()
    over(reader)
    told(reader, 7)
    reader.answer(sample(7, FRESH + 1), names=(Incarnation(SOURCE, FRESH + 1, "0000000b"),))
    for _ in range(50):
        reader.wait(1)
        if reader.fetches:
            reader.answer()
    assert reader.missed == []


def test_what_is_told_while_history_is_read_is_asked_for_behind_it() -> None:
    reader = Reader(history=True)
    told(reader, 2)
    first = sample(0, FRESH)
    reader.page([first], cut_after=first)
    told(reader, 2)
    assert not reader.fetches
    reader.page([])
    reader.wait(0.2)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH), sample(2, FRESH))
    assert reader.story == [0, 1, 2]


def test_a_source_that_is_not_followed_is_not_asked_for() -> None:
    reader = reader_of()
    told(reader, 2, OTHER)
    reader.wait(10)
    assert not reader.fetches


def test_without_recovery_nothing_that_is_told_is_asked_for() -> None:
    reader = reader_of(options=DeliveryOptions(recovery=False))
    told(reader, 2)
    reader.wait(10)
    assert not reader.fetches


def test_a_number_that_is_known_is_not_asked_for() -> None:
    reader = reader_of()
    reader.live(sample(2, FRESH))
    reader.answer(sample(1, FRESH))
    over(reader)
    for sn in (0, 2):
        told(reader, sn)
    reader.wait(10)
    assert not reader.fetches
    assert reader.story == [0, 1, 2]


def test_a_number_that_is_known_in_another_run_is_asked_for() -> None:
    reader = reader_of()
    over(reader)
    told(reader, 0, epoch=FRESH + 1)
    assert reader.wanted == [(1, 1000)]


def test_of_a_run_that_history_brought_and_that_is_over_more_is_asked_for() -> None:
    """Its successor showed its token while history was read, once more (seed 1659)."""
    reader = Reader(history=True, answerers_known=True)
    reader.declared(FRESH + 1, "0000000b")
    names = Incarnation(SOURCE, FRESH, "0000000a"), Incarnation(SOURCE, FRESH + 1, "0000000b")
    page = [sample(0, FRESH), sample(1, FRESH), sample(0, FRESH + 1, at=9.0)]
    reader.handle(AnswererAppeared(reader.now, True, None))
    for _ in range(2):
        reader.page(page, names=names)
    assert reader.delivered == [0, 1, 0]
    told(reader, 2)
    reader.answer(names=names)  # to where its successor goes on
    assert reader.wanted == [(2, 1001)]
    reader.answer(sample(2, FRESH), names=names)
    assert reader.missed == [Missed(SOURCE, FRESH, 2, 2)]
    assert reader.delivered == [0, 1, 0]
