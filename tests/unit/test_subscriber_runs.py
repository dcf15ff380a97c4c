"""Which run a sample is of where nobody names it: a foreign one's, or one near a wrap."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame
from durable_cache.protocol.subscriber.events import (
    DeliveryOptions,
    HeartbeatReceived,
    TimePassed,
    TokenGone,
)
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.wire import AbsenceReason, Incarnation, incarnation_after
from tests.unit.subscriber_reader import (
    BEGAN_NS,
    EPOCH,
    FRESH,
    SECOND,
    SOURCE,
    Reader,
    absent,
    sample,
)


def test_what_a_publishers_own_cache_has_of_the_next_run_is_no_rest_of_the_one_before() -> None:
    reader = Reader()
    reader.live(sample(0), sample(1), sample(2))
    reader.live(sample(1, at=9.1), sample(0, at=9))
    assert reader.wanted == [(3, None)]
    reader.answer(sample(3, at=9.3), sample(4, at=9.4))
    reader.live(sample(2, at=9.2), sample(3, at=9.3))
    assert reader.story == [0, 1, 2, 0, 1, 2, 3]


def test_what_the_run_before_held_is_nothing_of_the_next() -> None:
    reader = Reader()
    reader.live(*(sample(sn, at=sn) for sn in range(3)))
    reader.live(sample(1, at=9.1))
    reader.answer(answerers=0)
    assert reader.wanted == [(0, 1)]
    reader.answer(sample(0, at=0), sample(1, at=1))
    assert reader.story == [0, 1, 2]
    reader.live(sample(0, at=9))
    assert reader.story == [0, 1, 2, 0, 1]


def test_what_the_run_before_held_is_nothing_of_the_next_though_all_of_it_came_at_once() -> None:
    reader = Reader()
    reader.live(*(sample(sn) for sn in range(6)))
    reader.live(sample(1, at=9.1), sample(4, at=9.4))
    reader.answer(answerers=0)
    reader.answer(*(sample(sn) for sn in range(5)))
    assert reader.story == [0, 1, 2, 3, 4, 5]
    reader.wait(1)
    reader.answer(*(sample(sn, 77, at=9 + sn / 10) for sn in range(5)))
    assert [one.ntp64 for one in reader.delivered_samples[6:]] == [
        sample(sn, at=9 + sn / 10).ntp64 for sn in range(5)
    ]


def test_what_a_cache_has_of_the_run_before_is_nothing_of_the_next_where_no_number_shows_it() -> (
    None
):
    """The number that came of the next was another key's in the run before: nothing contradicts."""
    other_key = (absent(1, 1, AbsenceReason.OTHER_KEY),)
    before, begun = [sample(0), sample(2)], [sample(0, 77, at=9), sample(1, 77, at=9.1)]
    reader = Reader()
    reader.live(*before)
    reader.answer(absent=other_key)
    reader.live(sample(1, at=9.1))
    reader.answer()
    assert reader.wanted == [(0, 1)]
    reader.answer(sample(0), absent=other_key)
    assert reader.story == [0, 2]
    reader.wait(1)
    reader.answer(*begun)
    assert reader.story == [0, 2, 0, 1]
    assert [one.ntp64 for one in reader.delivered_samples[2:]] == [one.ntp64 for one in begun]


def test_a_name_that_two_observers_made_up_for_two_runs_makes_them_none_the_more_one() -> None:
    """Caches call the run between these two as it would be called that came to us."""
    reader = Reader()
    reader.live(sample(0), sample(1))
    called = frame(BEGAN_NS + 9 * SECOND)
    reader.live(sample(0, at=9), sample(2, at=9.2))
    reader.answer(answerers=0)
    reader.answer(
        sample(1, called, at=4),
        sample(1, called + 1, at=9.1),
        absent=(absent(1, 1, AbsenceReason.OTHER_KEY, called),),
    )
    assert [one.ntp64 for one in reader.delivered_samples[2:]] == [
        sample(sn, at=9 + sn / 10).ntp64 for sn in range(3)
    ]


def test_a_run_of_which_nothing_came_gives_nothing_to_the_one_after_it() -> None:
    reader = Reader()
    reader.live(*(sample(sn) for sn in range(4)))
    reader.live(sample(2, at=9.2))
    reader.answer(answerers=0)
    between = [sample(sn, 5, at=4 + sn / 10) for sn in range(3)]
    reader.answer(*between, *(sample(sn, 6, at=9 + sn / 10) for sn in range(3)))
    assert [one.ntp64 for one in reader.delivered_samples[4:]] == [
        sample(sn, at=9 + sn / 10).ntp64 for sn in range(3)
    ]


