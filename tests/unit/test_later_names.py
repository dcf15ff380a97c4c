"""Two caches that named one declared run differently: the later name stands in both."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.sequence import frame
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, EngineOptions, Origin
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
