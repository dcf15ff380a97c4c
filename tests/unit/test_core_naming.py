"""A core asks other caches how they call what it has without an epoch, until one tells it."""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, frame
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.cache.events import EngineOptions, Origin, TokenGone
from durable_cache.protocol.cache.names import under
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Arrived, Inquired
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import ONE, TWO, acknowledged, of_run, run_of, sample, token

CALLED = 190_000_000
"""What another cache calls the run."""


def called(samples: list[Sample]) -> list[Sample]:
    return [msgspec.structs.replace(sample, epoch=CALLED) for sample in samples]


def asking(options: CoreOptions | None = None) -> DrivenCache:
    """Return a cache that was given some of its run under a name, and has asked for all of it."""
    cache = DrivenCache(options=options)
    cache.take(run_of(ONE, 10, 15))
    cache.take(called(run_of(ONE, 14, 16)), Origin.ALIGNED)
    assert [(inquiry.first, inquiry.last) for inquiry in cache.inquiries()] == [(10, 15)]
    return cache


def learns_it(cache: DrivenCache, inquiry_id: int) -> None:
    cache.take(called(run_of(ONE, 10, 16)), Origin.RECOVERED)
    cache.give(Inquired(inquiry_id, cache.now))
    cache.wait(2)
    assert of_run(cache, ONE, 0) == {CALLED: RangeSet([(10, 16)])}
    assert {sample.epoch for sample in cache.all()} == {CALLED}


def test_who_failed_to_answer_is_asked_again() -> None:
    cache = asking()
    cache.give(Inquired(1, cache.now, failed=True))
    assert cache.inquiries() == []
    cache.wait(6)
    (again,) = cache.inquiries()
    assert (again.first, again.last) == (10, 15)
    learns_it(cache, again.inquiry_id)


def test_an_answer_about_a_source_that_others_pushed_out_of_memory_counts() -> None:
    """It ended the cache (seed 268 of the simulator)."""
    cache = asking(CoreOptions(EngineOptions(sources_max=1)))
    cache.take(called(run_of(ONE, 10, 16)), Origin.RECOVERED)
    cache.take(run_of(TWO, 0, 3))
    cache.give(Inquired(1, cache.now))
    cache.wait(2)
    assert of_run(cache, ONE, 0) == {CALLED: RangeSet([(10, 16)])}


def test_who_always_fails_is_not_asked_for_ever() -> None:
    cache = asking()
    failed = 1
    for _ in range(50):
        cache.give(Inquired(1, cache.now, failed=True))
        cache.wait(6)
        failed += len(cache.inquiries())
    assert failed < 20


def test_a_question_that_a_restart_forgot_is_asked_again() -> None:
    cache = asking()
    cache.start()
    cache.take(run_of(ONE, 17, 17))
    (again,) = cache.inquiries()
    assert (again.first, again.last) == (10, 15)
    cache.take(called(run_of(ONE, 10, 16)), Origin.RECOVERED)
    cache.give(Inquired(again.inquiry_id, cache.now))
    cache.wait(2)
    assert EPOCH_UNKNOWN not in {sample.epoch for sample in cache.all()}


def test_two_runs_that_media_brought_together_do_not_become_one() -> None:
    """A lost backend was put back: what came meanwhile is of the run behind the wrap (193897)."""
    backend = MemoryStorage()
    end = SOURCE_SN_MODULUS - 1
    before_wrap, behind_it = run_of(ONE, end - 9, end), run_of(ONE, 0, 9, seconds=5000, run=1)
    backend.append(SampleBatch([*before_wrap, behind_it[5]]))
    store = JournaledStorage(backend, None)
    store.index.rebuild(backend)
    cache = DrivenCache(store)
    cache.take(called(behind_it[4:6]), Origin.ALIGNED)
    for inquiry in cache.inquiries():
        cache.take(called(behind_it), Origin.RECOVERED)
        cache.give(Inquired(inquiry.inquiry_id, cache.now))
    cache.wait(2)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([(end - 9, end)])}
    assert of_run(cache, ONE, 1)[CALLED] == RangeSet([(0, 9)])


