"""The subscriber's engine at its bounds: pauses between questions, samples held back."""

from __future__ import annotations

import pytest

from durable_cache.protocol.subscriber.events import Answer, AnswerPart, DeliveryOptions, Fetched
from durable_cache.protocol.wire import AbsenceReason, Incarnation
from tests.unit.subscriber_reader import EPOCH, SOURCE, Reader, absent, sample


def test_the_pause_between_questions_doubles_up_to_its_bound() -> None:
    options = DeliveryOptions(retry_seconds=1, retry_seconds_max=3, gap_timeout_seconds=1000)
    reader = Reader(options)
    reader.live(sample(0), sample(2))
    asked_at = []
    for _ in range(5):
        assert len(reader.fetches) == 1
        asked_at.append(reader.seconds)
        reader.answer()
        reader.wait(100)
    pauses = [round(asked_at[at + 1] - asked_at[at]) for at in range(4)]
    assert pauses == [1, 2, 3, 3]


def test_a_gap_says_when_there_is_something_to_do() -> None:
    reader = Reader(DeliveryOptions())
    reader.live(sample(0))
    reader.live(sample(1))
    assert reader.engine.wake_ns() is None
    reader.live(sample(3))
    assert reader.engine.wake_ns() is not None
    reader.live(sample(2))
    assert reader.engine.wake_ns() is None


def test_samples_beyond_the_bound_are_dropped_and_come_back() -> None:
    reader = Reader(DeliveryOptions(pending_samples_max=5))
    reader.live(sample(0), *(sample(sn) for sn in range(2, 12)))
    assert reader.engine.dropped == 5
    for _ in range(20):
        if not reader.fetches:
            reader.wait(1)
        if not reader.fetches:
            break
        wanted = reader.fetches[0]
        reader.answer(*(sample(sn) for sn in range(wanted.first, (wanted.last or 11) + 1)))
    assert reader.story == list(range(12))


@pytest.mark.parametrize("at_once", [True, False])
def test_what_found_no_room_is_not_missed_though_another_cache_removed_it(at_once: bool) -> None:
    """One cache keeps few samples, and says so; the other has the number, which was dropped."""
    reader = Reader(DeliveryOptions(pending_samples_max=2, gap_timeout_seconds=5))
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(2), sample(3), sample(5))
    reader.answer()
    reader.wait(1)
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"),)
    held = [sample(sn, EPOCH) for sn in (4, 5)]
    has = AnswerPart(held, (), names)
    removed = AnswerPart((), (absent(4, 4, AbsenceReason.TRIMMED, EPOCH),), names)
    for parts in ((has, removed),) if at_once else ((removed,), (has,)):
        fetch = reader.fetches.pop(0)
        assert (fetch.first, fetch.last) == (1, 5)
        reader.handle(Fetched(fetch.fetch_id, Answer(parts, 2), reader.now))
        reader.wait(1)
    for _ in range(20):
        for fetch in reader.fetches[:1] if (1, 1) in reader.story else ():
            reader.answer(*(one for one in held if fetch.first <= one.sn), names=names)
        reader.wait(1)
    assert reader.story == [0, (1, 1), 2, 3, 4, 5]


def test_the_tail_is_asked_for_as_often_as_wanted() -> None:
    reader = Reader(DeliveryOptions(periodic_queries_seconds=10))
    reader.live(sample(0))
    reader.wait(25)
    assert reader.wanted == [(1, None)]
    reader.answer(sample(1))
    assert reader.story == [0, 1]
    assert Reader().engine.wake_ns() is None


def test_a_run_that_was_declared_but_never_heard_is_asked_for_too() -> None:
    """Its only sample was published while this subscriber could not be reached."""
    reader = Reader(DeliveryOptions(periodic_queries_seconds=10))
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0))
    reader.declared(EPOCH + 5, "bbbbbbbb")
    held = sample(0, EPOCH + 5, at=60)
    for _ in range(8):
        reader.wait(10)
        while reader.fetches:
            fetch = reader.fetches[0]
            names_it = fetch.epoch == held.epoch and fetch.first <= held.sn
            reader.answer(*[held] * names_it)
    assert reader.story == [0, 0]


def test_a_token_that_comes_again_begins_nothing() -> None:
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0))
    reader.seconds = 60
    reader.declared(EPOCH + 5, "bbbbbbbb")
    while reader.fetches:
        reader.answer()
        reader.wait(1)
    reader.live(sample(0, at=60), sample(1, at=60.1))
    while reader.fetches:
        reader.answer()
        reader.wait(1)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(2, at=60.2))
    assert reader.fetches == []
    assert reader.story == [0, 0, 1, 2]
