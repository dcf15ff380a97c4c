"""What does a pipe send to which cache, in which order, and when does it confirm?"""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SampleAfterMiss, SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.pipe.engine import PipeEngine
from durable_cache.protocol.pipe.events import (
    Claim,
    Claimed,
    ClaimFailed,
    Confirm,
    EngineOptions,
    Event,
    GaveUp,
    Output,
    Positioned,
    Taken,
    Withdraw,
)
from durable_cache.protocol.pipe.tokens import (
    CarriedToken,
    carried_token,
    name_of_unnamed,
    parse_carried_token,
)
from durable_cache.protocol.publisher.events import (
    AckReceived,
    CacheAppeared,
    CacheGone,
    HandedOver,
    Resend,
    ResendFailed,
    Resent,
    Tick,
)
from durable_cache.protocol.resends import RefusalReason, ResendRefusal
from durable_cache.protocol.wire import Ack

ONE, TWO = SourceId("ab12", 7), SourceId("cd34", 9)
DISK = 2


def sample(sn: int, source: SourceId = ONE, epoch: int = 9) -> Sample:
    return Sample("a/b", source, epoch, sn, b"x")


def named(source: SourceId, epoch: int) -> str:
    return name_of_unnamed(source, epoch)


class Driven:
    """An engine with a clock, whose claims are granted at once unless a test does it."""

    def __init__(self, *caches: str, grants: bool = True, **options: object) -> None:
        self.engine = PipeEngine(EngineOptions(**options))  # type: ignore[arg-type]
        self.seconds = 1.0
        self.grants = grants
        self.outputs: list[Output] = []
        for cache in caches:
            self.tell(CacheAppeared(cache))

    @property
    def now(self) -> Moment:
        return Moment(round(self.seconds * 1e9), 0)

    def tell(self, event: Event) -> list[Output]:
        outputs = self.engine.handle(event)
        self.outputs += outputs
        for output in [*outputs]:
            if isinstance(output, Claim) and self.grants:
                outputs += self.grant(output)
        return outputs

    def grant(self, claim: Claim, epoch: int | None = None) -> list[Output]:
        one = claim.sample
        chosen = one.epoch if epoch is None else epoch
        name = named(one.source, one.epoch)
        return self.tell(Claimed(one.source, one.epoch, chosen, name, self.now))

    def take(self, *sns: int, source: SourceId = ONE, epoch: int = 9) -> list[Output]:
        return self.tell(Taken(tuple(sample(sn, source, epoch) for sn in sns), self.now))

    def passed(self, seconds: float) -> list[Output]:
        self.seconds += seconds
        return self.tell(Tick(self.now))

    def answered(self, resend: Resend, *refused: ResendRefusal) -> list[Output]:
        return self.tell(Resent(resend.resend_id, refused, self.now))

    def acknowledged(
        self,
        cache: str,
        first: int,
        last: int,
        *,
        source: SourceId = ONE,
        epoch: int = 9,
        level: int = DISK,
    ) -> list[Output]:
        name = named(source, epoch)
        return self.tell(AckReceived(Ack(cache, level, source, epoch, ((first, last),), name)))


def resends(outputs: list[Output]) -> list[Resend]:
    return [output for output in outputs if isinstance(output, Resend)]


def sns(resend: Resend) -> list[int]:
    return [sample.sn for sample in resend.samples]


def confirmed(outputs: list[Output]) -> list[int]:
    return [one.sn for output in outputs if isinstance(output, Confirm) for one in output.samples]


def test_a_sample_is_confirmed_when_a_cache_of_the_target_holds_it_and_not_before() -> None:
    pipe = Driven("x")
    (resend,) = resends(pipe.take(0, 1, 2))
    assert (resend.cache_id, resend.source, resend.epoch) == ("x", ONE, 9)
    assert sns(resend) == [0, 1, 2]
    assert confirmed(pipe.answered(resend)) == []
    assert confirmed(pipe.acknowledged("x", 0, 1)) == [0, 1]
    assert confirmed(pipe.acknowledged("x", 0, 1)) == []
    outputs = pipe.acknowledged("x", 0, 2)
    assert confirmed(outputs) == [2]
    assert HandedOver(ONE, 2) in outputs
    assert (pipe.engine.taken, pipe.engine.passed, pipe.engine.confirmed) == (3, 3, 3)


