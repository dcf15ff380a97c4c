"""What does a publisher send once more, to which cache, and when does it give up?"""

from __future__ import annotations

from itertools import pairwise

import pytest

from durable_cache.model.clock import Moment
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AckReceived,
    CacheAppeared,
    CacheGone,
    EngineOptions,
    Finished,
    Full,
    HandedOver,
    Hurry,
    Output,
    Put,
    Resend,
    ResendFailed,
    Resent,
    Send,
    SendFailed,
    Sent,
    Started,
    Tick,
    TokenDeclared,
)
from durable_cache.protocol.resends import RESEND_BYTES_MAX, RefusalReason, ResendRefusal
from durable_cache.protocol.wire import Ack
from tests.unit.test_publisher import NOW, SOURCE, put_event

DISK = 2


class Driven:
    """An engine with a clock; resends are left unanswered until a test answers them."""

    def __init__(self, **options: object) -> None:
        chosen = {"acknowledgements": 1, "ask_epochs": False, **options}
        self.engine = PublisherEngine(SOURCE, "00000001", EngineOptions(**chosen))  # type: ignore[arg-type]
        self.seconds = 0.0
        self.outputs: list[Output] = []
        self.engine.handle(Started(self.now))
        self.engine.handle(TokenDeclared("00000001"))

    @property
    def now(self) -> Moment:
        passed_ns = round(self.seconds * 1e9)
        return Moment(passed_ns, NOW.unix_ns + passed_ns)

    def put(self, count: int = 1, payload: bytes = b"x") -> list[Send]:
        sends = []
        for _ in range(count):
            event = put_event(payload)
            (send,) = self.engine.handle(
                Put(event.key, event.kind, payload, *_rest(event), self.now)
            )
            assert isinstance(send, Send), send
            self.engine.handle(Sent())
            sends.append(send)
        return sends

    def wait(self, seconds: float) -> list[Resend]:
        """Let time pass as the shell does: a tick whenever one is due."""
        self.outputs.clear()
        until = self.seconds + seconds
        while True:
            wake_ns = self.engine.wake_ns()
            if wake_ns is None or wake_ns / 1e9 > until:
                break
            self.seconds = max(self.seconds, wake_ns / 1e9)
            given = self.engine.handle(Tick(self.now))
            self.outputs += given
            if not given and self.engine.wake_ns() == wake_ns:
                raise AssertionError("a tick that is due does nothing for ever")
        self.seconds = until
        return [output for output in self.outputs if isinstance(output, Resend)]

    def ack(self, *runs: tuple[int, int], cache: str = "c1") -> None:
        engine = self.engine
        engine.handle(AckReceived(Ack(cache, DISK, SOURCE, engine.epoch, runs, engine.incarnation)))

    def answer(self, resend: Resend, *refused: ResendRefusal) -> None:
        self.engine.handle(Resent(resend.resend_id, refused, self.now))


def _rest(event: Put) -> tuple[str, bytes | None, int, str, int]:
    return event.encoding, event.attachment, event.ntp64, event.timestamp_id, event.qos


def sns(resend: Resend) -> list[int]:
    return [sample.sn for sample in resend.samples]


def test_what_a_cache_did_not_acknowledge_is_sent_to_it_alone_with_the_same_numbers() -> None:
    driven = Driven(acknowledgements=2)
    driven.engine.handle(CacheAppeared("c1"))
    driven.engine.handle(CacheAppeared("c2"))
    sent = [send.sample for send in driven.put(5)]
    driven.ack((0, 4), cache="c1")
    driven.ack((0, 1), cache="c2")
    (resend,) = driven.wait(1.5)
    assert (resend.cache_id, resend.source, resend.epoch) == ("c2", SOURCE, driven.engine.epoch)
    assert resend.incarnation == "00000001"
    assert list(resend.samples) == sent[2:]


def test_in_a_stable_situation_nothing_is_sent_once_more() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    for sn in range(50):
        driven.put()
        driven.seconds += 0.2
        driven.ack((0, sn))
        assert driven.wait(0.8) == []
    assert driven.engine.wake_ns() is None


def test_what_was_put_just_now_waits_for_its_own_time() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(1)
    driven.seconds += 0.9
    driven.put(1)
    assert [sns(resend) for resend in driven.wait(0.5)] == [[0]]


