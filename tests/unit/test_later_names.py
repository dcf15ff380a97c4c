"""Two caches that named one declared run differently: the later name stands in both."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.sequence import frame
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, EngineOptions, Origin, TokenGone
from durable_cache.protocol.cache.later_names import LaterName, later_name
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


def test_runs_that_others_saw_in_another_order_keep_their_names() -> None:
    ours = known_as((5, FIRST), (6, SECOND))
    assert later_name(ours, names((8, FIRST), (7, SECOND))) is None


def test_a_name_that_still_counts_as_another_is_waited_for() -> None:
    moving = Epochs([Alias(ONE, 6, 0, 7)])
    assert later_name(known_as((5, SECOND), epochs=moving), names((6, SECOND))) is None


def test_a_run_that_nobody_named_is_not_pushed() -> None:
    assert later_name(known_as((5, SECOND), (6, "")), names((6, SECOND))) is None


def under(epoch: int, samples: list[Sample]) -> list[Sample]:
    return [msgspec.structs.replace(one, epoch=epoch) for one in samples]


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


def test_two_runs_that_others_call_later_both_take_the_later_names() -> None:
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
        cache.give(Arrived(SampleBatch(given), Origin.ALIGNED, cache.now, theirs))
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