def test_two_runs_that_have_numbers_in_common_are_not_asked_for() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 10, 15))
    cache.take(called(run_of(ONE, 10, 15, seconds=100, run=1)), Origin.ALIGNED)
    cache.inquiries()
    cache.start()
    cache.take(run_of(ONE, 16, 16, seconds=100, run=1))
    assert cache.inquiries() == []


def test_a_run_whose_name_was_lost_is_not_taken_for_the_one_of_the_next_token() -> None:
    """Journal and index were lost: the backend does not say that a token named the first run."""
    backend = MemoryStorage()
    first = frame(BEGAN_NS)
    before = DrivenCache(JournaledStorage(backend, None))
    token(before, ONE, first, "0a0a0a0a")
    before.take(run_of(ONE, 0, 9, seconds=20))
    store = JournaledStorage(backend, None)
    store.index.rebuild(backend)
    cache = DrivenCache(store)
    token(cache, ONE, first + 1, "0b0b0b0b", fresh=False)
    assert acknowledged(cache, ONE) == RangeSet()
    cache.take(run_of(ONE, 0, 4, seconds=60, run=1))
    assert of_run(cache, ONE, 0) == {first: RangeSet([(0, 9)])}
    assert of_run(cache, ONE, 1) == {first + 1: RangeSet([(0, 4)])}
    assert store.index.incarnations([ONE]) == [Incarnation(ONE, first + 1, "0b0b0b0b")]


@pytest.mark.parametrize("how", ["stored", "given"])
def test_what_this_process_did_not_hear_without_a_name_is_not_of_the_next_token(how: str) -> None:
    """Its token may have come and gone: within a time frame nothing tells it from the next run's.

    A cache ended before it took the first token, and its publisher began anew (seed 4755).
    """
    cache = DrivenCache()
    cache.take(run_of(ONE, 2, 2), Origin.LIVE if how == "stored" else Origin.ALIGNED)
    if how == "stored":
        cache.start()
    cache.effects.clear()
    epoch = frame(BEGAN_NS)
    token(cache, ONE, epoch, "0b0b0b0b")
    assert acknowledged(cache, ONE) == RangeSet()
    cache.take(run_of(ONE, 0, 3, seconds=1, run=1))
    cache.wait(2)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([(2, 2)])}
    assert of_run(cache, ONE, 1) == {epoch: RangeSet([(0, 3)])}


def test_a_token_says_which_run_goes_on_whatever_an_older_copy_brought_back() -> None:
    """What was moved to its run's name stood under a later epoch once more (seed 87534)."""
    cache = DrivenCache()
    epoch = frame(BEGAN_NS)
    token(cache, ONE, epoch, "0a0a0a0a")
    cache.take(run_of(ONE, 0, 4))
    cache.store.commit(SampleBatch(under(epoch + 7, run_of(ONE, 0, 1, seconds=-60, run=9))))
    cache.start()
    token(cache, ONE, epoch, "0a0a0a0a", fresh=False)
    cache.take(run_of(ONE, 5, 6))
    assert of_run(cache, ONE, 0) == {epoch: RangeSet([(0, 6)])}


def test_first_samples_that_a_process_before_stored_are_moved_once_they_come_by_their_name() -> (
    None
):
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 2))
    cache.start()
    epoch = frame(BEGAN_NS)
    token(cache, ONE, epoch, "0a0a0a0a")
    given = [msgspec.structs.replace(s, epoch=epoch) for s in run_of(ONE, 0, 2)]
    cache.take(given, Origin.RECOVERED)
    (asked,) = cache.inquiries()
    cache.give(Inquired(asked.inquiry_id, cache.now))
    cache.wait(2)
    assert {sample.epoch for sample in cache.all()} == {epoch}
    assert acknowledged(cache, ONE) == RangeSet([(0, 2)])


def test_a_run_whose_name_was_lost_waits_for_its_token_before_it_goes_on() -> None:
    backend = MemoryStorage()
    first = frame(BEGAN_NS)
    before = DrivenCache(JournaledStorage(backend, None))
    token(before, ONE, first, "0a0a0a0a")
    before.take(run_of(ONE, 0, 9))
    store = JournaledStorage(backend, None)
    store.index.rebuild(backend)
    cache = DrivenCache(store)
    cache.take(run_of(ONE, 10, 12, run=1))
    assert acknowledged(cache, ONE) == RangeSet()
    token(cache, ONE, first + 1, "0b0b0b0b", fresh=False)
    cache.take(run_of(ONE, 13, 14, run=1))
    assert of_run(cache, ONE, 0) == {first: RangeSet([(0, 9)])}
    assert of_run(cache, ONE, 1) == {first + 1: RangeSet([(13, 14)])}


