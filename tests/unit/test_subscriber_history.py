"""How a subscriber reads history before it follows what is published."""

from __future__ import annotations

import pytest

from durable_cache.model.sample import SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswererAppeared,
    AnswerPart,
    DeliveryOptions,
    HeartbeatReceived,
    HistoryFailed,
    HistoryPage,
)
from durable_cache.protocol.wire import AbsenceReason, Incarnation, incarnation_after
from tests.unit.subscriber_reader import (
    BEGAN_NS,
    EPOCH,
    FRESH,
    OTHER,
    SECOND,
    SOURCE,
    Reader,
    absent,
    sample,
)


def test_history_comes_first_in_order_of_time_whatever_source() -> None:
    """K27: a late joiner ends on the newest value."""
    reader = Reader(history=True)
    old = [sample(sn, 5, at=sn / 10, source=SourceId("ff", 1)) for sn in range(5)]
    new = [sample(sn, 6, at=1 + sn / 10, source=SourceId("aa", 1)) for sn in range(5)]
    reader.live(sample(5, at=2, source=SourceId("aa", 1)))
    assert reader.story == []
    reader.page(sorted(old + new, key=lambda one: one.order))
    assert reader.delivered_samples[:10] == old + new
    assert reader.engine.history_complete
    assert reader.story[-1] == 5


@pytest.mark.parametrize("named", [True, False])
def test_two_runs_that_two_caches_have_without_an_epoch_are_two(named: bool) -> None:
    """One cache was down when the other heard the first of them."""
    reader = Reader(history=True)
    one = [sample(sn, at=sn / 10) for sn in range(4)]
    two = [sample(sn, at=50 + sn / 10) for sn in range(4)]
    called = frame(BEGAN_NS + 40 * SECOND)
    also = [sample(sn, called, at=50 + sn / 10) for sn in (1, 2, 3)] if named else []
    reader.page([*one, *also], [two[0], two[2], *([] if named else two)])
    assert reader.story == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [one.ntp64 for one in reader.delivered_samples] == [s.ntp64 for s in (*one, *two)]
    assert {one.epoch for one in reader.delivered_samples[4:]} == {
        called if named else frame(BEGAN_NS + 50 * SECOND)
    }


def test_two_runs_without_an_epoch_are_two_where_one_cache_parts_them() -> None:
    """It calls by an epoch what the other has without one, and has another run without one."""
    reader = Reader(history=True)
    before, begun = [sample(33, at=1)], [sample(sn, at=9 + sn / 10) for sn in range(2)]
    reader.page(begun, [*before, *(sample(sn, 77, at=9 + sn / 10) for sn in range(2))])
    assert reader.wanted == []
    assert reader.story == [33, 0, 1]
    assert [one.epoch for one in reader.delivered_samples] == [0, 77, 77]


def test_what_came_while_the_newest_were_read_comes_with_them() -> None:
    """Nobody names the run; the caches give the newest of each key, as they were asked to."""
    reader = Reader(history=True)
    reader.live(sample(9, at=1), *(sample(sn, at=5 + sn / 10) for sn in (1, 0, 3, 4)))
    reader.page([sample(9, at=1)], [sample(sn, 77, at=5 + sn / 10) for sn in (3, 4)])
    assert reader.wanted == [(2, 2)]
    reader.answer(sample(2, 77, at=5.2))
    assert reader.story == [9, 0, 1, 2, 3, 4]
    assert {one.epoch for one in reader.delivered_samples[1:]} == {77}


def test_a_page_is_asked_for_behind_the_earliest_cut() -> None:
    reader = Reader(history=True)
    one, two = [sample(sn, 5) for sn in range(4)], [sample(sn, 5) for sn in range(9)]
    reader.page(one, two, cut_after=one[-1])
    assert reader.delivered == [0, 1, 2, 3]
    assert reader.asked[0].after == one[-1]
    reader.page(two[4:])
    assert reader.delivered == list(range(9))
    assert reader.engine.history_complete


def test_timestamps_that_go_back_do_not_break_the_sources_order() -> None:
    reader = Reader(history=True)
    reader.page([sample(1, 5, at=0.1), sample(0, 5, at=0.3), sample(2, 5, at=0.2)])
    assert reader.story == [0, 1, 2]


