"""Runs without a name that history gives of a source that is followed by then, by any epoch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from durable_cache.model.sample import Sample
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerPart,
    DeliveryOptions,
    TokenGone,
)
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.wire import AbsenceReason, Incarnation
from tests.unit.subscriber_reader import EPOCH, FRESH, SOURCE, Reader, absent, sample


@pytest.fixture(params=[0, EPOCH, FRESH], ids=["without an epoch", "long ago", "by its time"])
def called(request: pytest.FixtureRequest) -> int:
    """By which epoch whoever answers calls the run."""
    assert isinstance(request.param, int)
    return request.param


def follows_before_history() -> Reader:
    """Return one whose first question for history nobody answered whole in time."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([], whole=False)
    reader.wait(1)
    while reader.engine.reads_history:
        reader.wait(1)
    reader.live(*(sample(sn, at=4 + sn / 10) for sn in range(1, 4)))
    assert reader.story == [1, 2, 3]
    ask_again(reader)
    return reader


def ask_again(reader: Reader) -> None:
    """Wait until history is asked for anew; earlier questions are not answered any more."""
    while not reader.asked:
        reader.wait(10)
    del reader.asked[:-1]


def test_what_was_passed_on_live_is_not_given_again(called: int) -> None:
    reader = follows_before_history()
    reader.page([sample(sn, called, at=4 + sn / 10) for sn in range(4)])
    assert reader.story == [1, 2, 3, (0, 0)]
    reader.live(sample(4, at=4.4))
    assert reader.story == [1, 2, 3, (0, 0), 4]


def test_a_run_that_ended_before_is_reported_and_followed_no_further(called: int) -> None:
    reader = follows_before_history()
    reader.page([sample(sn, called, at=1 + sn / 10) for sn in range(3, 6)])
    reader.live(sample(4, at=4.4))
    assert reader.story == [1, 2, 3, (3, 5), 4]


def test_what_a_run_that_ended_since_had_before_it_was_followed_is_reported(called: int) -> None:
    """Its first samples come with history, which nobody answered in time (seed 22439)."""
    reader = follows_before_history()
    reader.live(sample(0, at=9))
    while reader.fetches:
        reader.answer()
    assert reader.story == [1, 2, 3, 0]
    reader.page([sample(sn, called, at=4 + sn / 10) for sn in range(4)])
    reader.live(sample(1, at=9.1))
    assert reader.story == [1, 2, 3, 0, (0, 0), 1]


def test_a_run_that_began_since_comes_after(called: int) -> None:
    reader = follows_before_history()
    reader.page([sample(sn, called, at=9 + sn / 10) for sn in range(2)])
    reader.live(sample(2, at=9.2))
    assert reader.story == [1, 2, 3, 0, 1, 2]


def test_a_run_that_ended_while_it_was_followed_is_not_reported(called: int) -> None:
    reader = follows_before_history()
    reader.live(sample(0, at=9))
    reader.answer(answerers=1)
    assert reader.story == [1, 2, 3, 0]
    reader.page([sample(sn, called, at=4 + sn / 10) for sn in range(1, 4)])
    reader.live(sample(1, at=9.1))
    assert reader.story == [1, 2, 3, 0, 1]


def test_a_run_that_waits_is_not_passed_on_before_its_turn(called: int) -> None:
    reader = follows_before_history()
    reader.live(sample(0, at=9))
    reader.page([sample(sn, called, at=9 + sn / 10) for sn in range(2)])
    assert reader.story == [1, 2, 3]
    reader.answer(sample(4, at=4.4))
    assert reader.story == [1, 2, 3, 4, 0, 1]