def test_a_number_below_one_that_is_held_with_a_later_time_begins_a_run() -> None:
    reader = Reader()
    reader.live(sample(0), sample(5))
    reader.live(sample(3, at=9.3), sample(0, at=9), sample(1, at=9.1), sample(2, at=9.2))
    reader.answer(*(sample(sn) for sn in range(1, 5)))
    reader.wait(1)
    reader.answer()
    assert reader.story == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]


def test_so_it_does_where_a_heartbeat_told_of_a_higher_number() -> None:
    """Nothing with that number came, whose time could be compared (seed 113118)."""
    reader = Reader()
    reader.live(sample(0), sample(5))
    reader.handle(HeartbeatReceived(SOURCE, 6, reader.now))
    reader.live(sample(3, at=9.3), sample(0, at=9), sample(1, at=9.1), sample(2, at=9.2))
    reader.answer(*(sample(sn) for sn in range(1, 5)))
    reader.wait(1)
    reader.answer(sample(6))
    assert reader.story == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3]


@pytest.mark.parametrize("told", [5, 6])
def test_it_takes_the_place_of_no_number_of_the_run_before(told: int) -> None:
    """What that one misses is answered before anything else of the next comes."""
    reader = Reader()
    reader.live(sample(0), sample(5))
    reader.handle(HeartbeatReceived(SOURCE, told, reader.now))
    reader.live(sample(3, at=9.3))
    before = [sample(sn) for sn in range(told + 1)]
    reader.answer(*before[1:5])
    assert reader.delivered_samples == before[:6]


def test_and_where_the_highest_that_was_held_is_let_go() -> None:
    numbering = Numbering(SOURCE, EPOCH, "")
    for held in (sample(5), highest := sample(9, at=9)):
        numbering.hold(held, 10)
    assert not numbering.contradicts(sample(3, at=3))
    assert numbering.let_go(highest) == highest
    assert numbering.contradicts(sample(3, at=3))
    numbering.hold(sample(7, at=9), 10)
    assert not numbering.contradicts(sample(3, at=3))


def test_a_run_that_came_and_went_unheard_gives_no_number_to_the_next_one() -> None:
    """Its cache has of the next one nothing yet: no number there is as it is held here."""
    reader = Reader()
    reader.live(*(sample(sn) for sn in range(3)))
    begun = [sample(sn, at=20 + sn / 10) for sn in range(3)]
    reader.live(*begun[1:])
    assert reader.wanted == [(3, None)]
    reader.answer()
    assert reader.wanted == [(0, 2)]
    reader.answer(*(sample(sn, FRESH + 1, at=9 + sn / 10) for sn in range(2)))
    assert reader.story == [0, 1, 2]
    reader.wait(1)
    reader.answer(*begun)
    assert reader.story == [0, 1, 2, 0, 1, 2]
    assert [one.ntp64 for one in reader.delivered_samples[3:]] == [one.ntp64 for one in begun]


def test_times_that_caches_stamped_tell_no_runs_apart() -> None:
    """Each stamps what has no time of its own as it comes."""
    reader, last = Reader(), SOURCE_SN_MODULUS - 1
    ended, *begun = [msgspec.structs.replace(sample(sn, at=5), stamped=True) for sn in (last, 0, 1)]
    reader.live(ended, begun[1])
    assert reader.wanted == [(0, 1)]
    reader.answer(*(msgspec.structs.replace(one, ntp64=one.ntp64 + 1) for one in begun))
    assert reader.story == [last, 0, 1]


def test_a_run_is_called_by_the_time_of_its_sample_whatever_our_clock() -> None:
    """Caches call it so, and what they say of other keys' numbers is of that name."""
    reader = Reader()
    reader.live(sample(0), sample(1))
    reader.seconds = 500
    reader.live(sample(0, at=100), sample(3, at=100.3))
    reader.answer(answerers=0)
    called = frame(BEGAN_NS + 100 * SECOND)
    reader.answer(absent=(absent(1, 2, AbsenceReason.OTHER_KEY, called),))
    assert reader.story == [0, 1, 0, 3]


