"""Which awaited ranges one question asks for, and what becomes of each when it is answered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.sample import SourceId
from durable_cache.model.window import Window
from durable_cache.protocol.cache.events import EngineOptions, Fetch
from durable_cache.protocol.cache.gaps import Gap, Gaps

SOURCE = SourceId("ab12", 7)
SECOND = 1_000_000_000


def waiting(*ranges: tuple[int, int], options: EngineOptions | None = None) -> tuple[Gaps, Window]:
    gaps, window = Gaps(options or EngineOptions()), Window()
    window.begin(0)
    window.expect(max(last for _, last in ranges))
    for first, last in ranges:
        gaps.open(Gap(SOURCE, 1, window, first, last, 0, 0))
    return gaps, window


def asked(fetches: list[Fetch]) -> list[tuple[int, int | None]]:
    return [(fetch.first, fetch.last) for fetch in fetches]


def test_gaps_near_each_other_are_one_question() -> None:
    gaps, _ = waiting((3, 3), (50, 51), (100, 100), (300, 300))
    assert asked(gaps.due(0)) == [(3, 100), (300, 300)]
    assert gaps.due(0) == []


def test_a_question_is_no_longer_than_a_page() -> None:
    gaps, _ = waiting(*((sn, sn) for sn in range(0, 9000, 100)))
    questions = asked(gaps.due(0))
    assert questions == [(0, 4000), (4100, 8100), (8200, 8900)]


def test_a_long_gap_is_asked_for_whole() -> None:
    gaps, _ = waiting((0, 100_000), (5, 7))
    assert asked(gaps.due(0)) == [(0, 100_000)]


def test_gaps_of_two_numberings_are_two_questions() -> None:
    gaps, _ = waiting((3, 3))
    other = Window()
    other.begin(0)
    other.expect(9)
    gaps.open(Gap(SOURCE, 2, other, 5, 5, 0, 0))
    assert asked(gaps.due(0)) == [(3, 3), (5, 5)]


def test_each_gap_goes_on_by_itself_when_the_question_is_answered() -> None:
    gaps, window = waiting((3, 3), (50, 51), (100, 100))
    (fetch,) = gaps.due(0)
    window.accept(3, 3)
    window.accept(50, 50)
    gaps.ended(fetch.fetch_id, SECOND)
    assert asked(gaps.due(SECOND)) == [(51, 51)], "it brought some of it: at once"
    assert len(gaps) == 2
    assert asked(gaps.due(2 * SECOND)) == [(100, 100)], "it brought nothing of it: after a pause"


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 300)), min_size=1, max_size=40),
    st.integers(1, 5),
)
def test_every_awaited_number_is_asked_for_and_no_question_is_asked_twice(
    ranges: list[tuple[int, int]], fetches_max: int
) -> None:
    """In rounds of `fetches_max` questions; nobody answers."""
    pairs = [(first, first + more) for first, more in ranges]
    gaps, _ = waiting(*pairs, options=EngineOptions(fetches_max=fetches_max))
    covered: set[int] = set()
    while fetches := gaps.due(0):
        assert len(fetches) <= fetches_max
        for fetch in fetches:
            assert fetch.last is not None
            covered.update(range(fetch.first, fetch.last + 1))
            gaps.ended(fetch.fetch_id, 0)
    assert covered >= {sn for first, last in pairs for sn in range(first, last + 1)}


def test_the_pause_after_a_question_for_nothing_doubles_up_to_its_bound() -> None:
    options = EngineOptions(fetch_retry_seconds=1.0, fetch_retry_seconds_max=5.0)
    gaps, _ = waiting((3, 3), options=options)
    now, pauses = 0, []
    for _ in range(5):
        (fetch,) = gaps.due(now)
        gaps.ended(fetch.fetch_id, now)
        wake = gaps.wake_ns()
        assert wake is not None
        assert gaps.due(wake - 1) == []
        pauses.append((wake - now) // SECOND)
        now = wake
    assert pauses == [1, 2, 4, 5, 5]


def numberings(gaps: Gaps, *sources: SourceId) -> None:
    """Open a gap in a numbering of its own, one after the other, for each of some sources."""
    for at, source in enumerate(sources):
        window = Window()
        window.begin(0)
        window.expect(10)
        gaps.open(Gap(source, at, window, 10, 10, at, at))


def test_beyond_the_bound_of_open_gaps_the_oldest_is_given_up_first() -> None:
    gaps = Gaps(EngineOptions(gaps_open_max=2))
    numberings(gaps, SOURCE, SOURCE)
    assert gaps.expired(0) == []
    numberings(gaps, SOURCE)
    assert [gap.epoch for gap in gaps.expired(0)] == [0]


def test_many_gaps_of_one_source_crowd_out_none_of_another() -> None:
    gaps = Gaps(EngineOptions(gaps_open_max=3))
    numberings(gaps, SourceId("cd34", 1), SOURCE, SOURCE, SOURCE, SOURCE)
    assert [(gap.source, gap.epoch) for gap in gaps.expired(0)] == [(SOURCE, 1), (SOURCE, 2)]


def test_beyond_the_bound_gaps_of_one_stretch_are_waited_for_as_one() -> None:
    ranges = [(sn, sn) for sn in range(0, 10_000, 500)]
    gaps, window = waiting(*ranges, options=EngineOptions(gaps_open_max=9))
    assert len(gaps) <= 9
    assert gaps.expired(0) == [], "none is given up for that"
    for sn in range(10_000):
        if (sn, sn) not in ranges:
            window.accept(sn, sn)
    assert {run.first for gap in gaps for run in gap.awaited()} == {sn for sn, _ in ranges}


def test_gaps_side_by_side_become_one_where_there_are_many() -> None:
    gaps, _ = waiting(*((sn, sn) for sn in range(1000)))
    assert len(gaps) <= 100
    assert asked(gaps.due(0)) == [(0, 999)]


def test_gaps_side_by_side_that_did_not_begin_together_have_their_own_time() -> None:
    options = EngineOptions(gap_timeout_seconds=10.0)
    gaps, window = waiting((0, 0), options=options)
    window.expect(1000)
    for sn in range(1, 1001):
        gaps.open(Gap(SOURCE, 1, window, sn, sn, sn * SECOND // 100, 0))
    assert len(gaps) <= 100
    for fetch in gaps.due(0):
        gaps.ended(fetch.fetch_id, 0)
    first, *_ = gaps.expired(12 * SECOND)
    assert first.first == 0
    assert first.last <= 101, "what began a second later is waited for longer"
    assert all(gap.last < 250 for gap in gaps.expired(12 * SECOND))


def test_a_gap_is_given_up_after_its_time_and_not_before_anybody_was_asked() -> None:
    options = EngineOptions(gap_timeout_seconds=10.0)
    gaps, _ = waiting((3, 3), options=options)
    assert gaps.expired(10 * SECOND) == [], "nobody was asked"
    (fetch,) = gaps.due(10 * SECOND)
    assert gaps.expired(10 * SECOND) == [], "the question is under way"
    assert len(gaps.expired(20 * SECOND)) == 1, "a question that never ends holds nothing up"
    gaps.ended(fetch.fetch_id, 11 * SECOND)
    (over,) = gaps.expired(11 * SECOND)
    gaps.close([over])
    assert gaps.expired(99 * SECOND) == []


def test_a_gap_about_which_nobody_could_be_asked_has_twice_its_time() -> None:
    options = EngineOptions(gap_timeout_seconds=10.0)
    gaps, _ = waiting((3, 3), options=options)
    (fetch,) = gaps.due(0)
    gaps.ended(fetch.fetch_id, SECOND, failed=True)
    assert gaps.expired(10 * SECOND) == [], "an error is no answer"
    assert len(gaps.expired(20 * SECOND)) == 1
    (fetch,) = gaps.due(11 * SECOND)
    gaps.ended(fetch.fetch_id, 12 * SECOND)
    assert len(gaps.expired(12 * SECOND)) == 1, "now somebody answered"


def test_no_more_questions_are_under_way_than_allowed() -> None:
    gaps, _ = waiting((0, 0), (1000, 1000), (2000, 2000), options=EngineOptions(fetches_max=2))
    first, _ = gaps.due(0)
    assert gaps.due(0) == []
    gaps.ended(first.fetch_id, 0)
    assert asked(gaps.due(0)) == [(2000, 2000)]


def test_what_a_question_brought_restarts_the_time_of_its_gap() -> None:
    gaps, window = waiting((0, 9), options=EngineOptions(gap_timeout_seconds=10.0))
    (fetch,) = gaps.due(0)
    window.accept(0, 4)
    gaps.ended(fetch.fetch_id, 9 * SECOND)
    assert gaps.expired(12 * SECOND) == []
    assert len(gaps.expired(19 * SECOND)) == 1


def test_a_skipped_number_is_awaited_no_more() -> None:
    gaps, window = waiting((3, 5))
    window.skip(3, 5)
    assert gaps.due(0) == []
    assert len(gaps) == 0
