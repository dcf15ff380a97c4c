"""The reliable subscriber's engine: once, in order, or reported."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import (
    Answer,
    AnswerPart,
    DeliveryOptions,
    Fetched,
    FetchFailed,
    HeartbeatReceived,
    HistoryFailed,
    HistoryPage,
    TimePassed,
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

RUNS = (Incarnation(SOURCE, EPOCH, "0000000a"), Incarnation(SOURCE, FRESH, "0000000b"))

# Gaps


def test_a_gap_is_asked_for_at_once_with_exactly_the_missing_range() -> None:
    reader = Reader()
    reader.live(sample(10), sample(14))
    assert reader.wanted == [(11, 13)]
    assert reader.story == [10]
    reader.answer(sample(13), sample(11), sample(12))
    assert reader.story == [10, 11, 12, 13, 14]


def test_one_lost_answer_is_no_loss() -> None:
    reader = Reader()
    reader.live(sample(0), sample(2))
    reader.handle(FetchFailed(reader.fetches.pop().fetch_id, reader.now))
    reader.wait(5)
    reader.answer(sample(1))
    assert reader.story == [0, 1, 2]


def test_an_answer_that_is_slow_is_waited_for_past_the_timeout() -> None:
    reader = Reader(DeliveryOptions(gap_timeout_seconds=1))
    reader.live(sample(0), sample(2))
    reader.seconds = 1.5
    reader.handle(TimePassed(reader.now))
    assert reader.story == [0]
    reader.answer(sample(1))
    assert reader.story == [0, 1, 2]


def test_after_a_reported_miss_the_late_sample_is_dropped() -> None:
    reader = Reader(DeliveryOptions(gap_timeout_seconds=1))
    reader.live(sample(0), sample(2))
    while reader.fetches:
        reader.answer()
        reader.wait(2)
    reader.live(sample(1))
    assert reader.story == [0, (1, 1), 2]
    assert reader.engine.duplicates == 1


def test_what_came_before_the_answer_that_was_asked_for_is_no_repeat() -> None:
    """Two caches answer, and the sample itself is faster than both."""
    reader = Reader()
    reader.live(sample(0), sample(2))
    assert reader.fetches
    reader.live(sample(1))
    reader.answer(sample(1))
    assert reader.story == [0, 1, 2]
    assert reader.engine.duplicates == 0


def test_samples_of_other_sources_do_not_wait_for_a_gap() -> None:
    reader = Reader()
    reader.live(sample(0), sample(5), sample(100, source=OTHER), sample(101, source=OTHER))
    assert reader.story == [0, 100, 101]


def test_a_forged_number_far_ahead_holds_up_nobody() -> None:
    reader = Reader(DeliveryOptions(window_size_samples=1000))
    reader.live(sample(0))
    reader.live(sample(2**32 - 1))
    reader.live(*(sample(sn) for sn in range(1, 101)))
    assert reader.delivered == list(range(101))


def test_a_confirmed_jump_is_recovered_in_pages() -> None:
    reader = Reader(DeliveryOptions(window_size_samples=100, request_samples_max=50))
    reader.live(sample(0))
    reader.live(sample(300))
    reader.fetches.clear()
    reader.live(sample(301))
    while reader.fetches:
        wanted = reader.fetches[0]
        assert wanted.last is not None
        reader.answer(*(sample(sn) for sn in range(wanted.first, wanted.last + 1)))
        reader.wait(1)
    assert reader.delivered == list(range(302))


def test_an_answer_is_compared_with_its_question() -> None:
    """H2: one forged number in an answer moves nothing."""
    reader = Reader()
    reader.live(sample(0), sample(3))
    reader.answer(sample(2**35 - 2), sample(900), sample(1, source=OTHER), sample(2))
    reader.wait(1)
    assert reader.wanted == [(1, 1)]
    reader.answer(sample(1))
    assert reader.story == [0, 1, 2, 3]


def test_without_recovery_a_gap_is_reported_at_once() -> None:
    reader = Reader(DeliveryOptions(recovery=False))
    reader.live(sample(0), sample(3))
    assert reader.story == [0, (1, 2), 3]


# What caches know to be absent


def test_numbers_under_other_keys_are_no_gap() -> None:
    reader = Reader()
    reader.live(sample(0), sample(4))
    reader.answer(sample(2), absent=(absent(1, 1, AbsenceReason.OTHER_KEY),))
    assert reader.story == [0, 2]
    reader.wait(1)
    reader.answer(absent=(absent(3, 3, AbsenceReason.OTHER_KEY),))
    assert reader.story == [0, 2, 4]


@pytest.mark.parametrize("reason", [AbsenceReason.TRIMMED, AbsenceReason.SKIPPED])
def test_what_caches_know_to_be_gone_is_reported_at_once(reason: AbsenceReason) -> None:
    reader = Reader()
    reader.live(sample(0), sample(3))
    reader.answer(absent=(absent(0, 2, reason),))
    assert reader.story == [0, (1, 2), 3]
    assert reader.seconds == 0


def test_what_one_cache_removed_and_another_knows_under_another_key_is_no_loss() -> None:
    reader = Reader()
    reader.live(sample(0), sample(5))
    parts = (
        AnswerPart((), (absent(1, 4, AbsenceReason.TRIMMED),)),
        AnswerPart((), (absent(2, 3, AbsenceReason.OTHER_KEY),)),
    )
    fetch = reader.fetches.pop(0)
    reader.handle(Fetched(fetch.fetch_id, Answer(parts, 2, True), reader.now))
    assert reader.story == [0, (1, 1), (4, 4), 5]


def test_what_one_cache_skipped_is_not_lost_while_another_errs() -> None:
    reader = Reader()
    reader.live(sample(0), sample(2))
    reader.answer(absent=(absent(1, 1, AbsenceReason.SKIPPED),), whole=False)
    assert reader.story == [0]
    reader.wait(1)
    reader.answer(sample(1), absent=(absent(1, 1, AbsenceReason.SKIPPED),))
    assert reader.story == [0, 1, 2]


# Restarts, wraps and tokens


def test_a_foreign_publishers_restart_is_seen_by_its_clock() -> None:
    reader = Reader()
    reader.live(sample(0), sample(1), sample(2))
    reader.live(sample(0, at=9), sample(1, at=9.1))
    assert reader.story == [0, 1, 2]
    assert reader.wanted == [(3, None)]
    reader.answer(answerers=0)  # there is no cache: nothing to wait for
    assert reader.story == [0, 1, 2, 0, 1]


def test_the_rest_of_a_numbering_comes_before_the_next_one() -> None:
    """K4: the last samples before a restart, lost on the way."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1))
    reader.declared(FRESH, "0000000b")
    reader.live(sample(0, at=9), sample(1, at=9.1))
    assert reader.wanted == [(2, None)]
    reader.answer(sample(2, EPOCH), sample(3, EPOCH))
    assert [(one.epoch, one.sn) for one in reader.delivered_samples[2:4]] == [
        (EPOCH, 2),
        (EPOCH, 3),
    ]
    assert reader.story == [0, 1, 2, 3, 0, 1]


