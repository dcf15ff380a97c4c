"""In which order does a subscriber deliver runs that answerers call alike (ADR 0333)?"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from durable_cache.protocol.subscriber.events import AnswerPart
from durable_cache.protocol.wire import Incarnation
from tests.unit.subscriber_reader import EPOCH, SOURCE, Reader, sample


def alike() -> tuple[AnswerPart, AnswerPart]:
    """Return two runs that began in one frame; each answerer heard one of them (seed 60949)."""
    before, after = (
        AnswerPart(
            [sample(sn, EPOCH, at=at + sn) for sn in range(2)],
            incarnations=(Incarnation(SOURCE, EPOCH, name),),
        )
        for name, at in (("aaaaaaaa", 1), ("bbbbbbbb", 5))
    )
    return before, after


def times(reader: Reader) -> list[int]:
    return [one.ntp64 for one in reader.delivered_samples]


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_runs_that_go_by_one_epoch_the_one_published_first_comes_first(first: int) -> None:
    reader = Reader(history=True)
    parts = alike()
    reader.page_of(parts[first], parts[1 - first])
    assert reader.story == [0, 1, 0, 1]
    assert times(reader) == sorted(times(reader))
    epochs = [one.epoch for one in reader.delivered_samples]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 2


@pytest.mark.parametrize("first", [0, 1])
def test_so_it_does_where_the_next_page_brings_the_other(first: int) -> None:
    reader = Reader(history=True)
    before, after = alike()
    parts = before, replace(after, samples=[])
    reader.page_of(parts[first], parts[1 - first], cut_after=before.samples[-1])
    reader.page_of(after)
    assert reader.story == [0, 1, 0, 1]
    assert times(reader) == sorted(times(reader))


def test_one_that_ended_before_what_was_given_is_reported_and_not_given_behind_it() -> None:
    reader = Reader(history=True)
    before, after = alike()
    reader.page_of(after, cut_after=after.samples[-1])
    reader.page_of(before)
    assert reader.story == [0, 1, (0, 1)]


def test_the_run_that_shows_its_token_is_not_taken_for_over() -> None:
    """Its clock was set back within the frame."""
    reader = Reader(history=True)
    before, after = alike()
    reader.page_of(after, cut_after=after.samples[-1])
    reader.declared(EPOCH, "aaaaaaaa")
    reader.page_of(before)
    assert reader.story == [0, 1, 0, 1]


def test_times_that_caches_gave_put_no_run_before_another() -> None:
    reader = Reader(history=True)
    before, after = alike()
    stamped = [msgspec.structs.replace(one, stamped=True) for one in before.samples]
    reader.page_of(after, replace(before, samples=stamped))
    assert [one.epoch for one in reader.delivered_samples if one.stamped] == 2 * [EPOCH + 1]