def test_an_answerer_that_calls_a_run_otherwise_explains_its_numbers_too() -> None:
    reader = Reader()
    reader.live(sample(0), sample(1))
    reader.live(sample(0, at=9), sample(4, at=9.4))
    reader.answer(answerers=0)
    reader.answer(
        sample(2, 77, at=9.2),
        absent=(
            absent(1, 1, AbsenceReason.OTHER_KEY, 77),
            absent(3, 3, AbsenceReason.OTHER_KEY, 77),
        ),
    )
    assert reader.story == [0, 1, 0, 2, 4]


def test_absences_of_a_run_that_is_called_otherwise_are_believed_once_that_shows() -> None:
    """All that is missing is other keys': the number before it shows which run is meant."""
    reader = Reader()
    reader.live(sample(0), sample(1))
    reader.live(sample(0, at=9), sample(3, at=9.3))
    reader.answer(answerers=0)
    other_keys = (absent(1, 2, AbsenceReason.OTHER_KEY, 77),)
    reader.answer(absent=other_keys)
    assert reader.story == [0, 1, 0]
    reader.wait(1)
    assert reader.wanted == [(0, 3)]
    reader.answer(sample(0, 77, at=9), absent=other_keys)
    assert reader.story == [0, 1, 0, 3]


def test_what_is_held_behind_the_missing_numbers_shows_which_run_is_meant_too() -> None:
    """Whoever explains them never had what was passed on before them (seed 9273)."""
    reader = Reader()
    reader.live(sample(0), sample(1))
    reader.live(sample(0, at=9), sample(3, at=9.3))
    reader.answer(answerers=0)
    other_keys = (absent(1, 2, AbsenceReason.OTHER_KEY, 77),)
    reader.answer(absent=other_keys)
    reader.wait(1)
    reader.answer(sample(3, 77, at=9.3), absent=other_keys)
    assert reader.story == [0, 1, 0, 3]


def test_absences_of_a_run_called_otherwise_are_believed_though_its_last_numbers_went_by() -> None:
    """What was passed on last shows which run is meant, not the number before the hole."""
    reader = Reader(DeliveryOptions(gap_timeout_seconds=1))
    reader.live(sample(0), sample(1))
    reader.live(*(sample(sn, at=9 + sn / 10) for sn in range(2)))
    reader.answer(answerers=0)
    reader.handle(HeartbeatReceived(SOURCE, 2, reader.now))
    while (2, 2) not in reader.story:
        while reader.fetches:
            reader.answer(absent=(absent(2, 2, AbsenceReason.OTHER_KEY, 77),))
        reader.wait(1)
    reader.handle(HeartbeatReceived(SOURCE, 3, reader.now))
    assert reader.wanted == [(0, 3)]
    reader.answer(sample(1, 77, at=9.1), absent=(absent(2, 3, AbsenceReason.OTHER_KEY, 77),))
    reader.live(sample(4, at=9.4))
    assert reader.story == [0, 1, 0, 1, (2, 2), 4]


def test_who_lacks_what_was_passed_on_last_shows_by_an_earlier_number_which_run_it_means() -> None:
    """Twice as many are asked for with the hole each time, down to the first of the run."""
    reader = Reader()
    reader.live(sample(0), sample(1))
    reader.live(*(sample(sn, at=9 + sn) for sn in range(4)))
    reader.handle(HeartbeatReceived(SOURCE, 4, reader.now))
    reader.answer(answerers=0)
    other_keys = (absent(4, 4, AbsenceReason.OTHER_KEY, 77),)
    asked = []
    for _ in range(4):
        asked += reader.wanted
        reader.answer(absent=other_keys)
        reader.wait(2)
    assert asked == [(4, 4), (3, 4), (2, 4), (0, 4)]
    reader.answer(sample(1, 77, at=10), absent=other_keys)
    reader.live(sample(5, at=14))
    assert reader.story == [0, 1, 0, 1, 2, 3, 5]


def test_what_an_answerer_explains_of_a_later_run_explains_nothing_of_this() -> None:
    reader = Reader()
    reader.live(sample(0))
    reader.handle(HeartbeatReceived(SOURCE, 2, reader.now))
    other_keys = (absent(1, 2, AbsenceReason.OTHER_KEY, 77),)
    reader.answer(absent=other_keys)
    reader.wait(1)
    assert reader.wanted == [(0, 2)]
    reader.answer(sample(0, 77, at=9), absent=other_keys)
    reader.live(sample(1))
    assert reader.story == [0, 1]