def test_a_number_that_comes_live_under_one_name_and_was_given_under_another_is_compared() -> None:
    """It was fetched before it could be stored as it came; nobody gives the other name again."""
    cache = DrivenCache()
    begun = run_of(ONE, 0, 4, seconds=100, run=1)
    cache.take([*run_of(ONE, 0, 9), begun[0]])
    (name,) = of_run(cache, ONE, 1)
    cache.take([msgspec.structs.replace(begun[2], epoch=name + 5)], Origin.RECOVERED)
    for inquiry in cache.inquiries():
        cache.give(Inquired(inquiry.inquiry_id, cache.now, whole=False))
    assert of_run(cache, ONE, 1) == {name: RangeSet([(0, 0)]), name + 5: RangeSet([(2, 2)])}
    cache.take(begun[1:])
    (asked,) = cache.inquiries()
    cache.give(Inquired(asked.inquiry_id, cache.now))
    cache.wait(2)
    assert of_run(cache, ONE, 1) == {name + 5: RangeSet([(0, 4)])}
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([(0, 9)])}


def test_what_came_by_its_publishers_name_gets_the_one_that_its_token_has_here() -> None:
    """It came before its token, and the publisher's clock was set back (seed 4279).

    Its own cache gave the run by the epoch that it declared; that was no token's here.
    """
    cache = DrivenCache()
    ours = frame(BEGAN_NS)
    token(cache, ONE, ours, "0a0a0a0a")
    cache.take(run_of(ONE, 0, 4))
    own = called(run_of(ONE, 0, 2, seconds=60, run=1))
    declared = (Incarnation(ONE, CALLED, "0b0b0b0b"),)
    cache.give(Arrived(SampleBatch(own), Origin.RECOVERED, cache.now, declared))
    assert of_run(cache, ONE, 1) == {CALLED: RangeSet([(0, 2)])}
    cache.give(TokenGone(ONE, "0a0a0a0a", cache.now))
    token(cache, ONE, CALLED, "0b0b0b0b", fresh=False)
    cache.wait(1)
    cache.take(run_of(ONE, 0, 4, seconds=60, run=1))
    assert cache.store.index.incarnations([ONE])[-1].epoch == ours + 1
    cache.inquiries()
    theirs = (Incarnation(ONE, ours, "0a0a0a0a"), Incarnation(ONE, ours + 1, "0b0b0b0b"))
    given = [
        msgspec.structs.replace(sample, epoch=ours + 1)
        for sample in run_of(ONE, 0, 4, seconds=60, run=1)
    ]
    cache.give(Arrived(SampleBatch(given), Origin.ALIGNED, cache.now, theirs))
    (inquiry,) = cache.inquiries()
    cache.give(Inquired(inquiry.inquiry_id, cache.now))
    cache.wait(2)
    assert of_run(cache, ONE, 1) == {ours + 1: RangeSet([(0, 4)])}
    assert {sample.epoch for sample in cache.all()} == {ours, ours + 1}


def test_two_names_that_are_two_runs_here_are_not_asked_about_whatever_others_give_by_them() -> (
    None
):
    """Another cache calls the later run as the earlier one goes here (seed 10005)."""
    cache = DrivenCache()
    later = run_of(ONE, 0, 15, seconds=60, run=1)
    cache.take(called(run_of(ONE, 0, 4)), Origin.ALIGNED)
    given = [msgspec.structs.replace(sample, epoch=CALLED + 1) for sample in later]
    cache.take(given, Origin.ALIGNED)
    cache.start()
    cache.inquiries()
    cache.take(called(later[11:]), Origin.ALIGNED)
    assert cache.inquiries() == []
    assert of_run(cache, ONE, 1) == {CALLED + 1: RangeSet([(0, 15)])}


