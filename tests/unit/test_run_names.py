"""How does a subscriber tell which run is which: called alike (ADR 0333), named late (0336)?"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    AnswerPart,
    DeliveryOptions,
    TokenGone,
)
from durable_cache.protocol.wire import Absence, AbsenceReason, Incarnation
from tests.unit.subscriber_reader import EPOCH, FRESH, OTHER, SOURCE, Reader, sample

NAMES = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"),)


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


@pytest.mark.parametrize("ended", [True, False], ids=["that ended", "that goes on"])
def test_nor_behind_one_that_was_passed_on_as_it_was_published(ended: bool) -> None:
    """A cache that comes into reach has it (seed 54005)."""
    reader = Reader()
    before, after = alike()
    reader.declared(EPOCH, "bbbbbbbb")
    for one in after.samples:
        reader.live(msgspec.structs.replace(one, epoch=0))
    if ended:
        reader.declared(EPOCH - 1, "cccccccc")
    cache_comes_back(reader, strange=True)
    reader.page_of(before)
    while reader.fetches:
        reader.answer()
        reader.wait(1)
    assert reader.story == [0, 1, (0, 1)]
    assert reader.missed[0].epoch < EPOCH


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


def cache_comes_back(reader: Reader, *, strange: bool = False) -> None:
    """Have the only cache go and come back: what was published meanwhile is asked for."""
    reader.handle(AnswerersGone(reader.now))
    reader.seconds += 1
    reader.handle(AnswererAppeared(reader.now, strange=strange, gone=None))
    assert reader.asked


@pytest.mark.parametrize("epoch", [EPOCH, FRESH], ids=["long ago", "since"])
@pytest.mark.parametrize("history", [True, False], ids=["with history", "without"])
def test_what_came_before_the_token_of_its_run_is_not_given_again_by_name(
    history: bool, epoch: int
) -> None:
    reader = Reader(history=history)
    if history:
        reader.page([])
    reader.seconds = 1
    reader.live(sample(2, at=1))
    cache_comes_back(reader)
    names = (Incarnation(SOURCE, epoch, "aaaaaaaa"),)
    reader.page([sample(sn, epoch, at=0.9 + sn / 20) for sn in range(3)], names=names)
    assert reader.story == [2]
    reader.live(sample(3, at=3))
    reader.declared(epoch, "aaaaaaaa")
    reader.live(sample(4, at=4))
    assert reader.story == [2, 3, 4]


def test_what_was_given_by_name_is_not_reported_where_a_cache_has_lost_the_name_of_some() -> None:
    """Seed 86884."""
    reader = Reader(history=True)
    first = [sample(sn, EPOCH, at=1 + sn) for sn in range(5)]
    reader.page(first, names=NAMES, cut_after=first[-1])
    nameless = [msgspec.structs.replace(one, epoch=0) for one in first[1:3]]
    reader.page([*nameless, *(sample(sn, EPOCH, at=1 + sn) for sn in range(3, 6))], names=NAMES)
    assert reader.story == [0, 1, 2, 3, 4, 5]
    assert reader.engine.history_complete


def test_what_a_run_before_published_is_reported_though_nobody_names_it() -> None:
    reader = Reader(history=True)
    first = [sample(sn, EPOCH, at=10 + sn) for sn in range(5)]
    reader.page(first, names=NAMES, cut_after=first[-1])
    reader.page([sample(sn, at=1 + sn) for sn in (1, 2)], names=NAMES)
    assert reader.story == [0, 1, 2, 3, 4, (1, 2)]


@pytest.mark.parametrize("lacks", [False, True], ids=["for which there is room", "for which none"])
def test_nor_where_its_source_was_pushed_out_of_a_full_table_meanwhile(lacks: bool) -> None:
    """Seed 68393."""
    reader = Reader(DeliveryOptions(sources_max=1))
    reader.live(sample(2, at=1))
    reader.live(sample(0, at=1, source=OTHER))
    if lacks:
        reader.live(sample(2, at=3, source=OTHER))
    cache_comes_back(reader)
    reader.page([sample(sn, EPOCH, at=0.9 + sn / 20) for sn in range(3)], names=NAMES)
    if lacks:
        reader.live(sample(1, at=2, source=OTHER))
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(3, at=3))
    assert reader.story == [2, 0, *([1, 2] if lacks else []), 3]


def test_nor_is_it_reported_where_that_run_has_ended_since() -> None:
    reader = Reader(history=True)
    reader.page([])
    reader.live(sample(2, at=1))
    reader.live(sample(0, at=5))  # its number and its time show that a run began
    while reader.fetches:
        reader.answer()
        reader.wait(1)
    assert reader.story == [2, 0]
    cache_comes_back(reader)
    reader.page(
        [*(sample(sn, EPOCH, at=0.9 + sn / 20) for sn in range(3)), sample(0, FRESH, at=5)],
        names=(*NAMES, Incarnation(SOURCE, FRESH, "bbbbbbbb")),
    )
    assert reader.story == [2, 0]


def test_a_run_with_later_times_is_another() -> None:
    reader = Reader(history=True)
    reader.page([])
    reader.live(sample(2, at=1))
    cache_comes_back(reader)
    reader.page([sample(sn, EPOCH, at=5 + sn / 20) for sn in range(3)], names=NAMES)
    assert reader.story == [2, 0, 1, 2]


def test_what_was_given_live_keeps_its_epoch_from_a_run_that_history_brings_by_it() -> None:
    """Both declared it, and the earlier one is reported by another (seed 109223)."""
    reader = Reader(history=True)
    reader.page([])
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(*(sample(sn, at=5 + sn) for sn in range(3)))
    assert reader.story == [0, 1, 2]
    reader.handle(AnswerersGone(reader.now))
    reader.handle(AnswererAppeared(reader.now))
    names = (Incarnation(SOURCE, FRESH, "aaaaaaaa"), Incarnation(SOURCE, FRESH + 1, "bbbbbbbb"))
    before = [sample(sn, FRESH, at=1 + sn) for sn in range(2)]
    reader.page([*before, *(sample(sn, FRESH + 1, at=5 + sn) for sn in range(3))], names=names)
    assert reader.story == [0, 1, 2, (0, 1)]
    assert reader.delivered_samples[0].epoch == FRESH
    assert reader.missed[0].epoch != FRESH


@pytest.mark.parametrize("seconds", [1, 60])
def test_who_comes_late_hears_a_run_whose_clock_was_set_back_before_it_began(seconds: int) -> None:
    """No cache could tell its publisher of the runs before, and nothing came yet (seed 110811)."""
    names = Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, EPOCH - 5, "bbbbbbbb")
    had = [sample(sn, EPOCH, at=sn) for sn in range(8, 11)]
    reader = Reader(history=True)
    reader.declared(EPOCH - 5, "bbbbbbbb")
    reader.page_of(AnswerPart(had, incarnations=names[:1]), AnswerPart([], incarnations=names[1:]))
    assert reader.story == [8, 9, 10]
    reader.seconds += seconds
    reader.live(sample(0, at=-20), sample(1, at=-19))
    if seconds == 1:  # its token may be left over of a run that ended
        assert reader.story == [8, 9, 10]
        reader.seconds += 60
    reader.live(sample(2, at=-18))
    while reader.fetches:
        wanted = reader.fetches[0]
        found = [sample(sn, EPOCH - 5, at=sn - 20) for sn in range(wanted.first, 3)]
        reader.answer(*found if wanted.epoch > EPOCH else (), names=names[1:])
        reader.wait(0.5)
    assert reader.story == [8, 9, 10, 0, 1, 2]
    assert reader.missed == []


def test_a_token_that_is_left_over_beside_that_of_a_later_run_is_none_of_a_run_that_began() -> None:
    names = Incarnation(SOURCE, EPOCH - 5, "bbbbbbbb"), Incarnation(SOURCE, EPOCH, "aaaaaaaa")
    reader = Reader(history=True)
    for _, epoch, name in reversed(names):
        reader.declared(epoch, name)
    reader.page([sample(sn, EPOCH, at=sn) for sn in range(8, 11)], names=names)
    reader.seconds += 60
    reader.live(sample(12, at=12))
    reader.answer(sample(11, EPOCH, at=11), names=names)
    assert reader.story == [8, 9, 10, 11, 12]


def test_what_an_answerer_has_without_a_name_and_by_one_is_of_no_run_before() -> None:
    """The publisher's first life put nothing, and its second one on two keys (seed 116360)."""
    reader = Reader()
    reader.declared(FRESH, "aaaaaaaa")
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(FRESH + 1, "bbbbbbbb")
    reader.live(sample(2, at=9.2))
    names = (Incarnation(SOURCE, FRESH + 1, "bbbbbbbb"),)
    other_key = Absence(SOURCE, FRESH + 1, 0, 1, AbsenceReason.OTHER_KEY)
    for _ in range(40):
        while reader.fetches:
            wanted = reader.fetches[0]
            had = [sample(2, at=9.2), sample(2, FRESH + 1, at=9.2)]
            found = [one for one in had if wanted.first <= one.sn <= (wanted.last or one.sn)]
            reader.answer(*found, names=names, absent=(other_key,) if found else ())
        reader.wait(2)
    assert reader.story == [2]
    assert reader.delivered_samples[0].epoch == FRESH + 1