def test_nothing_leaves_before_its_run_is_shown_as_carried() -> None:
    pipe = Driven("x", grants=False)
    (claim,) = pipe.take(0, 1)
    assert isinstance(claim, Claim)
    assert claim.attempt == 0
    assert pipe.take(2) == []
    pipe.tell(ClaimFailed(ONE, 9, pipe.now))
    assert pipe.passed(0.5) == []
    (again,) = pipe.passed(0.6)
    assert isinstance(again, Claim)
    assert again.attempt == 1
    (resend,) = resends(pipe.grant(again, epoch=12))
    assert (resend.epoch, resend.incarnation) == (12, named(ONE, 9))
    assert [(one.epoch, one.sn) for one in resend.samples] == [(12, 0), (12, 1), (12, 2)]
    (confirm,) = [one for one in pipe.acknowledged("x", 0, 2, epoch=9) if isinstance(one, Confirm)]
    assert {one.epoch for one in confirm.samples} == {9}, "as it was handed out"


def test_one_frame_of_a_run_is_under_way_to_a_cache_at_a_time() -> None:
    pipe = Driven("x", frame_samples_max=2)
    (first,) = resends(pipe.take(0, 1, 2))
    assert sns(first) == [0, 1]
    assert resends(pipe.take(3)) == []
    (second,) = resends(pipe.answered(first))
    assert sns(second) == [2, 3]


def test_frames_of_several_sources_go_side_by_side_up_to_a_bound() -> None:
    pipe = Driven("x", frames_max=2)
    sources = [SourceId("ab12", eid) for eid in range(1, 5)]
    sent = [resend for source in sources for resend in resends(pipe.take(0, source=source))]
    assert [resend.source for resend in sent] == sources[:2]
    (third,) = resends(pipe.answered(sent[0]))
    assert third.source == sources[2]


def test_a_frame_holds_so_many_bytes_and_one_sample_always() -> None:
    pipe = Driven("x", frame_bytes_max=1)
    (first,) = resends(pipe.take(0, 1))
    assert sns(first) == [0]


def test_what_is_not_acknowledged_is_sent_again_after_pauses_that_double() -> None:
    pipe = Driven("x", retry_seconds=1.0, retry_seconds_max=4.0)
    (resend,) = resends(pipe.take(0, 1, 2))
    pipe.answered(resend)
    pipe.acknowledged("x", 1, 1)
    times = []
    for _ in range(150):
        for again in resends(pipe.passed(0.1)):
            times.append(pipe.seconds)
            assert sns(again) == [0, 2]
            pipe.answered(again)
    pauses = [round(later - earlier) for earlier, later in pairwise(times)]
    assert pauses == [2, 4, 4]
    assert pipe.engine.repeated == 2 * len(times)


def test_what_a_cache_refuses_for_now_or_does_not_answer_goes_again_before_the_rest() -> None:
    pipe = Driven("x", frame_samples_max=3)
    (first,) = resends(pipe.take(0, 1, 2, 3))
    assert resends(pipe.answered(first, ResendRefusal(1, 2, RefusalReason.LATER))) == []
    assert "cache x: numbers 1..2: refused them for now" in pipe.engine.last_failure
    (second,) = resends(pipe.passed(1.1))
    assert sns(second) == [1, 2, 3]
    assert resends(pipe.tell(ResendFailed(second.resend_id, "no answer", pipe.now))) == []
    assert pipe.engine.last_failure == "cache x: no answer"
    pipe.acknowledged("x", 0, 0)
    assert pipe.engine.last_failure == ""
    (third,) = resends(pipe.passed(2.1))
    assert sns(third) == [1, 2, 3]


