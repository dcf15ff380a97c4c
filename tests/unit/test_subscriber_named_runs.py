"""A live sample that names its run is given as one of it, whatever its number and time are."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.run_name import RunName
from durable_cache.model.sample import Sample
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerPart,
    AskBeginning,
    BeginningTold,
    Declared,
    TokenGone,
)
from durable_cache.protocol.wire import Incarnation, incarnation_after
from tests.unit.subscriber_reader import EPOCH, FRESH, SOURCE, Reader, sample

LAST = (1 << 32) - 1
FIRST, SECOND, LOWER = (
    RunName(FRESH, "0000000a"),
    RunName(FRESH + 1, "0000000b"),
    RunName(EPOCH, "0000000c"),
)


def named(run: RunName, *sns: int, at: float | None = None, epoch: int = 0) -> list[Sample]:
    """Samples that say that they are of a run."""
    samples = (sample(sn, epoch, at=None if at is None else at + sn / 1000) for sn in sns)
    return [msgspec.structs.replace(one, timestamp_id=run.timestamp_id) for one in samples]


def follows(*sns: int) -> Reader:
    reader = Reader()
    reader.declared(*FIRST)
    reader.live(*named(FIRST, *sns))
    return reader


def test_a_number_that_comes_next_and_names_another_run_is_of_that() -> None:
    reader = follows(0, 1, 2)
    reader.live(*named(SECOND, 3, at=20))
    assert reader.story == [0, 1, 2]
    assert reader.wanted == [(3, None)], "the end of the run before"
    reader.answer()
    assert reader.wanted == [(0, 3)], "all of the next is ours"
    reader.answer(*named(SECOND, 0, 1, 2, at=20, epoch=FRESH + 1))
    assert reader.story == [0, 1, 2, 0, 1, 2, 3]
    assert [one.epoch for one in reader.delivered_samples] == [FRESH] * 3 + [FRESH + 1] * 4


def test_a_late_sample_is_of_the_run_it_names() -> None:
    reader = follows(0, 1)
    reader.declared(*SECOND)
    reader.live(*named(SECOND, 0, at=20), *named(FIRST, 2))
    assert reader.story == [0, 1, 2]
    reader.answer()
    assert reader.story == [0, 1, 2, 0]


def test_what_comes_of_a_run_at_its_end_is_reported_or_a_repeat() -> None:
    reader = follows(0, 1)
    reader.declared(*SECOND)
    reader.live(*named(SECOND, 0, at=20))
    reader.answer()
    reader.live(*named(FIRST, 1), *named(FIRST, 2), *named(SECOND, 1, at=20))
    assert reader.story == [0, 1, 0, (2, 2), 1]
    assert reader.engine.duplicates == 1


def test_no_sample_waits_for_a_token() -> None:
    reader = follows(0)
    reader.handle(TokenGone(SOURCE, FIRST.incarnation, reader.now))
    reader.live(*named(FIRST, 1))
    assert reader.story == [0, 1]


def test_a_sample_with_another_time_begins_nothing() -> None:
    reader = follows(0, 1, 2)
    reader.live(*named(FIRST, 1, at=60), *named(FIRST, 3, at=-60))
    assert reader.story == [0, 1, 2, 3]
    assert reader.engine.duplicates == 1


def test_a_run_that_is_not_later_begins_with_its_token_alone() -> None:
    """It came and went before, unless its publisher's clock was set back."""
    reader = follows(0, 1)
    reader.wait(5)
    reader.live(*named(LOWER, 0))
    assert reader.story == [0, 1]
    assert not reader.fetches
    reader.declared(*LOWER)
    reader.answer()
    assert reader.story == [0, 1, 0]
    assert [one.epoch for one in reader.delivered_samples] == [FRESH, FRESH, FRESH + 1]


def test_who_joins_in_a_run_is_given_what_comes_from_then_on() -> None:
    reader = Reader()
    reader.live(*named(FIRST, 7, 8))
    reader.handle(Declared(SOURCE, *FIRST, reader.now, listed=True))
    reader.live(*named(FIRST, 9))
    assert reader.story == [7, 8, 9]
    assert not reader.fetches


