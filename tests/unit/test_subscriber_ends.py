"""What a subscriber asks of runs that ended while a cache was away (ADR 0348)."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    AnswerPart,
    DeliveryOptions,
    FetchFailed,
    HeartbeatReceived,
    Missed,
    TimePassed,
)
from durable_cache.protocol.wire import Absence, AbsenceReason, Incarnation
from tests.unit.subscriber_reader import FRESH, SOURCE, Reader, moment_at, sample

FIRST, SECOND_RUN = FRESH, FRESH + 1
NAMES = (Incarnation(SOURCE, FIRST, "0000000a"), Incarnation(SOURCE, SECOND_RUN, "0000000b"))
WAIT_SECONDS = DeliveryOptions().token_wait_seconds
SPAN = 1000


def other_key(first: int, last: int) -> Absence:
    return Absence(SOURCE, FIRST, first, last, AbsenceReason.OTHER_KEY)


class Restarted(Reader):
    """It was given 0 to 2 of a run; the cache went, and the next run begins with a sample."""

    def __init__(self, options: DeliveryOptions | None = None) -> None:
        super().__init__(options, answerers_known=True)
        self.seconds = 1.0
        self.declared(FIRST, "0000000a")
        self.live(*(sample(sn, at=1.1) for sn in range(3)))
        self.seconds = 30.0
        self.handle(AnswerersGone(self.now))
        self.declared(SECOND_RUN, "0000000b")
        self.live(sample(0, at=30.0))

    def nobody_knows(self) -> None:
        """Bring the answer of a publisher that knows its own run alone."""
        self.take_first_answer()
        self.answer(names=NAMES[1:])
        assert self.delivered == [0, 1, 2, 0]

    def appears(self, *, gone_at: float = 30.0, strange: bool = False) -> None:
        self.fetches.clear()
        self.handle(AnswererAppeared(self.now, strange, None if strange else moment_at(gone_at)))
        self.seconds += WAIT_SECONDS
        self.handle(TimePassed(self.now))

    @property
    def of_the_first(self) -> list[tuple[int, int | None]]:
        return [(one.first, one.last) for one in self.fetches if one.epoch == FIRST]

    def take_first_answer(self) -> None:
        self.fetches = [one for one in self.fetches if one.epoch == FIRST]


def test_the_next_run_goes_on_and_nobody_knows_what_is_missing_while_all_caches_are_away() -> None:
    reader = Restarted()
    reader.nobody_knows()
    assert reader.unsure == [0]
    reader = Restarted()
    reader.handle(AnswererAppeared(reader.now, False, moment_at(30.0)))
    reader.take_first_answer()
    reader.answer(sample(3, FIRST, at=1.2), names=NAMES)
    assert reader.delivered == [0, 1, 2, 3, 0]
    assert reader.unsure == []


def test_what_a_cache_alone_has_of_the_run_before_is_reported_when_it_is_there_again() -> None:
    reader = Restarted()
    reader.nobody_knows()
    reader.appears()
    assert reader.of_the_first == [(3, 3 + SPAN - 1)]
    reader.take_first_answer()
    mine, later = sample(3, FIRST, at=1.2), sample(5, FIRST, at=1.3)
    stamped = msgspec.structs.replace(sample(8, SECOND_RUN, at=31.0), stamped=True)
    reader.answer(mine, later, sample(7, SECOND_RUN, at=31.0), stamped, names=NAMES)
    assert reader.missed == [Missed(SOURCE, FIRST, 3, 5)]
    assert reader.delivered == [0, 1, 2, 0]
    reader.wait(60)
    assert reader.of_the_first == []


def test_what_a_cache_has_that_appears_before_the_run_has_ended_is_delivered_in_order() -> None:
    """Others said where it ends, and what is missing before that is still to come (seed 106510)."""
    reader = Restarted()
    reader.take_first_answer()
    reader.answer(sample(4, FIRST, at=1.2), names=NAMES)
    reader.wait(1)
    reader.take_first_answer()
    assert reader.of_the_first == [(3, 3)]
    reader.handle(AnswererAppeared(reader.now, False, moment_at(30.0)))
    reader.take_first_answer()
    reader.answer(names=NAMES)
    reader.wait(2)
    reader.take_first_answer()
    assert reader.of_the_first == [(3, None)]
    reader.answer(*(sample(sn, FIRST, at=1.2) for sn in range(3, 7)), names=NAMES)
    assert reader.delivered == [0, 1, 2, 3, 4, 5, 6, 0]
    assert reader.missed == []


@pytest.mark.parametrize("is_more", [True, False])
def test_what_was_on_its_way_to_a_disk_as_the_run_ended_is_asked_for_when_a_cache_tells(
    is_more: bool,
) -> None:
    reader = Restarted()
    reader.nobody_knows()
    reader.seconds += 60
    reader.appears(gone_at=reader.seconds)
    sn = 3 if is_more else 2
    reader.handle(HeartbeatReceived(SOURCE, sn, reader.now, stored_as=FIRST))
    reader.wait(0)
    assert reader.of_the_first == ([(3, 3 + SPAN - 1)] if is_more else [])
    if is_more:
        reader.take_first_answer()
        reader.answer(sample(3, FIRST, at=1.2), names=NAMES)
        assert reader.missed == [Missed(SOURCE, FIRST, 3, 3)]


def test_what_overtook_its_token_on_the_way_to_one_cache_is_not_of_the_run_before() -> None:
    """Another cache has it as of the next run (seed 1763)."""
    reader = Restarted()
    reader.nobody_knows()
    reader.appears()
    reader.take_first_answer()
    overtook = sample(3, FIRST, at=30.1)
    reader.answer_of(
        AnswerPart([overtook], incarnations=NAMES),
        AnswerPart([sample(3, SECOND_RUN, at=30.1)], incarnations=NAMES[1:]),
    )
    assert reader.missed == []


def test_who_failed_until_the_next_run_went_on_is_asked_on() -> None:
    """A cache whose backend cannot be read for ten seconds has more of it (seed 108160)."""
    reader = Restarted()
    reader.handle(AnswererAppeared(reader.now, False, moment_at(30.0)))
    for _ in range(100):
        reader.take_first_answer()
        if reader.fetches and reader.delivered == [0, 1, 2]:
            reader.answer(names=NAMES, whole=False)
        reader.wait(0.5)
    assert reader.delivered == [0, 1, 2, 0]
    reader.take_first_answer()
    assert reader.of_the_first == [(3, 3 + SPAN - 1)]
    reader.answer(sample(3, FIRST, at=1.2), names=NAMES)
    assert reader.missed == [Missed(SOURCE, FIRST, 3, 3)]
    reader.wait(60)
    assert reader.of_the_first == []


def test_numbers_of_other_keys_are_not_reported() -> None:
    reader = Restarted()
    reader.nobody_knows()
    reader.appears()
    reader.take_first_answer()
    reader.answer(sample(5, FIRST, at=1.3), names=NAMES, absent=(other_key(3, 4), other_key(6, 9)))
    assert reader.missed == [Missed(SOURCE, FIRST, 5, 5)]


def test_a_cache_that_was_there_when_the_run_ended_is_not_asked() -> None:
    reader = Restarted()
    reader.nobody_knows()
    reader.seconds += 60
    reader.appears(gone_at=reader.seconds)
    assert reader.of_the_first == []


def test_a_cache_that_was_never_seen_is_asked() -> None:
    reader = Restarted()
    reader.nobody_knows()
    reader.seconds += 60
    reader.appears(strange=True)
    assert reader.of_the_first == [(3, 3 + SPAN - 1)]


def test_who_fails_is_asked_again_and_once_more_when_a_cache_appears() -> None:
    reader = Restarted()
    reader.nobody_knows()
    reader.appears()
    reader.take_first_answer()
    for asked in range(2):
        (fetch,) = reader.fetches
        reader.fetches.clear()
        if asked:
            reader.handle(FetchFailed(fetch.fetch_id, reader.now))
        else:
            reader.fetches = [fetch]
            reader.answer(names=NAMES, whole=False)
        reader.wait(5)
        assert reader.of_the_first == [(3, 3 + SPAN - 1)]
    reader.seconds += 60
    reader.answer(names=NAMES, whole=False)
    reader.wait(60)
    assert reader.fetches == [], "not for ever"
    reader.appears(gone_at=reader.seconds)
    assert reader.of_the_first == [(3, 3 + SPAN - 1)], "it still owes an answer"
    reader.take_first_answer()
    reader.answer(sample(3, FIRST, at=1.2), names=NAMES)
    assert reader.missed == [Missed(SOURCE, FIRST, 3, 3)]


@pytest.mark.parametrize("nobody", [True, False])
def test_an_answer_of_no_cache_is_not_that_nothing_follows(nobody: bool) -> None:
    """A router that does not know yet whom to ask; a cache that went again, publishers stay."""
    reader = Restarted()
    reader.nobody_knows()
    reader.appears()
    reader.take_first_answer()
    if nobody:
        reader.answer(answerers=0)
        reader.wait(5)
    else:
        reader.handle(AnswerersGone(reader.now))
        reader.answer(names=NAMES[1:])
        reader.seconds += 60
        reader.appears(gone_at=reader.seconds)
    assert reader.of_the_first == [(3, 3 + SPAN - 1)]
    reader.take_first_answer()
    reader.answer(sample(3, FIRST, at=1.2), names=NAMES)
    assert reader.missed == [Missed(SOURCE, FIRST, 3, 3)]


def test_what_is_known_is_reported_where_the_rest_is_not_told_in_time() -> None:
    reader = Restarted()
    reader.nobody_knows()
    reader.appears()
    reader.take_first_answer()
    reader.answer(sample(3, FIRST, at=1.2), sample(4, FIRST, at=1.2), names=NAMES, cut=True)
    reader.wait(1)
    assert reader.missed == []
    reader.seconds += 60
    reader.take_first_answer()
    reader.answer(names=NAMES, whole=False)
    assert reader.missed == [Missed(SOURCE, FIRST, 3, 4)]


def test_the_next_thousand_and_the_rest_of_a_cut_answer_are_asked_for() -> None:
    reader = Restarted()
    reader.nobody_knows()
    reader.appears()
    reader.take_first_answer()
    reader.answer(sample(3, FIRST, at=1.2), sample(4, FIRST, at=1.2), names=NAMES, cut=True)
    assert reader.missed == []
    reader.wait(1)
    assert reader.of_the_first == [(5, 5 + SPAN - 1)]
    reader.answer(sample(5 + SPAN - 1, FIRST, at=1.3), names=NAMES)
    assert reader.missed == [Missed(SOURCE, FIRST, 3, 5 + SPAN - 1)]
    reader.wait(1)
    assert reader.of_the_first == [(5 + SPAN, 5 + 2 * SPAN - 1)]


def test_nothing_is_asked_where_nothing_is_recovered() -> None:
    reader = Restarted(DeliveryOptions(recovery=False))
    reader.appears()
    assert reader.fetches == []


def test_the_end_of_a_run_is_looked_for_though_a_hole_before_it_took_all_its_time() -> None:
    """The next run began when the gap was open for long (seed 3859)."""
    timeout_seconds = DeliveryOptions().gap_timeout_seconds
    reader = Reader()
    reader.declared(FIRST, "0000000a")
    reader.live(*(sample(sn) for sn in (0, 1, 2, 4)))
    reader.seconds = timeout_seconds - 1
    reader.declared(SECOND_RUN, "0000000b")
    reader.live(sample(0, at=30.0))
    reader.answer(names=NAMES, whole=False)
    reader.seconds = timeout_seconds
    reader.handle(TimePassed(reader.now))
    assert [(miss.first, miss.last) for miss in reader.missed] == [(3, 3)]
    assert reader.delivered == [0, 1, 2, 4]
    assert reader.wanted == [(5, None)]
    reader.answer(sample(5), names=NAMES)
    assert reader.delivered == [0, 1, 2, 4, 5, 0]


def test_an_end_that_nobody_tells_is_given_up_in_its_time() -> None:
    timeout_seconds = DeliveryOptions().gap_timeout_seconds
    reader = Reader()
    reader.declared(FIRST, "0000000a")
    reader.live(*(sample(sn) for sn in (0, 1, 2, 4)))
    reader.seconds = 1.0
    reader.declared(SECOND_RUN, "0000000b")
    reader.live(sample(0, at=30.0))
    for _ in range(500):
        if reader.delivered[-1] == 0 or reader.seconds > 4 * timeout_seconds:
            break
        if reader.fetches:
            reader.answer(names=NAMES, whole=False)
        else:
            reader.wait(1.0)
    assert reader.delivered == [0, 1, 2, 4, 0]
    assert timeout_seconds < reader.seconds < 3 * timeout_seconds


def test_a_cache_that_appears_is_asked_for_the_end_of_a_run_that_history_went_past() -> None:
    """Nobody followed it live, and what that cache has of it comes too late (seed 28289)."""
    reader = Reader(history=True)
    reader.declared(SECOND_RUN, "0000000b")
    first = [sample(sn, FIRST) for sn in range(3)]
    second = [sample(sn, SECOND_RUN, at=30.0) for sn in range(2)]
    reader.page([*first, *second], names=NAMES)
    while reader.fetches:
        reader.answer(names=NAMES)
    assert reader.delivered == [0, 1, 2, 0, 1]
    reader.seconds = 60.0
    reader.handle(AnswererAppeared(reader.now, strange=True))
    reader.wait(WAIT_SECONDS)
    assert [fetch.first for fetch in reader.fetches if fetch.epoch == FIRST] == [3]
    reader.fetches = [fetch for fetch in reader.fetches if fetch.epoch == FIRST]
    reader.answer(sample(3, FIRST), names=NAMES)
    assert [(miss.epoch, miss.first, miss.last) for miss in reader.missed] == [(FIRST, 3, 3)]


@pytest.mark.parametrize("gone_at", [29.9, 10.0])
def test_what_ends_just_as_a_cache_is_there_again_is_asked_for_once_more(gone_at: float) -> None:
    """Its answer was of before it had what was on its way to it (seed 96269)."""
    reader = Restarted()
    reader.handle(AnswererAppeared(reader.now, False, moment_at(gone_at)))
    reader.take_first_answer()
    reader.answer(names=NAMES)
    assert reader.delivered == [0, 1, 2, 0]
    reader.take_first_answer()
    assert reader.of_the_first == []
    reader.wait(WAIT_SECONDS)
    assert reader.of_the_first == [(3, 3 + SPAN - 1)]
    reader.take_first_answer()
    reader.answer(sample(3, FIRST, at=1.2), names=NAMES)
    assert reader.missed == [Missed(SOURCE, FIRST, 3, 3)]
    reader.wait(60)
    assert reader.of_the_first == []


@pytest.mark.parametrize("sn", [2, 3])
def test_what_a_cache_tells_of_a_run_that_is_about_to_end_is_asked_for_when_it_has(sn: int) -> None:
    """Whoever is asked for the end meanwhile may have answered before."""
    reader = Restarted()
    reader.handle(HeartbeatReceived(SOURCE, sn, reader.now, stored_as=FIRST))
    reader.handle(HeartbeatReceived(SOURCE, 0, reader.now, stored_as=FIRST))
    reader.nobody_knows()
    reader.take_first_answer()
    reader.wait(0)
    assert reader.of_the_first == ([(3, 3 + SPAN - 1)] if sn == 3 else [])