@pytest.mark.parametrize("how", ["failed", "nobody", "partly"])
def test_history_is_asked_again_until_somebody_answers_it_whole(how: str) -> None:
    """K5."""
    reader = Reader(history=True)
    for _ in range(3):
        match how:
            case "failed":
                question = reader.asked.pop(0).question_id
                reader.handle(HistoryFailed(question, "away", reader.now))
            case "nobody":
                reader.page()
            case _:
                reader.page([sample(1, 5)], whole=False)
        assert not reader.engine.history_complete
        assert reader.story == []
        reader.wait(5)
    reader.page([sample(0, 5), sample(1, 5)])
    assert reader.story == [0, 1]
    assert reader.engine.history_complete


def test_live_samples_go_through_when_nobody_answers_in_time() -> None:
    reader = Reader(DeliveryOptions(history_timeout_seconds=3), history=True)
    reader.live(sample(7))
    while reader.asked:
        reader.page()
        reader.wait(5)
    assert reader.story == [7]
    assert not reader.engine.history_complete
    reader.handle(AnswererAppeared(reader.now))
    reader.page(
        [
            *(sample(sn, 0) for sn in range(8)),
            *(sample(sn, 3, source=OTHER, at=1) for sn in range(3)),
        ]
    )
    assert reader.story == [7, (0, 6), 0, 1, 2]  # too late to be in order; still in time
    assert reader.engine.history_complete


@pytest.mark.parametrize("appears", [False, True])
def test_a_cache_in_reach_that_never_answered_in_time_is_asked_again(appears: bool) -> None:
    """Its answers were lost, or it was slow: no other cache has to appear first."""
    options = DeliveryOptions(history_timeout_seconds=3)
    reader = Reader(options, history=True, answerers_known=not appears)
    if appears:
        reader.handle(AnswererAppeared(reader.now))
    reader.live(sample(2, 5))
    while not reader.story:
        reader.page()
        reader.wait(5)
    assert not reader.engine.history_complete
    for _ in range(3):
        reader.wait(10)
        reader.page()
    reader.wait(10)
    reader.page([sample(sn, 5) for sn in range(3)])
    assert reader.engine.history_complete
    assert reader.story == [2, (0, 1)]


def test_what_is_partly_answered_is_delivered_when_the_time_is_over() -> None:
    reader = Reader(DeliveryOptions(history_timeout_seconds=3), history=True)
    while reader.asked and not reader.story:
        reader.page([sample(0, 5), sample(1, 5)], whole=False)
        reader.wait(5)
    assert reader.story == [0, 1]
    assert not reader.engine.history_complete


def test_holes_of_history_are_explained_before_the_page_is_delivered() -> None:
    reader = Reader(history=True)
    other = sample(0, 1, at=9, source=OTHER)
    before = [sample(sn, 5, at=sn - 9) for sn in (0, 2, 5, 7)]
    reader.page([*before, other])
    assert reader.wanted == [(1, 6)]
    assert reader.story == []
    reader.answer(
        sample(6, 5, at=-3),
        absent=(
            absent(1, 1, AbsenceReason.OTHER_KEY, 5),
            absent(3, 3, AbsenceReason.TRIMMED, 5),
            absent(4, 4, AbsenceReason.SKIPPED, 5),
        ),
    )
    assert reader.story == [0, 2, (4, 4), 5, 6, 7, 0]


def test_a_token_that_is_listed_again_while_history_is_read_is_of_no_run_that_began() -> None:
    """A link that was cut: the publisher is the same."""
    reader = Reader(history=True)
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(6))
    reader.seconds = 5
    reader.declared(EPOCH, "0000000a")
    reader.page([sample(5, EPOCH)], names=(Incarnation(SOURCE, EPOCH, "0000000a"),))
    assert reader.fetches == []
    assert reader.story == [5, 6]


def test_what_a_publishers_own_cache_has_of_its_next_run_fills_no_hole_of_an_older_one() -> None:
    reader = Reader(history=True)
    reader.page([sample(0), sample(2), sample(0, 7, at=9), sample(1, 7, at=9.1)])
    assert reader.wanted == [(1, 1)]
    reader.answer(sample(1, at=9.1), absent=(absent(1, 1, AbsenceReason.SKIPPED),))
    assert reader.story == [0, (1, 1), 2, 0, 1]


