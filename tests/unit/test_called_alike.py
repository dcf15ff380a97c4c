"""Two foreign runs that two caches call by one epoch are not mixed (ADR 0215, 0322)."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import Origin
from durable_cache.runtime.effects import Inquired
from durable_cache.storage.contract import Floor
from tests.unit.driven import DrivenCache
from tests.unit.test_core import ONE, acknowledged, of_run, run_of

EARLIER, LATER = 1, 2
"""Two runs after the first one, 100 and 104 seconds after the caches began."""


def earlier(first: int, last: int) -> list[Sample]:
    return run_of(ONE, first, last, seconds=100, run=EARLIER)


def later(first: int, last: int) -> list[Sample]:
    return run_of(ONE, first, last, seconds=104, run=LATER)


def that_heard(samples: list[Sample]) -> tuple[DrivenCache, int]:
    """Return a cache that heard the first run and these, and how it calls these."""
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 19))
    cache.take(samples)
    cache.wait(2)
    cache.effects.clear()
    return cache, cache.core.epochs.canonical(ONE, cache.all()[-1].epoch)


def given(cache: DrivenCache, samples: list[Sample], epoch: int) -> None:
    """Give samples as a peer does that was asked for them: again and again."""
    for _ in range(3):
        called = [msgspec.structs.replace(sample, epoch=epoch) for sample in samples]
        cache.take(called, Origin.ALIGNED)
        cache.wait(2)


def that_moved_its_run() -> tuple[DrivenCache, int]:
    """Return a cache that calls its run by a later epoch than it did, and the one it left."""
    cache, name = that_heard(later(0, 9))
    given(cache, later(0, 9), name + 1)
    for inquiry in cache.inquiries():
        cache.give(Inquired(inquiry.inquiry_id, cache.now))
    cache.wait(2)
    return cache, name


@pytest.mark.parametrize("theirs", [(0, 5), (2, 3)], ids=["numbers in common", "times alone"])
def test_the_later_of_two_runs_goes_by_a_later_epoch(theirs: tuple[int, int]) -> None:
    cache, name = that_heard(earlier(4, 9))
    given(cache, later(*theirs), name)
    assert of_run(cache, ONE, EARLIER) == {name: RangeSet([(4, 9)])}
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([theirs])}


@pytest.mark.parametrize("theirs", [(4, 13), (10, 13)], ids=["numbers in common", "times alone"])
def test_who_has_the_later_run_calls_it_so_and_takes_the_other_under_its_name(
    theirs: tuple[int, int],
) -> None:
    cache, name = that_heard(later(0, 9))
    given(cache, earlier(*theirs), name)
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([(0, 9)])}
    assert of_run(cache, ONE, EARLIER) == {name: RangeSet([theirs])}
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([(0, 19)])}


def test_what_is_here_under_another_name_shows_which_run_a_name_means_there() -> None:
    """Nothing is acknowledged of the run that goes by that name here."""
    cache, name = that_heard([*earlier(4, 9), *later(0, 2)])
    (before,) = of_run(cache, ONE, EARLIER)
    given(cache, later(0, 3), before)
    assert of_run(cache, ONE, EARLIER) == {before: RangeSet([(4, 9)])}
    assert of_run(cache, ONE, LATER) == {name: RangeSet([(0, 3)])}
    assert acknowledged(cache, ONE) == RangeSet([(0, 3)])


def test_two_numbers_show_that_two_names_here_are_one_run_and_then_more_are_asked_for() -> None:
    """There may be room for few of what others give (seed 23175)."""
    cache, name = that_heard(earlier(6, 9))
    given(cache, earlier(0, 5), name - 2)  # one may be the rest of the other: nobody answers
    cache.effects.clear()
    cache.wait(60)
    given(cache, earlier(0, 2), name)
    (inquiry,) = cache.inquiries()
    assert (inquiry.first, inquiry.last) == (5, 6)
    cache.effects.clear()
    cache.wait(60)
    given(cache, earlier(0, 2), name)
    (inquiry,) = cache.inquiries()
    assert (inquiry.first, inquiry.last) == (0, 6)
    given(cache, earlier(5, 6), name)
    cache.give(Inquired(inquiry.inquiry_id, cache.now))
    cache.wait(2)
    assert of_run(cache, ONE, EARLIER) == {name: RangeSet([(0, 9)])}


def test_no_more_are_asked_for_where_there_was_no_room_for_the_answer() -> None:
    """What came of it lies nearer to where the names meet (seed 45547)."""
    cache, name = that_heard(earlier(12, 15))
    given(cache, earlier(0, 5), name - 2)
    for first in (5, 9):
        cache.effects.clear()
        cache.wait(60)
        given(cache, earlier(0, 2), name)
        (inquiry,) = cache.inquiries()
        assert (inquiry.first, inquiry.last) == (first, 12)
        given(cache, earlier(5, 9), name)  # of 5 to 12
        cache.give(Inquired(inquiry.inquiry_id, cache.now, whole=False))
    assert of_run(cache, ONE, EARLIER) == {name - 2: RangeSet([(0, 9)]), name: RangeSet([(12, 15)])}


def test_so_they_do_where_what_is_pulled_lies_above() -> None:
    cache, name = that_heard(earlier(0, 3))
    given(cache, earlier(6, 9), name + 2)
    cache.effects.clear()
    cache.wait(60)
    given(cache, earlier(7, 8), name)
    (inquiry,) = cache.inquiries()
    assert (inquiry.first, inquiry.last) == (3, 6)


def test_a_name_that_a_run_left_is_free_for_the_run_that_others_call_so() -> None:
    """Though what the first run had was purged, so that only its time tells them apart."""
    cache, name = that_moved_its_run()
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([(0, 9)])}
    cache.store.purge([Floor(later(0, 0)[0].stream._replace(epoch=name + 1), 10)])
    given(cache, earlier(10, 15), name)
    assert of_run(cache, ONE, EARLIER) == {name: RangeSet([(10, 15)])}
    assert of_run(cache, ONE, LATER) == {}


def test_what_comes_under_a_name_that_a_run_left_waits_for_what_shows_whose_it_is() -> None:
    """A peer gives the newest of a stream first: nothing may contradict either (seed 1891)."""
    cache, name = that_moved_its_run()
    given(cache, run_of(ONE, 12, 12, seconds=110, run=EARLIER), name)
    assert of_run(cache, ONE, EARLIER) == {}
    given(cache, earlier(0, 11), name)
    assert of_run(cache, ONE, EARLIER) == {name: RangeSet([(0, 11)])}
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([(0, 9)])}


def test_where_nothing_shows_it_in_half_a_minute_it_is_of_the_run_that_left() -> None:
    cache, name = that_moved_its_run()
    given(cache, later(10, 12), name)
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([(0, 9)])}
    cache.wait(30)
    given(cache, later(10, 12), name)
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([(0, 12)])}


def test_of_a_run_whose_last_number_was_removed_the_time_is_known() -> None:
    """Behind it by number and before it by time is another run (seed 4266)."""
    cache, name = that_heard(later(0, 1))
    cache.store.purge([Floor(later(0, 0)[0].stream._replace(epoch=name), 2)])
    given(cache, earlier(2, 3), name)
    cache.take(later(2, 3))
    cache.wait(2)
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([(2, 3)])}
    assert of_run(cache, ONE, EARLIER) == {name: RangeSet([(2, 3)])}


def test_of_a_run_that_was_removed_the_time_shows_that_another_came_later() -> None:
    cache, name = that_heard(earlier(4, 9))
    cache.store.purge([Floor(earlier(0, 0)[0].stream._replace(epoch=name), 10)])
    given(cache, later(2, 3), name)
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([(2, 3)])}


def test_where_no_epoch_is_free_the_runs_behind_give_way_first() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 19))
    cache.take(earlier(0, 5))
    (before,) = of_run(cache, ONE, EARLIER)
    cache.take(run_of(ONE, 0, 9, seconds=101, run=3))
    cache.take(later(0, 9))
    assert of_run(cache, ONE, LATER) == {before + 2: RangeSet([(0, 9)])}
    given(cache, run_of(ONE, 0, 12, seconds=102, run=4), before + 1)
    assert of_run(cache, ONE, 3) == {before + 1: RangeSet([(0, 9)])}
    assert of_run(cache, ONE, 4) == {before + 2: RangeSet([(0, 12)])}
    assert of_run(cache, ONE, LATER) == {before + 3: RangeSet([(0, 9)])}


def test_a_run_that_is_here_by_two_epochs_gives_no_way() -> None:
    """It is agreed on first by which one it goes (seed 30513)."""
    cache, name = that_heard(later(0, 9))
    cache.take(
        [msgspec.structs.replace(one, epoch=name + 1) for one in later(3, 6)], Origin.RECOVERED
    )
    given(cache, earlier(0, 5), name)
    assert of_run(cache, ONE, EARLIER) == {}
    for inquiry in cache.inquiries():
        cache.give(Inquired(inquiry.inquiry_id, cache.now))
    cache.wait(2)
    given(cache, earlier(0, 5), name)
    assert of_run(cache, ONE, LATER) == {name + 1: RangeSet([(0, 9)])}
    assert of_run(cache, ONE, EARLIER) == {name: RangeSet([(0, 5)])}


def test_one_run_whose_clock_was_set_back_is_one_where_a_number_in_common_shows_it() -> None:
    cache, name = that_heard(later(0, 5))
    given(cache, [*later(5, 5), *run_of(ONE, 6, 9, seconds=50, run=LATER)], name)
    assert of_run(cache, ONE, LATER) == {name: RangeSet([(0, 9)])}
