"""Foreign numbers that wrapped: what lies before and what behind, whatever they are called."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from durable_cache.model.sample import Sample
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame
from durable_cache.protocol.subscriber.events import AnswererAppeared, DeliveryOptions
from durable_cache.protocol.wire import AbsenceReason
from tests.unit.subscriber_reader import BEGAN_NS, FRESH, SECOND, Reader, absent, sample

LAST = SOURCE_SN_MODULUS - 1
PATIENT = DeliveryOptions(history_timeout_seconds=1, gap_timeout_seconds=4)


def reads(reader: Reader, *parts: list[Sample]) -> None:
    """Answer every question for a page so, and not whole, until live samples go through."""
    for _ in range(60):
        if not reader.engine.reads_history:
            return
        if reader.asked:
            reader.page(*parts, whole=False)
        reader.wait(1)


def test_the_end_of_a_run_that_was_missed_is_no_number_behind_its_wrap() -> None:
    """A cache brings it later; it was published in the frame of the next run (seed 77419)."""
    before = [sample(LAST - 9 + at, at=1 + at / 10) for at in range(10)]
    behind = [sample(sn, at=3 + sn / 10) for sn in range(4)]
    reader = Reader(PATIENT, history=True)
    reads(reader, [])
    reader.live(*before[:4], *behind)
    while len(reader.story) < 9:
        while reader.fetches:
            reader.answer()
        reader.wait(1)
    given = [*range(LAST - 9, LAST - 5), (LAST - 5, LAST), 0, 1, 2, 3]
    assert reader.story == given
    reader.asked.clear()
    reader.handle(AnswererAppeared(reader.now))
    named = [msgspec.structs.replace(one, epoch=FRESH) for one in behind]
    reader.page([*before, *named])
    assert reader.wanted == []
    reader.live(sample(4, at=9))
    assert reader.story == [*given, 4]


def test_nor_is_it_where_history_brought_both_runs() -> None:
    before = [sample(LAST - 9 + at, at=1 + at / 10) for at in range(10)]
    behind = [sample(sn, FRESH, at=3 + sn / 10) for sn in range(4)]
    reader = Reader(PATIENT, history=True, newest=10)
    reader.handle(AnswererAppeared(reader.now))  # what it has is asked for next
    reader.page([*before[:4], *behind])
    assert reader.wanted == [(LAST - 5, LAST)]
    reader.answer(absent=(absent(LAST - 5, LAST, AbsenceReason.SKIPPED),))
    given = [*range(LAST - 9, LAST - 5), (LAST - 5, LAST), 0, 1, 2, 3]
    assert reader.story == given
    reader.page([*behind], whole=False)
    while reader.engine.reads_history:
        reader.asked.clear()
        reader.wait(1)
    reader.handle(AnswererAppeared(reader.now))
    reader.page([*before, *behind])
    assert reader.wanted == []
    reader.live(sample(4, at=9))
    assert reader.story == [*given, 4]


def test_what_caches_have_of_before_a_wrap_comes_too_late_behind_it() -> None:
    """One called the run behind it by no epoch, others the run before it (seed 76632)."""
    before = [sample(LAST - 2 + at, at=1 + at / 10) for at in range(3)]
    behind = [sample(sn, FRESH, at=20 + sn / 10) for sn in range(36)]
    newest = [sample(sn, at=20 + sn / 10) for sn in (36, 37)]
    reader = Reader(PATIENT, history=True)
    reader.handle(AnswererAppeared(reader.now))  # what it has is asked for next
    reader.page(newest)
    reader.page([*before, *behind])
    assert reader.wanted == []
    assert reader.story == [36, 37, (LAST - 2, LAST), (0, 35)]
    assert {miss.epoch for miss in reader.missed if miss.last == 35} == {0}
    reader.live(sample(38, at=30))
    assert reader.story[-1] == 38


def test_what_history_lacks_behind_a_wrap_is_missing_from_0_on() -> None:
    """The run before is there, so this one began behind its last number (seed 32014)."""
    before = [sample(LAST - 2 + at, at=1 + at / 10) for at in range(3)]
    behind = [sample(sn, FRESH, at=20 + sn / 10) for sn in range(2, 6)]
    reader = Reader(PATIENT, history=True)
    reader.page([*before, *behind])
    assert reader.wanted == [(0, 1)]
    reader.answer(sample(1, FRESH, at=20.1))
    reader.wait(1)
    while reader.fetches:
        reader.answer()
        reader.wait(1)
    assert reader.story == [LAST - 2, LAST - 1, LAST, (0, 0), 1, 2, 3, 4, 5]


def test_what_history_lacks_before_a_wrap_is_missing_up_to_it() -> None:
    """Its end was reported behind the first of the next run, though caches had it (seed 33954)."""
    before = [sample(LAST - 6 + at, at=1 + at / 10) for at in range(7)]
    behind = [sample(sn, FRESH, at=20 + sn / 10) for sn in range(3)]
    for pages in ([[*before[:3], *behind]], [before[:3], behind]):
        reader = Reader(PATIENT, history=True)
        for page in pages[:-1]:
            reader.page(page, cut_after=page[-1])
        reader.page(pages[-1])
        assert reader.wanted == [(LAST - 3, LAST)]
        assert 0 not in reader.story
        reader.answer(*before[3:6])
        while reader.fetches:
            reader.answer()
            reader.wait(1)
        assert reader.story == [*range(LAST - 6, LAST), (LAST, LAST), 0, 1, 2]


def test_nothing_is_where_more_is_missing_than_a_window_holds() -> None:
    """Its publisher chose its numbers, or began anew."""
    before, behind = sample(LAST - 9, at=1), sample(0, FRESH, at=20)
    for window, wanted in ((9, []), (10, [(LAST - 8, LAST)])):
        options = replace(PATIENT, window_size_samples=window)
        reader = Reader(options, history=True)
        reader.page([before, behind])
        assert reader.wanted == wanted


def test_what_the_page_has_by_another_epoch_is_given_once() -> None:
    """One cache had the first three without an epoch, and was given them by one (seed 44599)."""
    before = [sample(LAST - 2 + at, at=1 + at / 10) for at in range(3)]
    behind = [sample(sn, at=20 + sn / 10) for sn in range(4)]
    named = [
        msgspec.structs.replace(one, epoch=frame(BEGAN_NS + 20 * SECOND) + 1) for one in behind
    ]
    reader = Reader(PATIENT, history=True)
    reader.live(*before, *behind)
    reader.page(before, cut_after=before[-1])
    reader.page([*behind[:3], named[3]])
    assert reader.wanted == [(0, 2)]
    reader.answer(*named[:3])
    assert reader.story == [LAST - 2, LAST - 1, LAST, 0, 1, 2, 3]


def test_a_run_between_two_of_one_frame_is_neither() -> None:
    """Nobody heard it; the frame of its time is what the run behind it goes by."""
    reader = Reader(PATIENT, history=True)
    reads(reader, [])
    first, last = ([sample(sn, at=at + sn / 10) for sn in range(4)] for at in (1, 3))
    reader.live(*first)
    reader.live(*last)
    while reader.fetches:
        reader.answer()
    assert reader.story == 2 * [0, 1, 2, 3]
    reader.asked.clear()
    reader.handle(AnswererAppeared(reader.now))
    reader.page([sample(sn, at=2 + sn / 10) for sn in range(2, 6)])
    assert reader.wanted == []
    assert reader.story[8:] == [(2, 5)]
    reader.live(sample(4, at=9))
    assert reader.story[9:] == [4]


def test_the_rest_of_a_run_holds_nothing_of_before_the_wrap() -> None:
    """A publisher's own cache has both without a name, and is asked for all from one on (11850)."""
    reader = Reader(history=True, newest=3)
    reader.handle(AnswererAppeared(reader.now))
    reader.page([sample(sn, at=60.0) for sn in (64, 65, 66)])
    reader.page([sample(sn, at=61.0) for sn in (68, 69, 70)])
    assert reader.wanted == [(67, None)]
    before = [sample(sn, at=10.0) for sn in (LAST - 1, LAST)]
    reader.answer(*(sample(sn, at=61.0) for sn in range(67, 72)), *before)
    reader.wait(1)
    assert reader.delivered == [*range(64, 72)]
    assert not reader.missed
