"""What comes live while a subscriber reads history, and history lacks, or has as well."""

from __future__ import annotations

import pytest

from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import (
    AnswerPart,
    DeliveryOptions,
    HeartbeatReceived,
    TokenGone,
)
from durable_cache.protocol.wire import AbsenceReason, Incarnation, incarnation_after
from tests.unit.subscriber_reader import EPOCH, FRESH, SOURCE, Reader, absent, sample

NAMES = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"),)
LAST = SOURCE_SN_MODULUS - 1


def listed(*, newest: int = 0, token: str = "aaaaaaaa") -> Reader:
    """Return who comes late, and sees the token of a publisher that goes on."""
    reader = Reader(history=True, newest=newest)
    reader.declared(EPOCH, token)
    return reader


@pytest.mark.parametrize("newest", [0, 1])
def test_what_came_while_history_was_read_is_given_though_caches_keep_what_is_newer_alone(
    newest: int,
) -> None:
    reader = listed(newest=newest)
    reader.live(sample(6), sample(5), sample(7))
    reader.page([sample(7, EPOCH)], names=NAMES)
    reader.live(sample(8))
    assert reader.story == [5, 6, 7, 8]
    assert [one.epoch for one in reader.delivered_samples] == 4 * [EPOCH]
    assert not reader.fetches


def test_what_came_is_given_though_its_publishers_clock_was_set_back_since() -> None:
    reader = listed(newest=1)
    reader.live(sample(5, at=50), sample(6, at=1))
    reader.page([sample(6, EPOCH, at=1)], names=NAMES)
    assert reader.story == [5, 6]


def test_between_what_came_and_what_caches_keep_numbers_are_asked_for() -> None:
    reader = listed(newest=1)
    reader.live(sample(5))
    reader.page([sample(8, EPOCH)], names=NAMES)
    assert reader.wanted == [(6, None)]
    reader.answer(sample(6, EPOCH), sample(7, EPOCH), names=NAMES)
    assert reader.story == [5, 6, 7, 8]


def test_what_came_later_than_what_lies_above_it_is_asked_for() -> None:
    """It may be one of the last of the run before, that took long."""
    reader = listed()
    reader.live(sample(6, at=50))
    reader.page([sample(5, EPOCH), sample(7, EPOCH)], names=NAMES)
    assert reader.wanted == [(6, 6)]


def test_what_came_before_the_token_of_its_run_is_no_number_of_one_that_it_was_not_there_for() -> (
    None
):
    """A sample under another token is not of the run on the page."""
    reader = listed(token="bbbbbbbb")
    reader.live(sample(5))
    reader.page([sample(7, EPOCH)], names=NAMES)
    assert reader.story[:1] == [7]


def test_what_a_page_has_of_another_run_is_not_given_again_as_of_this() -> None:
    """It came twice, the second time behind the token of the next run."""
    names = (*NAMES, Incarnation(SOURCE, FRESH - 1, "bbbbbbbb"))
    reader = listed(newest=3, token="bbbbbbbb")
    reader.live(sample(4, at=1))
    reader.page([sample(4, EPOCH, at=1), sample(9, FRESH - 1, at=5)], names=names)
    reader.answer(names=names)
    assert reader.story == [4, 9]
    assert [one.epoch for one in reader.delivered_samples] == [EPOCH, FRESH - 1]


def test_what_is_older_than_all_of_another_run_was_not_read_of_that() -> None:
    """The publisher's clock was set back: by its number alone it could be one of that run."""
    names = (*NAMES, Incarnation(SOURCE, EPOCH + 1, "bbbbbbbb"))
    before = [sample(sn, EPOCH, at=50 + sn) for sn in range(3)]
    reader = listed(newest=3, token="bbbbbbbb")
    reader.live(sample(1, at=5))
    reader.page(before, names=names, cut_after=before[-1])
    reader.page([sample(2, EPOCH + 1, at=6)], names=names)
    while reader.fetches:
        reader.answer(names=names)
    assert reader.story == [0, 1, 2, 1, 2]


def test_a_wrap_lies_between_what_came_and_what_a_page_has_of_a_foreign_run() -> None:
    """The newest of the run before are on the page, and of the next nothing is (seed 2999)."""
    reader = Reader(history=True, newest=2)
    reader.live(sample(LAST - 1, at=1), sample(LAST, at=1), sample(0, at=1))
    reader.page([sample(LAST - 1, EPOCH, at=1)])
    while reader.fetches:
        reader.answer()
    assert reader.story == [LAST - 1, LAST, 0]