def test_what_nobody_explains_is_reported_after_the_gap_timeout() -> None:
    reader = Reader(DeliveryOptions(gap_timeout_seconds=2), history=True)
    reader.page([sample(0, 5), sample(2, 5)])
    while not reader.story:
        reader.answer() if reader.fetches else None
        reader.wait(1)
    assert reader.story == [0, (1, 1), 2]
    assert 2 <= reader.seconds < 4


def test_live_samples_that_do_not_fit_while_history_runs_come_from_caches() -> None:
    reader = Reader(DeliveryOptions(pending_samples_max=5), history=True)
    reader.live(*(sample(sn) for sn in range(10, 40)))
    reader.page([sample(sn, 5) for sn in range(10)])
    assert reader.delivered == list(range(16))
    while reader.fetches:
        fetch = reader.fetches[0]
        assert fetch.last is not None
        reader.answer(*(sample(sn) for sn in range(fetch.first, fetch.last + 1)))
    assert reader.delivered == list(range(40))


def test_a_run_read_before_its_successor_leaves_nothing_to_it() -> None:
    """What was held back of a run whose end history brought is no sample of the next."""
    top = SOURCE_SN_MODULUS - 1
    reader = Reader(history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(top - 1, at=1), sample(top, at=2))
    reader.declared(FRESH, incarnation_after("aaaaaaaa"))
    reader.live(sample(0, at=3))
    read = [sample(top - 1, EPOCH, at=1), sample(top, EPOCH, at=2), sample(0, FRESH, at=3)]
    names = Incarnation(SOURCE, FRESH, incarnation_after("aaaaaaaa"))
    reader.page(read, names=(names,))
    reader.live(sample(1, at=4))
    assert reader.story == [top - 1, top, 0, 1]
    assert not reader.fetches


def test_a_run_comes_before_its_successor_whatever_its_timestamps() -> None:
    reader = Reader(history=True)
    old = [sample(sn, 5, at=10 + sn) for sn in range(7, 10)]
    new = [sample(sn, 6, at=sn) for sn in range(3)]
    other = [sample(sn, 5, at=3 + 4 * sn, source=OTHER) for sn in range(4)]
    reader.page(sorted(old + new + other, key=lambda one: one.time_order))
    assert [one for one in reader.delivered_samples if one.source == SOURCE] == old + new
    assert [one for one in reader.delivered_samples if one.source == OTHER] == other


@pytest.mark.parametrize(("at", "story"), [(-9, [0, 3]), (9, [0, (1, 2), 3])])
def test_what_caches_removed_is_missed_where_it_was_published_since_we_came(
    at: float, story: list[int | tuple[int, int]]
) -> None:
    """Nobody is told what went before; what went while history is read is (seed 22338)."""
    reader = Reader(history=True)
    reader.page([sample(0, 5, at=at), sample(3, 5, at=at + 3)])
    reader.answer(absent=(absent(1, 2, AbsenceReason.TRIMMED, 5),))
    assert reader.story == story


def test_what_one_cache_removed_before_we_came_comes_from_another_that_was_slow() -> None:
    """Not everybody answered: what the one that did removed, another may have (seed 233)."""
    reader = Reader(history=True)
    reader.page([sample(0, 5, at=-9), sample(3, 5, at=-6)])
    reader.answer(absent=(absent(1, 2, AbsenceReason.TRIMMED, 5),), whole=False)
    assert reader.story == []
    reader.wait(1)
    reader.answer(sample(1, 5, at=-8), sample(2, 5, at=-7))
    assert reader.story == [0, 1, 2, 3]


def test_holes_of_history_are_asked_for_behind_a_cut() -> None:
    reader = Reader(history=True)
    reader.page([sample(0, 5), sample(3, 5)])
    other = sample(1, 4)
    reader.answer(other, absent=(absent(1, 2, AbsenceReason.SKIPPED, 5),), cut=True)
    assert (reader.wanted, reader.fetches[0].after) == ([(1, 2)], other)
    reader.answer(sample(1, 5), sample(2, 5))
    assert reader.story == [0, 1, 2, 3]


