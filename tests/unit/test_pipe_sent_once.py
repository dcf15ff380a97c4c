"""What does a pipe send in a mode that sends each sample once, and what does it count?"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_cache.protocol.pipe.events import Claim, Confirm, Output
from durable_cache.protocol.publisher.events import CacheAppeared, CacheGone, Resend, ResendFailed
from durable_cache.protocol.resends import RefusalReason, ResendRefusal
from tests.unit.test_pipe import Driven, resends, sns


def once(*caches: str, **options: object) -> Driven:
    return Driven(*caches, sends_again=False, retry_seconds=1.0, **options)


def settled(outputs: list[Output]) -> list[int]:
    confirms = [output for output in outputs if isinstance(output, Confirm)]
    return [sample.sn for confirm in confirms for sample in confirm.samples]


def test_what_is_sent_once_and_not_acknowledged_is_lost_and_found_by_a_late_acknowledgement() -> (
    None
):
    driven = once("c1")
    (sent,) = resends(driven.take(0, 1, 2))
    driven.answered(sent)
    assert settled(driven.acknowledged("c1", 0, 0)) == [0]
    assert settled(driven.passed(0.9)) == []
    outputs = driven.passed(0.2)
    assert (settled(outputs), resends(outputs)) == ([1, 2], []), "given up, and not sent again"
    engine = driven.engine
    assert (engine.taken, engine.passed, engine.lost, engine.open) == (3, 1, 2, 0)
    assert settled(driven.acknowledged("c1", 0, 1)) == []
    assert (engine.passed, engine.confirmed, engine.lost) == (2, 2, 1)


@pytest.mark.parametrize("fails", [True, False])
def test_what_a_cache_does_not_take_now_is_not_sent_again(fails: bool) -> None:
    driven = once("c1")
    (sent,) = resends(driven.take(0))
    if fails:
        driven.tell(ResendFailed(sent.resend_id, "no answer", driven.now))
    else:
        driven.answered(sent, ResendRefusal(0, 0, RefusalReason.LATER))
    for _ in range(3):
        assert resends(driven.passed(2.0)) == []
    assert (driven.engine.lost, driven.engine.repeated) == (1, 0)


def test_a_repeat_goes_on_only_where_the_first_is_lost() -> None:
    driven = once("c1")
    (sent,) = resends(driven.take(1))
    driven.answered(sent)
    assert settled(driven.take(1)) == [1], "it is under way"
    driven.passed(1.1)
    (late, again) = resends([*driven.take(0), *driven.take(1, 1)]), None
    assert [sns(one) for one in late] == [[0]]
    (again,) = resends(driven.answered(late[0]))
    assert sns(again) == [1], "late ones go on, and what was lost has another chance, once"
    driven.answered(again)
    assert sorted(settled(driven.acknowledged("c1", 0, 1))) == [0, 1]
    assert settled(driven.take(0, 1)) == [0, 1], "it is held"
    engine = driven.engine
    assert (engine.taken, engine.passed, engine.lost, engine.repeated) == (2, 2, 0, 0)


@pytest.mark.parametrize("wanted", [1, 2])
def test_what_comes_late_and_is_known_to_be_held_goes_no_further(wanted: int) -> None:
    """Another pipe brought it, or an earlier life of this one."""
    driven = once("c1", "c2", acknowledgements=wanted)
    driven.take(0, 2)
    for cache in ("c1", "c2")[:wanted]:
        driven.acknowledged(cache, 0, 2)
    late = driven.take(1)
    assert (settled(late), resends(late)) == ([1], [])
    engine = driven.engine
    assert (engine.taken, engine.passed, engine.confirmed, engine.lost) == (3, 3, 3, 0)


def test_a_cache_that_comes_back_gets_nothing_twice_that_is_sent_once() -> None:
    driven = once("c1", frame_samples_max=2)
    driven.take(0, 1, 2)  # two of them are under way, one waits
    driven.tell(CacheGone("c1"))
    driven.take(3)
    (sent,) = resends(driven.tell(CacheAppeared("c1")))
    assert sns(sent) == [2, 3]
    driven.tell(CacheGone("c1"))
    assert resends(driven.tell(CacheAppeared("c1"))) == []
    (sent,) = resends(driven.tell(CacheAppeared("c2")))
    assert sns(sent) == [0, 1], "another one was sent nothing yet"


def test_nothing_is_lost_before_it_could_be_sent() -> None:
    """A claim takes its time, and so does the run before."""
    driven = once("c1", grants=False)
    (claim,) = (output for output in driven.take(0) if isinstance(output, Claim))
    driven.passed(5.0)
    assert driven.engine.lost == 0
    (sent,) = resends(driven.grant(claim))
    driven.answered(sent)
    driven.grants = True
    assert resends(driven.take(0, epoch=12)) == []
    outputs = driven.passed(1.1)
    assert driven.engine.lost == 1, "of the first run"
    (sent,) = resends(outputs)
    assert sent.epoch == 12
    assert settled(driven.passed(0.5)) == []
    assert settled(driven.acknowledged("c1", 0, 0, epoch=12)) == [0]


def test_a_loss_with_two_wanted_is_found_when_both_hold_it() -> None:
    driven = once("c1", "c2", acknowledgements=2)
    for sent in resends(driven.take(0)):
        driven.answered(sent)
    driven.acknowledged("c1", 0, 0)
    driven.passed(1.1)
    assert (driven.engine.lost, driven.engine.passed) == (1, 0)
    driven.acknowledged("c2", 0, 0)
    assert (driven.engine.lost, driven.engine.passed) == (0, 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_of_what_is_sent_once_every_number_is_held_or_lost(seed: int) -> None:
    chance = random.Random(seed)
    driven = once("c1", "c2", frame_samples_max=3)
    sent: dict[tuple[str, int], int] = {}
    waiting: list[Resend] = []
    handed_out, done = 0, 0

    def took(outputs: list[Output]) -> None:
        nonlocal done
        done += len(settled(outputs))
        for one in resends(outputs):
            waiting.append(one)
            for sn in sns(one):
                sent[one.cache_id, sn] = sent.get((one.cache_id, sn), 0) + 1

    numbers = [sn for sn in range(40) if chance.random() < 0.8]
    numbers = sorted(numbers, key=lambda sn: sn + chance.choice([0, 0, 5]))
    while numbers or waiting:
        match chance.randrange(4):
            case 0 if numbers:
                some, numbers = numbers[:4], numbers[4:]
                handed_out += len(some)
                took(driven.take(*some))
            case 1 if waiting:
                one = waiting.pop(chance.randrange(len(waiting)))
                if chance.random() < 0.7:
                    for sn in sns(one):
                        took(driven.acknowledged(one.cache_id, sn, sn))
                took(driven.answered(one))
            case 2 if waiting:
                one = waiting.pop(0)
                took(driven.tell(ResendFailed(one.resend_id, "gone", driven.now)))
            case _:
                took(driven.passed(chance.choice([0.05, 1.5])))
    took(driven.passed(10.0))
    engine = driven.engine
    assert engine.taken == engine.passed + engine.lost == handed_out == done
    assert engine.open == 0
    assert set(sent.values()) <= {1}