def test_what_was_removed_at_the_target_was_there() -> None:
    pipe = Driven("x")
    (resend,) = resends(pipe.take(0, 1))
    assert confirmed(pipe.answered(resend, ResendRefusal(0, 0, RefusalReason.REMOVED))) == [0]


@pytest.mark.parametrize("reason", [RefusalReason.CONFLICT, RefusalReason.EPOCH_TAKEN])
def test_what_a_cache_will_never_take_is_reported_and_holds_nothing_up(
    reason: RefusalReason,
) -> None:
    pipe = Driven("x")
    (resend,) = resends(pipe.take(0, 1))
    outputs = pipe.answered(resend, ResendRefusal(0, 0, reason))
    assert [one for one in outputs if isinstance(one, GaveUp)] == [GaveUp(sample(0), "x", reason)]
    assert confirmed(outputs) == [0]
    assert confirmed(pipe.acknowledged("x", 0, 1)) == [1]
    assert (pipe.engine.given_up, pipe.engine.passed) == (1, 1)


def test_a_cache_that_does_not_store_a_key_is_not_asked_again_and_another_one_is() -> None:
    pipe = Driven("x")
    (resend,) = resends(pipe.take(0))
    pipe.answered(resend, ResendRefusal(0, 0, RefusalReason.NOT_STORED))
    assert pipe.engine.last_failure == "cache x: numbers 0..0: does not store their key"
    assert resends(pipe.passed(100)) == []
    (other,) = resends(pipe.tell(CacheAppeared("y")))
    assert other.cache_id == "y"
    assert sns(other) == [0]


def test_as_many_caches_as_wanted_hold_a_sample_at_the_level_wanted() -> None:
    pipe = Driven("x", "y", acknowledgements=2)
    assert [resend.cache_id for resend in resends(pipe.take(0, 1))] == ["x", "y"]
    assert confirmed(pipe.acknowledged("x", 0, 1)) == []
    assert confirmed(pipe.acknowledged("y", 0, 1, level=1)) == []
    assert "level 1" in pipe.engine.last_failure
    assert confirmed(pipe.acknowledged("y", 1, 1)) == [1]
    assert confirmed(pipe.acknowledged("y", 0, 0)) == [0]


def test_an_acknowledgement_of_what_was_not_handed_out_yet_counts_for_nothing() -> None:
    pipe = Driven("x")
    pipe.take(0)
    assert confirmed(pipe.acknowledged("x", 0, 1_000_000)) == [0]
    assert resends(pipe.take(1)) == [], "the first frame is under way still"
    assert confirmed(pipe.acknowledged("x", 0, 1)) == [1]


def test_a_run_leaves_when_all_of_the_one_before_is_held() -> None:
    pipe = Driven("x")
    (first,) = resends(pipe.take(0, 1))
    pipe.answered(first)
    assert pipe.take(0, 1, epoch=10) == []
    assert resends(pipe.acknowledged("x", 0, 0)) == []
    outputs = pipe.acknowledged("x", 0, 1)
    (second,) = resends(outputs)
    assert (second.epoch, sns(second)) == (10, [0, 1])
    assert Withdraw(ONE, named(ONE, 9)) in outputs
    assert outputs.index(second) > 0


def test_a_cache_that_is_gone_costs_nothing_and_one_that_comes_back_gets_what_it_lacks() -> None:
    pipe = Driven("x")
    (resend,) = resends(pipe.take(0, 1))
    pipe.tell(CacheGone("x"))
    assert pipe.answered(resend) == []
    assert resends(pipe.passed(60)) == []
    (again,) = resends(pipe.tell(CacheAppeared("x")))
    assert sns(again) == [0, 1]


def test_what_goes_again_to_a_cache_that_comes_back_is_counted() -> None:
    """It may have had it: R and UR of the pipe say so."""
    driven = Driven("c1")
    driven.take(0, 1)
    driven.tell(CacheGone("c1"))
    driven.take(2)
    (sent,) = resends(driven.tell(CacheAppeared("c1")))
    assert (sns(sent), driven.engine.repeated) == ([0, 1, 2], 2)