def test_a_run_that_two_caches_call_differently_comes_once() -> None:
    """One cache did not see the first run, and calls the second by the first one's epoch."""
    reader = Reader(history=True)
    first = [sample(sn, 5, at=sn) for sn in range(3)]
    second = [sample(sn, 6, at=10 + sn) for sn in range(4)]
    misnamed = [sample(sn, 5, at=10 + sn) for sn in range(4)]
    knows_both = AnswerPart(
        first + second,
        (),
        (Incarnation(SOURCE, 5, "aaaaaaaa"), Incarnation(SOURCE, 6, "bbbbbbbb")),
    )
    knows_one = AnswerPart(misnamed, (), (Incarnation(SOURCE, 5, "bbbbbbbb"),))
    answer = Answer((knows_one, knows_both), 2)
    reader.handle(HistoryPage(reader.asked.pop().question_id, answer, reader.now))
    assert reader.story == [0, 1, 2, 0, 1, 2, 3]
    assert reader.delivered_samples == first + second


def test_a_run_whose_successor_was_read_already_is_reported() -> None:
    reader = Reader(history=True)
    later = [sample(sn, 6, at=sn) for sn in range(2)]
    reader.page(later, cut_after=later[-1])
    reader.page([sample(sn, 5, at=10 + sn) for sn in range(3)])
    assert reader.story == [0, 1, (0, 2)]


def test_a_token_waits_behind_the_samples_that_came_before_it() -> None:
    """What was held back of a run while history was read is no sample of the next run."""
    reader = Reader(history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(2, at=2), sample(3, at=3))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(0, at=4))
    reader.page([sample(sn, EPOCH, at=sn) for sn in range(3)])
    assert reader.wanted == [(4, None)]
    reader.answer()
    assert reader.story == [0, 1, 2, 3, 0]


def test_a_sample_that_history_brought_with_the_run_before_is_not_taken_for_the_next_runs() -> None:
    reader = Reader(history=True)
    reader.live(sample(1), sample(2))
    reader.declared(EPOCH + 1, "bbbbbbbb")
    one = [sample(sn, EPOCH) for sn in range(3)]
    two = [sample(sn, EPOCH + 1, at=1 + sn / 10) for sn in range(2)]
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, EPOCH + 1, "bbbbbbbb"))
    reader.page([*one, *two], names=names)
    assert reader.story == [0, 1, 2, 0, 1]
    reader.live(sample(2, at=3))
    assert reader.story == [0, 1, 2, 0, 1, 2]


def test_of_a_run_that_began_while_history_was_read_all_is_ours() -> None:
    """Its first samples were lost on the way to us and have not reached the caches either."""
    for heard in ((), (sample(9, EPOCH, at=0),)):
        reader = Reader(history=True)
        reader.declared(EPOCH, "aaaaaaaa")
        reader.live(*heard)
        reader.seconds = 5
        reader.declared(FRESH, "bbbbbbbb")
        reader.live(sample(3, at=7))
        names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
        reader.page([*heard, *(sample(sn, FRESH, at=6) for sn in (2, 3))], names=names)
        assert reader.wanted == [(0, 1)]
        reader.answer(sample(0, FRESH, at=5), sample(1, FRESH, at=5), names=names)
        assert reader.story == [*(one.sn for one in heard), 0, 1, 2, 3]


def test_a_run_that_waits_for_the_one_history_brought_begins_with_the_lowest_that_came() -> None:
    """Its token was listed as the subscriber began, and the network changed the order."""
    reader = Reader(history=True)
    reader.declared(EPOCH + 1, "bbbbbbbb")
    reader.page(
        [sample(sn, EPOCH) for sn in range(3)], names=(Incarnation(SOURCE, EPOCH, "aaaaaaaa"),)
    )
    reader.live(sample(2, at=9), sample(1, at=8), sample(0, at=9.1))
    reader.answer()
    reader.answer()
    reader.declared(EPOCH + 2, "cccccccc")
    assert reader.story == [0, 1, 2, 0, 1, 2]


def test_of_an_idle_run_whose_first_number_is_lost_that_is_asked_for() -> None:
    """Nobody had anything of it when all history was read (seed 35857)."""
    reader = Reader(history=True)
    reader.declared(EPOCH + 1, "bbbbbbbb")
    reader.page([sample(0, EPOCH)], names=(Incarnation(SOURCE, EPOCH, "aaaaaaaa"),))
    reader.live(sample(1, at=9))
    assert reader.wanted == [(0, 0), (1, None)]
    names = (Incarnation(SOURCE, EPOCH + 1, "bbbbbbbb"),)
    reader.answer(sample(0, EPOCH + 1, at=8), names=names)
    reader.answer()
    assert reader.story == [0, 0, 1]