def test_a_wrap_lies_between_what_came_and_what_a_page_has_of_a_named_run() -> None:
    reader = listed(newest=2)
    reader.live(sample(LAST - 1, at=1), sample(LAST, at=1), sample(0, at=1))
    reader.page([sample(LAST - 1, EPOCH, at=1)], names=NAMES)
    assert not reader.fetches
    reader.declared(FRESH, incarnation_after("aaaaaaaa"))
    assert reader.story == [LAST - 1, LAST, 0]


def test_what_history_gave_is_no_loss_of_the_run_whose_token_was_there_when_it_came() -> None:
    """It was faster than its token (seed 2904)."""
    names = (*NAMES, Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader = listed(newest=3)
    reader.live(sample(2, at=22), sample(1, at=21))
    reader.declared(FRESH, "bbbbbbbb")
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.page([sample(sn, FRESH, at=20 + sn) for sn in (1, 2)], names=names)
    reader.answer(sample(0, FRESH, at=20), names=names)
    assert reader.story == [0, 1, 2]
    assert reader.engine.duplicates == 2


def test_a_run_whose_token_comes_behind_anothers_is_ours_from_its_first_number_on() -> None:
    """Its publisher's clock was set back: its epoch does not show it (seed 6586)."""
    names = (*NAMES, Incarnation(SOURCE, EPOCH + 1, "bbbbbbbb"))
    reader = listed(newest=3)
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(EPOCH, "bbbbbbbb")
    reader.live(sample(1, at=5))
    reader.page([sample(1, EPOCH + 1, at=5), sample(2, EPOCH + 1, at=5.1)], names=names)
    assert reader.wanted == [(0, None)]
    reader.answer(sample(0, EPOCH + 1, at=5), names=names)
    assert reader.story == [0, 1, 2]


def test_of_a_run_that_began_behind_another_in_our_sight_what_went_before_is_asked_for() -> None:
    reader = Reader()
    reader.declared(EPOCH, "aaaaaaaa")
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(EPOCH, "bbbbbbbb")
    reader.live(sample(2, at=5))
    assert reader.wanted == [(0, 2)]


def test_what_found_no_room_to_wait_goes_behind_the_tokens_that_waited() -> None:
    """Else number 0 of the next run looks like one of behind a wrap (seed 11564)."""
    names = (*NAMES, Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader = Reader(DeliveryOptions(pending_samples_max=2), history=True)
    reader.live(sample(LAST - 9, at=1))
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(LAST - 8, at=1))
    reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    reader.declared(FRESH, "bbbbbbbb")
    reader.live(sample(0, at=9))
    reader.page([sample(LAST - 9, EPOCH, at=1), sample(LAST - 8, EPOCH, at=1)], names=names)
    while reader.fetches:
        reader.answer(sample(0, FRESH, at=9), names=names)
    assert reader.story == [LAST - 9, LAST - 8, 0]


def test_what_an_answer_calls_the_next_run_shows_where_a_nameless_one_ended() -> None:
    """Its publisher's own cache names no run, and gives both alike (seed 11099)."""
    before, begun = sample(6, at=1), [sample(sn, EPOCH, at=10 + sn) for sn in (7, 9, 19)]
    own = [sample(one.sn, at=10 + one.sn) for one in begun]
    reader = Reader(history=True, newest=1)
    reader.page([before, begun[-1]])
    assert reader.wanted == [(7, None)]
    answer = (AnswerPart(begun, (absent(8, 8, AbsenceReason.OTHER_KEY, EPOCH),)), AnswerPart(own))
    reader.answer_of(*answer)
    assert reader.story == [6, 19]
    reader.handle(HeartbeatReceived(SOURCE, 19, reader.now))
    assert not reader.missed


@pytest.mark.parametrize("goes", [True, False])
def test_of_a_run_that_began_since_a_token_went_the_newest_are_not_enough(goes: bool) -> None:
    """A link is cut, and nobody could be asked before: its own token was not seen (150621)."""
    reader = Reader(history=True, newest=2)
    reader.declared(EPOCH, "aaaaaaaa")
    if goes:
        reader.handle(TokenGone(SOURCE, "aaaaaaaa", reader.now))
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    ended = [sample(sn, EPOCH, at=sn / 10) for sn in (8, 9)]
    begun = [sample(sn, FRESH, at=20 + sn / 10) for sn in range(5)]
    reader.page([*ended, *begun[3:]], names=names)
    while reader.fetches:
        reader.answer(*(begun if goes else ()), names=names)
    assert reader.story == [8, 9, *(range(5) if goes else (3, 4))]