def test_the_first_number_after_a_declared_wrap_is_its_runs_though_no_other_came() -> None:
    """Its token is overtaken, and of the run before nothing was heard but the name."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0))
    reader.declared(FRESH, incarnation_after("0000000a"))
    reader.live(sample(1), sample(2))
    assert reader.story == [0, 1, 2]
    assert reader.fetches == []


def test_what_came_before_a_wrap_is_no_number_far_ahead() -> None:
    reader = Reader()
    reader.live(sample(0, at=1.0))
    reader.live(sample(SOURCE_SN_MODULUS - 2, at=0.8), sample(SOURCE_SN_MODULUS - 1, at=0.9))
    reader.live(sample(1, at=1.1))
    assert reader.story == [0, 1]
    assert reader.fetches == []


def test_the_last_number_before_a_wrap_is_none_of_the_run_behind_it_of_which_nothing_came() -> None:
    """Its token is looked at first, and of the run before nothing was heard (seed 1160)."""
    reader = Reader()
    reader.declared(FRESH, incarnation_after("0000000a"))
    reader.live(sample(SOURCE_SN_MODULUS - 1, at=0.9), sample(0, at=1.0))
    assert reader.story == [0]
    assert reader.fetches == []


def test_a_heartbeat_of_before_a_wrap_says_nothing_of_the_run_behind_it() -> None:
    """What was published since overtook it; a cache has the number, of the run before (1139)."""
    reader, last = Reader(), SOURCE_SN_MODULUS - 1
    reader.live(sample(last - 1, at=1.0), sample(last, at=1.1), sample(0, at=1.2))
    while reader.fetches:
        reader.answer()
    reader.handle(HeartbeatReceived(SOURCE, last - 1, reader.now))
    assert reader.wanted == []
    reader.live(sample(1, at=1.3))
    assert reader.story == [last - 1, last, 0, 1]


def test_the_last_numbers_before_a_wrap_go_before_it_though_the_first_behind_it_was_faster() -> (
    None
):
    reader, last = Reader(), SOURCE_SN_MODULUS - 1
    reader.live(sample(last - 2, at=1.0), sample(0, at=1.3))
    reader.live(sample(last, at=1.2), sample(last - 1, at=1.1))
    assert reader.story == [last - 2, last - 1, last, 0]
    assert reader.engine.duplicates == 0


def test_the_rest_of_a_run_is_taken_though_its_threads_overlap_with_what_follows_the_wrap() -> None:
    reader = Reader()
    last = SOURCE_SN_MODULUS - 1
    reader.live(sample(last - 2, at=1.0), sample(last, at=1.02), sample(0, at=1.01))
    assert reader.wanted == [(last - 1, last - 1)]
    reader.answer(sample(last - 1, at=1.03))
    assert reader.story == [last - 2, last - 1, last, 0]


def test_the_first_behind_a_wrap_is_taken_though_threads_overlap_with_what_came_before() -> None:
    """Caches call the run by the time of that number, and we by that of the one that came."""
    reader = Reader()
    last = SOURCE_SN_MODULUS - 1
    reader.live(sample(last, at=1.02), sample(1, at=9))
    assert reader.wanted == [(0, 1)]
    reader.answer(sample(0, FRESH, at=1.0), sample(1, FRESH, at=9))
    assert reader.story == [last, 0, 1]


def test_what_comes_with_a_number_of_the_next_run_is_no_rest_of_the_one_before() -> None:
    """Its publisher began anew at once, and one of its threads stamped a number a bit early."""
    reader = Reader()
    reader.live(sample(0, at=1), sample(1, at=1.1))
    reader.live(sample(1, at=1.25), sample(2, at=1.25))
    assert reader.wanted == [(2, None)]
    reader.answer(sample(2, at=1.25), sample(3, at=1.2))
    reader.answer(*(sample(sn, at=1.25) for sn in range(2)))
    reader.live(sample(3, at=1.2), sample(4, at=1.25))
    assert reader.story == [0, 1, 0, 1, 2, 3, 4]


def test_a_number_that_shows_a_later_time_is_of_no_run_whose_token_comes_much_later() -> None:
    """Its publisher's clock went back: it came before the first that was delivered."""
    for seconds, begins in ((0.5, 30), (5, 40)):
        reader = Reader()
        reader.declared(EPOCH, "aaaaaaaa")
        reader.live(sample(4, at=1), sample(0, at=30))
        reader.seconds += seconds
        reader.declared(FRESH + 5, "bbbbbbbb")
        reader.live(sample(0, at=40))
        reader.answer()
        assert reader.story == [4, 0]
        assert reader.delivered_samples[1].ntp64 == sample(0, at=begins).ntp64


