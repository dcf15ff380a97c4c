"""How a subscriber tells runs apart of which history brings one while another waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from durable_cache.model.sample import Sample
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    AnswerPart,
    DeliveryOptions,
    TokenGone,
)
from durable_cache.protocol.wire import AbsenceReason, Incarnation, incarnation_after
from tests.unit.subscriber_reader import (
    EPOCH,
    FRESH,
    OTHER,
    SOURCE,
    Reader,
    absent,
    sample,
)


def test_the_last_of_a_run_that_comes_while_history_brings_the_next_is_reported() -> None:
    reader = Reader(history=True)
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    before = [sample(sn, EPOCH) for sn in range(3)]
    begun = [sample(sn, FRESH, at=9 + sn / 10) for sn in range(2)]
    reader.page([*before, *begun], names=names, cut_after=begun[-1])
    reader.live(sample(3, at=5))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(0, at=9), sample(1, at=9.1))
    reader.page([])
    reader.live(sample(2, at=9.2))
    assert reader.story == [0, 1, 2, 0, 1, (3, 3), 2]


def test_the_last_of_a_run_that_no_cache_has_goes_before_the_next() -> None:
    """All of history is read: what came before the next token and is on no page goes first."""
    reader = Reader(history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(3, at=5))
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(0, at=9), sample(1, at=9.1))
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    before = [sample(sn, EPOCH) for sn in range(3)]
    reader.page([*before, *(sample(sn, FRESH, at=9 + sn / 10) for sn in range(2))], names=names)
    while reader.fetches:
        reader.answer(names=names)
    reader.live(sample(2, at=9.2))
    assert reader.story == [0, 1, 2, 3, 0, 1, 2]


def test_what_came_under_a_token_is_of_its_run_whatever_times_say() -> None:
    """History brought the next run, whose clock was set back, before that came (seed 30422)."""
    reader = Reader(history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    begun = [sample(sn, FRESH, at=sn / 10) for sn in range(3)]
    reader.page(begun, names=names, cut_after=begun[-1])
    reader.live(*(sample(sn, at=50) for sn in (4, 3, 5)))
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(FRESH, "bbbbbbbb")
    reader.page([])
    reader.live(*(sample(sn, at=1 + sn / 10) for sn in (3, 4)))
    assert reader.story == [0, 1, 2, (3, 5), 3, 4]


@pytest.mark.parametrize("stamped", [False, True])
def test_what_came_under_the_token_of_a_run_two_before_is_none_of_the_last(stamped: bool) -> None:
    """History brought all three: it is a repeat, with a number the last has not (seed 30306)."""
    reader = Reader(history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    ntp64 = sample(8, at=5).ntp64
    live, first = (
        Sample("k", SOURCE, epoch, 8, b"8", ntp64=ntp64, stamped=stamped) for epoch in (0, EPOCH)
    )
    reader.live(live)
    names = tuple(Incarnation(SOURCE, EPOCH + at, name * 8) for at, name in enumerate("abc"))
    for at, name in enumerate("bc"):
        reader.handle(TokenGone(SOURCE, "ab"[at] * 8, reader.now))
        reader.declared(EPOCH + 1 + at, name * 8)
        reader.live(sample(0, at=1 + at))
    reader.page(
        [sample(0, EPOCH + 1, at=1), sample(0, EPOCH + 2, at=2), first],
        names=names,
    )
    reader.live(sample(1, at=3))
    assert reader.story == [8, 0, 0, 1]
    assert not reader.fetches
    assert reader.engine.duplicates == 3


def test_a_run_does_not_begin_behind_the_one_whose_token_came_after_its_own() -> None:
    """Nothing of it is on a page: what came of it is over where the next was given."""
    reader = Reader(history=True)
    names = (Incarnation(SOURCE, FRESH, "bbbbbbbb"),)
    begun = [sample(sn, FRESH, at=sn / 10) for sn in range(2)]
    reader.live(sample(6, at=48))
    reader.page(begun, names=names, cut_after=begun[-1])
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(7, at=50))
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(FRESH, "bbbbbbbb")
    reader.page([])
    reader.live(sample(2, at=1))
    assert (7, 7) in reader.story
    assert 7 not in reader.story
    assert [one.epoch for one in reader.delivered_samples if one.sn == 2] == [FRESH]


def test_the_last_of_a_run_are_reported_once_whatever_the_network_does_to_their_order() -> None:
    reader = Reader(history=True)
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    before = [sample(sn, EPOCH) for sn in range(3)]
    begun = [sample(sn, FRESH, at=9 + sn / 10) for sn in range(2)]
    reader.page([*before, *begun], names=names, cut_after=begun[-1])
    reader.live(sample(5, at=5), sample(3, at=5), sample(4, at=5))
    reader.declared(FRESH, "bbbbbbbb")
    reader.page([])
    reader.live(*(sample(sn, at=9 + sn / 10) for sn in range(2, 7)))
    assert reader.story == [0, 1, 2, 0, 1, (3, 5), 2, 3, 4, 5, 6]


def test_what_came_before_the_token_of_a_run_is_none_of_it_whatever_tokens_follow() -> None:
    reader = Reader(history=True)
    reader.live(sample(1), sample(2))
    reader.declared(EPOCH + 1, "bbbbbbbb")
    reader.declared(EPOCH + 2, "cccccccc")
    before = [sample(sn, EPOCH) for sn in range(3)]
    one = [sample(sn, EPOCH + 1, at=1 + sn / 10) for sn in range(2)]
    names = [Incarnation(SOURCE, EPOCH + at, name * 8) for at, name in enumerate("abc")]
    reader.page([*before, *one], names=tuple(names[:2]))
    reader.live(sample(0, at=3))
    assert reader.wanted == [(2, None)]
    reader.answer(names=tuple(names))
    assert reader.story == [0, 1, 2, 0, 1, 0]


def test_what_came_while_history_brought_a_later_run_is_no_number_of_that() -> None:
    """Nobody names these runs: the time of a sample shows that it is older than the second."""
    reader = Reader(history=True)
    reader.live(sample(3, at=5), sample(5, at=5.2), sample(6, at=5.3))
    before = [sample(sn, at=sn) for sn in range(3)]
    before += [sample(sn, at=4.7 + sn / 10) for sn in range(3, 6)]
    after = [sample(sn, 77, at=9 + sn / 10) for sn in range(2)]
    reader.page([*before, *after])
    reader.live(sample(2, at=9.2))
    assert reader.story == [0, 1, 2, 3, 4, 5, 0, 1, (6, 6), 2]


@pytest.mark.parametrize("held", [1, 2])
def test_what_found_no_room_before_a_token_is_of_no_run_that_token_names(held: int) -> None:
    options = DeliveryOptions(pending_samples_max=held, gap_timeout_seconds=5)
    reader = Reader(options, history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(*([] if held > 1 else [sample(0, source=OTHER)]))
    reader.live(*(sample(sn, at=5 + sn / 10) for sn in (3, 4, 5)))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(0, at=9), sample(1, at=9.1))
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader.page([sample(sn, EPOCH, at=5 + sn / 10) for sn in range(6)], names=names[:1])
    begun = [sample(sn, FRESH, at=9 + sn / 10) for sn in range(2)]
    for _ in range(30):
        while reader.fetches:
            reader.answer(*begun, names=names)
        reader.wait(1)
    assert [one.sn for one in reader.delivered_samples if one.source == SOURCE] == [
        *range(6),
        0,
        1,
    ]
    assert reader.engine.missed == 0


def test_a_token_with_an_earlier_clock_soon_after_the_start_begins_a_run() -> None:
    """No token of the run that history brought is there: it ended, and this is the next."""
    reader = Reader(history=True)
    names = (Incarnation(SOURCE, FRESH, "aaaaaaaa"),)
    reader.page([sample(sn, FRESH) for sn in range(3)], names=names)
    reader.seconds = 1
    reader.declared(EPOCH, "bbbbbbbb")
    came_ns = reader.now.unix_ns
    reader.live(
        *(structs.replace(sample(sn, at=sn / 1000), received_ns=came_ns) for sn in range(2))
    )
    reader.answer()
    assert reader.story == [0, 1, 2, 0, 1]


def test_a_token_left_over_beside_that_of_the_run_that_history_brought_begins_none() -> None:
    reader = Reader(history=True)
    names = (Incarnation(SOURCE, FRESH, "bbbbbbbb"),)
    reader.page([sample(sn, FRESH) for sn in range(3)], names=names)
    reader.declared(FRESH, "bbbbbbbb")
    reader.seconds = 1
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(3), sample(4))
    assert reader.story == [0, 1, 2, 3, 4]
    assert not reader.fetches


def test_a_token_with_an_earlier_clock_begins_a_run_where_the_one_before_has_gone() -> None:
    """Soon after the start, too: it is listed beside no other any more."""
    reader = Reader()
    reader.declared(FRESH, "aaaaaaaa")
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(FRESH - 1, "bbbbbbbb")
    reader.live(sample(0), sample(1))
    name = Incarnation(SOURCE, FRESH - 1, "bbbbbbbb")
    while reader.fetches:
        reader.answer(sample(0, FRESH - 1), sample(1, FRESH - 1), names=(name,))
    assert reader.story == [0, 1]
    assert {one.epoch for one in reader.engine._sources.followed[SOURCE].numberings} == {FRESH + 1}


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


def shown_and_over() -> tuple[AnswerPart, AnswerPart]:
    """Return what a cache has of a run that is over, and what the publisher's own has of the next.

    The publisher's clock was set back; no cache was in its reach since.
    """
    over = AnswerPart(
        [sample(sn, FRESH, at=1 + sn) for sn in range(3)],
        incarnations=(Incarnation(SOURCE, FRESH, "aaaaaaaa"),),
    )
    begun = AnswerPart(
        [sample(sn, EPOCH, at=9 + sn / 10) for sn in range(2)],
        incarnations=(Incarnation(SOURCE, EPOCH, "bbbbbbbb"),),
    )
    return over, begun


def test_of_two_runs_on_a_page_the_one_that_shows_its_token_comes_last() -> None:
    """Its clock was set back, and no answerer knows both runs (seed 22718)."""
    reader = Reader(history=True)
    reader.declared(EPOCH, "bbbbbbbb")
    reader.page_of(*shown_and_over())
    reader.live(sample(2, at=9.2))
    assert reader.story == [0, 1, 2, 0, 1, 2]
    assert [one.epoch for one in reader.delivered_samples] == 3 * [FRESH] + 3 * [FRESH + 1]


def test_and_on_the_page_behind_that_of_the_other() -> None:
    reader = Reader(history=True)
    reader.declared(EPOCH, "bbbbbbbb")
    over, begun = shown_and_over()
    reader.page_of(over, replace(begun, samples=[]), cut_after=over.samples[-1])
    reader.page_of(begun)
    reader.live(sample(2, at=9.2))
    assert reader.story == [0, 1, 2, 0, 1, 2]


def test_it_comes_behind_two_that_caches_call_alike() -> None:
    """One of these goes by a later epoch here; it is not the one of the run with the token."""
    reader = Reader(history=True)
    reader.declared(EPOCH, "bbbbbbbb")
    over, begun = shown_and_over()
    between = AnswerPart(
        [sample(sn, FRESH, at=5 + sn) for sn in range(2)],
        incarnations=(Incarnation(SOURCE, FRESH, "cccccccc"),),
    )
    reader.page_of(over, between, begun)
    assert reader.story == [0, 1, 2, 0, 1, 0, 1]
    epochs = [one.epoch for one in reader.delivered_samples]
    assert epochs == 3 * [FRESH] + 2 * [FRESH + 1] + 2 * [FRESH + 2]


def test_it_keeps_its_epoch_once_something_of_it_was_read() -> None:
    reader = Reader(history=True)
    reader.declared(EPOCH, "bbbbbbbb")
    over, begun = shown_and_over()
    first, second = begun.samples
    reader.page_of(replace(begun, samples=[first]), cut_after=first)
    reader.page_of(over, replace(begun, samples=[second]))
    assert reader.story == [0, (0, 2), 1]
    assert [one.epoch for one in reader.delivered_samples] == [EPOCH, EPOCH]


def test_a_token_of_a_run_that_times_show_to_be_over_moves_nothing() -> None:
    """It is there until a cut link is noticed."""
    reader = Reader(history=True)
    reader.declared(EPOCH, "bbbbbbbb")
    over, begun = shown_and_over()
    late = [sample(sn, FRESH, at=20 + sn) for sn in range(3)]
    reader.page_of(replace(over, samples=late), begun)
    assert reader.story == [0, 1, 0, 1, 2]


def test_nor_does_the_token_of_a_run_that_somebody_calls_an_earlier_one() -> None:
    reader = Reader(history=True)
    reader.declared(EPOCH, "bbbbbbbb")
    over, begun = shown_and_over()
    names = begun.incarnations + over.incarnations
    reader.page_of(over, replace(begun, incarnations=names))
    assert reader.story == [0, 1, 0, 1, 2]


def test_a_token_that_waits_beside_no_other_is_of_a_run_that_began() -> None:
    """Soon after the start, too: that of the run before is gone (seed 20117)."""
    reader = Reader(history=True)
    reader.declared(EPOCH - 1, "aaaaaaaa")
    reader.live(sample(7, at=1))
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.seconds = 1
    reader.declared(EPOCH, "bbbbbbbb")
    names = Incarnation(SOURCE, EPOCH - 1, "aaaaaaaa"), Incarnation(SOURCE, EPOCH, "bbbbbbbb")
    reader.page([sample(7, EPOCH - 1, at=1), sample(2, EPOCH, at=9.2)], names=names)
    assert reader.wanted == [(0, 1)]
    reader.answer(*(sample(sn, EPOCH, at=9 + sn / 10) for sn in range(2)), names=names)
    assert reader.story[:4] == [7, 0, 1, 2]


def test_a_run_that_caches_call_earlier_than_history_does_not_come_after_it() -> None:
    """Its token was seen and its numbers wrapped; the newest of each key are of the next run."""
    reader = Reader(history=True)
    before, after = "aaaaaaaa", incarnation_after("aaaaaaaa")
    reader.declared(EPOCH, before)
    reader.live(sample(SOURCE_SN_MODULUS - 2, at=1))
    reader.declared(FRESH, after)
    names = (Incarnation(SOURCE, EPOCH, before), Incarnation(SOURCE, FRESH, after))
    begun = [sample(sn, FRESH, at=2 + sn / 10) for sn in range(3)]
    reader.page(begun, names=names)
    reader.live(sample(3, at=2.3))
    reader.answer(names=names)  # nobody has what is below the first
    assert reader.story == [SOURCE_SN_MODULUS - 2]
    for _ in range(20):
        if reader.fetches:  # nobody has the last number of all before the wrap
            reader.answer(*begun, names=names)
        reader.wait(60)
    assert [one.sn for one in reader.delivered_samples] == [SOURCE_SN_MODULUS - 2, 0, 1, 2, 3]


@pytest.mark.parametrize("between", [False, True])
def test_a_run_whose_token_came_before_that_of_the_one_history_brought_is_over(
    between: bool,
) -> None:
    """No page has it: what came of it while history was read is reported, not given behind that."""
    reader = Reader(history=True)
    reader.declared(FRESH, "aaaaaaaa")
    begun = [sample(sn, FRESH + 2, at=20 + sn / 10) for sn in range(2)]
    names = (Incarnation(SOURCE, FRESH + 2, "bbbbbbbb"),)
    reader.page(begun, names=names, cut_after=begun[-1])
    if between:
        reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.live(sample(0, at=5))
    reader.declared(FRESH + 2, "bbbbbbbb")
    reader.live(sample(2, at=20.2))
    reader.page([])
    reader.live(sample(3, at=20.3))
    assert reader.story == [0, 1, (0, 0), 2, 3]
    assert {one.epoch for one in reader.delivered_samples} == {FRESH + 2}


@pytest.mark.parametrize(("earlier", "goes_on"), [(0.07, True), (0.15, False)])
def test_the_next_number_of_a_foreign_run_may_be_a_little_older_than_the_last(
    earlier: float, goes_on: bool
) -> None:
    """Nothing is missing of the run before, which ended with a lower number (seed 68343)."""
    reader = Reader(history=True)
    before = [sample(sn, at=1 + sn / 10) for sn in range(2)]
    begun = [sample(sn, FRESH, at=20 + sn / 10) for sn in range(5)]
    page = [*before, *begun]
    reader.page(page, cut_after=page[-1])
    reader.live(sample(5, at=20.4 - earlier))
    reader.page([])
    assert reader.story == [0, 1, 0, 1, 2, 3, 4, 5 if goes_on else (2, 5)]


def test_what_came_of_a_run_that_ended_since_is_not_missed_when_history_is_read_again() -> None:
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    before = [sample(sn, EPOCH) for sn in range(3)]
    reader.page(before, names=names[:1], whole=False)
    reader.wait(1)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(3))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(0, at=9))
    reader.answer(names=names)
    assert reader.story == [0, 1, 2, 3, 0]
    reader.wait(15)
    reader.page([*before, sample(3, EPOCH), sample(0, FRESH, at=9)], names=names)
    assert reader.story == [0, 1, 2, 3, 0]


def test_a_run_that_began_behind_a_cut_waits_for_the_end_of_the_one_before() -> None:
    """History brings it, and the one before is followed live (seed 90)."""
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(1))
    reader.handle(AnswerersGone(reader.now))
    reader.handle(AnswererAppeared(reader.now))
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    before = [sample(sn, EPOCH, at=5) for sn in (2, 3)]
    reader.page([*before, sample(0, FRESH, at=9), sample(1, FRESH, at=9.1)], names=names)
    assert reader.story == [0, 1]
    reader.answer(*before, names=names)
    assert reader.story == [0, 1, 2, 3, 0, 1]
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(2, at=9.2))
    assert reader.story == [0, 1, 2, 3, 0, 1, 2]
    assert reader.engine.missed == 0


def test_a_run_that_came_and_went_behind_a_cut_waits_for_the_end_of_the_one_before() -> None:
    """The next one shows its token already, and nothing came of it (seed 1877)."""
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(1))
    reader.handle(AnswerersGone(reader.now))
    reader.declared(FRESH + 1, "cccccccc")
    reader.handle(AnswererAppeared(reader.now))
    called = (EPOCH, "aaaaaaaa"), (FRESH, "bbbbbbbb"), (FRESH + 1, "cccccccc")
    names = tuple(Incarnation(SOURCE, *run) for run in called)
    before = [sample(sn, EPOCH, at=5) for sn in (2, 3)]
    reader.page([*before, sample(0, FRESH, at=9), sample(1, FRESH, at=9.1)], names=names)
    assert reader.story == [0, 1]
    while reader.fetches and reader.story == [0, 1]:
        wanted = reader.fetches[0]
        found = before if wanted.epoch == EPOCH else []
        reader.answer(*found, names=names)
        reader.wait(0.2)
    assert reader.story == [0, 1, 2, 3, 0, 1]


def test_what_came_before_a_token_is_of_no_run_behind_the_one_that_history_names() -> None:
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(1))
    reader.live(sample(0, at=9), sample(1, at=9.1))
    reader.handle(AnswerersGone(reader.now))
    reader.handle(AnswererAppeared(reader.now))
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader.page([sample(0, FRESH, at=9)], names=names)
    reader.answer(names=names)
    reader.declared(FRESH, "bbbbbbbb")
    assert reader.story == [0, 1, 0, 1]
    reader.declared(FRESH + 1, "cccccccc")
    reader.wait(60)
    while reader.fetches:
        reader.answer(names=names)
        reader.wait(1)
    reader.wait(60)
    assert reader.story == [0, 1, 0, 1]
    assert reader.engine.missed == 0


def test_what_a_run_that_is_over_lacks_between_is_reported_unless_somebody_explains_it() -> None:
    """A cache that was away brings more of it, and not all (seed 300776)."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    given = [sample(0, EPOCH), sample(1, EPOCH), sample(0, FRESH, at=9)]
    reader.page(given, names=names, whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    reader.handle(AnswererAppeared(reader.now))
    reader.page([*given, sample(4, EPOCH), sample(1, FRESH, at=9.1)], names=names)
    assert reader.wanted == [(2, 3)]
    reader.answer(absent=(absent(3, 3, AbsenceReason.OTHER_KEY, EPOCH),), names=names)
    for _ in range(60):
        reader.wait(1)
        while reader.fetches:
            reader.answer(names=names)
    assert reader.story == [0, 1, 0, 1, (2, 2), (4, 4)]
    assert [one.epoch for one in reader.missed] == [EPOCH, EPOCH]


def test_the_token_of_a_source_that_history_brought_does_not_wait_for_more_of_it() -> None:
    """Something of it had found no room, and history is asked for again (seed 301128)."""
    options = DeliveryOptions(pending_samples_max=2, history_timeout_seconds=0.05)
    reader = Reader(options, history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0, source=OTHER), sample(1, source=OTHER))
    reader.declared(FRESH, "cccccccc", OTHER)
    reader.declared(FRESH + 1, "dddddddd", OTHER)
    reader.live(sample(1))
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader.page([sample(0, EPOCH), sample(1, EPOCH)], names=names[:1], whole=False)
    while not reader.story:
        reader.wait(1)
    assert reader.engine.reads_history
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(2, at=9.2))
    begun = [sample(sn, FRESH, at=9 + sn / 10) for sn in range(3)]
    for _ in range(60):
        while reader.fetches:
            reader.answer(*begun, names=names)
        reader.wait(1)
    assert [one.sn for one in reader.delivered_samples if one.source == SOURCE] == [0, 1, 0, 1, 2]