def test_what_an_answer_gives_is_of_the_run_that_it_names() -> None:
    """Who answers calls both runs by one epoch, and names neither, or the other."""
    reader = follows(0, 1)
    reader.live(*named(FIRST, 4))
    assert reader.wanted == [(2, 3)]
    other = named(LOWER, 2, epoch=FRESH)
    reader.answer_of(AnswerPart(other), AnswerPart(named(FIRST, 2, 3, epoch=FRESH)))
    reader.live(*named(FIRST, 6))
    other_name = (Incarnation(SOURCE, FRESH, LOWER.incarnation),)
    reader.answer(*named(FIRST, 5, epoch=FRESH), names=other_name)
    assert reader.story == [0, 1, 2, 3, 4, 5, 6]
    assert {one.timestamp_id for one in reader.delivered_samples} == {FIRST.timestamp_id}


def test_while_history_is_read_a_sample_is_of_the_run_it_names() -> None:
    names = (Incarnation(SOURCE, *FIRST),)
    reader = Reader(history=True)
    reader.handle(Declared(SOURCE, *FIRST, reader.now, listed=True))
    reader.live(*named(SECOND, 2, at=20), *named(FIRST, 2))
    reader.page(named(FIRST, 0, 1, epoch=FRESH), names=names)
    assert reader.story == [0, 1, 2]
    reader.answer()
    reader.answer(*named(SECOND, 0, 1, at=20, epoch=FRESH + 1))
    assert reader.story == [0, 1, 2, 0, 1, 2]


def test_too_late_of_a_run_of_which_nothing_came_is_reported_by_itself() -> None:
    """It ended as its subscriber began (seed 171453)."""
    reader = Reader()
    reader.handle(Declared(SOURCE, *FIRST, reader.now, listed=True))
    reader.declared(*SECOND)
    reader.live(*named(SECOND, 0, at=20))
    reader.live(*named(FIRST, 99))
    assert reader.story == [0, (99, 99)]


def came_as_a_run_began() -> Reader:
    """Two tokens are there when it comes, by which neither began in its sight; the first goes."""
    reader = Reader(history=True)
    later = RunName(EPOCH + 3, "0000000d")
    reader.live(*named(later, 0, at=20), *named(LOWER, 8, at=10))
    reader.declared(*LOWER)
    reader.declared(*later)
    reader.handle(TokenGone(SOURCE, LOWER.incarnation, reader.now))
    reader.live(*named(LOWER, 7, at=10), *named(later, 1, at=20))
    return reader


def test_what_waits_of_a_run_whose_token_went_beside_the_next_goes_first() -> None:
    """It was taken for one that began behind that, at number 0 (seed 3696)."""
    reader = came_as_a_run_began()
    reader.page([])
    while reader.fetches:
        reader.answer()
    assert reader.story == [7, 8, 0, 1]


def test_where_history_brought_the_next_one_it_is_reported() -> None:
    reader = came_as_a_run_began()
    names = (Incarnation(SOURCE, EPOCH + 3, "0000000d"),)
    later = RunName(EPOCH + 3, "0000000d")
    reader.page(named(later, 0, 1, 2, at=20, epoch=EPOCH + 3), names=names)
    assert reader.story == [0, 1, 2, (7, 8)]
    reader.live(*named(later, 3, at=20))
    assert reader.story[4:] == [3]


WRAPPED = RunName(EPOCH + 9, incarnation_after(LOWER.incarnation))
"""What the run of `LOWER` went on as when its numbers wrapped."""


def test_a_run_whose_token_comes_behind_that_of_the_one_it_wrapped_into_goes_first() -> None:
    reader = Reader()
    reader.declared(*WRAPPED)
    reader.declared(*LOWER)
    reader.live(*named(LOWER, LAST, at=10), *named(WRAPPED, 0, 1, at=11))
    assert reader.story == [LAST, 0, 1]
    assert not reader.fetches


def test_what_comes_of_it_when_the_other_was_given_is_reported() -> None:
    """It was taken for a run that began behind the other, at number 0 (seeds 3696, 37455)."""
    reader = Reader()
    reader.live(*named(WRAPPED, 0, 1, at=11))
    reader.live(*named(LOWER, LAST, at=10))
    reader.declared(*LOWER)
    assert reader.story == [0, 1, (LAST, LAST)]
    reader.live(*named(WRAPPED, 2, at=11))
    assert reader.story[3:] == [2]
    assert not reader.engine.gaps_open


