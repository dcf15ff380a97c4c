"""What a subscriber is given that reads the newest of each key alone: runs to their ends."""

from __future__ import annotations

import pytest

from durable_cache.endpoints.subscriber.questions import newest_asked
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import AnswererAppeared, AnswerersGone
from durable_cache.protocol.wire import AbsenceReason, Incarnation, incarnation_after
from tests.unit.subscriber_reader import EPOCH, FRESH, OTHER, SOURCE, Reader, absent, sample


def test_what_waits_of_the_run_before_goes_before_a_run_that_began_while_history_was_read() -> None:
    """The newest of each key are of the later run alone; none of them waits for history."""
    reader = Reader(history=True, newest=3)
    reader.declared(FRESH, "aaaaaaaa")
    reader.live(sample(0, at=5))
    reader.declared(FRESH + 2, "bbbbbbbb")
    reader.live(sample(2, at=20.2))
    begun = [sample(sn, FRESH + 2, at=20 + sn / 10) for sn in range(2)]
    names = (Incarnation(SOURCE, FRESH, "aaaaaaaa"), Incarnation(SOURCE, FRESH + 2, "bbbbbbbb"))
    reader.page(begun[1:], names=names)
    while reader.fetches:
        reader.answer(sample(0, FRESH, at=5), *begun, names=names)
    reader.live(sample(3, at=20.3))
    assert reader.story == [0, 0, 1, 2, 3]
    assert [one.epoch for one in reader.delivered_samples] == [FRESH, *4 * [FRESH + 2]]


def test_a_run_that_began_while_history_was_read_is_read_where_nothing_goes_first() -> None:
    """What came before its token is on the page: of it, or of the run before."""
    reader = Reader(history=True, newest=3)
    reader.declared(EPOCH, "aaaaaaaa")
    reader.live(sample(1, at=5), sample(1, at=20.1))
    reader.declared(FRESH + 2, "bbbbbbbb")
    before = [sample(sn, EPOCH, at=sn + 4) for sn in range(2)]
    begun = [sample(sn, FRESH + 2, at=20 + sn / 10) for sn in range(3)]
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH + 2, "bbbbbbbb"))
    reader.page([*before, *begun], names=names)
    assert reader.wanted == [(2, None)]
    reader.answer(names=names)
    assert reader.story == [0, 1, 0, 1, 2]
    assert not reader.fetches


def two_runs() -> tuple[Reader, tuple[Incarnation, ...]]:
    """Return who reads the newest of each key, of two runs of a source."""
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader = Reader(history=True, newest=3)
    before, begun = [sample(3, EPOCH), sample(5, EPOCH)], [sample(0, FRESH, at=9)]
    reader.page([*before, *begun], names=names)
    return reader, names


def test_of_the_newest_a_run_is_given_to_its_end_before_the_next_one() -> None:
    """Its last numbers are under keys that the next run wrote since."""
    reader, names = two_runs()
    assert reader.wanted == [(4, None)]
    reader.answer(*(sample(sn, EPOCH) for sn in (4, 6, 7)), sample(0, FRESH, at=9), names=names)
    assert reader.story == [3, 4, 5, 6, 7, 0]
    assert not reader.fetches
    assert not reader.unsure


def test_of_the_end_of_a_run_a_hole_is_reported_before_the_next_one() -> None:
    reader, names = two_runs()
    skipped = absent(7, 8, AbsenceReason.SKIPPED, EPOCH)
    reader.answer(*(sample(sn, EPOCH) for sn in (4, 6)), names=names, absent=(skipped,))
    assert reader.story == [3, 4, 5, 6, (7, 8), 0]


def test_where_nobody_tells_the_end_of_a_run_the_next_one_may_follow_a_loss() -> None:
    reader, names = two_runs()
    for _ in range(200):
        reader.wait(0.5)
        while reader.fetches:
            reader.answer(sample(4, EPOCH), names=names, whole=False)
    assert reader.story == [3, 4, 5, 0]
    assert reader.unsure == [0]


def test_of_the_newest_a_run_is_given_up_to_its_wrap() -> None:
    """A later page brings the next run: what lies between is missing, and is reported."""
    after = incarnation_after("aaaaaaaa")
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, after))
    reader = Reader(history=True, newest=3)
    last = SOURCE_SN_MODULUS - 1
    cut = sample(last - 2, EPOCH, at=1)
    reader.page([cut], names=names, cut_after=cut)
    reader.page([sample(0, FRESH, at=9)], names=names)
    assert reader.wanted == [(last - 1, last)]
    for _ in range(200):
        while reader.fetches:
            reader.answer(sample(last - 1, EPOCH, at=2), names=names)
        reader.wait(0.5)
    assert reader.story == [last - 2, last - 1, (last, last), 0]


