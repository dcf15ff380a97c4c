"""Does each delivery mode do what Ockam's text says, and what any order of arrivals may bring?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.errors import ConfigError
from durable_cache.model.delivery import DeliveryMode, DeliveryRates
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.protocol.modes import Arrival, Arrivals, Mode, ModeOptions, Passed

UNRELIABLE = Mode.of("unreliable")
BY_INDEX = Mode.of("at-most-once")
BY_ID = Mode.of("at-most-once", ModeOptions(deduplication="id"))
NEXT_ONLY = Mode.of("at-most-once", ModeOptions(next_only=True))
WITHOUT_RECOVERY = (UNRELIABLE, BY_INDEX, BY_ID, NEXT_ONLY)


class Counted(NamedTuple):
    passed: list[int]
    discarded: int
    lost: RangeSet
    """Reported, less what came after all."""
    rates: DeliveryRates


def after(mode: Mode, numbers: Sequence[int], sent: int | None = None) -> Counted:
    """Return what a mode makes of numbers that arrive in this order; a heartbeat names the last."""
    arrivals, passed, first, lost = Arrivals(mode), [], set(), RangeSet()
    for sn in numbers:
        does, gone = arrivals.take(sn)
        if gone is not None:
            assert not any(lost.run_at(one) for one in gone)
            lost.add(gone.first, gone.last)
        if does is Passed.FOUND:
            assert sn in lost
            lost.remove(sn, sn)
        if does is not None:
            assert (does is Passed.AGAIN) == (sn in first)
            passed.append(sn)
            first.add(sn)
    if sent is not None and (gone := arrivals.tell(sent - 1)) is not None:
        lost.add(gone.first, gone.last)
    known = len(first) + lost.count
    return Counted(
        passed,
        len(numbers) - len(passed),
        lost,
        DeliveryRates.measured(known, len(numbers), len(first)),
    )


@pytest.mark.parametrize(
    ("sentence", "mode", "arrives", "passed", "lost"),
    [
        (
            "Unreliable: when messages may be lost or duplicated",
            UNRELIABLE,
            [0, 1, 1, 3, 2, 5],
            [0, 1, 1, 3, 2, 5],
            [4],
        ),
        (
            "At-most-once: when all messages are unique, but may be missing",
            BY_INDEX,
            [0, 1, 1, 3, 5, 5],
            [0, 1, 3, 5],
            [2, 4],
        ),
        (
            "Receiver discard messages with IDs already processed",
            BY_ID,
            [0, 1, 1, 3, 2, 5, 3, 2, 0],
            [0, 1, 3, 2, 5],
            [4],
        ),
        (
            "Receiver discards messages with lower index than already processed",
            BY_INDEX,
            [0, 2, 1, 3, 2],
            [0, 2, 3],
            [1],
        ),
        (
            "Optionally receiver only processes next consecutive index",
            NEXT_ONLY,
            [0, 2, 1, 3, 2, 3, 3],
            [0, 1, 2, 3],
            [],
        ),
        (
            "Optionally receiver only processes next consecutive index: nobody sends 1 again",
            NEXT_ONLY,
            [0, 2, 3, 4],
            [0],
            [1, 2, 3, 4],
        ),
    ],
)
def test_sentences_of_the_text(
    sentence: str, mode: Mode, arrives: list[int], passed: list[int], lost: list[int]
) -> None:
    counted = after(mode, arrives)
    assert counted.passed == passed, sentence
    assert counted.lost == RangeSet.of(lost), sentence


@pytest.mark.parametrize("mode", [UNRELIABLE, BY_INDEX, BY_ID])
def test_the_texts_picture_one_of_four_was_lost_one_of_four_was_duplicated(mode: Mode) -> None:
    """The rates are those of what was received; deduplication changes what the program gets."""
    assert after(mode, [0, 2, 2, 3]).rates == (3 / 4, 3 / 4)


ARRIVES = st.lists(st.integers(0, 30), max_size=80)


@given(ARRIVES)
def test_unreliable_passes_on_what_arrives_as_it_arrives(numbers: list[int]) -> None:
    counted = after(UNRELIABLE, numbers, sent=31)
    assert counted.passed == numbers
    if numbers:
        lowest = min(numbers)
        lost = set(range(lowest, 31)) - set(numbers)
        assert counted.lost == RangeSet.of(lost)
        assert counted.rates == DeliveryRates.measured(31 - lowest, len(numbers), len(set(numbers)))


@given(ARRIVES)
def test_by_id_each_number_is_passed_on_when_it_comes_first(numbers: list[int]) -> None:
    counted = after(BY_ID, numbers, sent=31)
    assert counted.passed == list(dict.fromkeys(numbers))
    if numbers:
        assert counted.lost == RangeSet.of(set(range(min(numbers), 31)) - set(numbers))


@given(ARRIVES)
def test_by_index_what_is_passed_on_rises(numbers: list[int]) -> None:
    rising: list[int] = []
    for sn in numbers:
        if not rising or sn > rising[-1]:
            rising.append(sn)
    counted = after(BY_INDEX, numbers, sent=31)
    assert counted.passed == rising
    if numbers:
        assert counted.lost == RangeSet.of(set(range(numbers[0], 31)) - set(rising))


@given(ARRIVES)
def test_next_only_what_is_passed_on_has_no_hole(numbers: list[int]) -> None:
    following: list[int] = []
    for sn in numbers:
        if not following or sn == following[-1] + 1:
            following.append(sn)
    counted = after(NEXT_ONLY, numbers, sent=31)
    assert counted.passed == following
    if numbers:
        assert counted.lost == RangeSet.of(set(range(numbers[0], 31)) - set(following))


@given(st.sampled_from(WITHOUT_RECOVERY), ARRIVES)
def test_every_arrival_is_passed_on_or_discarded_and_none_counted_twice(
    mode: Mode, numbers: list[int]
) -> None:
    counted = after(mode, numbers)
    assert len(counted.passed) + counted.discarded == len(numbers)
    assert not any(sn in counted.lost for sn in counted.passed)
    if mode.delivery is DeliveryMode.AT_MOST_ONCE:
        assert len(set(counted.passed)) == len(counted.passed)


@given(st.lists(st.integers(0, 200), max_size=120), st.integers(1, 20))
def test_a_bounded_window_never_passes_on_a_repeat_by_id(numbers: list[int], ids_max: int) -> None:
    mode = Mode.of("at-most-once", ModeOptions(deduplication="id", ids_max=ids_max))
    arrivals, passed = Arrivals(mode), []
    for sn in numbers:
        known = arrivals.top
        if arrivals.take(sn).passed is not None:
            passed.append(sn)
        elif sn > known - ids_max:
            assert sn in passed  # what the window holds is discarded as a repeat alone
        assert arrivals.missing.count <= ids_max
    assert len(set(passed)) == len(passed)


def test_below_the_window_unreliable_passes_on_and_does_not_know_of_what() -> None:
    arrivals = Arrivals(Mode.of("unreliable", ModeOptions(ids_max=4)))
    assert arrivals.take(0) == Arrival(Passed.FIRST)
    assert arrivals.take(10) == Arrival(Passed.FIRST, SnRange(1, 9))
    assert arrivals.take(8) == Arrival(Passed.FOUND)
    assert arrivals.take(7) == Arrival(Passed.FOUND)
    assert arrivals.take(6) == Arrival(Passed.AGAIN)


def test_a_run_that_is_ours_from_its_first_number_on_lost_what_came_before() -> None:
    arrivals = Arrivals(BY_INDEX, first=0)
    assert arrivals.take(2) == Arrival(Passed.FIRST, SnRange(0, 1))
    assert Arrivals(NEXT_ONLY, first=0).take(1) == Arrival(None, SnRange(0, 1))
    assert Arrivals(NEXT_ONLY).take(1) == Arrival(Passed.FIRST)


def test_a_number_that_was_told_is_lost_until_it_comes() -> None:
    arrivals = Arrivals(BY_INDEX)
    arrivals.take(0)
    assert arrivals.tell(3) == SnRange(1, 3)
    assert arrivals.tell(2) is None
    assert arrivals.take(1) == Arrival(Passed.FOUND)
    assert arrivals.take(4) == Arrival(Passed.FIRST)
    assert arrivals.take(3) == Arrival(None)


@pytest.mark.parametrize(
    ("mode", "options", "says"),
    [
        ("twice", {}, "unreliable, at-most-once, at-least-once, exactly-once"),
        (4, {}, "mode: expected the name of a delivery mode"),
        ("unreliable", {"deduplication": "id"}, 'deduplication is an option of mode="at-most-once'),
        (
            "exactly-once",
            {"next_only": True},
            "leave next_only out with mode=",
        ),
        ("at-most-once", {"retries": 1}, 'retries is an option of mode="at-least-once"'),
        (
            "unreliable",
            {"confirm_timeout_seconds": 1},
            "choose that mode, or leave confirm_timeout",
        ),
        ("at-most-once", {"deduplication": "id", "next_only": True}, "leave next_only out"),
        ("at-most-once", {"deduplication": "name"}, 'deduplication: expected "id" or "index"'),
        ("at-least-once", {"retries": -1}, "retries: expected a whole number of at least 0"),
        ("at-least-once", {"confirm_timeout_seconds": 0}, "a number of seconds above 0"),
        ("unreliable", {"ids_max": 0}, "ids_max: expected a whole number of at least 1"),
        ("unreliable", {"ids_max": "many"}, "ids_max: expected a whole number"),
    ],
)
def test_what_contradicts_a_mode_is_refused_with_the_remedy(
    mode: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        Mode.of(mode, ModeOptions(**options))
    assert says in str(error.value)


@pytest.mark.parametrize("mode", list(DeliveryMode))
def test_a_mode_is_named_or_given(mode: DeliveryMode) -> None:
    assert Mode.of(mode) == Mode.of(mode.words)
    assert Mode.of(mode).recovers == mode.is_reliable