def test_what_was_read_before_a_live_sample_is_not_reported_when_it_is_read_again() -> None:
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([sample(sn, at=sn) for sn in range(3)], whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    reader.live(sample(4, at=4))
    reader.live(sample(3, at=3))
    ask_again(reader)
    reader.page([sample(sn, at=sn) for sn in range(5)])
    assert reader.story == [0, 1, 2, 3, 4]


def test_what_was_published_before_a_wrap_is_none_of_the_run_behind_it() -> None:
    last = SOURCE_SN_MODULUS - 1
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([sample(0, FRESH, at=9), sample(1, FRESH, at=9.1)], whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    reader.live(sample(2, at=9.2))
    ask_again(reader)
    reader.page([sample(last - 1, at=8.8), sample(last, at=8.9)])
    reader.live(sample(3, at=9.3))
    assert reader.story == [0, 1, 2, (last - 1, last), 3]


def test_an_earlier_run_than_the_one_that_was_read_is_reported(called: int) -> None:
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([sample(sn, 8, at=9 + sn / 10) for sn in range(2)], whole=False)
    while not reader.story:
        reader.wait(1)
    reader.asked.clear()
    reader.live(sample(2, at=9.2))
    ask_again(reader)
    reader.page([sample(sn, called, at=4 + sn / 10) for sn in range(2)])
    reader.live(sample(3, at=9.3))
    assert reader.story == [0, 1, 2, (0, 1), 3]


def test_what_came_of_the_run_before_is_not_given_again_as_the_first_of_the_next() -> None:
    reader = Reader(history=True)
    before, later = sample(0, 5, at=9), [sample(1, 6, at=20), sample(2, 6, at=20.1)]
    reader.live(*(replace(one, epoch=0) for one in (before, *later)))
    reader.page([before, *later])
    assert [(one.epoch, one.sn) for one in reader.delivered_samples] == [(5, 0), (6, 1), (6, 2)]
    assert reader.story == [0, 1, 2]


def test_nor_where_the_run_before_was_on_another_page() -> None:
    reader = Reader(DeliveryOptions(history_page_samples=2), history=True)
    before, later = sample(0, 5, at=9), [sample(1, 6, at=20), sample(2, 6, at=20.1)]
    reader.live(*(replace(one, epoch=0) for one in (before, *later)))
    reader.page([before], cut_after=before)
    reader.page(later)
    assert reader.story == [0, 1, 2]


def reads_again(*page: Sample) -> Reader:
    """Return one that was given a page, and asks from the beginning for a cache that came since."""
    reader = Reader(history=True)
    reader.handle(AnswererAppeared(reader.now))
    reader.page(list(page))
    assert reader.story == [one.sn for one in page]
    return reader


def begun(epoch: int, *sns: int) -> list[Sample]:
    return [sample(sn, epoch, at=9 + sn / 10) for sn in sns]


def over(epoch: int, *sns: int) -> list[Sample]:
    return [sample(sn, epoch, at=1 + (sn % 100) / 100) for sn in sns]


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("before", [(3, 4, 5), (SOURCE_SN_MODULUS - 2, SOURCE_SN_MODULUS - 1)])
def test_what_was_given_shows_which_run_a_cache_has_without_an_epoch(
    before: tuple[int, ...], both: bool
) -> None:
    """The one that gave it was down for the run before, the other calls it by its time (111171)."""
    reader = reads_again(*begun(0, 0, 1, 2))
    knows_both = [*over(0, *before), *begun(77, 0, 1, 2, 3)]
    reader.page(knows_both, *([begun(0, 0, 1, 2)] if both else []))
    reader.live(sample(4, at=9.4))
    assert not reader.fetches
    assert reader.story == [0, 1, 2, (before[0], before[-1]), 3, 4]
    assert {one.epoch for one in reader.delivered_samples} == {0}
    assert 0 not in {one.epoch for one in reader.missed}


def test_a_later_run_that_another_cache_has_without_an_epoch_is_given() -> None:
    """It was down for the run before, which was given: the numbers are none of that."""
    reader = reads_again(*over(0, 0, 1, 2, 3, 4))
    reader.page(begun(0, 0, 1, 2))
    reader.live(sample(3, at=9.3))
    assert reader.story == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_a_run_that_was_given_is_not_given_again_by_another_name(called: int) -> None:
    reader = reads_again(*begun(FRESH, 0, 1, 2))
    reader.page(begun(called, 0, 1, 2, 3))
    assert reader.story == [0, 1, 2, 3]


@pytest.mark.parametrize("before", [(3, 4), (SOURCE_SN_MODULUS - 2, SOURCE_SN_MODULUS - 1)])
def test_of_a_run_that_began_while_the_newest_were_read_all_is_ours(
    before: tuple[int, int],
) -> None:
    """The run before came while history was asked for, and so did this one (seed 22190)."""
    reader = Reader(history=True, newest=True)
    ended = over(0, *before)
    reader.live(*ended)
    reader.page(ended, cut_after=ended[-1])
    reader.page(begun(FRESH, 2, 3))
    assert reader.wanted[0] == (0, None)
    reader.answer(*begun(FRESH, 1), absent=(absent(0, 0, AbsenceReason.OTHER_KEY, FRESH),))
    while reader.fetches:  # whether anything follows of the run before
        reader.answer()
    assert reader.story == [*before, 1, 2, 3]


def test_a_run_that_was_there_before_begins_with_the_newest_of_it() -> None:
    reader = Reader(history=True, newest=True)
    reader.live(*begun(0, 3))
    reader.page(begun(FRESH, 2, 3))
    assert not reader.fetches
    assert reader.story == [2, 3]


def test_what_was_removed_of_a_run_that_ended_far_above_is_none_of_what_follows_here() -> None:
    """Both have no epoch: whoever answers has only the one before the wrap (seed 302495)."""
    reader = Reader()
    reader.live(sample(0), sample(1))
    reader.handle(TokenGone(SOURCE, "", reader.now))
    while not reader.fetches:
        reader.wait(1)
    [fetch] = reader.fetches
    assert fetch.last is not None
    reader.answer(absent=(absent(fetch.first, fetch.last, AbsenceReason.TRIMMED, 0),))
    for _ in range(10):
        reader.fetches.clear()
        reader.wait(1)
    reader.live(sample(2), sample(3))
    reader.wait(2)  # for a token that never comes
    assert reader.story == [0, 1, 2, 3]


@pytest.mark.parametrize("missing", [False, True])
def test_a_run_that_was_given_by_two_names_is_one_once_that_shows(missing: bool) -> None:
    """Nothing in common was on the page that brought its parts (seed 302824)."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    first = [sample(sn, at=sn / 10) for sn in range(4, 7)]
    second = [sample(sn, FRESH, at=sn / 10) for sn in range(7 + missing, 10)]
    reader.page(first, second, whole=False)
    while not reader.story:
        reader.wait(1)
    ask_again(reader)
    every = [sample(sn, at=sn / 10) for sn in range(4, 11)]
    reader.page(every, [*second, sample(10, FRESH, at=1)])
    given = [4, 5, 6, *[one.sn for one in second]]
    assert reader.story == [*given, *[(7, 7)] * missing, 10]


def test_a_run_that_was_given_without_a_name_is_not_given_again_by_its_name() -> None:
    """The first cache had not seen its token yet (seed 1276 of readers)."""
    reader = Reader(DeliveryOptions(history_timeout_seconds=0.05), history=True)
    reader.page([sample(2, at=2)], whole=False)
    while not reader.story:
        reader.wait(1)
    ask_again(reader)
    name = Incarnation(SOURCE, EPOCH, "aaaaaaaa")
    named = [sample(sn, EPOCH, at=sn) for sn in (1, 2, 3)]
    reader.page_of(AnswerPart([sample(2, at=2)]), AnswerPart(named, (), (name,)))
    assert reader.story == [2, (1, 1), 3]


def test_what_is_held_in_any_order_goes_to_the_run_that_began_at_one_look_each() -> None:
    looks = []

    class Held(dict[int, Sample]):
        def __iter__(self) -> Iterator[int]:
            looks.append(self)
            return super().__iter__()

    before = Numbering(SOURCE, EPOCH, first_sn=0, next_sn=0)
    before.pending = Held()
    for sn in range(500, 0, -1):
        before.hold(sample(sn), 1000)
    assert len(before.let_go_later(sample(0, at=0.0))) == 500
    assert len(looks) < 5
    assert before.top == -1


def test_the_number_that_shows_whether_a_run_ended_is_asked_for() -> None:
    """It lay above all that was held, and lower numbers were given behind it (seed 8397)."""
    reader = Reader()
    reader.live(sample(13, at=0.2))
    reader.live(sample(12, at=0.5))
    reader.declared(FRESH, "aaaaaaaa")
    name = Incarnation(SOURCE, FRESH, "aaaaaaaa")
    reader.answer(names=(name,))
    assert reader.wanted == [(0, 13)]
    times = {2: 0.4, 12: 0.5, 13: 0.2}
    reader.answer(*(sample(sn, FRESH, at=at) for sn, at in times.items()), names=(name,))
    reader.live(sample(14, at=0.7))
    assert reader.story == [13, 14]


def test_what_waits_of_the_run_before_goes_before_one_that_history_brings() -> None:
    """It was taken for a number far ahead in the run that history brought (seed 8221)."""
    reader = Reader(history=True)
    reader.live(sample(44, at=2))
    reader.live(sample(1, at=5), sample(0, at=5), sample(2, at=5))
    reader.page([sample(1, FRESH, at=5), sample(2, FRESH, at=5)])
    while reader.fetches:  # whether anything follows of the run before
        reader.answer()
    assert reader.story == [44, 0, 1, 2]
    assert not reader.engine.gaps_open


def test_what_is_removed_of_a_run_that_another_shows_to_be_earlier_is_no_loss_of_ours() -> None:
    """Two runs without an epoch: the numbers of the earlier one go on further (seed 33961)."""
    reader = Reader()
    reader.live(sample(0, at=50), sample(1, at=51), sample(4, at=54))
    assert reader.wanted == [(2, 3)]
    reader.answer_of(
        AnswerPart([], (absent(2, 3, AbsenceReason.TRIMMED),)),
        AnswerPart([sample(2, at=30), sample(3, at=31)]),
    )
    assert reader.story == [0, 1], "they may still come"


def test_what_is_removed_of_the_run_before_is_no_loss_of_one_that_a_cache_calls_otherwise() -> None:
    """A cache began with the run before, which goes by 0 there; we came since (seed 65999)."""
    reader = Reader()
    reader.live(*(sample(sn, at=50 + sn) for sn in (2, 3)))
    reader.live(sample(6, at=56))
    trimmed = AbsenceReason.TRIMMED
    reader.answer(sample(4, FRESH, at=54), absent=(absent(4, 5, trimmed),))
    assert reader.story == [2, 3, 4]
    reader.live(sample(5, at=55))
    assert reader.story == [2, 3, 4, 5, 6]
    reader.live(sample(10, at=60))
    for _ in range(3):
        if reader.fetches:
            reader.answer(absent=(absent(reader.fetches[0].first, 9, trimmed),))
        reader.wait(1)
    assert reader.story == [2, 3, 4, 5, 6], "they may still come"


def test_what_is_removed_of_it_is_where_an_answer_shows_that_both_go_by_one_epoch() -> None:
    reader = Reader()
    reader.live(*(sample(sn, at=50 + sn) for sn in (2, 3)))
    reader.live(sample(6, at=56))
    reader.answer(sample(4, 0, at=54), absent=(absent(5, 5, AbsenceReason.TRIMMED),))
    assert reader.story == [2, 3, 4, (5, 5), 6]


def test_nor_is_what_is_removed_of_a_run_before_the_one_that_an_answer_shows_to_be_earlier() -> (
    None
):
    """The cache heard two runs before ours, and nothing of it (seed 65232)."""
    reader = Reader()
    reader.live(*(sample(sn, at=50 + sn) for sn in (0, 1)))
    reader.live(sample(10, at=60))
    removed = absent(2, 9, AbsenceReason.TRIMMED)
    reader.answer(sample(2, EPOCH, at=22), absent=(removed,))
    for _ in range(3):
        reader.wait(1)
        if reader.fetches:
            reader.answer(absent=(removed,))  # that is removed, too
    assert reader.story == [0, 1], "they may still come"


def test_what_another_removed_is_where_it_shows_that_it_calls_ours_so() -> None:
    """One cache heard a run before ours; one began with ours, which goes by 0 there."""
    reader = Reader()
    reader.live(*(sample(sn, at=50 + sn) for sn in (0, 1)))
    reader.live(sample(4, at=54))
    reader.answer_of(
        AnswerPart([sample(2, EPOCH, at=22)], (absent(2, 3, AbsenceReason.TRIMMED),)),
        AnswerPart([sample(2, at=52)], (absent(3, 3, AbsenceReason.TRIMMED),)),
    )
    assert reader.story == [0, 1, 2, (3, 3), 4]


@pytest.mark.parametrize("shows", [True, False], ids=["beside a sample of the run", "alone"])
def test_what_is_removed_without_an_epoch_beyond_a_run_is_of_it_where_a_sample_shows_it(
    shows: bool,
) -> None:
    """A cache that was down while a run came calls the run before by no epoch (seed 96632)."""
    reader = Reader()
    reader.live(*(sample(sn, at=1 + sn / 10) for sn in range(3)))
    reader.live(sample(0, at=9))
    fetch = reader.fetches[-1]
    assert (fetch.first, fetch.last) == (3, None)
    given = [sample(4, at=1.4)] if shows else []
    for _ in range(20):
        if reader.fetches:
            reader.answer(*given, absent=(absent(3, 3, AbsenceReason.TRIMMED, 0),))
        reader.wait(1)
    assert reader.story == [0, 1, 2, *([(3, 3), 4] if shows else []), 0]


@pytest.mark.parametrize(
    ("sn", "at", "follows"),
    [
        pytest.param(18, 19.8, [21], id="late"),
        pytest.param(18, 30, [(0, 17), 18, (19, 20), 21], id="later than all"),
        pytest.param(3, 19.8, [(0, 2), 3, (4, 20), 21], id="below what was passed on"),
    ],
)
def test_what_comes_late_of_numbers_that_had_no_room_begins_no_run(
    sn: int, at: float, follows: list[int | tuple[int, int]]
) -> None:
    """They were reported, and what was passed on last is older (seed 104743)."""

    def nobody_has_it() -> None:
        until = reader.seconds + 60
        while reader.seconds < until:
            while reader.fetches:
                reader.answer()
            reader.wait(20)

    reader = Reader(DeliveryOptions(pending_samples_max=2))
    reader.live(sample(0, at=0))
    reader.live(*(sample(above, at=above) for above in (5, 6, 7, 20)))
    nobody_has_it()
    assert reader.story == [0, (1, 4), 5, 6, (7, 20)]
    reader.live(sample(sn, at=at))
    reader.live(sample(21, at=at + 1))
    nobody_has_it()
    assert reader.story[5:] == follows


def test_nor_does_what_was_given_up_while_later_ones_wait() -> None:
    """A cache whose clock jumped had removed it already (seed 78364)."""
    reader = Reader()
    reader.live(sample(4, at=1))
    reader.live(sample(8, at=9.004))
    reader.answer(absent=(absent(5, 5, AbsenceReason.TRIMMED),))
    reader.live(sample(5, at=9.001))
    assert reader.story == [4, (5, 5)]
    reader.wait(1)
    reader.answer(sample(6, at=9.002), sample(7, at=9.003))
    assert reader.story == [4, (5, 5), 6, 7, 8]


def test_what_is_absent_from_two_runs_without_a_name_is_missed_by_neither() -> None:
    """Here it goes by none, there an earlier one does (seed 600121)."""
    reader = Reader()
    reader.live(sample(10), sample(11))
    reader.live(sample(13))
    other_key = absent(12, 12, AbsenceReason.OTHER_KEY, FRESH)
    reader.answer(absent=(other_key, absent(12, 12, AbsenceReason.TRIMMED)))
    assert reader.story == [10, 11]
    reader.wait(1)
    assert reader.wanted == [(11, 13)]
    reader.answer(sample(11, FRESH), sample(13, FRESH), absent=(other_key,))
    assert reader.story == [10, 11, 13]