def test_what_was_asked_for_of_a_later_run_waits_until_the_one_before_is_at_its_end() -> None:
    reader = Reader(DeliveryOptions(periodic_queries_seconds=1))
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(2))
    reader.declared(FRESH, "bbbbbbbb")
    for reader.seconds in (1, 2, 3):
        reader.handle(TimePassed(reader.now))
    assert reader.wanted == [(1, 1), (0, None)]
    first = reader.fetches.pop(0)
    reader.answer(sample(0, FRESH, at=9), names=names)
    assert reader.story == [0]
    reader.fetches = [first, *reader.fetches]
    reader.answer(sample(1, EPOCH), names=names)
    reader.wait(5)
    assert reader.wanted[0] == (3, None)
    reader.answer(names=names)
    assert reader.story == [0, 1, 2, 0]


def test_what_an_answer_names_is_of_its_run_though_all_before_it_is_lost() -> None:
    """The publisher's clock was set back: it publishes as if it had not restarted."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1))
    reader.declared(FRESH, "0000000b")
    reader.live(sample(3))
    for _ in range(60):
        if reader.fetches:
            reader.answer(sample(3, FRESH), names=names)
        reader.wait(1)
    assert reader.story == [0, 1, (0, 2), 3]


def test_what_a_cache_has_without_a_name_from_before_a_run_began_is_none_of_it() -> None:
    """It stored it before the token of an earlier run came, which it never saw."""
    later = FRESH + 4
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, later, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(*(sample(sn) for sn in range(5)))
    reader.seconds += 40
    reader.handle(TokenGone(SOURCE, "0000000a", reader.now))
    reader.declared(later, "0000000b")
    for _ in range(60):
        if reader.fetches:
            reader.answer(sample(4), names=names)
        reader.wait(1)
    assert reader.story == [0, 1, 2, 3, 4]
    reader.live(sample(0, at=41), sample(1, at=41.1))
    reader.answer(names=names)
    assert reader.story == [0, 1, 2, 3, 4, 0, 1]


def test_the_last_of_a_run_that_waits_behind_a_hole_of_the_next_is_put_right() -> None:
    """It came behind the next run's token; what is missing before it is none of that run's."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0))
    reader.declared(FRESH, "0000000b")
    reader.live(sample(3))
    reader.live(sample(0, at=9))
    reader.answer(names=names)
    reader.answer(sample(0, FRESH, at=9), names=names)
    assert reader.story == [0, 0]
    reader.wait(1)
    assert reader.wanted == [(1, 3)]
    reader.answer(sample(3, EPOCH), names=names)
    assert reader.story == [0, 0, (1, 3)], "of the run before"
    reader.live(sample(1, at=9.1))
    assert reader.story == [0, 0, (1, 3), 1]


def test_a_number_far_ahead_is_none_of_the_run_that_ended_though_that_came_as_far() -> None:
    """Much of the run that is delivered was lost on its way; a cache has it."""
    names = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))
    reader = Reader(DeliveryOptions(window_size_samples=10))
    reader.declared(EPOCH, "0000000a")
    reader.live(*(sample(sn) for sn in range(100)))
    reader.declared(FRESH, "0000000b")
    begun = [sample(sn, at=9 + sn / 10) for sn in range(110)]
    reader.live(begun[0])
    reader.answer(names=names)
    reader.live(*begun[95:])
    named = [msgspec.structs.replace(one, epoch=FRESH) for one in begun]
    while reader.fetches:
        first, last = reader.fetches[0].first, reader.fetches[0].last
        reader.answer(*named[first : None if last is None else last + 1], names=names)
    assert reader.story == [*range(100), *range(110)]
    assert reader.engine.missed == 0


# What times showed before a token was here


def test_a_clock_that_went_back_before_the_token_came_begins_no_run() -> None:
    """The token names a run that began before what looked like the beginning of another."""
    reader = Reader()
    reader.seconds = 60
    reader.live(sample(40, at=15))
    reader.live(sample(38, at=60))
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(41, at=60.1))
    name = Incarnation(SOURCE, EPOCH, "aaaaaaaa")
    while reader.fetches:
        reader.answer(*(sample(sn, EPOCH, at=60) for sn in (38, 39, 40, 41)), names=(name,))
    assert reader.story == [40, 41]


