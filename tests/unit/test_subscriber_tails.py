"""What a subscriber asks for where the last numbers of a source may have passed it by."""

from __future__ import annotations

import pytest

from durable_cache.model.sample import SourceId
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    DeliveryOptions,
    FetchFailed,
    HeartbeatReceived,
    TimePassed,
    TokenGone,
)
from durable_cache.protocol.wire import Absence, AbsenceReason, Incarnation
from tests.unit.subscriber_reader import (
    BEGAN_NS,
    EPOCH,
    FRESH,
    OTHER,
    SECOND,
    SOURCE,
    Reader,
    absent,
    moment_at,
    sample,
)

NAME = "0000000a"
THIRD = SourceId("ef", 3)


def reader_of(*sources: SourceId, options: DeliveryOptions | None = None) -> Reader:
    """Return one that was given number 0 of each source."""
    reader = Reader(options)
    for source in sources or (SOURCE,):
        reader.declared(FRESH, NAME, source)
        reader.live(sample(0, FRESH, source=source))
    return reader


def gone(reader: Reader, source: SourceId = SOURCE) -> None:
    reader.handle(TokenGone(source, NAME, reader.now))


def appeared(reader: Reader) -> None:
    reader.handle(AnswererAppeared(reader.now))
    reader.wait(0)


def confirmed(reader: Reader, first: int) -> None:
    """See it ask once more when routers know whom to ask, and then no more."""
    reader.wait(0.4)
    assert not reader.fetches
    reader.wait(0.6)
    assert reader.wanted == [(first, first + 999)]
    reader.answer()
    reader.wait(100)
    assert not reader.fetches


def test_nothing_is_asked_while_tokens_stay() -> None:
    reader = reader_of()
    appeared(reader)
    reader.wait(100)
    assert not reader.fetches


def test_a_tail_is_asked_for_when_the_token_is_back() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(0.5)
    assert reader.wanted == []
    reader.declared(FRESH, NAME)
    reader.wait(0)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH), sample(2, FRESH))
    assert reader.story == [0, 1, 2]
    confirmed(reader, 3)


def test_what_only_those_behind_a_link_that_healed_know_is_asked_for_once_more() -> None:
    """A cache on this side answered before routers knew those on the other, and that was all."""
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0)
    reader.answer()
    reader.wait(1)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]
    reader.wait(100)
    assert not reader.fetches


def test_a_tail_longer_than_a_question_is_asked_for_until_nothing_follows() -> None:
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0)
    reader.answer(*(sample(sn, FRESH) for sn in range(1, 1001)))
    reader.wait(0)
    assert reader.wanted == [(1001, 2000)], "until nothing follows"
    reader.answer(sample(1001, FRESH))
    confirmed(reader, 1002)
    assert reader.story == [*range(1002)]


def test_a_source_that_goes_on_publishing_is_asked_about_twice_and_no_more() -> None:
    """Each answer met later numbers than were known when it was asked for, and was asked again."""
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0)
    reader.live(sample(1, FRESH), sample(2, FRESH))
    reader.answer(sample(1, FRESH))
    confirmed(reader, 3)
    assert reader.story == [0, 1, 2]


def test_a_tail_is_asked_for_when_the_token_stays_away() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(1.1)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]


def test_a_tail_that_a_cache_on_this_side_of_a_cut_lacked_is_asked_for_when_the_token_is_back() -> (
    None
):
    reader = reader_of()
    gone(reader)
    reader.wait(1)
    assert reader.wanted == [(1, 1000)]
    reader.answer()
    reader.wait(100)
    assert not reader.fetches, "the cache on this side said that nothing follows"
    reader.declared(FRESH, NAME)
    reader.wait(0)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]
    confirmed(reader, 2)


def test_a_tail_of_a_publisher_that_ended_behind_a_cut_is_asked_of_a_cache_that_appears() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(1)
    reader.answer()
    reader.wait(100)
    appeared(reader)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]
    appeared(reader)
    reader.answer()
    reader.wait(100)
    assert not reader.fetches


def test_of_sources_that_are_gone_the_last_to_leave_are_remembered() -> None:
    sources = [SourceId("a", 1 + at) for at in range(300)]
    reader = reader_of(*sources)
    for source in sources:
        gone(reader, source)
    reader.wait(1)
    while reader.fetches:
        reader.answer()
        reader.wait(0)
    appeared(reader)
    asked = set()
    while reader.fetches:
        asked.update(fetch.source for fetch in reader.fetches)
        reader.answer()
        reader.wait(0)
    assert len(asked) == 256


def test_where_nobody_answers_a_tail_is_asked_for_until_a_cache_does() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(1.1)
    for _ in range(100):
        reader.answer(answerers=0)
        reader.wait(2.1)
        if not reader.fetches:
            break
    assert not reader.fetches, "one day it waits for a cache"
    appeared(reader)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]


