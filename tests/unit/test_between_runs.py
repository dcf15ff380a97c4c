"""What comes between two tokens of a source: of which run it is, and how long it waits."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.protocol.between_runs import BetweenRuns, part
from durable_cache.protocol.cache.events import (
    BatchRefused,
    EngineOptions,
    HeartbeatReceived,
    Origin,
    TokenGone,
)
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.events import HeartbeatReceived as Beat
from durable_cache.protocol.subscriber.events import TokenGone as Gone
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Arrived
from tests.unit.driven import DrivenCache
from tests.unit.subscriber_reader import EPOCH as READERS_EPOCH
from tests.unit.subscriber_reader import SOURCE, Reader
from tests.unit.subscriber_reader import sample as heard
from tests.unit.test_core import EPOCH, ONE, TWO, acknowledged, of_run, run_of, token

THREE, FOUR = ONE._replace(eid=8), ONE._replace(eid=9)
WAIT = EngineOptions().token_wait_seconds


def ended(options: EngineOptions | None = None, *, came: int = 4) -> DrivenCache:
    """A cache that heard a run of `ONE`, and has seen its token go."""
    cache = DrivenCache(options=CoreOptions(options or EngineOptions()))
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 0, came - 1))
    cache.give(TokenGone(ONE, "00000001", cache.now))
    return cache


def runs(last: int) -> RangeSet:
    return RangeSet([SnRange(0, last)])


# A cache


def test_the_first_samples_of_a_run_that_overtake_its_token_are_filed_under_it() -> None:
    cache = ended()
    cache.seconds = 20
    cache.take(run_of(ONE, 0, 2, seconds=20, run=1))
    assert of_run(cache, ONE, 1) == {}, "nothing says yet whose they are"
    token(cache, ONE, EPOCH + 2, "00000002")
    cache.take(run_of(ONE, 3, 3, seconds=20, run=1))
    assert of_run(cache, ONE, 0) == {EPOCH: runs(3)}
    assert of_run(cache, ONE, 1) == {EPOCH + 2: runs(3)}
    assert not cache.core.counts.conflicts
    assert not cache.core.doubtful


def test_the_last_samples_of_a_run_whose_token_went_are_filed_when_no_other_came() -> None:
    cache = ended()
    cache.take(run_of(ONE, 4, 6))
    cache.wait(WAIT * 0.9)
    assert list(acknowledged(cache, ONE)) == [(0, 3)]
    assert cache.core.doubtful == 3
    cache.wait(WAIT * 0.2)
    assert of_run(cache, ONE, 0) == {EPOCH: runs(6)}
    assert list(acknowledged(cache, ONE)) == [(0, 6)]
    cache.take(run_of(ONE, 7, 7))
    assert of_run(cache, ONE, 0) == {EPOCH: runs(6)}, "it waits like those before it"
    cache.wait(WAIT)
    assert of_run(cache, ONE, 0) == {EPOCH: runs(7)}


def test_how_long_samples_wait_for_a_token_is_an_option() -> None:
    cache = ended(EngineOptions(token_wait_seconds=0.1))
    cache.take(run_of(ONE, 4, 4))
    cache.wait(0.11)
    assert of_run(cache, ONE, 0) == {EPOCH: runs(4)}


def test_a_token_that_comes_back_lets_go_on_what_waited() -> None:
    cache = ended()
    cache.take(run_of(ONE, 4, 6))
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 7, 7))
    assert of_run(cache, ONE, 0) == {EPOCH: runs(7)}


def test_the_token_of_the_run_before_that_goes_late_holds_up_nothing() -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    token(cache, ONE, EPOCH + 1, "00000002")
    cache.give(TokenGone(ONE, "00000001", cache.now))
    cache.take(run_of(ONE, 0, 2))
    assert of_run(cache, ONE, 0) == {EPOCH + 1: runs(2)}


def test_other_sources_of_a_batch_go_on() -> None:
    cache = ended()
    cache.take([*run_of(ONE, 4, 4), *run_of(TWO, 0, 2)])
    assert of_run(cache, TWO, 0) == {0: runs(2)}
    assert cache.core.doubtful == 1


def test_what_nothing_shows_the_run_of_is_filed_under_none_and_asked_for() -> None:
    """Of the run before only number 0 came, and number 0 of the next was lost on its way."""
    cache = ended(came=1)
    cache.seconds = 20
    cache.take(run_of(ONE, 1, 2, seconds=20, run=1))
    cache.effects.clear()
    token(cache, ONE, EPOCH + 2, "00000002")
    assert of_run(cache, ONE, 1) == {}
    assert cache.core.put_off == 2
    assert [(f.epoch, f.first, f.last) for f in cache.fetches] == [(EPOCH + 2, 0, None)]
    given = [msgspec.structs.replace(s, epoch=77) for s in run_of(ONE, 0, 2, seconds=20, run=1)]
    names = (Incarnation(ONE, 77, "00000002"),)
    cache.give(Arrived(SampleBatch(given), Origin.RECOVERED, cache.now, names))
    assert of_run(cache, ONE, 1) == {EPOCH + 2: runs(2)}
    assert of_run(cache, ONE, 0) == {EPOCH: runs(0)}


def test_the_last_of_one_run_and_the_first_of_the_next_are_told_apart() -> None:
    cache = ended()
    cache.take(run_of(ONE, 4, 5))
    cache.take(run_of(ONE, 0, 2, seconds=0.5, run=1))
    token(cache, ONE, EPOCH + 1, "00000002")
    assert of_run(cache, ONE, 0) == {EPOCH: runs(5)}
    assert of_run(cache, ONE, 1) == {EPOCH + 1: runs(2)}


def test_a_cache_that_begins_waits_for_the_token_of_a_run_it_knows_and_once_only() -> None:
    cache = ended()
    cache.start()
    cache.take(run_of(ONE, 0, 1, seconds=20, run=1))
    token(cache, ONE, EPOCH + 2, "00000002")
    assert of_run(cache, ONE, 1) == {EPOCH + 2: runs(1)}
    cache.start()
    cache.take(run_of(ONE, 2, 2, seconds=20, run=1))
    assert of_run(cache, ONE, 1) == {EPOCH + 2: runs(1)}
    cache.wait(WAIT * 1.1)
    cache.take(run_of(ONE, 3, 3, seconds=20, run=1))
    assert of_run(cache, ONE, 1) == {EPOCH + 2: runs(3)}, "no token is seen here, so none went"


def test_a_source_that_never_showed_a_token_waits_for_none() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 4))
    cache.start()
    cache.take(run_of(ONE, 5, 6))
    assert of_run(cache, ONE, 0) == {0: runs(6)}


def test_refused_numbers_between_two_tokens_are_awaited_in_no_run_that_they_are_not_of() -> None:
    cache = ended()
    cache.give(BatchRefused(((ONE, SnRange(4, 5)),), cache.now))
    assert not cache.core.gaps_open
    cache.wait(WAIT * 1.1)
    assert cache.core.gaps_open
    other = ended()
    other.give(BatchRefused(((ONE, SnRange(4, 5)),), other.now))
    token(other, ONE, EPOCH + 1, "00000002")
    other.wait(WAIT * 2)
    assert not other.core.gaps_open


def test_what_a_heartbeat_says_between_two_tokens_is_awaited_in_no_run() -> None:
    """It may be of the run that begins; whatever that lacks it is asked for."""
    cache = ended()
    cache.give(HeartbeatReceived(ONE, 5, cache.now))
    assert not cache.core.gaps_open
    token(cache, ONE, EPOCH + 1, "00000002")
    cache.take(run_of(ONE, 0, 5, seconds=20, run=1))
    cache.wait(60)
    assert not cache.core.gaps_open
    assert not cache.misses


def test_what_a_heartbeat_says_is_awaited_behind_what_waits_where_no_other_token_comes() -> None:
    cache = ended()
    cache.take(run_of(ONE, 4, 5))
    for _ in range(3):
        cache.give(HeartbeatReceived(ONE, 7, cache.now))
    assert not cache.core.gaps_open
    cache.wait(WAIT * 1.1)
    assert of_run(cache, ONE, 0) == {EPOCH: runs(5)}
    assert [(gap.first, gap.last) for gap in cache.fetches][-1] == (6, 7)


def test_a_heartbeat_of_a_run_of_which_nothing_came_is_awaited_by_nobody() -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001", fresh=False)
    cache.give(TokenGone(ONE, "00000001", cache.now), HeartbeatReceived(ONE, 7, cache.now))
    cache.wait(60)
    assert not cache.core.gaps_open
    assert not cache.misses


def test_numbers_that_are_told_again_wait_once() -> None:
    between = BetweenRuns(10, 10, 1.0)
    for last in (5, 5, 6, 6, 5):
        between.hold(ONE, [SnRange(5, last)], 0)
    assert between.take(ONE) == [SnRange(5, 6)]


def test_numbers_that_heartbeats_tell_have_a_bound() -> None:
    between = BetweenRuns(10, 3, 1.0)
    for sn in (5, 9) * 10:
        between.tell(ONE, sn, 0)
    assert between.take(ONE) == [SnRange(sn, sn) for sn in (5, 9, 5)]


def test_samples_that_wait_for_a_token_have_a_bound_and_are_awaited_beyond_it() -> None:
    cache = ended(EngineOptions(doubtful_samples_max=2))
    cache.take(run_of(ONE, 4, 8))
    assert cache.core.doubtful == 2
    cache.wait(WAIT * 1.1)
    assert of_run(cache, ONE, 0) == {EPOCH: runs(5)}
    assert any((f.first, f.last) == (6, 8) for f in cache.fetches)


def test_a_token_that_goes_while_it_waits_for_a_look_up_is_gone_afterwards() -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 0, 3))
    cache.reads = False
    cache.take(run_of(ONE, 3, 3))
    cache.give(TokenGone(ONE, "00000001", cache.now))
    token(cache, ONE, EPOCH + 1, "00000002")
    cache.take(run_of(ONE, 0, 1, seconds=9, run=1))
    cache.give(TokenGone(ONE, "00000002", cache.now))
    cache.answer_all()
    cache.reads = True
    cache.take(run_of(ONE, 0, 0, seconds=20, run=2))
    assert of_run(cache, ONE, 2) == {}
    token(cache, ONE, EPOCH + 2, "00000003")
    assert list(of_run(cache, ONE, 2).values()) == [runs(0)]


def test_the_first_of_a_run_fills_no_hole_of_the_run_before() -> None:
    """Its number is missing there, and it is older than the next that overtook the token."""
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    cache.take(run_of(ONE, 1, 3))
    cache.give(TokenGone(ONE, "00000001", cache.now))
    cache.take(run_of(ONE, 0, 2, seconds=20, run=1))
    token(cache, ONE, EPOCH + 2, "00000002")
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([(1, 3)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 2: RangeSet([(1, 2)])}
    assert (0, None) in {(f.first, f.last) for f in cache.fetches if f.epoch == EPOCH + 2}


def test_the_last_of_a_run_fills_a_hole_of_it_behind_its_token() -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH, "00000001")
    cache.take([*run_of(ONE, 0, 0), *run_of(ONE, 2, 3)])
    cache.give(TokenGone(ONE, "00000001", cache.now))
    cache.take([*run_of(ONE, 1, 1), *run_of(ONE, 0, 0, seconds=20, run=1)])
    token(cache, ONE, EPOCH + 2, "00000002")
    assert of_run(cache, ONE, 0) == {EPOCH: runs(3)}
    assert of_run(cache, ONE, 1) == {EPOCH + 2: runs(0)}


# A subscriber


def left(*numbers: int, options: DeliveryOptions | None = None) -> Reader:
    """A subscriber that followed a run, and has seen its token go."""
    reader = Reader(options)
    reader.declared(READERS_EPOCH, "00000001")
    reader.live(*map(heard, numbers))
    reader.handle(Gone(SOURCE, "00000001", reader.now))
    return reader


def test_a_subscriber_gives_samples_that_overtake_their_token_as_their_run() -> None:
    reader = left(0, 1, 2)
    reader.live(heard(0, at=9), heard(1, at=9.1), heard(2, at=9.2), heard(3, at=9.3))
    assert reader.story == [0, 1, 2]
    reader.declared(READERS_EPOCH + 1, "00000002")
    assert reader.wanted == [(3, None)]
    reader.answer(names=(Incarnation(SOURCE, READERS_EPOCH, "00000001"),))
    assert reader.story == [0, 1, 2, 0, 1, 2, 3]


def test_a_subscriber_gives_the_last_samples_of_a_run_when_no_other_token_came() -> None:
    reader = left(0, 1, 2)
    reader.live(heard(3), heard(4))
    reader.wait(0.9)
    assert reader.story == [0, 1, 2]
    reader.wait(0.2)
    assert reader.story == [0, 1, 2, 3, 4]


def test_a_token_that_a_subscriber_sees_again_lets_go_on_what_waited() -> None:
    reader = left(0, 1, 2)
    reader.live(heard(3))
    reader.declared(READERS_EPOCH, "00000001")
    reader.live(heard(4))
    assert reader.story == [0, 1, 2, 3, 4]


def test_of_what_nothing_shows_the_run_of_an_answer_brings_what_is_of_the_next() -> None:
    reader = left(0)
    reader.live(heard(1, at=9.1), heard(2, at=9.2))
    reader.declared(READERS_EPOCH + 1, "00000002")
    assert reader.wanted == [(1, 2)]
    assert reader.story == [0]
    assert reader.engine.dropped == 2
    called = READERS_EPOCH + 1
    names = (Incarnation(SOURCE, called, "00000002"),)
    reader.answer(heard(1, called, at=9.1), heard(2, called, at=9.2), names=names)
    reader.answer(names=(Incarnation(SOURCE, READERS_EPOCH, "00000001"),))
    reader.answer(heard(0, called, at=9), names=names)
    assert reader.story == [0, 0, 1, 2]


def test_what_a_subscriber_has_no_room_to_hold_for_a_token_is_asked_for() -> None:
    reader = left(0, options=DeliveryOptions(pending_samples_max=2, token_wait_seconds=0.5))
    reader.live(*(heard(sn) for sn in range(1, 6)))
    reader.wait(0.6)
    assert reader.story == [0, 1, 2]
    assert reader.wanted == [(3, 5)]


def test_a_heartbeat_between_two_tokens_raises_no_run() -> None:
    reader = left(0, 1)
    reader.handle(Beat(SOURCE, 9, reader.now))
    reader.wait(0.5)
    reader.declared(READERS_EPOCH + 1, "00000002")
    for pause in (0, 1):  # once more a second later, for a router may not know all caches at once
        reader.wait(pause)
        for first in (2, 0):  # what follows either's last number, for the link may have been cut
            assert reader.wanted == [(first, first + 999)]
            reader.answer()
            reader.wait(0)
    reader.wait(10)
    assert reader.wanted == []


def test_what_comes_after_a_token_that_went_while_history_was_read_waits_too() -> None:
    reader = Reader(history=True)
    reader.live(heard(2))
    reader.handle(Gone(SOURCE, "00000001", reader.now))
    reader.live(heard(0, at=9))
    names = (Incarnation(SOURCE, READERS_EPOCH, "00000001"),)
    reader.page([heard(sn, READERS_EPOCH) for sn in range(3)], names=names)
    assert reader.story == [0, 1, 2]
    reader.declared(READERS_EPOCH + 1, "00000002")
    reader.answer(names=names)
    assert reader.story == [0, 1, 2, 0]


def test_a_run_whose_token_followed_that_of_the_run_before_is_given_from_its_beginning() -> None:
    """Both tokens came while history was read, from a publisher whose clock is behind."""
    reader = Reader(history=True)
    reader.seconds = 5
    reader.declared(READERS_EPOCH, "00000001")
    reader.handle(Gone(SOURCE, "00000001", reader.now))
    reader.declared(READERS_EPOCH + 1, "00000002")
    names = (Incarnation(SOURCE, READERS_EPOCH, "00000001"),)
    reader.page([heard(sn, READERS_EPOCH) for sn in range(3)], names=names)
    reader.live(heard(1, at=9.1), heard(0, at=9))
    reader.answer(names=names)
    while reader.fetches:
        reader.answer()
    assert reader.story == [0, 1, 2, 0, 1]


# The rule, and what waits


@given(
    came=st.sets(st.integers(0, 5), min_size=1),
    late=st.integers(0, 3),
    begun=st.lists(st.integers(0, 8), unique=True),
    after=st.floats(0.2, 100),
    back=st.floats(0, 0.09),
    turned=st.sets(st.integers(0, 8)),
)
def test_no_sample_between_two_tokens_is_filed_under_a_run_that_is_not_its_own(
    came: set[int], late: int, begun: list[int], after: float, back: float, turned: set[int]
) -> None:
    """Whatever of both runs is lost, in whatever order the new one's come, and stamped by threads.

    These may turn times around by a little less than a tenth of a second.
    """
    reached = max(came)
    before = run_of(ONE, 0, reached + late)
    new = run_of(ONE, 0, 8, seconds=after, run=1)
    for sn in turned:
        new[sn] = msgspec.structs.replace(new[sn], ntp64=new[sn].ntp64 - round(back * 2**32))
    waited = [*(one for one in before if one.sn not in came), *(new[sn] for sn in begun)]
    parted = part(waited, came.__contains__, reached, before[reached].ntp64)
    assert all(one in before for one in parted.before)
    assert all(one in new for one in parted.begun)
    together = [*parted.before, *parted.unknown, *parted.begun]
    assert sorted(together, key=waited.index) == waited
    if begun and begun[0] in came:
        assert not parted.unknown, "the first that repeats a number shows where the run begins"


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("hold"), st.integers(0, 9)),
            st.tuples(st.just("refuse"), st.integers(0, 9)),
            st.tuples(st.just("wait"), st.integers(0, 9)),
            st.tuples(st.just("take"), st.just(0)),
        )
    ),
    samples_max=st.integers(0, 4),
)
def test_all_that_waits_is_given_back_once_in_order_and_in_time(
    steps: list[tuple[str, int]], samples_max: int
) -> None:
    between = BetweenRuns(10, samples_max, 5e-9)
    now_ns, number, given, since = 0, 0, [], {}
    one = run_of(ONE, 0, 0)[0]
    for what, count in steps:
        match what:
            case "hold":
                held = [msgspec.structs.replace(one, sn=number + at) for at in range(count)]
                between.hold(ONE, held, now_ns)
            case "refuse" if count:
                between.hold(ONE, [SnRange(number, number + count - 1)], now_ns)
            case "wait":
                now_ns += count
                given += [each for _, every in between.expired(now_ns) for each in every]
                count = 0
            case _:
                given += between.take(ONE)
                count = 0
        since.update(dict.fromkeys(range(number, number + count), now_ns))
        number += count
        assert between.held <= samples_max
        assert (ONE in between) == (between.wake_ns() is not None)
    given += between.take(ONE)
    sns = [sn for each in given for sn in _numbers(each)]
    assert sns == list(range(number))
    assert not between.held


def _numbers(each: Sample | SnRange) -> range:
    return range(each.sn, each.sn + 1) if isinstance(each, Sample) else range(each[0], each[1] + 1)


def test_where_tokens_were_forgotten_nothing_waits_that_is_not_known_to_show_none() -> None:
    between = BetweenRuns(1, 10, 1.0)
    assert between.is_open(ONE, named=True)
    between.shows(ONE, "00000001")
    between.hides(ONE, "00000001")
    assert between.is_open(ONE, named=True)
    between.shows(TWO, "00000001")
    assert between.is_open(ONE, named=False), "it shows none, and is remembered"
    between.shows(THREE, "00000001")
    assert not between.is_open(TWO, named=True)
    assert between.is_open(ONE, named=True)
    between.hides(THREE, "00000001")
    assert between.is_open(THREE, named=True)


def test_sources_that_show_no_token_any_more_push_out_none_that_do() -> None:
    """A cache runs for months, and each publisher that begins anew is a source of its own."""
    between = BetweenRuns(2, 10, 1.0)
    between.shows(ONE, "00000001")
    for number in range(10):
        gone = ONE._replace(eid=100 + number)
        between.shows(gone, "00000002")
        between.hides(gone, "00000002")
    assert not between.is_open(ONE, named=True)
    between.hides(ONE, "00000001")
    assert between.is_open(ONE, named=True)
    assert between.is_open(ONE._replace(eid=100), named=True), "forgotten, and shows none"


def test_a_cache_knows_who_shows_a_token_though_it_has_no_room_for_its_windows() -> None:
    """What overtook the next token was filed under the run before (seeds 3840 and 6557)."""
    cache = ended(EngineOptions(sources_max=1))
    for other in (TWO, THREE, FOUR):
        token(cache, other, EPOCH, "00000001")
        cache.take(run_of(other, 0, 3))
    cache.give(TokenGone(FOUR, "00000001", cache.now))
    cache.seconds = 20
    cache.take(run_of(ONE, 0, 2, seconds=20, run=1))
    assert of_run(cache, ONE, 1) == {}, "nothing says yet whose they are"
    token(cache, ONE, EPOCH + 2, "00000002")
    cache.wait(2)
    assert of_run(cache, ONE, 0) == {EPOCH: runs(3)}
    assert of_run(cache, ONE, 1) == {EPOCH + 2: runs(2)}


def test_samples_of_more_sources_than_tokens_max_wait_for_no_token() -> None:
    cache = ended(EngineOptions(sources_max=1, tokens_max=2))
    for other in (TWO, THREE, FOUR):
        token(cache, other, EPOCH, "00000001")
        cache.take(run_of(other, 0, 3))
    for other in (TWO, THREE, FOUR):
        cache.give(TokenGone(other, "00000001", cache.now))
    cache.seconds = 20
    cache.take(run_of(ONE, 0, 2, seconds=20, run=1))
    assert of_run(cache, ONE, 1), "it is no longer known that its token went"