def given_while_looked_up(cache: DrivenCache) -> int:
    """Let others give a run by its name while its first samples wait for a look-up."""
    begun = run_of(ONE, 0, 2, seconds=100, run=1)
    name = frame(ntp64_to_ns(begun[0].ntp64))
    cache.take(run_of(ONE, 3, 9))
    cache.reads = False
    cache.take(begun)
    (look_up,) = cache.unanswered
    cache.unanswered.clear()
    cache.reads = True
    cache.take([msgspec.structs.replace(one, epoch=name) for one in begun], Origin.ALIGNED)
    for inquiry in cache.inquiries():
        cache.give(Inquired(inquiry.inquiry_id, cache.now, whole=False))
    cache.unanswered.append(look_up)
    cache.answer_one()
    assert cache.core.epochs.lost(ONE) == []
    return name


@pytest.mark.parametrize("restarts", [False, True])
def test_a_run_that_others_gave_while_it_was_looked_up_has_one_name(restarts: bool) -> None:
    """Its own name was taken, by itself: it was called by the next one (seed 11203)."""
    cache = DrivenCache()
    name = given_while_looked_up(cache)
    assert {one.epoch for one in cache.all()} == {EPOCH_UNKNOWN, name, name + 1}
    if restarts:
        cache.inquiries()
        cache.start()
        cache.take(run_of(ONE, 3, 3, seconds=100, run=1))
    asked = cache.inquiries()[-1]
    cache.give(Inquired(asked.inquiry_id, cache.now))
    cache.wait(2)
    assert of_run(cache, ONE, 1) == {name + 1: RangeSet([(0, 2 + restarts)])}
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([(3, 9)])}


def of_two_keys(first: int, last: int, *, seconds: float, run: int) -> list[Sample]:
    """Return samples of a publisher of two keys; each run begins with the other one."""
    return [
        sample(ONE, sn, seconds=seconds, key="ab"[(sn + run) % 2], run=run)
        for sn in range(first, last + 1)
    ]


def test_a_number_under_another_key_is_another_runs_where_nobody_names_either() -> None:
    """What is looked up by its key was not found, and so told nothing."""
    cache = DrivenCache()
    cache.take(of_two_keys(0, 5, seconds=1, run=0))
    cache.take(of_two_keys(0, 7, seconds=1.3, run=1), Origin.ALIGNED)
    cache.wait(1)
    assert of_run(cache, ONE, 0) == {EPOCH_UNKNOWN: RangeSet([(0, 5)])}
    assert [*of_run(cache, ONE, 1).values()] == [RangeSet([(0, 7)])]
    assert EPOCH_UNKNOWN not in of_run(cache, ONE, 1)


def test_nor_is_it_of_a_run_that_others_call_by_the_same_epoch() -> None:
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.take(of_two_keys(0, 3, seconds=100, run=1))
    (epoch,) = of_run(cache, ONE, 1)
    cache.take(under(epoch, of_two_keys(0, 5, seconds=100.02, run=2)), Origin.ALIGNED)
    cache.wait(1)
    assert of_run(cache, ONE, 1) == {epoch: RangeSet([(0, 3)])}
    assert epoch not in of_run(cache, ONE, 2)


@pytest.mark.parametrize("gives_later", [True, False])
def test_what_a_publishers_own_cache_gives_may_be_of_a_run_that_others_gave_before(
    gives_later: bool,
) -> None:
    """It was stored and acknowledged as the rest of the run before (seed 136846)."""
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 11))
    begun = run_of(ONE, 0, 15, seconds=20, run=1)
    if gives_later:
        cache.take(under(frame(BEGAN_NS + 20 * 10**9), [begun[15], *begun[:11]]), Origin.ALIGNED)
    cache.take(begun[12:], Origin.NATIVE)
    assert (EPOCH_UNKNOWN in of_run(cache, ONE, 1)) is not gives_later
    if gives_later:
        cache.take(run_of(ONE, 16, 16, seconds=20, run=1))
        cache.take(begun[11:], Origin.NATIVE)
        ((epoch, held),) = of_run(cache, ONE, 1).items()
        assert (epoch, held) == (frame(BEGAN_NS + 20 * 10**9), RangeSet([(0, 16)]))
