"""What history brings of a run too late to be in order, page by page: all of it is reported."""

from __future__ import annotations

import pytest

from durable_cache.model.sample import Sample
from durable_cache.protocol.subscriber.events import AnswererAppeared, DeliveryOptions
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import EPOCH, FRESH, OTHER, SOURCE, Reader, sample

NAMED = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"),)


def numbers(*sns: int, epoch: int = EPOCH) -> list[Sample]:
    return [sample(sn, epoch, at=sn / 10) for sn in sns]


def pages(reader: Reader, *parts: list[Sample], names: tuple[Incarnation, ...] = NAMED) -> None:
    """Bring pages that are asked for one behind the other."""
    for part in parts[:-1]:
        reader.page(part, cut_after=part[-1], names=names)
    reader.page(parts[-1], names=names)


def test_what_history_brings_before_the_first_that_was_read_is_reported_on_every_page() -> None:
    """What lay between counted as read once something before it was reported (seed 99799)."""
    reader = Reader(history=True)
    pages(reader, numbers(7, 8), numbers(0, 1, 5), numbers(2, 3), numbers(4, 5, 6), numbers(9))
    assert reader.story == [7, 8, (0, 1), (5, 5), (2, 3), (4, 4), (6, 6), 9]


@pytest.mark.parametrize("rests", [False, True])
def test_what_history_brings_before_the_first_that_came_live_is_reported(rests: bool) -> None:
    """It is asked again when caches appear; the source may have made room for another then."""
    options = DeliveryOptions(history_timeout_seconds=3, sources_max=1)
    reader = Reader(options, history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(7))
    while reader.asked:
        reader.page()
        reader.wait(5)
    assert reader.story == [7]
    reader.handle(AnswererAppeared(reader.now))
    reader.page(numbers(0, 1), cut_after=numbers(1)[0], names=NAMED)
    while reader.engine.reads_history:
        reader.page(numbers(4), names=NAMED, whole=False)
        reader.wait(1)
    if rests:
        reader.live(sample(3, source=OTHER))
        reader.live(sample(8))
    seen = [7, (0, 1), (4, 4), *([3, 8] if rests else [])]
    assert reader.story == seen
    reader.wait(9)
    pages(reader, numbers(0, 1, 2, 3, 4), numbers(5, 6))
    assert reader.story == [*seen, (2, 3), (5, 6)]


def test_what_comes_of_a_run_whose_successor_was_given_is_reported_on_every_page() -> None:
    reader = Reader(history=True)
    names = (*NAMED, Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    begun = [sample(sn, FRESH, at=9 + sn / 10) for sn in range(2)]
    pages(reader, begun, numbers(0, 1, 6), numbers(2, 3), numbers(4, 5, 7), names=names)
    assert reader.story == [0, 1, (0, 1), (6, 6), (2, 3), (4, 5), (7, 7)]


def test_of_more_ranges_than_the_window_the_lowest_are_reported_at_once() -> None:
    reader = Reader(DeliveryOptions(window_size_samples=2), history=True)
    pages(reader, numbers(9), numbers(0, 2, 4, 6), numbers(1, 3, 5, 7, 8))
    assert reader.story == [9, (0, 4), (6, 6), (5, 5), (7, 8)]