def test_an_answer_that_is_not_whole_is_no_answer() -> None:
    reader = reader_of()
    gone(reader)
    reader.wait(1.1)
    reader.answer(whole=False)
    reader.wait(0.2)
    assert reader.wanted == [(1, 1000)]
    reader.handle(FetchFailed(reader.fetches.pop(0).fetch_id, reader.now))
    reader.wait(0.5)
    assert reader.wanted == [(1, 1000)]
    reader.answer(sample(1, FRESH))
    assert reader.story == [0, 1]


def test_what_changes_while_a_question_is_under_way_is_asked_about_again() -> None:
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0)
    gone(reader)
    reader.answer()
    reader.wait(1.1)
    assert reader.wanted == [(1, 1000)]


def test_an_open_gap_is_asked_for_first_and_the_tail_behind_it() -> None:
    reader = reader_of()
    reader.live(sample(2, FRESH))
    gone(reader)
    reader.declared(FRESH, NAME)
    reader.wait(0.1)
    assert reader.wanted == [(1, 1)]
    reader.answer(sample(1, FRESH))
    reader.wait(0.5)
    assert reader.wanted == [(3, 1002)]


def test_a_restart_of_the_router_asks_for_few_tails_at_a_time() -> None:
    sources = [SourceId("ab", at) for at in range(1, 101)]
    reader = reader_of(*sources)
    for source in sources:
        gone(reader, source)
    asked = set()
    appeared(reader)
    while reader.fetches:
        assert len(reader.fetches) <= 16
        asked.add(reader.fetches[0].source)
        reader.answer()
        reader.wait(0)
    assert asked == set(sources)


def test_as_many_sources_are_in_doubt_as_places_are_remembered() -> None:
    reader = reader_of(SOURCE, OTHER, options=DeliveryOptions(places_max=1))
    gone(reader)
    gone(reader, OTHER)
    reader.wait(1.1)
    assert [fetch.source for fetch in reader.fetches] == [OTHER]


def test_without_recovery_nothing_is_asked() -> None:
    reader = reader_of(options=DeliveryOptions(recovery=False))
    gone(reader)
    reader.declared(FRESH, NAME)
    appeared(reader)
    assert not reader.fetches


def test_the_tail_of_a_run_is_asked_for_before_the_next_begins_and_then_that_of_the_next() -> None:
    reader = reader_of()
    gone(reader)
    reader.declared(FRESH + 1, "0000000b")
    reader.wait(0)
    assert reader.wanted == [(1, 1000)]
    reader.answer()
    reader.wait(0)
    assert reader.wanted == [(0, 999)]
    names = (Incarnation(SOURCE, FRESH + 1, "0000000b"),)
    reader.answer(sample(0, FRESH + 1, at=9), names=names)
    reader.answer()
    assert reader.story == [0, 0]


# Our own link


def cut(reader: Reader) -> None:
    reader.handle(AnswerersGone(reader.now))


def test_a_source_that_came_and_went_while_our_link_was_cut_is_read_from_caches() -> None:
    reader = reader_of()
    reader.wait(60)
    cut(reader)
    reader.wait(60)
    appeared(reader)
    asked = reader.asked[0]
    assert asked.since_ns is not None
    assert BEGAN_NS <= asked.since_ns < BEGAN_NS + SECOND, "when something came last"
    reader.live(sample(7, source=THIRD))
    reader.page([sample(0, FRESH), sample(1, FRESH), sample(0, 5, source=OTHER, at=90)])
    given = [(one.source, one.sn) for one in reader.delivered_samples]
    assert given == [(SOURCE, 0), (OTHER, 0), (THIRD, 7)], "tails are asked for by number"
    assert reader.engine.history_complete
    appeared(reader)
    assert not reader.asked


def test_what_was_published_before_a_cut_is_none_of_a_subscribers_misses() -> None:
    reader = Reader()
    cut(reader)
    appeared(reader)
    names = (Incarnation(OTHER, EPOCH, NAME),)
    reader.page([sample(sn, EPOCH, source=OTHER) for sn in (3, 4)], names=names)
    assert reader.story == [3, 4]


def test_what_caches_removed_of_a_run_that_began_since_a_cut_is_missed() -> None:
    reader = Reader()
    cut(reader)
    reader.wait(60)
    appeared(reader)
    epoch = FRESH + 2
    reader.page([sample(2, epoch, at=50)], names=(Incarnation(SOURCE, epoch, NAME),))
    assert reader.wanted == [(0, 1)]
    reader.answer(absent=(absent(0, 1, AbsenceReason.TRIMMED, epoch),))
    assert reader.story == [(0, 1), 2]


