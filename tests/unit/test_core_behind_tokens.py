"""What comes behind a token that waits for a look-up waits with it: it is of the new run."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.protocol.cache.events import (
    Append,
    BatchRefused,
    EngineOptions,
    HeartbeatReceived,
    TokenGone,
)
from durable_cache.runtime.core import CoreOptions
from tests.unit.driven import DrivenCache
from tests.unit.test_core import EPOCH, ONE, TWO, answer_fetches, of_run, run_of, token


def doubting(samples_max: int = 20_000) -> DrivenCache:
    """A cache in which a repeat of `ONE` waits for its look-up, with a token behind it."""
    engine = EngineOptions(doubtful_samples_max=samples_max)
    cache = DrivenCache(options=CoreOptions(engine=engine))
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 0, 4))
    cache.reads = False
    cache.take(run_of(ONE, 4, 4))
    assert cache.core.doubtful == 1
    token(cache, ONE, EPOCH + 1, "00000002")
    return cache


def missed_in_the_end(cache: DrivenCache, epoch: int) -> list[tuple[int, int]]:
    """Let nobody have what `ONE` lacks, until nothing is asked any more."""
    while cache.core.gaps_open:
        cache.wait(1)
        answer_fetches(cache)
    missed = RangeSet()
    for miss in cache.misses:
        if (miss.source, miss.epoch) == (ONE, epoch):
            missed.add(miss.first, miss.last)
    return [*missed]


def test_samples_behind_a_waiting_token_are_of_its_run() -> None:
    cache = doubting()
    cache.take([*run_of(ONE, 0, 5, run=1), *run_of(TWO, 0, 0)])
    assert cache.core.doubtful == 8
    assert [held.source for held in cache.all()].count(TWO) == 1, "others go on"
    cache.answer_all()
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 4)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([SnRange(0, 5)])}
    assert not cache.core.doubtful


def test_several_runs_wait_in_their_order() -> None:
    cache = doubting()
    cache.take(run_of(ONE, 0, 2, run=1))
    token(cache, ONE, EPOCH + 2, "00000003")
    cache.take(run_of(ONE, 0, 1, run=2))
    cache.answer_all()
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([SnRange(0, 2)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 2: RangeSet([SnRange(0, 1)])}


def test_what_came_since_a_waiting_token_went_waits_for_the_next() -> None:
    """It overtook the next token, and filled a hole of the run before (seed 85947)."""
    cache = doubting()
    cache.give(TokenGone(ONE, "00000001", cache.now))
    cache.take([*run_of(ONE, 0, 0, run=1), *run_of(ONE, 2, 2, run=1)])
    cache.give(TokenGone(ONE, "00000002", cache.now))
    cache.take(run_of(ONE, 1, 1, seconds=20, run=2))
    token(cache, ONE, EPOCH + 2, "00000003")
    cache.take(run_of(ONE, 0, 0, seconds=20, run=2))
    cache.answer_all()
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([(0, 0), (2, 2)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 2: RangeSet([(0, 0)])}
    assert (0, 2) not in [run for ack in cache.acks for run in ack.runs]


def test_that_a_token_went_which_waits_is_seen_in_its_turn() -> None:
    """A wrap shows two tokens for a moment: the first to wait is the first to go."""
    cache = doubting()
    token(cache, ONE, EPOCH + 2, "00000003")
    cache.give(TokenGone(ONE, "00000002", cache.now))
    cache.answer_all()
    cache.give(TokenGone(ONE, "00000003", cache.now))
    cache.give(TokenGone(ONE, "00000001", cache.now))
    cache.take(run_of(ONE, 0, 0, seconds=20, run=2))
    assert of_run(cache, ONE, 2) == {}, "no token is shown: it waits for the next"


def test_that_a_token_went_keeps_its_place_where_there_is_no_room() -> None:
    cache = doubting(samples_max=2)
    cache.give(TokenGone(ONE, "00000001", cache.now))
    cache.take(run_of(ONE, 0, 0, run=1))
    cache.give(TokenGone(ONE, "00000002", cache.now))
    token(cache, ONE, EPOCH + 2, "00000003")
    cache.answer_all()
    cache.give(TokenGone(ONE, "00000003", cache.now))
    cache.take(run_of(ONE, 0, 0, seconds=20, run=2))
    assert of_run(cache, ONE, 2) == {}, "no token is shown: it waits for the next"


@pytest.mark.parametrize("what", ["sample", "refused", "heartbeat"])
def test_what_waited_for_its_source_to_be_read_waits_for_a_token_from_then_on(what: str) -> None:
    """The index was away, and the token came behind it (seed 82706)."""
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 0, 0))
    cache.start()
    cache.disk_up = False
    match what:
        case "sample":
            cache.take(run_of(ONE, 2, 2, seconds=20, run=1))
        case "refused":
            cache.give(BatchRefused(((ONE, SnRange(1, 2)),), cache.now))
        case _:
            cache.give(HeartbeatReceived(ONE, 2, cache.now))
    cache.wait(5)
    cache.disk_up = True
    cache.wait(0.3)
    token(cache, ONE, EPOCH + 1, "00000002")
    assert EPOCH not in of_run(cache, ONE, 1)
    assert missed_in_the_end(cache, EPOCH) == []


def test_beyond_the_bound_the_numbers_are_awaited() -> None:
    cache = doubting(samples_max=4)
    cache.take(run_of(ONE, 0, 4, run=1))
    assert cache.core.doubtful == 5, "one is looked up; a token and three samples wait behind it"
    cache.answer_all()
    assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([SnRange(0, 2)])}
    assert missed_in_the_end(cache, EPOCH + 1) == [(3, 4)]


def test_what_was_refused_and_what_a_heartbeat_says_waits_as_well() -> None:
    cache = doubting()
    cache.take(run_of(ONE, 0, 0, run=1))
    cache.give(BatchRefused(((ONE, SnRange(1, 2)), (TWO, SnRange(5, 5))), cache.now))
    cache.give(HeartbeatReceived(ONE, 4, cache.now))
    cache.answer_all()
    assert missed_in_the_end(cache, EPOCH + 1) == [(1, 4)]


def test_what_waited_counts_as_heard_since_it_came() -> None:
    """Its delay to the acknowledgement is counted though it was committed on another occasion."""
    cache = doubting()
    came = cache.now.unix_ns
    late = [msgspec.structs.replace(s, received_ns=came) for s in run_of(ONE, 0, 5, run=1)]
    cache.take(late)
    cache.wait(3)
    cache.answer_all()
    heard = [(e.heard, e.heard_since_ns) for e in cache.effects if isinstance(e, Append)]
    assert (6, came) in heard


def test_where_there_is_no_room_a_token_that_showed_nothing_gives_its_place_to_the_next() -> None:
    cache = doubting(samples_max=2)
    for number in range(3, 9):
        token(cache, ONE, EPOCH + number, f"{number:08x}")
        assert cache.core.doubtful <= 3
    cache.take(run_of(ONE, 0, 1, run=1))
    cache.answer_all()
    cache.wait(1)
    assert (ONE, EPOCH + 8) in {(fetch.source, fetch.epoch) for fetch in cache.fetches}


def test_a_heartbeat_while_a_number_is_looked_up_awaits_nothing_of_the_run_before() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 4))
    cache.reads = False
    cache.take(run_of(ONE, 0, 2, seconds=30, run=1))
    cache.give(HeartbeatReceived(ONE, 6, cache.now))
    cache.wait(1)
    assert cache.fetches == []
    cache.answer_all()
    cache.wait(1)
    (epoch,) = of_run(cache, ONE, 1)
    assert [(fetch.epoch, fetch.first, fetch.last) for fetch in cache.fetches] == [(epoch, 3, 6)]