def test_of_all_history_the_end_of_a_run_is_on_a_page() -> None:
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    reader = Reader(history=True)
    reader.page([sample(3, EPOCH), sample(0, FRESH, at=9)], names=names)
    assert reader.story == [3, 0]
    assert not reader.fetches


def newest_of_two_caches() -> tuple[list[list[Sample]], tuple[Incarnation, ...]]:
    """Return the newest three that each of two caches has; one was away for a while."""
    names = (Incarnation(SOURCE, EPOCH, "aaaaaaaa"), Incarnation(SOURCE, FRESH, "bbbbbbbb"))
    before = [sample(sn, EPOCH, at=sn) for sn in (7, 8, 9)]
    return [before, [sample(sn, FRESH, at=20 + sn) for sn in (4, 5, 6)]], names


def test_of_what_each_cache_calls_the_newest_those_of_all_are_given() -> None:
    parts, names = newest_of_two_caches()
    reader = Reader(history=True, newest=3)
    reader.page(*parts, names=names)
    assert reader.story == [4, 5, 6]
    assert not reader.fetches


def test_what_was_the_newest_to_a_cache_that_was_away_is_not_missed() -> None:
    """Nobody asked for it: of its key there is newer (seed 1924)."""
    parts, names = newest_of_two_caches()
    reader = Reader(history=True, newest=3)
    reader.page(parts[1], names=names, whole=False)
    reader.wait(60)
    reader.page(parts[1], names=names, whole=False)
    reader.handle(AnswererAppeared(reader.now))
    reader.page(*parts, names=names)
    assert reader.story == [4, 5, 6]


def test_what_two_caches_call_differently_is_one_of_the_newest() -> None:
    """They do not agree on one number: so nothing shows that it is one run."""
    mine = [*(sample(sn, at=sn) for sn in (1, 2)), sample(3, at=3)]
    theirs = [*(sample(sn, EPOCH, at=sn) for sn in (1, 2)), sample(3, EPOCH, at=3.5)]
    reader = Reader(history=True, newest=4)
    reader.page(mine, theirs)
    while reader.fetches:
        reader.answer()
    assert reader.story == [1, 2, 3, 1, 2, 3]


def test_of_what_was_missed_behind_a_cut_all_is_given() -> None:
    """However little was wanted of history, two wrote the key meanwhile."""
    reader = Reader(history=True, newest=1)
    reader.page([sample(0, EPOCH)])
    reader.handle(AnswerersGone(reader.now))
    reader.handle(AnswererAppeared(reader.now))
    third = SourceId("ef", 1)
    reader.page([sample(0, FRESH, at=9, source=OTHER)], [sample(0, FRESH, at=9.5, source=third)])
    assert [one.source for one in reader.delivered_samples] == [SOURCE, OTHER, third]
    assert not reader.missed


@pytest.mark.parametrize(
    ("history", "newest"),
    [(None, 0), ("", 0), ("_max=3", 3), ("_time=[now(-1h)..];_max=12", 12)],
)
def test_the_question_says_how_many_are_wanted(history: str | None, newest: int) -> None:
    assert newest_asked(history) == newest


def test_a_question_for_a_time_bounds_no_key() -> None:
    assert newest_asked("_time=[now(-1h)..]") > SOURCE_SN_MODULUS // 2


def test_what_a_publisher_gives_without_a_name_goes_to_the_next_run_from_its_first_time_on() -> (
    None
):
    """Also within the tenth of a second behind what was given of the run before (ADR 0271)."""
    reader = Reader(history=True, newest=2)
    times = {sn: (sn if sn < 18 else 17 + (sn - 17) / 100) for sn in range(5, 23)}
    begun = [sample(sn, FRESH, at=times[sn]) for sn in (20, 22)]
    reader.page([sample(5, 0, at=times[5], key="j"), *begun])
    for tried in range(9):
        if not reader.fetches:
            reader.wait(1)
        if reader.fetches:
            fetch = reader.fetches[0]
            last = 22 if fetch.last is None else fetch.last
            asked = range(fetch.first, min(last, 22) + 1)
            given = [sample(sn, fetch.epoch and FRESH, at=times[sn]) for sn in asked]
            late = fetch.epoch and tried < 5  # nobody gives 21 of the next run at once
            reader.answer(*(() if late else given), whole=tried > 4)
    assert reader.story == [*range(5, 23)]


def test_what_follows_the_newest_by_number_is_asked_for_where_times_go_back() -> None:
    """Number 26 was published last, with an earlier time than the newest three (seed 1886)."""
    reader = Reader(history=True, newest=3)
    reader.page([sample(22), sample(23), sample(25)])
    assert reader.wanted == [(24, None)]
    reader.answer(sample(24, at=0), sample(25), sample(26, at=0))
    assert reader.story == [22, 23, 24, 25, 26]
