"""What a cache makes of samples that were sent to it once more: taken, compared, or refused."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.sequence import frame
from durable_cache.protocol.cache.events import Append, EngineOptions, ReportAbsent, TokenGone
from durable_cache.protocol.resends import RefusalReason, ResendRefusal
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Announce, AnswerResend, ResendArrived
from durable_cache.storage.contract import Floor
from tests.unit.driven import BEGAN_NS, DrivenCache
from tests.unit.test_core import (
    ONE,
    TWO,
    acknowledged,
    answer_fetches,
    of_run,
    run_of,
    sample,
    token,
)

EPOCH = frame(BEGAN_NS)
NAME, OTHER_NAME = "0000aaaa", "0000bbbb"
NOBODY: frozenset[str] = frozenset()
LIVING = frozenset({NAME})
THIEF = "dead"


def resend(
    cache: DrivenCache,
    samples: list[Sample],
    *,
    claims: frozenset[str] | None = LIVING,
    sender: str = ONE.zid,
    incarnation: str = NAME,
    epoch: int = EPOCH,
    carriers: frozenset[tuple[str, str]] = frozenset(),
) -> list[AnswerResend]:
    named = SampleBatch(msgspec.structs.replace(sample, epoch=epoch) for sample in samples)
    before = len(cache.of(AnswerResend))
    arrived = ResendArrived(1, sender, ONE, epoch, incarnation, named, claims, cache.now)
    cache.give(replace(arrived, carriers=carriers))
    return [
        effect for effect in cache.of(AnswerResend)[before:] if isinstance(effect, AnswerResend)
    ]


def refused(answers: list[AnswerResend]) -> list[tuple[int, int, int]]:
    (answer,) = answers
    return [tuple(run) for run in answer.refused]  # type: ignore[misc]


def living(**options: object) -> DrivenCache:
    cache = DrivenCache(**options)  # type: ignore[arg-type]
    token(cache, ONE, EPOCH, NAME)
    return cache


@pytest.mark.parametrize("known", [True, False])
def test_new_samples_are_stored_under_their_numbering_and_acknowledged(known: bool) -> None:
    cache = living() if known else DrivenCache()
    assert refused(resend(cache, run_of(ONE, 0, 9))) == []
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}
    assert list(acknowledged(cache, ONE)) == [(0, 9)]
    assert {ack.incarnation for ack in cache.acks} == {NAME}


@pytest.mark.parametrize("known", [True, False])
def test_what_is_resent_of_a_publisher_that_is_gone_is_told_also_where_it_is_here(
    known: bool,
) -> None:
    """Whoever resent it before may have been killed before it told subscribers (ADR 0347)."""
    cache = living()
    cache.take(run_of(ONE, 0, 3))
    cache.give(TokenGone(ONE, NAME, cache.now))
    cache.take([sample(TWO, 0)])
    if known:
        resend(cache, run_of(ONE, 4, 9), claims=NOBODY)
        cache.effects.clear()
    resend(cache, run_of(ONE, 4, 9), claims=NOBODY)
    told = [effect.sn for effect in cache.effects if isinstance(effect, Announce)]
    assert told == [9]


def test_a_resend_that_is_refused_costs_others_nothing_that_is_to_be_told() -> None:
    cache = living(options=CoreOptions(engine=EngineOptions(tokens_max=4)))
    token(cache, TWO, EPOCH, OTHER_NAME)
    cache.appends = False
    cache.take([sample(TWO, 0)])
    cache.give(TokenGone(TWO, OTHER_NAME, cache.now))
    many = [sample(ONE, sn, key=f"k/{sn}") for sn in range(9)]
    assert refused(resend(cache, many, sender=THIEF))[0][2] is RefusalReason.CLAIMED
    cache.answer_all()
    told = [effect.source for effect in cache.effects if isinstance(effect, Announce)]
    assert told == [TWO]


def test_a_resend_goes_by_what_its_run_is_called_here() -> None:
    """Two runs declared one epoch: the second is called by the next."""
    cache = living()
    token(cache, ONE, EPOCH, OTHER_NAME)
    claims = frozenset({OTHER_NAME})
    answers = resend(cache, run_of(ONE, 0, 3), claims=claims, incarnation=OTHER_NAME)
    assert refused(answers) == []
    assert of_run(cache, ONE, 0) == {EPOCH + 1: RangeSet([SnRange(0, 3)])}
    assert {(ack.epoch, ack.incarnation) for ack in cache.acks} == {(EPOCH + 1, OTHER_NAME)}


def test_what_is_stored_already_is_acknowledged_once_more_and_not_stored_again() -> None:
    cache = living()
    cache.take(run_of(ONE, 0, 9))
    appended = len(cache.of(Append))
    cache.effects.clear()
    assert refused(resend(cache, run_of(ONE, 4, 6))) == []
    assert [ack.runs for ack in cache.acks] == [((4, 6),)]
    assert not cache.of(Append)
    assert appended


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    cache = living()
    cache.appends = False
    cache.take(run_of(ONE, 0, 4))
    resend(cache, run_of(ONE, 0, 9))
    assert not acknowledged(cache, ONE)
    cache.answer_all()
    assert list(acknowledged(cache, ONE)) == [(0, 9)]


def test_another_sample_under_a_stored_number_is_refused_and_costs_no_neighbour() -> None:
    cache = living()
    cache.take(run_of(ONE, 0, 3))
    forged = run_of(ONE, 2, 2, run=7)
    answers = resend(cache, [*run_of(ONE, 0, 1), *forged, *run_of(ONE, 3, 6)])
    assert refused(answers) == [(2, 2, RefusalReason.CONFLICT)]
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 6)])}
    assert len(cache.conflicts) == 1
    assert not of_run(cache, ONE, 7)


def test_another_sample_under_a_stored_number_is_not_acknowledged() -> None:
    cache = living()
    cache.take(run_of(ONE, 0, 3))
    cache.effects.clear()
    resend(cache, run_of(ONE, 1, 2, run=7))
    assert not acknowledged(cache, ONE)


def test_a_living_source_is_not_somebody_elses() -> None:
    cache = living()
    cache.take(run_of(ONE, 0, 3))
    answers = resend(cache, run_of(ONE, 4, 9, run=7), sender=THIEF)
    assert refused(answers) == [(4, 9, RefusalReason.CLAIMED)]
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 3)])}
    cache.take(run_of(ONE, 4, 9))
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}


def test_a_token_that_came_here_counts_where_the_answer_about_tokens_lacks_it() -> None:
    cache = living()
    answers = resend(cache, run_of(ONE, 0, 3), claims=NOBODY, sender=THIEF)
    assert refused(answers) == [(0, 3, RefusalReason.CLAIMED)]
    assert not cache.all()
    cache.give(TokenGone(ONE, NAME, cache.now))
    assert refused(resend(cache, run_of(ONE, 0, 3), claims=NOBODY, sender=THIEF)) == []


def test_who_carries_a_run_beside_its_living_source_is_believed() -> None:
    cache = living()
    carriers = frozenset({(THIEF, NAME)})
    assert refused(resend(cache, run_of(ONE, 0, 3), sender=THIEF, carriers=carriers)) == []
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 3)])}
    other = frozenset({(THIEF, "0badf00d")})
    answers = resend(cache, run_of(ONE, 4, 5), sender=THIEF, carriers=other)
    assert refused(answers) == [(4, 5, RefusalReason.CLAIMED)]
    before = resend(
        cache,
        run_of(ONE, 0, 3),
        sender=THIEF,
        incarnation="0badf00d",
        epoch=EPOCH - 5,
        carriers=other,
    )
    assert refused(before) == []


def test_who_carries_a_run_sends_it_and_its_claim_refuses_nobody() -> None:
    cache = living()
    carriers = frozenset({("abcdef", NAME)})
    assert refused(resend(cache, run_of(ONE, 0, 3), sender=THIEF, carriers=carriers)) == []


def test_where_tokens_cannot_be_seen_nothing_is_believed() -> None:
    cache = living()
    answers = resend(cache, run_of(ONE, 0, 3), claims=None, sender=THIEF)
    assert refused(answers) == [(0, 3, RefusalReason.LATER)]
    assert not cache.all()


def test_a_source_without_a_token_may_be_another_sessions_to_finish() -> None:
    cache = living()
    cache.take(run_of(ONE, 0, 3))
    cache.give(TokenGone(ONE, NAME, cache.now))
    assert refused(resend(cache, run_of(ONE, 2, 9), claims=NOBODY, sender=THIEF)) == []
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}


def test_an_earlier_numbering_nobody_saw_stands_beside_the_one_that_lives() -> None:
    cache = DrivenCache()
    token(cache, ONE, EPOCH + 9, OTHER_NAME)
    cache.take(run_of(ONE, 0, 3, run=1))
    claims = frozenset({OTHER_NAME})
    assert refused(resend(cache, run_of(ONE, 0, 5), claims=claims)) == []
    cache.take(run_of(ONE, 2, 6, run=1))
    assert (cache.core.counts.restarts, cache.conflicts) == (0, [])
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 5)])}
    assert of_run(cache, ONE, 1) == {EPOCH + 9: RangeSet([SnRange(0, 6)])}
    names = {(ack.epoch, ack.incarnation) for ack in cache.acks}
    assert names == {(EPOCH, NAME), (EPOCH + 9, OTHER_NAME)}


def test_what_is_live_stays_with_the_later_run_when_an_earlier_one_is_resent() -> None:
    """No token says of which run the live samples are; they followed the restart before."""
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 3, seconds=60))
    cache.take(run_of(ONE, 0, 3, seconds=600, run=1))
    (epoch,) = of_run(cache, ONE, 1)
    assert refused(resend(cache, run_of(ONE, 0, 5, run=2), claims=NOBODY, epoch=EPOCH - 20)) == []
    cache.take(run_of(ONE, 4, 6, seconds=600, run=1))
    assert of_run(cache, ONE, 1) == {epoch: RangeSet([SnRange(0, 6)])}
    assert of_run(cache, ONE, 2) == {EPOCH - 20: RangeSet([SnRange(0, 5)])}


def test_an_epoch_of_another_numbering_is_not_used_twice() -> None:
    cache = living()
    cache.take(run_of(ONE, 0, 3))
    answers = resend(cache, run_of(ONE, 0, 5, run=1), claims=NOBODY, incarnation=OTHER_NAME)
    assert refused(answers) == [(0, 5, RefusalReason.EPOCH_TAKEN)]


def test_the_name_of_a_numbering_is_known_after_a_restart() -> None:
    cache = DrivenCache()
    resend(cache, run_of(ONE, 0, 5), claims=NOBODY, sender=THIEF)
    cache.start()
    assert {name for _, _, name in cache.store.index.incarnations([ONE])} == {NAME}
    cache.effects.clear()
    assert refused(resend(cache, run_of(ONE, 0, 5), claims=NOBODY, sender=THIEF)) == []
    assert list(acknowledged(cache, ONE)) == [(0, 5)]
    assert not cache.of(Append)


def test_numbers_before_a_resend_are_awaited_and_far_ones_come_later() -> None:
    options = CoreOptions(EngineOptions(window_size_samples=100))
    cache = living(options=options)
    cache.take(run_of(ONE, 0, 3))
    answers = resend(cache, [*run_of(ONE, 10, 11), *run_of(ONE, 5000, 5001)])
    assert refused(answers) == [(5000, 5001, RefusalReason.LATER)]
    cache.wait(1)
    assert (4, 9) in {(fetch.first, fetch.last) for fetch in cache.fetches}


def test_what_was_purged_does_not_come_back() -> None:
    cache = living()
    cache.take(run_of(ONE, 0, 5))
    cache.store.drain_all(5)
    stream = cache.all()[0].stream
    cache.store.purge([Floor(stream, 4)])
    resend(cache, run_of(ONE, 0, 5))
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(4, 5)])}


def test_an_awaited_number_that_was_purged_is_refused_and_no_longer_awaited() -> None:
    cache = living()
    cache.take([one for one in run_of(ONE, 0, 5) if one.sn != 3])
    cache.wait(0.1)
    answer_fetches(cache)
    cache.store.purge([Floor(cache.all()[0].stream, 4)])
    assert refused(resend(cache, run_of(ONE, 3, 3))) == [(3, 3, RefusalReason.REMOVED)]
    cache.wait(200)
    assert cache.misses == []
    assert list(acknowledged(cache, ONE)) == [(0, 2), (4, 5)]


def test_a_storage_that_cannot_be_read_refuses_for_now_and_answers_all_the_same() -> None:
    cache = living()
    cache.take(run_of(ONE, 0, 3))
    cache.disk_up = False
    assert refused(resend(cache, run_of(ONE, 0, 5))) == [(0, 5, RefusalReason.LATER)]
    cache.disk_up = True
    assert refused(resend(cache, run_of(ONE, 0, 5))) == []
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 5)])}


def test_a_limit_of_streams_holds_for_resends() -> None:
    cache = living(options=CoreOptions(resources_limit=1))
    cache.take(run_of(ONE, 0, 3))
    other = [msgspec.structs.replace(s, key="other") for s in run_of(ONE, 4, 5)]
    assert refused(resend(cache, [*other, *run_of(ONE, 6, 7)])) == [(4, 5, RefusalReason.FULL)]


def test_refusals_made_on_the_way_stay_in_the_answer() -> None:
    cache = living()
    left_out = (ResendRefusal(9, 9, RefusalReason.NOT_STORED),)
    cache.give(
        ResendArrived(3, ONE.zid, ONE, EPOCH, NAME, SampleBatch(()), LIVING, cache.now, left_out)
    )
    assert cache.of(AnswerResend) == [AnswerResend(3, left_out)]


def test_a_source_that_never_was_here_is_taken_whole() -> None:
    cache = DrivenCache()
    answers = resend(cache, run_of(ONE, 70, 75), claims=NOBODY, sender=THIEF)
    assert refused(answers) == []
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(70, 75)])}
    assert not cache.fetches
    assert SourceId("ab2", 7) not in {sample.source for sample in cache.all()}


# What is stored under an epoch that it is being moved from


def moving(*, answered: int) -> DrivenCache:
    """Return a cache whose samples came before their token, and are being moved to its epoch."""
    cache = DrivenCache()
    cache.take(run_of(ONE, 0, 9))
    cache.reads = False
    token(cache, ONE, EPOCH, NAME)
    for _ in range(answered):
        cache.answer_one()
    assert 0 in {sample.epoch for sample in cache.all()}
    cache.effects.clear()
    return cache


def look_up(cache: DrivenCache) -> None:
    """Answer the look-up that waits, before the move goes on."""
    cache.answer_one(len(cache.unanswered) - 1)


@pytest.mark.parametrize("answered", [0, 1])
def test_what_is_being_moved_is_acknowledged_where_it_comes_again(answered: int) -> None:
    cache = moving(answered=answered)
    resend(cache, run_of(ONE, 4, 6))
    look_up(cache)
    assert [ack.runs for ack in cache.acks] == [((4, 6),)]
    assert not cache.of(ReportAbsent)
    assert not cache.of(Append)
    cache.answer_all()
    cache.wait(5)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}


def test_another_sample_than_the_one_that_is_being_moved_is_a_conflict() -> None:
    cache = moving(answered=0)
    resend(cache, run_of(ONE, 4, 6, run=7))
    look_up(cache)
    assert refused(cache.of(AnswerResend)) == [(4, 6, RefusalReason.CONFLICT)]  # type: ignore[arg-type]
    cache.answer_all()
    cache.wait(5)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}
    assert len(cache.conflicts) == 3


def test_what_comes_live_and_is_being_moved_is_a_repeat() -> None:
    cache = moving(answered=0)
    cache.take(run_of(ONE, 4, 6))
    look_up(cache)
    assert not cache.of(ReportAbsent)
    cache.answer_all()
    cache.wait(5)
    assert of_run(cache, ONE, 0) == {EPOCH: RangeSet([SnRange(0, 9)])}
    assert cache.core.counts.duplicates == 3
