"""What comes late of a native publisher's run, behind the first samples of the next (ADR 0344).

Nothing names its runs: that one began shows in a lower number with a later time. A network that
doubles samples, or knows two ways, brings some of the run before after that.
"""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import Origin
from tests.unit.driven import DrivenCache
from tests.unit.subscriber_reader import FRESH, Reader, sample
from tests.unit.test_core import ONE, of_run
from tests.unit.test_core import sample as heard

BEGAN = 20
"""Seconds after which the second run began."""

Steps = list[tuple[int, int]]
"""Run and number, as they come."""
CASES = {
    "the next number": [(1, 0), (0, 1), (1, 1), (1, 2)],
    "a higher number": [(1, 0), (0, 4), (1, 1), (1, 2)],
    "several, while one is missing": [(1, 0), (1, 3), (0, 1), (0, 2), (1, 1), (1, 2)],
    "before the first": [(1, 2), (0, 4), (1, 0), (1, 1)],
}


def published(run: int, sn: int) -> Sample:
    return sample(sn, at=run * BEGAN + 1 + sn / 100)


def end(reader: Reader) -> None:
    """Nobody has more of anything."""
    for _ in range(40):
        if reader.fetches:
            reader.answer()
        reader.wait(1)


def given(reader: Reader) -> list[tuple[int, int]]:
    """Return what was delivered, each with its run."""
    began = published(1, 0).ntp64
    return [(int(one.ntp64 >= began), one.sn) for one in reader.delivered_samples]


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("steps", CASES.values(), ids=CASES.keys())
def test_a_subscriber_takes_a_repeat_of_it_for_no_number_of_the_next(
    steps: Steps, together: bool
) -> None:
    reader = Reader()
    reader.live(*(published(0, sn) for sn in range(6)))
    coming = [published(*step) for step in steps]
    for batch in [coming] if together else [[one] for one in coming]:
        reader.live(*batch)
    end(reader)
    assert given(reader) == [
        *((0, sn) for sn in range(6)),
        *sorted(step for step in steps if step[0]),
    ]
    assert reader.missed == []


def test_a_subscriber_looks_twice_at_the_next_number_where_the_run_before_is_over() -> None:
    reader = Reader()
    reader.live(*(published(0, sn) for sn in range(6)))
    reader.live(published(1, 0))
    reader.answer()
    reader.live(published(0, 1))
    reader.live(published(1, 1), published(0, 2))
    reader.live(published(1, 2))
    end(reader)
    assert given(reader) == [*((0, sn) for sn in range(6)), (1, 0), (1, 1), (1, 2)]
    assert reader.missed == []


@pytest.mark.parametrize("lacks", [3, 5], ids=["a hole", "the last"])
def test_a_subscriber_delivers_what_is_missing_of_it_before_the_next(lacks: int) -> None:
    reader = Reader()
    reader.live(*(published(0, sn) for sn in range(6) if sn != lacks))
    reader.live(published(1, 0))
    reader.live(published(0, lacks))
    reader.live(published(1, 1))
    end(reader)
    assert given(reader) == [*((0, sn) for sn in range(6)), (1, 0), (1, 1)]
    assert reader.missed == []


def test_a_subscriber_reports_the_last_of_it_where_the_next_is_delivered_already() -> None:
    reader = Reader()
    reader.live(*(published(0, sn) for sn in range(5)))
    reader.live(published(1, 0))
    reader.answer()
    reader.live(published(1, 1))
    reader.live(published(0, 5))
    reader.live(published(1, 2))
    end(reader)
    assert given(reader) == [*((0, sn) for sn in range(5)), (1, 0), (1, 1), (1, 2)]
    assert [(miss.epoch, miss.first, miss.last) for miss in reader.missed] == [(0, 5, 5)]


def test_a_late_joiner_whose_history_brought_both_runs_takes_no_repeat_for_the_next() -> None:
    """Seed 86594."""
    reader = Reader(history=True)
    begun = msgspec.structs.replace(published(1, 0), epoch=FRESH + 2)
    page = [*(published(0, sn) for sn in range(6)), begun]
    reader.page(page, cut_after=page[-1])
    reader.page([])
    for step in [(0, 1), (0, 5), (1, 1)]:
        reader.live(published(*step))
    end(reader)
    assert given(reader) == [*((0, sn) for sn in range(6)), (1, 0), (1, 1)]
    assert reader.missed == []


def test_what_came_before_all_that_history_has_of_the_next_is_not_of_the_run_before() -> None:
    reader = Reader(history=True)
    page = [*(published(0, sn) for sn in range(2)), sample(7, FRESH + 2, at=BEGAN + 8)]
    reader.page(page, cut_after=page[-1])
    reader.page([])
    for sn in (5, 8):
        reader.live(sample(sn, at=BEGAN + 1 + sn))
    end(reader)
    assert reader.story == [0, 1, 7, 8]


def test_what_was_published_first_of_the_next_is_no_repeat_though_it_is_overtaken() -> None:
    reader = Reader()
    reader.live(*(published(0, sn) for sn in range(6)))
    reader.live(sample(4, at=BEGAN + 5))
    for sn in range(4):
        reader.live(sample(sn, at=BEGAN + 1 + sn))
    end(reader)
    assert given(reader) == [*((0, sn) for sn in range(6)), *((1, sn) for sn in range(5))]
    assert reader.missed == []


def cached(run: int, sn: int) -> Sample:
    return heard(ONE, sn, seconds=run * BEGAN + 1, run=run)


def take(cache: DrivenCache, steps: Steps, *, together: bool = False) -> None:
    coming = [cached(*step) for step in steps]
    for batch in [coming] if together else [[one] for one in coming]:
        cache.take(batch)
        cache.wait(0.05)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("steps", CASES.values(), ids=CASES.keys())
def test_a_cache_stores_a_repeat_of_it_under_no_number_of_the_next(
    steps: Steps, together: bool
) -> None:
    cache = DrivenCache()
    cache.take(cached(0, sn) for sn in range(6))
    take(cache, steps, together=together)
    cache.wait(1)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([(0, 5)])}
    (begun,) = of_run(cache, ONE, 1).values()
    assert [*begun] == [(0, max(sn for run, sn in steps if run))]
    assert cache.conflicts == []


@pytest.mark.parametrize("lacks", [3, 5], ids=["a hole", "the last"])
def test_a_cache_stores_what_is_missing_of_it_with_it(lacks: int) -> None:
    cache = DrivenCache()
    cache.take(cached(0, sn) for sn in range(6) if sn != lacks)
    take(cache, [(1, 0), (0, lacks), (1, 1)])
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([(0, 5)])}
    assert [*of_run(cache, ONE, 1).values()] == [RangeSet([(0, 1)])]


def test_a_cache_does_not_take_a_run_for_the_one_before_that_others_gave_meanwhile() -> None:
    """It is the one that began here, by the name that it has there."""
    cache = DrivenCache()
    cache.take(cached(0, sn) for sn in range(6))
    take(cache, [(1, 0)])
    (epoch,) = of_run(cache, ONE, 1)
    others = msgspec.structs.replace(cached(1, 3), epoch=epoch - 1)
    cache.take([others], Origin.RECOVERED)
    take(cache, [(1, 1), (1, 2)])
    assert of_run(cache, ONE, 1)[epoch] == RangeSet([(0, 2)])
