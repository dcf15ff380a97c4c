"""What history says of the run whose token is there, and of those before it (ADR 0222)."""

from __future__ import annotations

from durable_cache.protocol.subscriber.events import DeliveryOptions, TokenGone
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import EPOCH, FRESH, SOURCE, Reader, sample


def test_a_run_that_ended_is_not_given_behind_the_one_that_shows_its_token() -> None:
    """That one's clock was set back, so that its epoch is the earlier one (seed 20692)."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.declared(EPOCH, "bbbbbbbb")
    name = (Incarnation(SOURCE, EPOCH, "bbbbbbbb"),)
    reader.page([sample(0, EPOCH, at=9)], names=name, whole=False)
    reader.wait(1)
    assert reader.story == [0]
    reader.wait(15)
    before = [sample(sn, FRESH, at=1 + sn) for sn in range(3)]
    reader.page(before, names=(Incarnation(SOURCE, FRESH, "aaaaaaaa"),))
    assert reader.story == [0, (0, 2)]
    reader.live(sample(1, at=9.1))
    assert reader.story == [0, (0, 2), 1]


def test_nor_while_history_is_read_and_the_token_waits() -> None:
    reader = Reader(history=True)
    reader.live(sample(1, at=9.1))
    reader.declared(EPOCH, "bbbbbbbb")
    begun = [sample(0, EPOCH, at=9)]
    reader.page(begun, names=(Incarnation(SOURCE, EPOCH, "bbbbbbbb"),), cut_after=begun[-1])
    before = [sample(sn, FRESH, at=1 + sn) for sn in range(3)]
    reader.page(before, names=(Incarnation(SOURCE, FRESH, "aaaaaaaa"),))
    assert reader.story == [0, (0, 2), 1]


def test_a_token_that_waits_beside_no_other_is_of_a_run_that_began() -> None:
    """Soon after the start, too: that of the run before is gone (seed 20117)."""
    reader = Reader(history=True)
    reader.declared(FRESH, "aaaaaaaa")
    reader.live(sample(7, at=1))
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.seconds = 1
    reader.declared(EPOCH, "bbbbbbbb")
    reader.page([sample(2, EPOCH, at=9.2)], names=(Incarnation(SOURCE, EPOCH, "bbbbbbbb"),))
    while reader.fetches:
        assert reader.wanted == [(0, 1)]
        begun = [sample(sn, EPOCH, at=9 + sn / 10) for sn in range(2)]
        reader.answer(*begun, names=(Incarnation(SOURCE, EPOCH, "bbbbbbbb"),))
    assert reader.story[:3] == [0, 1, 2]
