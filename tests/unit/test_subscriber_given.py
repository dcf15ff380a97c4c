"""How far a run was given that is over: under which epoch that is remembered."""

from __future__ import annotations

import pytest

from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    DeliveryOptions,
    TokenGone,
)
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import EPOCH, FRESH, SOURCE, Reader, sample


@pytest.mark.parametrize("called", [EPOCH, FRESH + 5, FRESH + 55])
def test_a_run_that_was_given_goes_by_its_epoch_in_whatever_order_answers_have_it(
    called: int,
) -> None:
    """A cache that errs calls it by a later epoch than the runs behind it."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    begun = (EPOCH, "aaaaaaaa", 10), (FRESH, "bbbbbbbb", 20), (FRESH + 50, "cccccccc", 30)
    for epoch, name, at in begun:
        reader.declared(epoch, name)
        while reader.engine.reads_history or reader.fetches:
            while reader.fetches:
                reader.answer()
            while reader.asked:
                reader.page([], whole=False)  # what is asked is answered by one that errs
            reader.wait(0.02)
        reader.live(*(sample(sn, at=at + sn / 10) for sn in range(3)))
    while reader.fetches:
        reader.answer()
    while not reader.asked:
        reader.wait(10)
    by_name = {"aaaaaaaa": called, "bbbbbbbb": FRESH, "cccccccc": FRESH + 50}
    names = tuple(Incarnation(SOURCE, epoch, name) for name, epoch in by_name.items())
    had = [sample(sn, by_name[name], at=at + sn / 10) for _, name, at in begun for sn in range(3)]
    reader.page(had, names=names)
    reader.live(sample(3, at=30.3))
    assert reader.story == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3]


@pytest.mark.parametrize("ends", [False, True])
def test_what_was_given_as_the_run_before_hides_nothing_of_that(*, ends: bool) -> None:
    """The first samples of a run came before its token, and were taken for the run before."""
    epoch, (a, b, c, d) = FRESH - 50, ("aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd")
    called = (1, a), (3, b), (4, c), (5, d)
    named = tuple(Incarnation(SOURCE, epoch + at, name) for at, name in called)
    first = [sample(sn, epoch + 1, at=10 + sn / 10) for sn in range(2)]
    begun = [sample(sn, epoch + 4, at=30 + sn / 10) for sn in range(3)]
    reader = Reader(history=True)
    reader.handle(AnswererAppeared(reader.now))
    reader.seconds = 2.0
    reader.live(sample(0, at=10.0))
    reader.declared(epoch, a)
    reader.page(first, names=named[:2])
    reader.handle(TokenGone(SOURCE, a, reader.now))
    reader.declared(epoch + 3, b)
    reader.asked.clear()
    reader.wait(20)
    reader.live(sample(0, at=30.0), sample(1, at=30.1))
    reader.handle(TokenGone(SOURCE, b, reader.now))
    reader.declared(epoch + 3, c)
    reader.live(sample(2, at=30.2))
    for _ in range(2):
        reader.answer(begun[2], names=named[:3])
    assert reader.story == [0, 1, 0, 1]
    reader.answer(*begun, names=named[:3])
    last = [sample(0, epoch + 5, at=40.0)] if ends else []
    if ends:
        reader.handle(TokenGone(SOURCE, c, reader.now))
        reader.declared(epoch + 5, d)
        reader.live(*last)
        while reader.fetches:
            reader.answer(names=named)
    given = [0, 1, 0, 1, 2, *[0] * ends]
    assert reader.story == given
    reader.page([*first, sample(0, epoch + 3, at=20.0), *begun, *last], names=named)
    assert reader.story == [*given, (0, 0)]


def test_what_was_given_before_its_token_came_is_not_missed_when_its_run_is_over() -> None:
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)

    def read_in_vain() -> None:
        while reader.engine.reads_history or reader.fetches:
            while reader.fetches:
                reader.answer()
            while reader.asked:
                reader.page([], whole=False)
            reader.wait(0.02)

    read_in_vain()
    reader.live(sample(0, at=10.0), sample(1, at=10.1))
    reader.wait(2)
    assert reader.story == [0, 1]
    reader.declared(FRESH - 50, "aaaaaaaa")
    read_in_vain()
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(FRESH - 40, "bbbbbbbb")
    read_in_vain()
    reader.live(sample(0, at=20.0))
    read_in_vain()
    while not reader.asked:
        reader.wait(10)
    names = (
        Incarnation(SOURCE, FRESH - 50, "aaaaaaaa"),
        Incarnation(SOURCE, FRESH - 40, "bbbbbbbb"),
    )
    before = [sample(sn, FRESH - 50, at=10 + sn / 10) for sn in range(2)]
    reader.page([*before, sample(0, FRESH - 40, at=20.0)], names=names)
    assert reader.story == [0, 1, 0]
    assert not reader.missed


def test_a_run_that_ended_is_not_given_behind_the_last_that_showed_its_token() -> None:
    """Its publisher began once more with its clock set back, and put nothing (seed 155198)."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.declared(EPOCH, "bbbbbbbb")
    name = (Incarnation(SOURCE, EPOCH, "bbbbbbbb"),)
    reader.page([sample(0, EPOCH, at=9)], names=name, whole=False)
    reader.wait(1)
    reader.handle(TokenGone(SOURCE, "bbbbbbbb", reader.now))
    reader.declared(EPOCH, "cccccccc")
    reader.wait(15)
    before = [sample(sn, FRESH, at=1 + sn) for sn in range(3)]
    while reader.asked:
        reader.page(before, names=(Incarnation(SOURCE, FRESH, "aaaaaaaa"),))
    assert reader.story == [0, (0, 2)]
