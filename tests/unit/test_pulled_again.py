"""What another cache pulls again it has by another name: this one learns it (ADR 0355)."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId, Stream
from durable_cache.model.sequence import frame
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Origin
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.effects import Inquired, PulledAgain
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import ONE, of_run, run_of

STANDS = frame(BEGAN_NS + 100 * 10**9)
LOST = STANDS - 1
"""What this cache calls two parts of a run, and the first of which others call all of it."""


def called(epoch: int, samples: list[Sample]) -> list[Sample]:
    return [msgspec.structs.replace(sample, epoch=epoch) for sample in samples]


def every(first: int, last: int) -> list[Sample]:
    return run_of(ONE, first, last, seconds=100)


def with_two_names() -> DrivenCache:
    """Return a cache that was given what retention had removed of a run, by another name.

    It named what it heard, as the publisher had begun anew.
    """
    cache = DrivenCache()
    cache.take(run_of(ONE, 20, 29, run=1))
    cache.take(every(0, 15))
    cache.wait(2)
    cache.store.purge([Floor(every(0, 0)[0].stream._replace(epoch=STANDS), 12)])
    cache.take(called(LOST, every(0, 3)), Origin.ALIGNED)
    assert of_run(cache, ONE, 0) == {LOST: RangeSet([(0, 3)]), STANDS: RangeSet([(12, 15)])}
    cache.inquiries()
    cache.wait(60)
    return cache


def answer(cache: DrivenCache, samples: list[Sample], *, whole: bool = True) -> None:
    """Answer what was asked."""
    inquiries = cache.inquiries()
    assert inquiries
    for inquiry in inquiries:
        asked = [one for one in samples if inquiry.first <= one.sn <= inquiry.last]
        cache.take(asked, Origin.RECOVERED)
        cache.give(Inquired(inquiry.inquiry_id, cache.now, whole=whole))
    cache.wait(2)


def test_a_run_that_others_pull_again_is_asked_for_and_goes_by_their_name() -> None:
    """It was pulled for ever: what they have so was removed here, and is not pulled (seed 101234).

    The number that shows theirs to be ours is the first one that retention left.
    """
    cache = with_two_names()
    cache.give(PulledAgain(ONE, LOST, cache.now))
    theirs = called(STANDS, every(0, 15))
    answer(cache, theirs)
    answer(cache, theirs)
    assert of_run(cache, ONE, 0) == {STANDS: RangeSet([(12, 15)])}


def test_what_others_call_as_this_cache_does_is_asked_for_twice_only() -> None:
    cache = with_two_names()
    asked = []
    for _ in range(20):
        cache.give(PulledAgain(ONE, LOST, cache.now))
        asked += cache.inquiries()
        cache.wait(30)
    assert [(inquiry.first, inquiry.last) for inquiry in asked] == [(0, 3), (0, 3)]


def test_a_run_that_is_not_here_by_that_name_is_not_asked_for() -> None:
    cache = with_two_names()
    cache.give(PulledAgain(ONE, LOST - 1, cache.now))
    assert cache.inquiries() == []


def test_an_answer_that_did_not_come_in_whole_is_asked_for_again_before_runs_are_one() -> None:
    """What did not come in showed that they were two (seed 125334)."""
    cache = DrivenCache()
    cache.take(called(LOST, [*run_of(ONE, 0, 6, run=1), *run_of(ONE, 9, 9)]), Origin.ALIGNED)
    cache.take(called(STANDS, run_of(ONE, 9, 9)), Origin.ALIGNED)
    (inquiry,) = cache.inquiries()
    cache.give(Inquired(inquiry.inquiry_id, cache.now, whole=False))
    cache.wait(6)
    answer(cache, called(STANDS, run_of(ONE, 0, 9)))
    assert of_run(cache, ONE, 1) == {LOST: RangeSet([(0, 6)])}


def test_numbers_that_retention_removed_part_two_runs_as_well_as_those_that_are_here() -> None:
    """Of the second only number 3 was left: it seemed to be the rest of the first."""
    cache = DrivenCache()
    cache.take(called(LOST, run_of(ONE, 0, 1, run=1)), Origin.ALIGNED)
    stream = run_of(ONE, 0, 0)[0].stream
    cache.store.purge([Floor(stream._replace(epoch=LOST), 2)])
    cache.store.purge([Floor(stream._replace(epoch=STANDS), 3)])
    cache.take(called(STANDS, run_of(ONE, 3, 3)), Origin.ALIGNED)
    answer(cache, called(STANDS, run_of(ONE, 0, 3)))
    assert cache.store.index.agreements() == []


class Door:
    """Hears what is pulled again."""

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.heard: list[tuple[SourceId, int]] = []

    def offer(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        raise AssertionError("nothing is offered here")

    def pulled_again(self, source: SourceId, epoch: int) -> None:
        self.heard.append((source, epoch))


def pulled(
    door: Door,
    *pulls: tuple[float, int],
    epoch: int = LOST,
    source: SourceId = ONE,
    names: tuple[Incarnation, ...] = (),
) -> list[tuple[SourceId, int]]:
    """Pull the numbers up to one at some times, and return what the door hears."""
    aligned = AlignedStore(JournaledStorage(MemoryStorage(), None), door)
    for at_seconds, last in pulls:
        wanted = [(Stream("a/b", source, epoch), RangeSet([(0, last)]))]
        assert [*aligned.to_pull(wanted, names, at_seconds)] == []
    return door.heard


@pytest.mark.parametrize(
    ("pulls", "times"),
    [
        (((0, 3), (10, 3)), 1),
        (((0, 3), (10, 3), (19, 3), (20, 3)), 2),
        (((0, 3), (9, 3)), 0),
        (((0, 3), (10, 2)), 0),
        (((0, 3), (901, 3)), 0),
    ],
    ids=["again", "and again", "while it is stored", "the next page", "after a long time"],
)
def test_who_pulls_the_same_number_again_does_not_keep_it_by_its_name(
    pulls: tuple[tuple[float, int], ...], times: int
) -> None:
    assert pulled(Door(), *pulls) == [(ONE, LOST)] * times


def test_of_many_runs_in_a_pull_some_are_told_of_and_the_others_when_they_are_pulled_again() -> (
    None
):
    door = Door()
    aligned = AlignedStore(JournaledStorage(MemoryStorage(), None), door)
    wanted = [(Stream("a/b", ONE, LOST + run), RangeSet([(0, 3)])) for run in range(20)]
    told = []
    for at_seconds in (0.0, 10.0, 11.0):
        assert [*aligned.to_pull(wanted, (), at_seconds)] == []
        told.append(len(door.heard))
    assert told == [0, 16, 20]
    assert len({*door.heard}) == 20


@pytest.mark.parametrize("declared", [0, 16])
def test_no_run_waits_for_ever_behind_others_that_are_pulled_as_often(declared: int) -> None:
    door = Door()
    aligned = AlignedStore(JournaledStorage(MemoryStorage(), None), door)
    wanted = [(Stream("a/b", ONE, LOST + run), RangeSet([(0, 3)])) for run in range(20)]
    names = [Incarnation(ONE, LOST + run, f"{run:08x}") for run in range(declared)]
    for at_seconds in (0.0, 30.0, 60.0):
        assert [*aligned.to_pull(wanted, names, at_seconds)] == []
    assert {epoch for _, epoch in door.heard} == {LOST + run for run in range(declared, 20)}


def test_what_a_token_named_and_what_has_no_epoch_is_pulled_as_before() -> None:
    again = ((0.0, 3), (10.0, 3))
    assert pulled(Door(), *again, names=(Incarnation(ONE, LOST, "0a0a0a0a"),)) == []
    assert pulled(Door(), *again, epoch=0) == []
