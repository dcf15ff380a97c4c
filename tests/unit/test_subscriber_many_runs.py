"""A publisher that is started again and again: what a subscriber keeps of its runs."""

from __future__ import annotations

from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    DeliveryOptions,
    TokenGone,
)
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import FRESH, SOURCE, Reader, sample


def started_again(reader: Reader, runs: range) -> None:
    """Let runs begin one behind the other, each when the token of the one before is gone."""
    for run in runs:
        reader.handle(TokenGone(SOURCE, f"{run:08x}", reader.now))
        reader.declared(FRESH + run + 1, f"{run + 1:08x}")


def test_of_a_publisher_that_ends_at_once_each_time_so_many_runs_wait() -> None:
    """A day of it took a hundred megabytes, and each start longer than the one before."""
    reader = Reader(DeliveryOptions(runs_max=4))
    reader.declared(FRESH, f"{0:08x}")
    reader.live(sample(0))
    started_again(reader, range(1_000))
    followed = reader.engine._sources.followed[SOURCE]
    assert len(followed.numberings) == 4
    assert not reader.missed
    reader.live(sample(0, at=20))
    asked = []
    while reader.fetches:
        asked.append(reader.fetches[0].epoch)
        reader.answer()
    assert asked == [FRESH, *range(FRESH + 998, FRESH + 1_000)]
    assert reader.delivered == [0, 0]
    assert reader.unsure == [0]  # what nobody asked for may have come before it
    assert not reader.missed


def test_where_something_came_of_each_what_the_first_lacks_is_reported() -> None:
    reader = Reader(DeliveryOptions(runs_max=3, gap_timeout_seconds=600))
    reader.declared(FRESH, f"{0:08x}")
    reader.live(sample(0), sample(2))
    for run in range(4):
        started_again(reader, range(run, run + 1))
        reader.live(sample(1, at=10 * run + 10))
    followed = reader.engine._sources.followed[SOURCE]
    assert len(followed.numberings) == 3
    assert reader.story == [0, (1, 1), 2, (0, 0), 1]
    names = [Incarnation(SOURCE, FRESH + run, f"{run:08x}") for run in range(5)]
    while reader.fetches:
        epoch = reader.fetches[0].epoch
        given = sample(0, epoch, at=10 * (epoch - FRESH) - 0.5)
        reader.answer(given, names=tuple(names))
    assert reader.story == [0, (1, 1), 2, (0, 0), 1, 0, 1, 0, 1, 0, 1]


def test_of_many_runs_on_a_page_of_history_each_is_given() -> None:
    """What is on the page of the first was let go while the last began."""
    reader = Reader(DeliveryOptions(runs_max=3))
    reader.declared(FRESH, f"{0:08x}")
    reader.live(sample(0))
    reader.handle(AnswerersGone(reader.now))
    reader.handle(AnswererAppeared(reader.now))
    names = tuple(Incarnation(SOURCE, FRESH + run, f"{run:08x}") for run in range(8))
    reader.page([sample(0, FRESH + run, at=10 * run) for run in range(8)], names=names)
    while reader.fetches:
        reader.answer(names=names)
    assert [one.epoch for one in reader.delivered_samples] == [FRESH + run for run in range(8)]
    assert not reader.missed
