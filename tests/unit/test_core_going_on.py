"""What goes on a run is taken without a question, until anything else is known (ADR 0393)."""

from __future__ import annotations

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId
from durable_cache.protocol.cache.events import EngineOptions, TokenGone
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Announce
from tests.unit.driven import DrivenCache
from tests.unit.test_core import EPOCH, ONE, TWO, of_run, run_of, token
from tests.unit.test_core_named_runs import RUNS, named


def told(cache: DrivenCache) -> list[int]:
    """Return up to which numbers subscribers were told that there are samples."""
    return [effect.sn for effect in cache.effects if isinstance(effect, Announce)]


def going_on() -> DrivenCache:
    cache = DrivenCache()
    token(cache, ONE, *RUNS[0])
    cache.take(named(0, 3))
    cache.take(named(4, 5))
    return cache


def test_what_comes_behind_a_token_that_went_is_told() -> None:
    cache = going_on()
    cache.give(TokenGone(ONE, RUNS[0].incarnation, cache.now))
    cache.take(named(6, 6))
    assert told(cache) == [6]


def test_all_that_comes_while_no_token_is_there_is_told() -> None:
    cache = going_on()
    cache.give(TokenGone(ONE, RUNS[0].incarnation, cache.now))
    for sn in range(6, 9):
        cache.take(named(sn, sn))
    assert told(cache) == [6, 7, 8]


def test_a_source_that_was_forgotten_is_loaded_again() -> None:
    cache = DrivenCache(options=CoreOptions(EngineOptions(sources_max=1)))
    for source in (ONE, TWO, SourceId("c0ffee", 1)):
        cache.take(run_of(source, 0, 3))
    cache.take(run_of(ONE, 4, 5))
    cache.take(run_of(ONE, 6, 7))
    assert of_run(cache, ONE, 0)[0] == RangeSet([(0, 7)])
    assert not cache.misses


def test_two_publishers_in_turn_lose_nothing() -> None:
    cache = going_on()
    for sn in range(6, 12):
        cache.take(named(sn, sn))
        cache.take(run_of(TWO, sn - 6, sn - 6))
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(0, 11)])}
    assert of_run(cache, TWO, 0)[0] == RangeSet([(0, 5)])