def test_a_number_that_follows_the_run_before_is_the_next_runs_long_after_its_token() -> None:
    """The publisher's clock was set back: its times say nothing of when its token was seen."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1), sample(2))
    reader.seconds = 5
    reader.declared(FRESH, "0000000b")
    reader.seconds = 15
    first = [sample(sn, at=0.01 + sn / 1000) for sn in (3, 0, 1, 2)]
    reader.live(*(replace(one, received_ns=reader.now.unix_ns) for one in first))
    reader.answer()
    assert reader.story == [0, 1, 2, 0, 1, 2, 3]


def test_the_first_number_after_a_token_is_its_runs_though_the_run_before_put_nothing() -> None:
    """The publisher's clock is behind: its time lies before the moment its token was seen."""
    reader = Reader()
    reader.declared(FRESH, "0000000a")
    reader.seconds = 5
    reader.declared(FRESH, "0000000b")
    reader.live(sample(0), sample(1))
    reader.answer(sample(0, FRESH), names=(Incarnation(SOURCE, FRESH, "0000000b"),))
    reader.live(sample(2))
    assert reader.story == [0, 1, 2]
    assert reader.engine.gaps_open == 0


def test_a_last_sample_that_comes_after_the_next_token_goes_where_an_answer_names_it() -> None:
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1))
    reader.declared(FRESH, "0000000b")
    reader.live(sample(2))
    assert (reader.story, reader.wanted) == ([0, 1], [(2, None)])
    reader.answer(sample(2, EPOCH), names=RUNS)
    reader.live(sample(0, at=9))
    assert reader.story == [0, 1, 2, 0]
    assert reader.engine.gaps_open == 0