def test_an_acknowledgement_of_what_the_cache_refused_is_of_another_sample() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(3)
    (resend,) = driven.wait(1)
    driven.answer(resend, ResendRefusal(1, 1, RefusalReason.CONFLICT))
    driven.ack((0, 2))
    assert driven.engine.unacknowledged == 1
    driven.ack((0, 2), cache="c2")
    assert driven.engine.unacknowledged == 0


def test_pauses_double_up_to_their_bound_and_a_word_of_the_cache_ends_them() -> None:
    driven = Driven(resend_delay_seconds=1.0, resend_seconds_max=8.0)
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(3)
    times = []
    for _ in range(7):
        while not (resends := driven.wait(0.125)):
            pass
        times.append(driven.seconds)
        driven.engine.handle(ResendFailed(resends[0].resend_id, "no answer", driven.now))
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == pytest.approx([1, 2, 4, 8, 8, 8], abs=0.13)
    assert driven.engine.last_failure == "cache c1: no answer"
    driven.ack((0, 0))
    assert [sns(resend) for resend in driven.wait(0.1)] == [[1, 2]]


def test_a_cache_that_acknowledges_gets_the_next_frame_at_once() -> None:
    driven = Driven(resend_samples_max=4)
    driven.put(10)
    driven.seconds += 60
    driven.engine.handle(CacheAppeared("c1"))
    got = []
    for _ in range(3):
        (resend,) = driven.wait(0.01)
        got.append(sns(resend))
        driven.answer(resend)
        driven.ack((resend.samples[0].sn, resend.samples[-1].sn))
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert driven.engine.unacknowledged == 0


def test_acknowledgements_of_other_samples_do_not_hurry_what_a_cache_puts_off() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(1)
    resends = 0
    for sn in range(1, 80):
        driven.put(1)
        driven.ack((sn, sn))
        for resend in driven.wait(0.1):
            driven.answer(resend, ResendRefusal(0, 0, RefusalReason.LATER))
            resends += 1
    assert 3 <= resends <= 4


def test_frames_are_bounded_in_bytes_and_one_sample_always_fits() -> None:
    driven = Driven(resend_bytes_max=10_000)
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(1, bytes(50_000))
    driven.put(20, bytes(1_000))
    (first,) = driven.wait(2)
    assert sns(first) == [0]
    driven.answer(first)
    driven.ack((0, 0))
    (second,) = driven.wait(0.1)
    assert 3 <= len(second.samples) <= 10


def test_a_cache_that_comes_back_is_served_at_once_and_one_that_is_gone_not_at_all() -> None:
    driven = Driven(resend_delay_seconds=5.0)
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(2)
    (resend,) = driven.wait(5)
    driven.engine.handle(CacheGone("c1"))
    assert driven.wait(60) == []
    driven.engine.handle(CacheAppeared("c1"))
    assert [sns(again) for again in driven.wait(0.01)] == [[0, 1]]
    driven.answer(resend)  # of its life before: late, and without effect
    assert driven.wait(60) == []


def test_what_a_cache_refuses_for_good_is_not_sent_to_it_again_and_what_it_refuses_now_is() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(6)
    (resend,) = driven.wait(1)
    driven.answer(
        resend,
        ResendRefusal(0, 1, RefusalReason.CONFLICT),
        ResendRefusal(2, 3, RefusalReason.LATER),
        ResendRefusal(4, 4, 99),
    )
    assert [sns(again) for again in driven.wait(3)][:1] == [[2, 3, 4, 5]]


def test_a_sample_that_is_being_sent_is_not_sent_once_more() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(1)
    event = put_event()
    driven.engine.handle(Put(event.key, event.kind, b"y", *_rest(event), driven.now))
    assert [sns(resend) for resend in driven.wait(1.5)] == [[0]]
    driven.engine.handle(SendFailed())  # its number goes to the next put, so nobody may have it
    assert driven.engine.next_sn == 1


def test_hurrying_sends_at_once_what_was_put_a_while_ago() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(2)
    driven.seconds += 0.1
    driven.put(1)
    (resend,) = driven.engine.handle(Hurry(driven.now))
    assert isinstance(resend, Resend)
    assert sns(resend) == [0, 1]