def test_an_idle_run_whose_numbers_wrap_as_it_begins_is_given_in_order() -> None:
    """What is before its first number is being asked for (seed 1789)."""
    last = SOURCE_SN_MODULUS - 1
    reader = Reader(history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.page([])
    reader.live(sample(last - 1, at=1), sample(last, at=2), sample(0, at=3), sample(1, at=4))
    reader.declared(FRESH, incarnation_after("aaaaaaaa"))
    while reader.fetches:
        reader.answer()
    assert [one.sn for one in reader.delivered_samples] == [last - 1, last, 0, 1]


def test_a_run_that_history_shows_again_behind_its_successor_is_over() -> None:
    reader = Reader(history=True)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(0))
    one, two = sample(0, EPOCH), sample(0, EPOCH + 1, at=1)
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, EPOCH + 1, "bbbbbbbb"))
    reader.page([one], cut_after=one, names=names)
    reader.handle(AnswererAppeared(reader.now))
    reader.page([two], names=names)
    reader.page([one, two], names=names)
    reader.declared(EPOCH + 1, "bbbbbbbb")
    reader.live(sample(1, at=2))
    assert reader.story == [0, 0, 1]


def test_what_waited_of_a_run_that_history_shows_again_is_not_of_its_successor() -> None:
    reader = Reader(history=True)
    reader.live(sample(2))
    page = [sample(0, EPOCH), sample(1, EPOCH), sample(0, EPOCH + 1, at=1)]
    for _ in range(2):
        reader.page(page, cut_after=page[-1])
    reader.page([])
    reader.live(sample(1, at=1.001))
    assert reader.story == [0, 1, 0, (2, 2), 1]


def test_two_runs_that_answerers_call_by_one_epoch_are_two() -> None:
    """A restart within one time frame: the publisher's own cache knows of no run before."""
    reader = Reader(history=True)
    first = [sample(sn, 5, at=sn) for sn in range(3)]
    second = [sample(sn, 5, at=10 + sn) for sn in range(2)]
    own = AnswerPart(second, (), (Incarnation(SOURCE, 5, "bbbbbbbb"),))
    cache = AnswerPart(
        first, (), (Incarnation(SOURCE, 4, "99999999"), Incarnation(SOURCE, 5, "aaaaaaaa"))
    )
    answer = Answer((own, cache), 2)
    reader.handle(HistoryPage(reader.asked.pop().question_id, answer, reader.now))
    assert reader.story == [0, 1, 2, 0, 1]
    reader.declared(5, "bbbbbbbb")
    reader.live(sample(3, at=13))
    reader.answer(sample(2, 5, at=12), names=(Incarnation(SOURCE, 5, "bbbbbbbb"),))
    assert reader.story == [0, 1, 2, 0, 1, 2, 3]


@pytest.mark.parametrize("restarts", [1, 2])
def test_an_earlier_run_that_is_called_as_its_successor_was_is_reported_under_another_epoch(
    restarts: int,
) -> None:
    """The publisher's own cache was read first; then a cache came that heard every run."""
    reader = Reader(history=True)
    names = [Incarnation(SOURCE, 5 + at, incarnation) for at, incarnation in enumerate("abc")]
    own = [sample(sn, 5, at=20 + sn) for sn in range(2)]
    reader.page(own, cut_after=own[-1], names=(names[restarts]._replace(epoch=5),))
    runs = [sample(sn, 5 + run, at=10 * run + sn) for run in range(1 + restarts) for sn in range(4)]
    reader.page(runs[:-4], names=tuple(names[: 1 + restarts]))
    missed = {output.epoch: (output.first, output.last) for output in reader.missed}
    assert reader.story[:2] == [0, 1]
    assert list(missed.values()) == [(0, 3)] * restarts
    assert not {5, 5 + restarts} & missed.keys(), "these are names of the run that was given"