def test_a_run_between_two_that_a_subscriber_was_given_comes_too_late_and_is_missed() -> None:
    reader = Reader()
    reader.declared(FRESH, NAME)
    reader.live(sample(0))
    cut(reader)
    reader.wait(60)
    reader.declared(FRESH + 9, "0000000c")
    reader.live(sample(0, at=60))
    reader.answer()
    assert reader.story == [0, 0]
    appeared(reader)
    between = (Incarnation(SOURCE, FRESH + 2, "0000000b"),)
    reader.page([sample(sn, FRESH + 2, at=30) for sn in (0, 1)], names=between)
    assert reader.story == [0, 0, (0, 1)]


def test_a_run_between_two_is_delivered_where_the_later_one_waits() -> None:
    reader = Reader()
    reader.declared(FRESH, NAME)
    reader.live(sample(0))
    cut(reader)
    reader.wait(60)
    reader.declared(FRESH + 9, "0000000c")
    reader.live(sample(5, at=60))
    appeared(reader)
    between = (Incarnation(SOURCE, FRESH + 2, "0000000b"),)
    reader.page([sample(sn, FRESH + 2, at=30) for sn in (0, 1)], names=between)
    reader.answer()  # the run before is at its end
    assert reader.story == [0, 0, 1]


def test_what_lacks_of_a_run_between_two_is_missed_though_it_began_just_behind_the_cut() -> None:
    """Its first samples are nowhere, and the next run's came before history was read (127584)."""
    reader = Reader()
    reader.declared(FRESH, NAME)
    reader.live(sample(0))
    reader.wait(60)
    cut(reader)
    reader.declared(FRESH + 9, "0000000c")
    reader.live(sample(0, at=80), sample(1, at=80))
    appeared(reader)
    between = (Incarnation(SOURCE, FRESH + 2, "0000000b"),)
    reader.page([sample(sn, FRESH + 2, at=61) for sn in (2, 3)], names=between)
    while reader.fetches or reader.engine.gaps_open:
        reader.answer() if reader.fetches else reader.wait(1)
    assert reader.story == [0, (0, 1), 2, 3, 0, 1]


def test_a_number_that_is_next_is_of_the_run_whose_token_waits_for_history() -> None:
    """It was given as the end of the run before (seed 132736)."""
    reader = Reader(history=True)
    names = (Incarnation(SOURCE, FRESH, NAME),)
    reader.declared(FRESH, NAME)
    reader.page([])
    reader.handle(AnswererAppeared(reader.now, gone=moment_at(0.0)))  # its tail is asked for
    reader.wait(1)
    while reader.fetches:
        reader.answer(names=names)
    reader.live(sample(0))
    cut(reader)
    reader.wait(30)
    appeared(reader)
    reader.live(sample(2, at=31))  # while history is read
    reader.live(sample(1, at=31))
    reader.handle(TokenGone(SOURCE, NAME, reader.now))
    reader.declared(FRESH + 9, "0000000c")
    for sn in (2, 0, 1):
        reader.live(sample(sn, at=80))
    reader.page([sample(sn, FRESH, at=31) for sn in (1, 2)], names=names)
    while reader.fetches or reader.engine.gaps_open:
        reader.answer() if reader.fetches else reader.wait(1)
    assert reader.story == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("last", [0, 1])
def test_a_run_of_which_history_shows_more_after_a_cut_is_asked_for(last: int) -> None:
    """Its token stays, and nothing more is published: no gap shows it."""
    reader = Reader()
    reader.declared(FRESH, NAME)
    reader.live(sample(0))
    cut(reader)
    appeared(reader)
    names = (Incarnation(SOURCE, FRESH, NAME),)
    reader.page([sample(sn, FRESH) for sn in range(last + 1)], names=names)
    reader.wait(1)
    assert reader.wanted == [(1, 1000)] * last
    if last:
        reader.answer(sample(1, FRESH), names=names)
        assert reader.delivered == [0, 1]


def test_what_came_by_both_ways_is_delivered_once_after_a_cut() -> None:
    reader = Reader(history=True)
    reader.page([sample(sn, EPOCH) for sn in range(3)])
    reader.live(sample(3))
    cut(reader)
    appeared(reader)
    reader.live(sample(1, at=9, source=OTHER), sample(2, at=9, source=OTHER))
    reader.page([sample(sn, EPOCH, at=9, source=OTHER) for sn in range(2)])
    assert reader.story == [0, 1, 2, 3, 0, 1, 2]


def test_a_cut_while_history_is_read_asks_for_all_of_it_again() -> None:
    reader = Reader(history=True)
    cut(reader)
    appeared(reader)
    reader.page([sample(0, EPOCH)])
    assert reader.asked[0].since_ns is None
    reader.page([sample(0, EPOCH), sample(1, EPOCH)])
    assert reader.story == [0, 1]