def test_what_was_put_just_before_may_be_acknowledged_before_hurrying_sends_it() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(3)
    assert driven.engine.handle(Hurry(driven.now)) == []
    assert driven.wait(0.04) == []
    driven.ack((0, 1))
    (resend,) = driven.wait(0.1)
    assert sns(resend) == [2]


def test_nothing_is_hurried_that_was_put_since() -> None:
    driven = Driven()
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(1)
    assert driven.engine.handle(Hurry(driven.now)) == []
    driven.seconds += 0.001
    driven.put(3)
    driven.seconds += 0.2
    (resend,) = driven.engine.handle(Tick(driven.now))
    assert isinstance(resend, Resend)
    assert sns(resend) == [0]


def test_after_its_time_a_sample_is_unknown_and_makes_room() -> None:
    driven = Driven(unacknowledged_seconds_max=30.0, unacknowledged_max=2, history=1)
    old = [send.standing for send in driven.put(2)]
    assert driven.engine.handle(put_event()) == [Full(2)]
    driven.wait(29)
    assert driven.outputs == []
    driven.wait(2)
    (finished,) = driven.outputs
    assert isinstance(finished, Finished)
    assert list(finished.standings) == old
    assert [(s.done, s.unknown) for s in finished.standings] == [(False, True)] * 2
    assert (driven.engine.unknown, driven.engine.unacknowledged) == (2, 0)
    assert driven.engine.unacknowledged_bytes == 0
    driven.ack((0, 1))  # an acknowledgement after that changes nothing any more
    assert not old[0].done  # type: ignore[union-attr]
    driven.put(1)


def test_bytes_that_wait_are_bounded_and_one_sample_always_fits() -> None:
    driven = Driven(unacknowledged_bytes_max=10_000)
    driven.put(1, bytes(20_000))
    assert driven.engine.handle(put_event()) == [Full(1)]
    driven.ack((0, 0))
    driven.put(1)
    driven.ack((1, 1))
    assert driven.engine.unacknowledged_bytes == 0


def test_more_caches_than_are_remembered() -> None:
    driven = Driven(acknowledgers_max=2)
    for at in range(5):
        driven.engine.handle(CacheAppeared(f"c{at}"))
    driven.put(1)
    assert len(driven.wait(1)) == 2


def told_by(driven: Driven, first: int, last: int) -> list[HandedOver]:
    """Return what subscribers are told when a cache holds these numbers."""
    engine = driven.engine
    ack = Ack("c1", DISK, SOURCE, engine.epoch, ((first, last),), engine.incarnation)
    outputs = engine.handle(AckReceived(ack))
    return [output for output in outputs if isinstance(output, HandedOver)]


def test_what_was_put_while_no_cache_was_in_reach_is_told_once_a_cache_holds_the_last() -> None:
    driven = Driven(unacknowledged_max=9)
    driven.put(3)
    driven.engine.handle(CacheAppeared("c1"))
    driven.put(1)
    assert not told_by(driven, 0, 1)
    assert told_by(driven, 2, 2) == [HandedOver(SOURCE, 2, 0)]
    assert not told_by(driven, 3, 3)


def test_what_no_cache_is_known_to_hold_is_not_told() -> None:
    driven = Driven(unacknowledged_seconds_max=30.0, unacknowledged_max=9)
    driven.put(2)
    driven.wait(20)
    driven.put(1)
    driven.wait(11)
    assert not any(isinstance(output, HandedOver) for output in driven.outputs)
    assert told_by(driven, 0, 2) == [HandedOver(SOURCE, 2, 2)]


def test_a_sample_that_no_frame_can_hold_keeps_nothing_behind_it_from_being_sent() -> None:
    driven = Driven(unacknowledged_bytes_max=1 << 30)
    driven.engine.handle(CacheAppeared("c1"))
    (large,) = driven.put(payload=bytes(RESEND_BYTES_MAX))
    driven.put(2)
    sent = [sample.sn for resend in driven.wait(5) for sample in resend.samples]
    assert sent[:2] == [1, 2]
    assert large.sn not in sent
    assert driven.engine.last_failure == "cache c1: refused 0..0: too large"
    assert driven.engine.unacknowledged == 3