def test_a_run_that_begins_asks_for_what_it_holds_too_for_it_may_be_of_the_run_before() -> None:
    """Times go back: what the network overtook looks like the beginning of the next run."""
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(25, at=1), sample(21, at=5))
    reader.declared(FRESH, "0000000b")
    reader.answer(names=RUNS)
    assert reader.wanted == [(0, 21)]
    reader.answer(sample(21, EPOCH, at=5), names=RUNS)
    reader.live(sample(0, at=9))
    assert reader.story == [25, 0]
    assert reader.engine.gaps_open == 0


def test_two_restarts_in_one_batch_leave_nothing_out() -> None:
    reader = Reader()
    reader.live(sample(0), sample(1), sample(0, at=9), sample(1, at=9.1), sample(0, at=20))
    reader.answer(sample(2, at=0.1))
    assert reader.story == [0, 1, 2, 0, 1]
    reader.answer(sample(2, at=9.2))
    assert reader.story == [0, 1, 2, 0, 1, 2, 0]


def test_after_a_wrap_the_rest_is_asked_for_to_the_last_number() -> None:
    top = SOURCE_SN_MODULUS - 1
    reader = Reader(DeliveryOptions(gap_timeout_seconds=1))
    reader.live(sample(top - 4, at=1), sample(top - 3, at=1), sample(0, at=2), sample(1, at=2))
    assert reader.wanted == [(top - 2, top)]
    reader.answer(sample(top, at=1.5), sample(top - 2, at=1.4))
    assert reader.story == [top - 4, top - 3, top - 2]
    reader.wait(0.5)
    reader.answer()
    while reader.fetches or reader.engine.gaps_open:
        if reader.fetches:
            reader.answer()
        reader.wait(2)
    assert reader.story[3:] == [(top - 1, top - 1), top, 0, 1]


def test_a_restart_within_one_frame_is_another_numbering() -> None:
    """K3: the epoch is the same, or lower; the incarnation is not."""
    for epoch in (FRESH, FRESH - 10_000):
        reader = Reader()
        reader.declared(FRESH, "0000000a")
        reader.live(*(sample(sn) for sn in range(30)))
        reader.seconds = 5
        reader.declared(epoch, "0000000b")
        reader.live(*(sample(sn, at=5) for sn in range(10)))
        assert reader.wanted == [(30, None)]
        reader.answer()
        assert reader.story == [*range(30), *range(10)]


def test_a_token_that_comes_again_begins_nothing() -> None:
    reader = Reader()
    reader.declared(FRESH, "0000000a")
    reader.live(sample(0))
    reader.seconds = 5
    reader.declared(FRESH, "0000000a")
    reader.live(sample(1))
    assert reader.story == [0, 1]
    assert not reader.fetches


def test_an_incarnation_is_called_what_caches_call_it() -> None:
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(2), sample(4))
    names = (Incarnation(SOURCE, EPOCH + 1, "0000000a"), Incarnation(SOURCE, EPOCH, "0000000f"))
    reader.answer(sample(1, EPOCH + 1), sample(3, EPOCH), names=names)
    assert reader.story == [0, 1, 2]
    reader.wait(1)
    assert reader.fetches[0].epoch == EPOCH + 1


def test_an_answer_from_another_incarnation_is_left_out() -> None:
    reader = Reader()
    reader.declared(20)
    reader.live(sample(0), sample(2))
    reader.answer(sample(1, epoch=19))
    assert reader.story == [0]