def test_so_many_caches_are_served_and_remembered() -> None:
    pipe = Driven("x", "y", caches_max=1)
    assert [resend.cache_id for resend in resends(pipe.take(0))] == ["x"]
    assert pipe.engine.caches == 1


def test_what_a_consumer_must_process_is_confirmed_when_it_did() -> None:
    pipe = Driven("x", processed=True)
    pipe.take(0, 1, 2)
    assert confirmed(pipe.acknowledged("x", 0, 2)) == []
    assert pipe.engine.stored == 3
    name = named(ONE, 9)
    position = Position("a/**", ONE, 9, name, 1, ((0, 0),))
    assert confirmed(pipe.tell(Positioned(position))) == [1]
    assert confirmed(pipe.tell(Positioned(msgspec.structs.replace(position, open=())))) == [0]
    pipe.tell(Positioned(msgspec.structs.replace(position, reached=3, open=())))
    assert pipe.engine.stored == 0
    pipe.take(3)
    assert confirmed(pipe.acknowledged("x", 3, 3)) == [3], "its position came before"


def test_runs_are_forgotten_when_there_are_too_many_and_nothing_of_them_is_under_way() -> None:
    pipe = Driven("x", runs_max=2)
    sources = [SourceId("ab12", eid) for eid in range(1, 4)]
    for source in sources[:2]:
        pipe.take(0, source=source)
    pipe.acknowledged("x", 0, 0, source=sources[0])
    outputs = pipe.take(0, source=sources[2])
    assert Withdraw(sources[0], named(sources[0], 9)) in outputs
    (late,) = [one for one in pipe.take(1, source=sources[0]) if isinstance(one, Claim)]
    assert late.sample.sn == 1


def test_a_run_is_forgotten_after_the_one_behind_it() -> None:
    """Its consumer said first of the later one that it is processed."""
    pipe = Driven("x", runs_max=2, frames_max=100, processed=True)
    for epoch in (9, 10):
        pipe.take(0, epoch=epoch)
        pipe.acknowledged("x", 0, 0, epoch=epoch)
    for epoch, source in ((10, TWO), (9, SourceId("ef", 1))):
        pipe.tell(Positioned(Position("a/**", ONE, epoch, named(ONE, epoch), 0)))
        assert Withdraw(ONE, named(ONE, epoch)) in pipe.take(0, source=source)
    (resend,) = resends(pipe.take(1))
    assert sns(resend) == [1]


def test_what_a_subscriber_says_of_a_sample_does_not_go_out_with_it() -> None:
    pipe = Driven("x")
    after_miss = SampleAfterMiss.of(sample(5), 3)
    (resend,) = resends(pipe.tell(Taken((after_miss,), pipe.now)))
    assert [*map(type, resend.samples)] == [Sample]
    assert resend.samples == (sample(5),)