def test_what_is_held_of_a_run_that_is_none_goes_on_with_the_one_that_is_delivered() -> None:
    reader = Reader()
    reader.seconds = 60
    reader.live(sample(40, at=15))
    reader.live(sample(38, at=60), sample(41, at=60), sample(43, at=60))
    reader.declared(EPOCH, "aaaaaaaa")
    reader.answer(answerers=0)
    reader.wait(1)
    assert reader.wanted == [(42, 42)]
    reader.answer(sample(42, EPOCH, at=60), names=(Incarnation(SOURCE, EPOCH, "aaaaaaaa"),))
    assert reader.story == [40, 41, 42, 43]


def test_a_run_that_began_before_its_token_came_stays_one() -> None:
    """Its token names a time that is not before it: it may be its own."""
    reader = Reader()
    reader.seconds = 60
    reader.live(sample(40, at=15))
    reader.live(sample(0, at=60), sample(1, at=60.1))
    reader.declared(frame(BEGAN_NS + 60 * SECOND), "aaaaaaaa")
    reader.answer()
    assert reader.story == [40, 0, 1]


def test_an_answer_shows_that_a_run_that_ended_is_the_one_that_is_delivered() -> None:
    """The first sample that came of it bears the name of the other: nothing is given twice."""
    reader = Reader()
    reader.live(sample(11, at=0.2))
    reader.live(sample(4, at=0.5), sample(9, at=0.5), sample(13, at=0.6))
    reader.declared(FRESH, "aaaaaaaa")
    name = Incarnation(SOURCE, FRESH, "aaaaaaaa")
    reader.answer(names=(name,))
    times = {4: 0.5, 9: 0.5, 11: 0.2, 12: 0.6, 13: 0.6}
    for _ in range(5):
        reader.wait(0.5)
        while reader.fetches:
            given = (sample(sn, FRESH, at=at) for sn, at in times.items())
            reader.answer(*given, names=(name,))
    reader.live(sample(14, at=0.7))
    assert reader.story == [11, 12, 13, 14]


def test_what_waited_for_its_token_in_vain_is_given_once() -> None:
    """It was passed on as the last of the run before, of which nothing else ever came."""
    reader = Reader()
    reader.declared(FRESH, "aaaaaaaa")
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.live(sample(0), sample(1))
    reader.wait(2)
    assert reader.story == [0, 1]
    reader.declared(FRESH + 1, "bbbbbbbb")
    reader.live(sample(3), sample(2))
    names = (Incarnation(SOURCE, FRESH, "aaaaaaaa"), Incarnation(SOURCE, FRESH + 1, "bbbbbbbb"))
    for _ in range(5):
        while reader.fetches:
            reader.answer(*(sample(sn, FRESH + 1) for sn in range(4)), names=names)
        reader.wait(0.5)
    assert reader.story == [0, 1, 2, 3]


def test_no_two_runs_go_by_one_epoch_whatever_a_cache_calls_the_later_one() -> None:
    """Who did not hear of the run before calls the next one as that goes here (seed 20117)."""
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0), sample(1))
    reader.seconds = 5
    reader.declared(EPOCH, "bbbbbbbb")
    reader.declared(EPOCH, "cccccccc")
    reader.live(sample(0, at=9), sample(2, at=9.2))
    names = (Incarnation(SOURCE, EPOCH + 1, "cccccccc"),)
    for _ in range(60):
        if reader.fetches:
            reader.answer(names=names)
        reader.wait(1)
    epochs = [run.epoch for run in reader.engine._sources.followed[SOURCE].numberings]
    assert epochs == [EPOCH + 2]
    assert reader.story == [0, 1, 0, (1, 1), 2]


def test_what_was_published_after_the_first_of_a_run_is_none_of_the_run_before() -> None:
    """It came first, and goes on where the run before it ended (seed 301742)."""
    reader = Reader()
    reader.live(*(sample(sn) for sn in range(4)))
    reader.live(sample(5, at=9.5))
    reader.live(sample(1, at=9.1))
    begun = [sample(sn, at=9 + sn / 10) for sn in range(6)]
    for _ in range(60):
        while reader.fetches:
            reader.answer(*begun)
        reader.wait(1)
    assert reader.story == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