def test_what_is_absent_is_known_by_its_run_whatever_its_answerer_calls_it() -> None:
    reader = Reader(history=True)
    cache = AnswerPart([sample(0, 6), sample(2, 6)], (), (Incarnation(SOURCE, 6, "bbbbbbbb"),))
    reader.handle(HistoryPage(reader.asked.pop().question_id, Answer((cache,), 1), reader.now))
    other_key = absent(1, 1, AbsenceReason.OTHER_KEY, 5)
    reader.answer(absent=(other_key,), names=(Incarnation(SOURCE, 5, "aaaaaaaa"),))
    assert reader.story == []
    reader.wait(1)
    reader.answer(absent=(other_key,), names=(Incarnation(SOURCE, 5, "bbbbbbbb"),))
    assert reader.story == [0, 2]


def test_one_run_that_two_caches_call_otherwise_is_delivered_once() -> None:
    """A foreign publisher's: they have not agreed yet on how they call it."""
    reader = Reader(history=True)
    one = [sample(sn, 6, at=9 + sn / 10) for sn in (3, 4, 6)]
    two = [sample(sn, 8, at=9 + sn / 10) for sn in (4, 6)]
    reader.page([sample(0), sample(1), *one], [sample(0), *two])
    reader.answer(sample(5, 8, at=9.5))
    assert reader.story == [0, 1, 3, 4, 5, 6]


def test_who_has_a_run_under_an_epoch_has_another_one_without() -> None:
    """One cache was down for the run before and has no name for the later; the other has both."""
    reader = Reader(history=True)
    later = [sample(sn, at=20 + sn / 10) for sn in (6, 8)]
    named = [sample(sn, 8, at=20 + sn / 10) for sn in (6, 8)]
    reader.page(later, named)
    reader.answer(sample(7, at=7), sample(7, 8, at=20.7))
    assert [one.ntp64 for one in reader.delivered_samples] == [
        sample(sn, at=20 + sn / 10).ntp64 for sn in (6, 7, 8)
    ]


def test_samples_that_a_cache_keeps_beside_a_declared_run_are_of_it() -> None:
    """It saw the token late, and has not moved them yet."""
    reader = Reader(history=True)
    declared = [sample(sn, EPOCH) for sn in (0, 1, 3)]
    beside = [sample(sn, FRESH) for sn in (1, 2)]
    reader.page([*declared, *beside], names=(Incarnation(SOURCE, EPOCH, "0000000a"),))
    assert reader.story == [0, 1, 2, 3]
    assert {one.epoch for one in reader.delivered_samples} == {EPOCH}


def test_two_runs_that_two_caches_call_otherwise_stay_two() -> None:
    reader = Reader(history=True)
    one = [sample(sn, 6, at=sn / 10) for sn in range(2)]
    two = [sample(sn, 8, at=9 + sn / 10) for sn in range(3)]
    reader.page([*one, *two], [*one, sample(2, 6, at=9.2)])
    assert [named.sn for named in reader.delivered_samples if named.epoch == 8] == [0, 1, 2]


def test_a_heartbeat_of_an_old_run_of_which_nothing_came_asks_for_history_once_more() -> None:
    """As where a pipe brings caches a source of another network, of long before."""
    reader = Reader(history=True)
    reader.page([])
    assert reader.engine.history_complete
    reader.declared(EPOCH, "0000000a")
    reader.handle(HeartbeatReceived(SOURCE, 4, reader.now))
    reader.handle(HeartbeatReceived(SOURCE, 4, reader.now))
    assert len(reader.asked) == 1
    names = (Incarnation(SOURCE, EPOCH, "0000000a"),)
    reader.page([sample(sn, EPOCH) for sn in range(2, 5)], names=names)
    assert reader.story == [2, 3, 4], "what was removed before is no loss"
    reader.handle(HeartbeatReceived(SOURCE, 6, reader.now))
    reader.answer(sample(5, EPOCH), sample(6, EPOCH), names=names)
    assert reader.story == [2, 3, 4, 5, 6]


def test_a_heartbeat_of_a_run_that_nobody_has_asks_once_for_each_number() -> None:
    reader = Reader(history=True)
    reader.page([])
    reader.declared(EPOCH, "0000000a")
    for _ in range(3):
        reader.handle(HeartbeatReceived(SOURCE, 4, reader.now))
        if reader.asked:
            reader.page([])
    assert reader.asked == []
    assert reader.engine.history_complete