def test_a_token_of_a_pipe_reads_as_it_was_written() -> None:
    key = carried_token("default", ONE, "ef", "0123abcd", "a/**")
    assert parse_carried_token(key, "default") == CarriedToken(ONE, "ef", "0123abcd")
    assert parse_carried_token(key, "other") is None
    for damaged in (key.replace("0123abcd", "x"), key.replace("ab12:7", "ab12"), key[:30]):
        assert parse_carried_token(damaged, "default") is None


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    caches=st.integers(1, 3),
    wanted=st.integers(1, 2),
    frame=st.integers(1, 5),
)
def test_whatever_is_lost_everything_is_confirmed_once_and_only_when_held(
    seed: int, caches: int, wanted: int, frame: int
) -> None:
    """Caches that come and go, lose frames, answers and acknowledgements, and refuse for now."""
    chance = random.Random(seed)
    names = ["x", "y", "z"][: max(caches, wanted)]
    pipe = Driven(*names, acknowledgements=wanted, frame_samples_max=frame, retry_seconds=0.5)
    held: dict[str, dict[tuple[SourceId, int], set[int]]] = {name: {} for name in names}
    waiting: list[Resend] = []
    done: list[Sample] = []
    handed: list[Sample] = []

    def do(outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Resend):
                waiting.append(output)
            elif isinstance(output, Confirm):
                for one in output.samples:
                    run = (one.source, one.epoch)
                    holders = sum(one.sn in kept.get(run, ()) for kept in held.values())
                    assert holders >= wanted
                done.extend(output.samples)

    def arrive(resend: Resend, *, healed: bool) -> None:
        kept = held[resend.cache_id].setdefault((resend.source, resend.epoch), set())
        refused: list[ResendRefusal] = []
        if not healed and chance.random() < 0.2:
            do(pipe.tell(ResendFailed(resend.resend_id, "lost", pipe.now)))
            return
        taken = [one.sn for one in resend.samples]
        if not healed and chance.random() < 0.2:
            last = taken.pop()
            refused.append(ResendRefusal(last, last, RefusalReason.LATER))
        kept.update(taken)
        if healed or chance.random() < 0.8:
            do(pipe.answered(resend, *refused))
        else:
            do(pipe.tell(ResendFailed(resend.resend_id, "lost", pipe.now)))
        if taken and (healed or chance.random() < 0.7):
            for sn in taken:
                do(
                    pipe.acknowledged(
                        resend.cache_id, sn, sn, source=resend.source, epoch=resend.epoch
                    )
                )

    for step in range(60):
        if step < 40 and chance.random() < 0.6:
            source = chance.choice((ONE, TWO))
            before = [one for one in handed if one.source == source]
            epoch = before[-1].epoch if before else 9
            if before and chance.random() < 0.1:
                epoch += 1
            first = 1 + max((one.sn for one in before if one.epoch == epoch), default=-1)
            numbers = range(first, first + chance.randrange(1, 8))
            handed += [sample(sn, source, epoch) for sn in numbers]
            do(pipe.take(*numbers, source=source, epoch=epoch))
        if chance.random() < 0.05:
            gone = chance.choice(names)
            do(pipe.tell(CacheGone(gone)))
            do(pipe.tell(CacheAppeared(gone)))
        while waiting and chance.random() < 0.7:
            arrive(waiting.pop(chance.randrange(len(waiting))), healed=False)
        do(pipe.passed(chance.random()))
    for _ in range(400):
        if len(done) == len(handed):
            break
        while waiting:
            arrive(waiting.pop(0), healed=True)
        do(pipe.passed(1.0))
    assert sorted(done, key=lambda one: one.order) == sorted(handed, key=lambda one: one.order)
    assert pipe.engine.open == pipe.engine.stored == 0
    for source in (ONE, TWO):
        epochs = [one.epoch for one in done if one.source == source]
        assert epochs == sorted(epochs), f"the runs of {source} one after the other"


def test_a_run_that_begins_when_the_one_before_is_all_held_leaves_at_once() -> None:
    pipe = Driven("x")
    (first,) = resends(pipe.take(0))
    pipe.answered(first)
    pipe.acknowledged("x", 0, 0)
    (second,) = resends(pipe.take(0, epoch=10))
    assert second.epoch == 10


def test_subscribers_are_told_a_few_times_more_what_was_carried_last() -> None:
    pipe = Driven("x")
    (resend,) = resends(pipe.take(0, 1))
    pipe.answered(resend)
    pipe.acknowledged("x", 0, 0)
    pipe.acknowledged("x", 1, 1)
    told = []
    for _ in range(300):
        beats = [one for one in pipe.passed(0.1) if isinstance(one, HandedOver)]
        told += [(round(pipe.seconds - 1), beat.last_sn) for beat in beats]
    assert told == [(1, 1), (4, 1), (14, 1)]


def test_what_was_handed_out_needs_no_explanation() -> None:
    pipe = Driven("x")
    pipe.take(3, 4, 6)
    asked = [(3, 4), (3, 6), (6, 6), (0, 3), (6, 7)]
    assert [pipe.engine.has_carried(ONE, *run) for run in asked] == [
        *(True, False, True, False, False)
    ]
    assert not pipe.engine.has_carried(TWO, 3, 3)