# Who missed the token of a run (ADR 0352)


def short_run(*, token_first: bool = False) -> Reader:
    """Return one that heard a run begin and end, of which not all came, while it asks."""
    reader = Reader(history=True)
    if token_first:
        reader.declared(FRESH, "aaaaaaaa")
    reader.live(sample(2))
    if not token_first:
        reader.declared(FRESH, "aaaaaaaa")
    reader.live(sample(0))
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    return reader


@pytest.mark.parametrize("token_first", [True, False])
def test_what_came_live_names_the_run_of_who_missed_its_token(token_first: bool) -> None:
    """It has some from the publisher's own cache, and the rest without an epoch (seed 104128)."""
    reader = short_run(token_first=token_first)
    reader.page_of(AnswerPart([sample(0), sample(2), sample(1, FRESH)]))
    reader.wait(60)
    assert reader.story == [0, 1, 2]


def test_an_epoch_by_which_an_answerer_calls_another_run_is_not_that_of_what_came() -> None:
    reader = short_run()
    other = (Incarnation(SOURCE, FRESH, "bbbbbbbb"),)
    reader.page_of(AnswerPart([sample(0), sample(2), sample(1, FRESH)], incarnations=other))
    reader.wait(60)
    assert reader.story != [0, 1, 2]


def test_what_was_published_before_the_token_came_shows_no_run() -> None:
    """It is of the run before, and came behind the token of the next."""
    reader = Reader(history=True)
    reader.declared(FRESH + 1, "bbbbbbbb")
    reader.live(sample(8, at=0.5))
    reader.page_of(AnswerPart([sample(7, at=0.4), sample(8, at=0.5)]))
    reader.wait(60)
    assert [one.epoch for one in reader.delivered_samples] == [0, 0]