def test_a_run_on_a_page_goes_by_the_epoch_by_which_it_is_followed() -> None:
    """A cache that did not hear of the run before calls it as that goes here (seed 20117)."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, EPOCH + 1, "cccccccc"))
    reader.page([sample(0, EPOCH)], names=names[:1], whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    for name in ("bbbbbbbb", "cccccccc"):  # the publisher's clock was set back
        reader.declared(EPOCH - 8, name)
    while not reader.asked:
        reader.wait(1)
    reader.page([sample(0, EPOCH), sample(0, EPOCH + 1, at=9)], names=names)
    called = [reader.engine.run_names.of((SOURCE, EPOCH + at)) for at in range(4)]
    assert called == ["aaaaaaaa", "bbbbbbbb", "cccccccc", ""]


def test_a_run_whose_token_comes_goes_by_no_epoch_of_one_that_history_named() -> None:
    reader = Reader(history=True)
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader.page([sample(0, EPOCH)], names=names)
    reader.declared(FRESH, "cccccccc")
    reader.live(sample(0, at=9))
    reader.answer(names=names)
    assert [one.epoch for one in reader.delivered_samples] == [EPOCH, FRESH + 1]


def test_what_follows_history_bears_its_epoch_whatever_caches_call_it_since() -> None:
    reader = Reader(history=True)
    reader.page([sample(0, EPOCH)], names=(Incarnation(SOURCE, EPOCH, "aaaaaaaa"),))
    reader.declared(EPOCH - 1, "aaaaaaaa")
    reader.live(sample(2))
    reader.answer(sample(1, EPOCH + 3), names=(Incarnation(SOURCE, EPOCH + 3, "aaaaaaaa"),))
    assert [(one.epoch, one.sn) for one in reader.delivered_samples] == [
        (EPOCH, 0),
        (EPOCH, 1),
        (EPOCH, 2),
    ]


def test_what_came_of_a_run_before_the_one_that_ended_last_is_not_missed_when_it_is_read() -> None:
    """It was read, then followed; two runs ended since (seed 302953)."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    called = {"aaaaaaaa": EPOCH, "bbbbbbbb": FRESH, "cccccccc": FRESH + 1}
    names = tuple(Incarnation(SOURCE, epoch, name) for name, epoch in called.items())
    read = [sample(sn, EPOCH) for sn in range(2)]
    reader.page(read, names=names[:1], whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    for at, (name, epoch) in enumerate(called.items()):
        reader.declared(epoch, name)
        reader.live(*(sample(2 * (at == 0) + sn, at=9 * at + sn / 10) for sn in range(2)))
        while reader.fetches:
            reader.answer(names=names[: at + 1])
    given = [0, 1, 2, 3, 0, 1, 0, 1]
    assert reader.story == given
    while not reader.asked:
        reader.wait(1)
    lived = [sample(2, EPOCH, at=0), sample(3, EPOCH, at=0.1)]
    later = [sample(sn, epoch, at=9 + sn / 10) for epoch in (FRESH, FRESH + 1) for sn in range(2)]
    reader.page([*read, *lived, *later], names=names)
    assert reader.story == given
