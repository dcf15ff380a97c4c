"""Two caches that named one declared run differently: the later name stands in both."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.sequence import frame
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, EngineOptions, Origin, TokenGone
from durable_cache.protocol.cache.later_names import LaterName, later_name
from durable_cache.protocol.cache.names import under
from durable_cache.protocol.cache.numbering import KnownSource
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.effects import Arrived
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import ONE, of_run, run_of, token

FIRST, SECOND, THIRD = "0a0a0a0a", "0b0b0b0b", "0c0c0c0c"
EPOCH = frame(BEGAN_NS)


def known_as(*runs: tuple[int, str], epochs: Epochs | None = None) -> KnownSource:
    known = KnownSource(ONE, EngineOptions(), Epochs() if epochs is None else epochs)
    for epoch, incarnation in runs:
        known.numbering(epoch).incarnation = incarnation
    return known


def names(*runs: tuple[int, str]) -> list[Incarnation]:
    return [Incarnation(ONE, *run) for run in runs]


def test_a_run_takes_the_later_of_two_names() -> None:
    ours, theirs = known_as((5, SECOND)), names((5, FIRST), (6, SECOND))
    assert later_name(ours, theirs) == LaterName(Alias(ONE, 5, 0, 6), SECOND)
    assert later_name(known_as((6, SECOND)), names((5, SECOND))) is None
    assert later_name(ours, [Incarnation(ONE._replace(eid=8), 6, SECOND)]) is None


def test_a_run_that_takes_a_name_pushes_up_those_behind_it_the_last_first() -> None:
    ours = known_as((5, SECOND), (6, THIRD))
    assert later_name(ours, names((6, SECOND))) == LaterName(Alias(ONE, 6, 0, 7), THIRD)


def test_runs_that_others_saw_in_another_order_take_later_names_too() -> None:
    """One of two caches calls first what the other calls second: neither name stands."""
    ours, theirs = known_as((5, FIRST), (6, SECOND)), known_as((5, SECOND), (6, FIRST))
    assert later_name(ours, names((5, SECOND), (6, FIRST))) == LaterName(
        Alias(ONE, 6, 0, 7), SECOND
    )
    assert later_name(theirs, names((5, FIRST), (6, SECOND))) == LaterName(
        Alias(ONE, 5, 0, 7), SECOND
    )


_RUNS = (FIRST, SECOND, THIRD, "0d0d0d0d")
_CALLED = st.dictionaries(st.sampled_from(_RUNS), st.integers(1, 6), min_size=1).filter(
    lambda called: len(set(called.values())) == len(called)
)


@drawn(st.lists(_CALLED, min_size=2, max_size=3), st.integers(0, 1000))
def test_caches_that_hear_names_of_one_another_come_to_the_same(
    caches: list[dict[str, int]], seed: int
) -> None:
    """Whatever they call their runs, one step at a time and in any order."""
    pairs = [*permutations(caches, 2)]
    for _ in range(100):
        Random(seed).shuffle(pairs)
        if not sum(_hears(one, other) for one, other in pairs):
            break
    else:
        raise AssertionError("their names chase each other")
    for one, other in pairs:
        assert all(one[name] == other[name] for name in one.keys() & other.keys())


def _hears(one: dict[str, int], other: dict[str, int]) -> bool:
    """Let a cache take one step towards what another one calls its runs; tell if it did."""
    known = known_as(*((epoch, name) for name, epoch in one.items()))
    later = later_name(known, names(*((epoch, name) for name, epoch in other.items())))
    if later is not None:
        assert later.alias.epoch not in one.values()
        one[later.incarnation] = later.alias.epoch
        return True
    new = {name: at for name, at in other.items() if name not in one and at not in one.values()}
    one |= new
    return bool(new)


def test_a_name_that_still_counts_as_another_is_waited_for() -> None:
    moving = Epochs([Alias(ONE, 6, 0, 7)])
    assert later_name(known_as((5, SECOND), epochs=moving), names((6, SECOND))) is None


def test_a_name_that_a_run_left_is_taken_as_soon_as_nothing_is_stored_under_it() -> None:
    left = Epochs([Alias(ONE, 6, 0, 7)])
    left.moved(Alias(ONE, 6, 0, 7))
    ours = known_as((5, SECOND), (7, THIRD), epochs=left)
    assert later_name(ours, names((6, SECOND))) == LaterName(Alias(ONE, 5, 0, 6), SECOND)


def test_a_run_that_nobody_named_is_not_pushed() -> None:
    assert later_name(known_as((5, SECOND), (6, "")), names((6, SECOND))) is None


@pytest.mark.parametrize("restarted", [False, True])
def test_the_run_moves_to_its_later_name_and_the_one_before_comes_in_under_its_own(
    restarted: bool,
) -> None:
    """Both runs declared one epoch; this cache was away when the first did."""
    cache = DrivenCache()
    token(cache, ONE, EPOCH, SECOND)
    cache.take(run_of(ONE, 0, 4, run=2))
    theirs = tuple(names((EPOCH, FIRST), (EPOCH + 1, SECOND)))
    given = under(EPOCH, run_of(ONE, 0, 7, run=1))

    def aligned() -> None:
        cache.give(Arrived(SampleBatch(given), Origin.ALIGNED, cache.now, theirs))

    aligned()
    assert of_run(cache, ONE, 1) == {}, "its numbers count as the second run's until that moved"
    cache.wait(2)
    if restarted:
        cache.start()
        cache.wait(2)
    aligned()
    assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([(0, 7)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([(0, 4)])}
    assert {(one.epoch, one.payload[:1]) for one in cache.all()} == {
        (EPOCH, b"1"),
        (EPOCH + 1, b"2"),
    }
    assert sorted(cache.store.index.incarnations([ONE])) == sorted(theirs)
    token(cache, ONE, EPOCH, SECOND)
    cache.take(run_of(ONE, 5, 6, run=2))
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([(0, 6)])}
    assert cache.acks[-1].incarnation == SECOND


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_that_came_from_others_by_its_name_is_not_that_of_the_next_token(
    restarted: bool,
) -> None:
    """Both runs declared one epoch; this cache saw only the second token."""
    cache = DrivenCache()
    given = SampleBatch(under(EPOCH, run_of(ONE, 9, 9, run=1)))
    cache.give(Arrived(given, Origin.ALIGNED, cache.now, tuple(names((EPOCH, FIRST)))))
    if restarted:
        cache.start()
    token(cache, ONE, EPOCH, SECOND)
    cache.take(run_of(ONE, 0, 4, run=2))
    assert [ack.runs for ack in cache.acks if ack.incarnation == SECOND] == [((0, 4),)]
    assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([(9, 9)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([(0, 4)])}


def test_first_samples_that_came_before_their_token_are_of_the_run_that_others_give() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 5, 9, run=1))
    given = SampleBatch(under(EPOCH, run_of(ONE, 0, 4, run=1)))
    cache.give(Arrived(given, Origin.ALIGNED, cache.now, tuple(names((EPOCH, FIRST)))))
    token(cache, ONE, EPOCH, FIRST)
    cache.take(run_of(ONE, 10, 10, run=1))
    cache.wait(2)
    assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([(0, 10)])}


def test_last_samples_of_a_run_whose_token_went_stay_with_it_when_others_give_the_next() -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH, FIRST)
    cache.take(run_of(ONE, 0, 4, run=1))
    cache.give(TokenGone(ONE, FIRST, cache.now))
    given = SampleBatch(under(EPOCH + 1, run_of(ONE, 0, 1, run=2)))
    cache.give(Arrived(given, Origin.ALIGNED, cache.now, tuple(names((EPOCH + 1, SECOND)))))
    cache.take(run_of(ONE, 5, 6, run=1))
    cache.wait(2)
    token(cache, ONE, EPOCH + 1, SECOND)
    cache.take(run_of(ONE, 2, 3, run=2))
    assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([(0, 6)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([(0, 3)])}


@pytest.mark.parametrize("restarted", [False, True])
def test_two_runs_that_others_call_later_both_take_the_later_names(restarted: bool) -> None:
    """This cache was away when the first of three runs was declared (seed 1600)."""
    cache = DrivenCache()
    token(cache, ONE, EPOCH, SECOND)
    cache.take(run_of(ONE, 0, 3, run=2))
    token(cache, ONE, EPOCH + 1, THIRD)
    cache.take(run_of(ONE, 0, 4, run=3))
    theirs = tuple(names((EPOCH, FIRST), (EPOCH + 1, SECOND), (EPOCH + 2, THIRD)))
    for given in (
        under(EPOCH + 2, run_of(ONE, 0, 2, run=3)),
        under(EPOCH + 1, run_of(ONE, 0, 3, run=2)),
        under(EPOCH, run_of(ONE, 0, 2, run=1)),
    ):
        cache.reads = not restarted
        cache.give(Arrived(SampleBatch(given), Origin.ALIGNED, cache.now, theirs))
        if restarted:
            cache.start()
            cache.answer_all()
        cache.wait(2)
    assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([(0, 2)])}
    assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([(0, 3)])}
    assert of_run(cache, ONE, 3) == {EPOCH + 2: RangeSet([(0, 4)])}


def test_runs_whose_tokens_come_late_keep_their_order_though_others_give_the_last() -> None:
    """The shell is slow: others gave the last run while the token of the first was still there."""
    cache = DrivenCache()
    token(cache, ONE, EPOCH, FIRST)
    given = SampleBatch(under(EPOCH + 2, run_of(ONE, 0, 4, run=3)))
    cache.give(Arrived(given, Origin.RECOVERED, cache.now, tuple(names((EPOCH + 2, THIRD)))))
    cache.give(TokenGone(ONE, FIRST, cache.now))
    token(cache, ONE, EPOCH, SECOND)
    cache.give(TokenGone(ONE, SECOND, cache.now))
    token(cache, ONE, EPOCH + 2, THIRD)
    called = {name: epoch for _, epoch, name in cache.store.index.incarnations([ONE])}
    assert called[FIRST] < called[SECOND] < called[THIRD]


def heard_alone(run: int, name: str, *, seconds: float, newest: int = 4) -> DrivenCache:
    """A cache that saw one of two runs that declared one epoch, and the one after both."""
    cache = DrivenCache()
    token(cache, ONE, EPOCH, name)
    cache.take(run_of(ONE, 0, newest, seconds=seconds, run=run))
    cache.give(TokenGone(ONE, name, cache.now))
    token(cache, ONE, EPOCH + 1, THIRD)
    cache.take(run_of(ONE, 0, 2, seconds=40, run=3))
    cache.give(TokenGone(ONE, THIRD, cache.now))
    return cache


def align(*caches: DrivenCache, times: int = 3) -> None:
    for _ in range(times):
        for one, other in permutations(caches, 2):
            told = tuple(other.store.index.incarnations([ONE]))
            given = SampleBatch(other.core.epochs.canonical_batch(SampleBatch(other.all())))
            one.give(Arrived(given, Origin.ALIGNED, one.now, told))
            one.wait(2)


def test_of_two_runs_that_each_cache_heard_alone_the_later_goes_by_a_later_epoch() -> None:
    """Each called its own by the one epoch that both declared, for good (seed 2128)."""
    one, other = heard_alone(1, SECOND, seconds=0), heard_alone(2, FIRST, seconds=20)
    align(one, other)
    for cache in (one, other):
        assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([(0, 4)])}
        assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([(0, 4)])}
        assert of_run(cache, ONE, 3) == {EPOCH + 2: RangeSet([(0, 2)])}
        called = {name: epoch for _, epoch, name in cache.store.index.incarnations([ONE])}
        assert called == {SECOND: EPOCH, FIRST: EPOCH + 1, THIRD: EPOCH + 2}


def test_a_run_of_which_nothing_came_keeps_out_none_that_others_call_like_it() -> None:
    """Its token alone was heard, and nothing is given to whom it could tell (seed 104176)."""
    one, other = heard_alone(1, SECOND, seconds=0, newest=-1), heard_alone(2, FIRST, seconds=20)
    align(one, other, times=4)
    for cache in (one, other):
        assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([(0, 4)])}
        assert of_run(cache, ONE, 3) == {EPOCH + 2: RangeSet([(0, 2)])}


def test_runs_whose_times_overlap_are_put_in_order_by_their_incarnations() -> None:
    one = heard_alone(1, SECOND, seconds=0, newest=8)
    other = heard_alone(2, FIRST, seconds=0.002, newest=2)
    align(one, other)
    for cache in (one, other):
        assert of_run(cache, ONE, 2) == {EPOCH: RangeSet([(0, 2)])}
        assert of_run(cache, ONE, 1) == {EPOCH + 1: RangeSet([(0, 8)])}


def test_a_third_cache_that_heard_one_of_two_runs_ends_as_the_others_do() -> None:
    one, other = heard_alone(1, SECOND, seconds=0), heard_alone(2, FIRST, seconds=20)
    third = DrivenCache()
    token(third, ONE, EPOCH, FIRST)
    third.take(run_of(ONE, 0, 2, seconds=20, run=2))
    third.give(TokenGone(ONE, FIRST, third.now))
    align(one, other)
    align(one, other, third)
    for cache in (one, other, third):
        assert of_run(cache, ONE, 1) == {EPOCH: RangeSet([(0, 4)])}
        assert of_run(cache, ONE, 2) == {EPOCH + 1: RangeSet([(0, 4)])}
        assert of_run(cache, ONE, 3) == {EPOCH + 2: RangeSet([(0, 2)])}


def test_a_run_takes_the_name_that_another_has_left_without_hearing_of_it_again() -> None:
    one, other = heard_alone(1, SECOND, seconds=0), heard_alone(2, FIRST, seconds=20)
    told = tuple(one.store.index.incarnations([ONE]))
    other.give(Arrived(SampleBatch(one.all()), Origin.ALIGNED, other.now, told))
    other.wait(4)
    assert of_run(other, ONE, 2) == {EPOCH + 1: RangeSet([(0, 4)])}
    assert of_run(other, ONE, 3) == {EPOCH + 2: RangeSet([(0, 2)])}


def test_a_run_gives_way_though_the_cache_is_killed_between_two_moves() -> None:
    one, other = heard_alone(1, SECOND, seconds=0), heard_alone(2, FIRST, seconds=20)
    told = tuple(one.store.index.incarnations([ONE]))
    other.appends = False
    other.give(Arrived(SampleBatch(one.all()), Origin.ALIGNED, other.now, told))
    other.appends = True
    other.start()
    align(one, other)
    assert of_run(other, ONE, 2) == {EPOCH + 1: RangeSet([(0, 4)])}
    assert of_run(one, ONE, 2) == {EPOCH + 1: RangeSet([(0, 4)])}


class Door:
    """A door that keeps what it is offered."""

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.offered: list[Sample] = []
        self.names: tuple[Incarnation, ...] = ()

    def offer(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        self.offered += samples
        self.names += names


def test_what_is_another_runs_at_a_peer_is_offered_and_not_compared() -> None:
    """One number of two runs under one epoch is no conflict."""
    store, door = JournaledStorage(MemoryStorage(), None), Door()
    store.index.declare(ONE, EPOCH, SECOND)
    aligned = AlignedStore(store, door)
    held = SampleBatch(under(EPOCH, run_of(ONE, 0, 2)))
    told = tuple(names((EPOCH, FIRST)))
    assert len(aligned.offer(SampleBatch(), held, told)) == 0
    assert [one.sn for one in door.offered] == [0, 1, 2]
    assert door.names == told
    assert aligned.offer(SampleBatch(), held, tuple(names((EPOCH, SECOND)))) is held
    assert aligned.offer(SampleBatch(), held, ()) is held
