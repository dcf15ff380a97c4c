"""What history brings of a run too late to be in order, page by page: all of it is reported."""

from __future__ import annotations

import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample
from durable_cache.protocol.subscriber.events import AnswererAppeared, DeliveryOptions, Missed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.pages import Group
from durable_cache.protocol.subscriber.reading import Reading
from durable_cache.protocol.subscriber.subjects import Subjects
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


def told_in_part() -> Reading:
    """Return a run that was read from 7 on, of whose earlier numbers 0, 1 and 5 were reported."""
    reading = Reading(7, 9, sample(8).ntp64, began=(7, sample(7).ntp64))
    assert reading.tell([0, 1, 5], 9) == RangeSet.of([0, 1, 5])
    return reading


def test_what_was_not_told_counts_as_read_nowhere() -> None:
    reading = told_in_part()
    at = sample(8).ntp64 / (1 << 32) - sample(0).ntp64 / (1 << 32)
    assert [sn for sn in range(9) if reading.has_read(sample(sn, at=at))] == [0, 1, 5, 7, 8]


def test_what_was_not_told_goes_along_wherever_its_run_is_followed() -> None:
    reading, run, after = told_in_part(), Numbering(SOURCE, EPOCH), Numbering(SOURCE, EPOCH)
    run.go_on_behind(reading, EPOCH, None)
    after.go_on_from(run)
    assert Reading.of_ended(after).too_late(range(9)) == [2, 3, 4, 6]


def test_of_two_readings_of_one_run_is_told_what_either_told() -> None:
    reading = told_in_part()
    reading.take_over(Reading(3, 9))
    assert reading.too_late(range(9)) == [2]


def test_what_is_handed_over_is_reported_where_it_was_not_told() -> None:
    outputs, live = Outputs(Subjects(DeliveryOptions())), list[Sample]()
    group = Group(Reading(2, 2), numbers(2, 3, 8, 9), RangeSet())
    group.hand_over((SOURCE, EPOCH), told_in_part(), live, outputs, ours=True)
    assert outputs.done == [Missed(SOURCE, EPOCH, 2, 3)]
    assert live == numbers(9)