def test_the_first_samples_of_a_publisher_that_begins_in_sight_are_ours() -> None:
    """K14: and those of one that was there before are not."""
    reader = Reader()
    reader.declared(FRESH, "0000000a")
    reader.live(sample(3))
    assert reader.wanted == [(0, 2)]
    reader.answer(*(sample(sn, FRESH) for sn in range(3)))
    assert reader.story == [0, 1, 2, 3]
    reader.declared(EPOCH, "0000000b", OTHER)
    reader.live(sample(3, source=OTHER))
    assert reader.story == [0, 1, 2, 3, 3]


def test_samples_that_are_faster_than_their_token_wait_for_it() -> None:
    reader = Reader()
    reader.declared(EPOCH, "0000000a")
    reader.live(sample(0), sample(1), sample(0, at=9), sample(1, at=9.1))
    assert reader.story == [0, 1]
    reader.declared(FRESH, "0000000b")
    reader.answer()
    assert reader.story == [0, 1, 0, 1]


def test_a_heartbeat_shows_a_lost_tail() -> None:
    reader = Reader()
    reader.live(sample(0))
    reader.handle(HeartbeatReceived(SOURCE, 2, reader.now))
    assert reader.wanted == [(1, 2)]
    reader.answer(sample(1), sample(2))
    assert reader.story == [0, 1, 2]


def test_a_heartbeat_tells_of_a_run_all_of_whose_samples_were_lost() -> None:
    """As where a publisher was killed before its first put left, and its spool had it."""
    reader = Reader()
    reader.declared(FRESH, "0000000a")
    reader.handle(HeartbeatReceived(SOURCE, 1, reader.now))
    assert reader.wanted == [(0, 1)]
    reader.answer(sample(0, FRESH), sample(1, FRESH))
    assert reader.story == [0, 1]
    reader.live(sample(2))
    assert reader.story == [0, 1, 2]


def test_a_heartbeat_of_a_publisher_that_is_gone_counts_once_no_token_comes() -> None:
    """As where another life of it brings what a spool holds: its own identity shows no token."""
    reader = Reader()
    reader.declared(FRESH, "0000000a")
    reader.live(sample(0, FRESH))
    reader.handle(TokenGone(SOURCE, "0000000a", reader.now))
    reader.handle(HeartbeatReceived(SOURCE, 2, reader.now))
    assert reader.wanted == []
    reader.wait(1.1)
    assert reader.wanted == [(1, 2)]
    reader.answer(sample(1, FRESH), sample(2, FRESH))
    assert reader.story == [0, 1, 2]


def test_a_heartbeat_far_ahead_is_confirmed_first() -> None:
    reader = Reader(DeliveryOptions(window_size_samples=1000))
    reader.live(sample(0))
    reader.handle(HeartbeatReceived(SOURCE, 999_999, reader.now))
    assert reader.wanted == [(999_999, 999_999)]
    reader.answer()
    reader.live(sample(1))
    assert reader.story == [0, 1]


# Answers that are cut


def test_a_cut_answer_is_gone_on_with_behind_its_cut() -> None:
    """What comes first in it may be of a run that is over: the same question brings no more."""
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(4), sample(6))
    earlier = [sample(sn, EPOCH - 9, at=-500) for sn in (5, 6)]
    name = Incarnation(SOURCE, EPOCH, "aaaaaaaa")
    for one in earlier:
        reader.answer(one, names=(name,), cut=True)
        assert (reader.fetches[0].first, reader.fetches[0].after) == (5, one)
    reader.answer(sample(5, EPOCH), names=(name,))
    assert reader.story == [4, 5, 6]
    assert not reader.fetches


def test_what_one_cache_skipped_another_may_have_behind_its_cut() -> None:
    reader = Reader()
    reader.live(sample(0), sample(4))
    skipped = (absent(1, 3, AbsenceReason.SKIPPED),)
    reader.answer(sample(1), absent=skipped, cut=True)
    reader.answer(sample(2), sample(3))
    assert reader.story == [0, 1, 2, 3, 4]


def test_an_error_on_any_page_leaves_what_was_skipped_open() -> None:
    reader = Reader()
    reader.live(sample(0), sample(4))
    reader.answer(sample(1), whole=False, cut=True)
    reader.answer(absent=(absent(2, 3, AbsenceReason.SKIPPED),))
    assert reader.story == [0, 1]
    reader.wait(1)
    reader.answer(absent=(absent(2, 3, AbsenceReason.SKIPPED),))
    assert reader.story == [0, 1, (2, 3), 4]


