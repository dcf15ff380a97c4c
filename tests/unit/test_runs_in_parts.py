"""A run of which one cache heard the beginning and another the rest, each under its own name."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample
from durable_cache.protocol.cache.events import Alias, EngineOptions, EpochDeclared, Origin
from durable_cache.runtime.effects import Inquired
from tests.unit.driven import DrivenCache
from tests.unit.test_agreeing import EARLY, LATE, Cache, named, samples, timed
from tests.unit.test_core import ONE, of_run, run_of
from tests.unit.test_engine import SOURCE, at

BEGUN, REST = range(7), range(7, 12)
CALLED = 190_000_000
"""What the cache that heard the beginning calls the run; the other one calls it by the next."""


def has_the_rest() -> Cache:
    cache = Cache()
    named(cache, LATE, *REST)
    assert cache.given(*samples(*BEGUN, epoch=EARLY)) == len(BEGUN)
    assert [(first, last) for _, first, last in cache.asked] == [(0, 11)]
    return cache


def test_a_run_that_two_caches_heard_in_parts_is_one_for_who_heard_the_rest() -> None:
    cache = has_the_rest()
    assert cache.agreed == []
    cache.answered(*samples(*BEGUN, epoch=EARLY))
    assert cache.agreed == [Alias(SOURCE, EARLY, 0, LATE)]


def test_a_run_that_two_caches_heard_in_parts_is_one_for_who_heard_the_beginning() -> None:
    cache = Cache()
    named(cache, EARLY, *BEGUN)
    assert cache.given(*samples(9, epoch=LATE)) == 1
    cache.answered(*samples(*REST, epoch=LATE))
    assert cache.agreed == [Alias(SOURCE, EARLY, 0, LATE)]


def test_a_beginning_that_somebody_gives_shows_that_a_later_run_is_another() -> None:
    cache = has_the_rest()
    cache.answered(*samples(0, 1, epoch=LATE, payload=b"again"))
    cache.given(*samples(2, epoch=LATE))
    assert cache.agreed == []


def test_a_beginning_that_somebody_has_without_an_epoch_may_be_that_of_the_later_run() -> None:
    cache = has_the_rest()
    cache.given(*samples(*REST, 12), *samples(0, payload=b"again"))
    cache.answered()
    assert cache.agreed == []


def test_a_third_name_of_the_later_run_tells_more_than_numbers_that_follow() -> None:
    cache = has_the_rest()
    other = samples(6, payload=b"again", epoch=LATE + 1)
    cache.given(*other, *samples(*REST, epoch=LATE + 1))
    cache.talk(cache.agreeing.answered(cache.asked[0][0]))
    assert cache.agreed == []


def test_an_answer_that_did_not_come_in_whole_shows_nothing() -> None:
    cache = has_the_rest()
    cache.talk(cache.agreeing.answered(cache.asked[-1][0], whole=False))
    assert cache.agreed == []
    cache = has_the_rest()
    cache.agreeing.inquiries.missed_some()
    cache.answered()
    assert cache.agreed == []


def test_runs_whose_numbers_follow_and_whose_times_do_not_are_two() -> None:
    cache = Cache()
    cache.given(*(timed(50 + sn, sn, LATE) for sn in REST))
    cache.given(*(timed(57 + sn, sn, EARLY) for sn in BEGUN))
    assert (cache.agreed, cache.asked) == ([], [])


def test_runs_whose_times_overlap_as_those_of_threads_do_may_be_one() -> None:
    cache = Cache()
    cache.given(*(timed(50 + sn, sn, LATE) for sn in REST))
    cache.given(timed(57.05, 6, EARLY))
    assert len(cache.asked) == 1


def test_numbers_further_ahead_than_a_run_may_jump_are_of_another() -> None:
    window = EngineOptions().window_size_samples
    for first, asked in ((6 + window, 1), (7 + window, 0)):
        cache = Cache()
        named(cache, EARLY, *BEGUN)
        cache.given(*samples(first, epoch=LATE))
        assert len(cache.asked) == asked


def test_a_run_between_two_parts_them() -> None:
    cache = Cache()
    cache.given(*(timed(100 + sn, sn, EARLY) for sn in BEGUN))
    cache.given(*(timed(150 + sn, sn, EARLY + 1) for sn in BEGUN))
    asked = len(cache.asked)
    cache.given(*(timed(90 + sn, sn, LATE) for sn in range(20, 22)))
    cache.given(*(timed(200 + sn, sn, LATE) for sn in REST))
    assert len(cache.asked) == asked


@pytest.mark.parametrize("epoch", [EARLY, LATE])
def test_a_run_that_a_token_declared_is_no_part_of_another(epoch: int) -> None:
    cache = Cache()
    cache.shell.give(EpochDeclared(SOURCE, epoch, False, at(0)))
    numbers = {EARLY: BEGUN, LATE: REST}
    cache.live(*samples(*numbers.pop(epoch), epoch=epoch))
    ((other, rest),) = numbers.items()
    cache.given(*samples(*rest, epoch=other))
    assert (cache.agreed, cache.asked) == ([], [])


def test_a_time_that_a_cache_gave_shows_nothing_of_a_part() -> None:
    cache = Cache()
    named(cache, LATE, *REST)
    own = [msgspec.structs.replace(one, stamped=True) for one in samples(*BEGUN, epoch=EARLY)]
    cache.given(*own)
    assert cache.asked == []


def called(epoch: int, run: list[Sample]) -> list[Sample]:
    return [msgspec.structs.replace(sample, epoch=epoch) for sample in run]


@pytest.mark.parametrize("whole", [True, False])
def test_a_core_stores_both_parts_under_the_later_name_if_all_of_the_answer_came_in(
    whole: bool,
) -> None:
    cache = DrivenCache()
    every = run_of(ONE, 0, 11)
    cache.take(called(CALLED + 1, every[7:]), Origin.ALIGNED)
    cache.take(called(CALLED, every[:7]), Origin.RECOVERED)
    ((inquiry_id),) = (inquiry.inquiry_id for inquiry in cache.inquiries())
    cache.take(called(CALLED, every[:7]), Origin.RECOVERED)
    cache.give(Inquired(inquiry_id, cache.now, whole=whole))
    cache.wait(2)
    expected = {CALLED + 1: RangeSet([(0, 11)])}
    assert (of_run(cache, ONE, 0) == expected) is whole


def test_what_could_not_be_looked_at_leaves_a_core_with_two_parts() -> None:
    cache = DrivenCache()
    every = run_of(ONE, 0, 11)
    cache.take(called(CALLED + 1, every[7:]), Origin.ALIGNED)
    cache.take(called(CALLED, every[:7]), Origin.RECOVERED)
    (inquiry,) = cache.inquiries()
    cache.disk_up = False
    cache.take(called(CALLED + 1, run_of(ONE, 0, 3, seconds=50, run=1)), Origin.RECOVERED)
    cache.disk_up = True
    cache.give(Inquired(inquiry.inquiry_id, cache.now))
    cache.wait(2)
    assert of_run(cache, ONE, 0) == {CALLED: RangeSet([(0, 6)]), CALLED + 1: RangeSet([(7, 11)])}


def test_what_comes_while_live_events_wait_leaves_a_core_with_two_parts() -> None:
    cache = DrivenCache()
    every = run_of(ONE, 0, 11)
    cache.take(called(CALLED + 1, every[7:]), Origin.ALIGNED)
    cache.take(called(CALLED, every[:7]), Origin.RECOVERED)
    (inquiry,) = cache.inquiries()
    cache.disk_up = False
    cache.take(every[:1], Origin.NATIVE)
    cache.disk_up = True
    cache.take(called(CALLED + 1, run_of(ONE, 0, 3, seconds=50, run=1)), Origin.RECOVERED)
    assert cache.core.put_off == 4
    cache.give(Inquired(inquiry.inquiry_id, cache.now))
    cache.wait(2)
    found = of_run(cache, ONE, 0)
    assert (found[CALLED], found[CALLED + 1]) == (RangeSet([(0, 6)]), RangeSet([(7, 11)]))
