"""Samples above a subscriber's payload limit: reported, by whomever they are heard of."""

from __future__ import annotations

from durable_cache.protocol.subscriber.events import Answer, AnswerPart, HistoryPage, Received
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import EPOCH, FRESH, SOURCE, Reader, sample

RUNS = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))


def test_a_payload_above_the_limit_ends_the_gap_after_one_try() -> None:
    reader = Reader()
    reader.live(sample(0), sample(2))
    reader.answer(oversized=(sample(1),))
    assert reader.story == [0, (1, 1), 2]


def test_a_payload_above_the_limit_says_nothing_of_the_same_number_of_another_run() -> None:
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(2))
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, EPOCH - 1, "bbbbbbbb"))
    reader.answer(names=names, oversized=(sample(1, EPOCH - 1),))
    assert reader.story == [0]
    reader.wait(1)
    reader.answer(sample(1, EPOCH), names=names, oversized=(sample(1, EPOCH - 1),))
    assert reader.story == [0, 1, 2]


def test_a_sample_too_large_for_us_is_reported_as_it_comes_and_nobody_is_asked() -> None:
    reader = Reader()
    reader.handle(Received((), reader.now, (sample(0),)))
    reader.handle(Received((sample(1), sample(3)), reader.now, (sample(2), sample(4))))
    reader.handle(Received((sample(5),), reader.now, (sample(2), sample(4))))
    assert reader.story == [(0, 0), 1, (2, 2), 3, (4, 4), 5]
    assert not reader.fetches


def test_a_sample_too_large_for_us_shows_that_those_before_it_are_missing() -> None:
    reader = Reader()
    reader.live(sample(0))
    reader.handle(Received((), reader.now, (sample(3),)))
    assert reader.wanted == [(1, 2)]
    reader.answer(sample(1), sample(2))
    assert reader.story == [0, 1, 2, (3, 3)]


def test_a_sample_too_large_for_us_that_may_be_of_the_run_before_is_reported_by_an_answer() -> None:
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0))
    reader.declared(FRESH, "0000000b")
    reader.handle(Received((), reader.now, (sample(1),)))
    reader.live(sample(0, at=9))
    reader.answer(oversized=(sample(1, EPOCH),), names=RUNS)
    reader.live(sample(1, at=9.1))
    assert reader.story == [0, (1, 1), 0, 1]


def test_a_sample_too_large_for_us_is_never_taken_for_a_restart_of_those_it_overtook() -> None:
    reader = Reader()
    reader.handle(Received((), reader.now, (sample(5),)))
    reader.live(sample(4), sample(3), sample(6))
    assert reader.story == [(5, 5), 6]
    assert not reader.fetches


def test_what_is_too_large_and_faster_than_a_token_is_not_of_the_run_before_that_put_nothing() -> (
    None
):
    reader = Reader()
    reader.declared(FRESH, "0000000a")
    reader.seconds = 5
    reader.handle(Received((), reader.now, (sample(0, at=5),)))
    reader.declared(FRESH, "0000000b")
    reader.live(sample(1, at=5.1))
    reader.answer(oversized=(sample(0, FRESH),), names=(Incarnation(SOURCE, FRESH, "0000000b"),))
    reader.answer(oversized=(sample(0, FRESH),), names=(Incarnation(SOURCE, FRESH, "0000000b"),))
    assert reader.story == [(0, 0), 1]


def test_what_is_missing_before_a_sample_too_large_for_us_is_taken_from_a_cache() -> None:
    reader = Reader()
    reader.live(sample(0, at=0))
    reader.handle(Received((), reader.now, (sample(3, at=9),)))
    reader.answer(sample(1, EPOCH, at=1), sample(2, EPOCH, at=2))
    assert reader.story == [0, 1, 2, (3, 3)]


def test_a_sample_too_large_for_us_shows_that_a_run_without_a_name_began() -> None:
    reader = Reader()
    reader.live(*(sample(sn) for sn in range(3)))
    large = [sample(sn, at=9 + sn / 10) for sn in (1, 3)]
    reader.handle(Received((sample(0, at=9),), reader.now, large))
    reader.answer(answerers=1)
    reader.live(sample(2, at=9.2), sample(4, at=9.4))
    assert reader.story == [0, 1, 2, 0, (1, 1), 2, (3, 3), 4]


def test_what_history_has_at_the_end_of_a_run_and_is_too_large_for_us_is_reported() -> None:
    reader = Reader(history=True)
    part = AnswerPart([sample(0, EPOCH), sample(0, FRESH, at=9)], (), RUNS, [sample(1, EPOCH)])
    reader.handle(HistoryPage(reader.asked.pop().question_id, Answer((part,), 1), reader.now))
    assert reader.story == [0, (1, 1), 0]


def test_what_came_while_history_was_read_and_is_too_large_for_us_is_reported_in_its_turn() -> None:
    reader = Reader(history=True)
    reader.handle(Received((sample(2),), reader.now, (sample(1), sample(3))))
    reader.page([sample(0)])
    reader.live(sample(4))
    assert reader.story == [0, (1, 1), 2, (3, 3), 4]