def test_what_caches_removed_meanwhile_of_a_run_that_is_read_after_a_cut_is_missed() -> None:
    reader = Reader()
    cut(reader)
    appeared(reader)
    names = (Incarnation(OTHER, EPOCH, NAME),)
    reader.page([sample(sn, EPOCH, source=OTHER) for sn in (3, 5)], names=names)
    gone = Absence(OTHER, EPOCH, 4, 4, AbsenceReason.TRIMMED)
    reader.answer(absent=(gone,), names=names)
    assert reader.story == [3, (4, 4), 5]


def back(reader: Reader) -> None:
    """See a cache again whose token was away."""
    reader.handle(AnswererAppeared(reader.now, gone=moment_at(0.0)))


def test_a_run_that_is_seen_and_not_heard_is_asked_for_when_a_cache_is_in_reach_again() -> None:
    reader = Reader()
    reader.declared(FRESH, NAME)
    reader.wait(0)
    assert not reader.fetches
    back(reader)
    reader.wait(0)
    assert reader.wanted == [(0, 999)]
    reader.answer(sample(0, FRESH), sample(1, FRESH), names=(Incarnation(SOURCE, FRESH, NAME),))
    assert reader.story == [0, 1]


def test_a_run_that_is_seen_just_after_a_cache_is_in_reach_again_is_asked_for() -> None:
    reader = Reader()
    back(reader)
    reader.declared(FRESH, NAME)
    reader.wait(1)
    assert reader.wanted == [(0, 999)]
    reader.answer()
    reader.wait(5)
    reader.fetches.clear()
    reader.declared(FRESH, NAME, OTHER)
    reader.wait(1)
    assert not reader.fetches


def test_where_no_cache_was_away_nothing_is_asked_of_a_run_that_is_not_heard() -> None:
    reader = Reader()
    reader.declared(FRESH, NAME)
    appeared(reader)
    reader.wait(1)
    assert not reader.fetches


def test_who_never_heard_a_source_begins_where_its_publisher_says_caches_alone_heard_it() -> None:
    reader = Reader()
    reader.handle(HeartbeatReceived(SOURCE, 4, reader.now))
    assert not reader.fetches
    reader.handle(HeartbeatReceived(SOURCE, 4, reader.now, 3))
    assert reader.wanted == [(3, 4)]
    reader.answer(sample(3, FRESH), sample(4, FRESH))
    assert reader.story == [3, 4]
    reader.handle(HeartbeatReceived(SOURCE, 4, reader.now, 0))
    assert not reader.fetches


NAMED = (Incarnation(SOURCE, EPOCH, NAME),)


def idle(*, whole: bool = True, options: DeliveryOptions | None = None) -> Reader:
    """Return one that came after a publisher of which nobody had anything."""
    reader = Reader(options, history=True)
    reader.declared(EPOCH, NAME)
    reader.page([], names=NAMED, whole=whole)
    return reader


def test_what_an_idle_publisher_put_meanwhile_is_asked_for_when_its_token_is_back() -> None:
    """All of its run is asked for: at which number that begins which is ours nobody knows."""
    reader = idle()
    gone(reader)
    reader.declared(EPOCH, NAME)
    reader.wait(0)
    assert reader.wanted == [(0, 999)]
    reader.answer(sample(5, EPOCH), sample(6, EPOCH), names=NAMED)
    assert reader.story == [5, 6]
    reader.live(sample(7))
    assert reader.story == [5, 6, 7]


def test_it_is_asked_for_periodically_where_no_token_tells() -> None:
    reader = idle(options=DeliveryOptions(periodic_queries_seconds=3))
    while not reader.fetches and reader.seconds < 10:
        reader.seconds += 1
        reader.handle(TimePassed(reader.now))
    assert reader.wanted == [(0, None)]
    reader.answer(sample(5, EPOCH), names=NAMED)
    assert reader.story == [5]


def test_where_history_was_not_read_whole_it_is_asked_for_with_that() -> None:
    """A cache that was not heard may have all that was put before we came."""
    reader = idle(whole=False)
    while reader.engine.reads_history:
        if reader.asked:
            reader.page([], names=NAMED, whole=False)
        reader.wait(1)
    gone(reader)
    reader.declared(EPOCH, NAME)
    for _ in range(3):
        reader.wait(1)
    assert reader.wanted == []


def test_without_recovery_a_heartbeat_may_overtake_its_sample() -> None:
    """The next one shows what is lost."""
    reader = Reader(DeliveryOptions(recovery=False))
    reader.declared(FRESH, "aaaaaaaa")
    reader.handle(HeartbeatReceived(SOURCE, 0, reader.now))
    reader.live(sample(0))
    assert reader.story == [0]
    for _ in range(2):
        assert reader.story == [0]
        reader.handle(HeartbeatReceived(SOURCE, 2, reader.now))
    assert reader.story == [0, (1, 2)]