@pytest.mark.parametrize("seed", range(150))
def test_whatever_is_lost_delayed_or_repeated_each_sample_comes_once_or_is_reported(
    seed: int,
) -> None:
    chance = random.Random(seed)
    history = chance.random() < 0.4
    options = DeliveryOptions(
        gap_timeout_seconds=5,
        pending_samples_max=chance.choice([5, 1000]),
        history_timeout_seconds=30,
    )
    reader = Reader(options, history=history)
    first, end = chance.randint(0, 3), chance.randint(5, 60)
    cached: set[int] = set()
    skipped: set[int] = set()

    def answer_some(answered: float, gone: bool = False) -> None:
        while reader.fetches and chance.random() < 0.7:
            fetch = reader.fetches.pop(chance.randrange(len(reader.fetches)))
            last = end if fetch.last is None else fetch.last
            if chance.random() >= answered:
                reader.handle(FetchFailed(fetch.fetch_id, reader.now))
                continue
            found = [sample(sn, 5) for sn in cached if fetch.first <= sn <= last]
            lost = tuple(absent(sn, sn, AbsenceReason.SKIPPED, 5) for sn in skipped)
            answer = Answer((AnswerPart(found, lost if gone else ()),), 1)
            reader.handle(Fetched(fetch.fetch_id, answer, reader.now))
        while reader.asked and chance.random() < 0.7:
            question = reader.asked.pop()
            if chance.random() >= answered:
                reader.handle(HistoryFailed(question.question_id, "no", reader.now))
                continue
            at = -1 if question.after is None else question.after.sn
            behind = [sample(sn, 5) for sn in sorted(cached) if sn > at]
            page = behind[:7]
            cut = page[-1] if len(behind) > 7 else None
            answer = Answer((AnswerPart(page),), 1, cut_after=cut)
            reader.handle(HistoryPage(question.question_id, answer, reader.now))

    for sn in range(first, end):
        if chance.random() < 0.9:
            cached.add(sn)
        else:
            skipped.add(sn)
        if chance.random() < 0.75 or sn in (first, end - 1):
            repeats = 2 if chance.random() < 0.1 else 1
            reader.live(*[sample(sn, 0)] * repeats)
        reader.seconds += 0.01
        answer_some(0.8)
        reader.handle(TimePassed(reader.now))
    gone = chance.random() < 0.5
    for _ in range(3000):
        reader.seconds += 0.05
        answer_some(1.0, gone)
        reader.handle(TimePassed(reader.now))
        if reader.engine.wake_ns() is None and not reader.fetches and not reader.asked:
            break
    assert reader.delivered == sorted(set(reader.delivered))
    missed = {
        sn for one in reader.story if isinstance(one, tuple) for sn in range(one[0], one[1] + 1)
    }
    assert not missed & cached
    begun = min(reader.delivered)
    assert missed | set(reader.delivered) == set(range(begun, end))
    assert not missed & set(reader.delivered)


def test_a_declared_wrap_is_known_by_its_incarnation() -> None:
    top = SOURCE_SN_MODULUS - 1
    for incarnation, wanted in (
        (incarnation_after("0000000a"), (top - 2, top)),
        ("0000000b", None),
    ):
        reader = Reader()
        reader.declared(EPOCH, "0000000a")
        reader.live(sample(top - 4, at=1), sample(top - 3, at=1))
        reader.declared(FRESH, incarnation)
        reader.live(sample(0, at=2))
        assert reader.wanted == [wanted or (top - 2, None)]


def test_what_a_cache_had_not_is_asked_for_again_as_long_as_it_waits_for_its_turn() -> None:
    reader = Reader()
    reader.live(sample(0), sample(4))
    reader.answer(absent=(absent(2, 3, AbsenceReason.SKIPPED),))
    reader.wait(1)
    assert reader.wanted == [(1, 3)]
    reader.answer(sample(1), sample(2), absent=(absent(3, 3, AbsenceReason.SKIPPED),))
    assert reader.story == [0, 1, 2, (3, 3), 4]