def test_a_run_whose_token_went_before_that_of_the_one_history_brought_does_not_follow_it() -> None:
    """Its publisher's clock was set back, and a cache brings the first run later (seed 46508)."""
    reader = Reader(history=True)
    reader.declared(*FIRST)
    reader.handle(TokenGone(SOURCE, FIRST.incarnation, reader.now))
    reader.live(*named(LOWER, 0, at=10))
    reader.declared(*LOWER)
    names = Incarnation(SOURCE, LOWER.epoch, LOWER.incarnation)
    reader.page(named(LOWER, 0, 1, at=10, epoch=LOWER.epoch), names=(names,))
    assert reader.story == [0, 1]
    outputs = reader.engine.handle(AnswererAppeared(reader.now, strange=True))
    (probe,) = (one for one in outputs if isinstance(one, AskBeginning))
    reader.handle(BeginningTold(probe.question_id, 0, reader.now))
    first = Incarnation(SOURCE, *FIRST)
    reader.page_of(AnswerPart(named(FIRST, 0, 1, 2, epoch=FRESH), (), (first, names)))
    for _ in range(9):
        reader.wait(1)
        while reader.fetches:
            of_first = reader.fetches[0].epoch == FRESH
            given = named(FIRST, 0, 1, 2, epoch=FRESH) if of_first else []
            reader.answer(*given, names=(first, names))
    assert reader.story == [0, 1, (0, 2)]
    reader.live(*named(LOWER, 2, at=10))
    assert reader.story == [0, 1, (0, 2), 2]


def test_what_names_its_run_is_no_rest_of_the_one_before_whatever_times_say() -> None:
    """The clock was set back across the restart, and its times went on by a tick (seed 46082)."""
    reader = follows(0, 1, 2)
    reader.declared(*SECOND)
    late = [msgspec.structs.replace(one, ntp64=sample(2).ntp64 + 1) for one in named(SECOND, 1, 3)]
    reader.live(*late, *named(FIRST, 2))
    reader.answer()
    for _ in range(20):
        reader.wait(5)
        while reader.fetches:
            reader.answer()
    assert reader.story == [0, 1, 2, (0, 0), 1, (2, 2), 3]
    assert {one.epoch for one in reader.missed} == {SECOND.epoch}


HIGHER = RunName(EPOCH + 5, "0000000e")


@pytest.mark.parametrize("history", [False, True], ids=["live", "history"])
@pytest.mark.parametrize("left_over_first", [True, False], ids=["left over first", "and last"])
def test_of_two_tokens_that_are_there_when_it_comes_the_one_goes_on_that_samples_name(
    history: bool, left_over_first: bool
) -> None:
    """By its epoch it is the earlier one; what came of it counted as repeats."""
    reader = Reader(history=history)
    tokens = (HIGHER, LOWER) if left_over_first else (LOWER, HIGHER)
    for run in tokens:
        reader.handle(Declared(SOURCE, *run, reader.now, listed=True))
    if history:
        reader.page([])
    reader.live(*named(LOWER, 3, 4, at=10))
    reader.handle(TokenGone(SOURCE, HIGHER.incarnation, reader.now))
    reader.live(*named(LOWER, 5, at=10))
    while reader.fetches:
        reader.answer()
    assert reader.story == [3, 4, 5]
    assert reader.engine.duplicates == 0


def test_and_where_history_brought_the_other_as_soon_as_the_token_of_that_went() -> None:
    reader = Reader(history=True)
    for run in (HIGHER, LOWER):
        reader.handle(Declared(SOURCE, *run, reader.now, listed=True))
    higher = Incarnation(SOURCE, *HIGHER)
    reader.page(named(HIGHER, 0, 1, epoch=HIGHER.epoch), names=(higher,))
    reader.handle(TokenGone(SOURCE, HIGHER.incarnation, reader.now))
    reader.live(*named(LOWER, 0, 1, at=10))
    while reader.fetches:
        reader.answer(names=(higher,))
    assert reader.story == [0, 1, 0, 1]
    assert reader.engine.duplicates == 0


def test_what_comes_of_a_run_two_before_is_reported_or_a_repeat() -> None:
    third = RunName(FRESH + 2, "0000000f")
    reader = follows(0, 1)
    for run in (SECOND, third):
        reader.declared(*run)
        reader.live(*named(run, 0, at=20))
        while reader.fetches:
            reader.answer()
    assert reader.story == [0, 1, 0, 0]
    reader.live(*named(FIRST, 1), *named(FIRST, 2), *named(third, 1, at=20))
    assert reader.story == [0, 1, 0, 0, (2, 2), 1]
    assert reader.missed[0].epoch == FRESH
    assert reader.engine.duplicates == 1
