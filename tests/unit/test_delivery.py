"""The reliable subscriber's delivery: once, in order, or reported."""

from __future__ import annotations

import random

import pytest

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.delivery import Delivery
from durable_cache.protocol.requests import Deliver, DeliveryOptions, Missed, Output, Request

SOURCE = SourceId("ab12", 7)
MILLISECOND = 1_000_000
SECOND = 1_000_000_000


def sample(sn: int, epoch: int = 0, ntp64: int | None = None, source: SourceId = SOURCE) -> Sample:
    stamp = (sn + 1) << 24 if ntp64 is None else ntp64
    return Sample("k", source, epoch, sn, b"%d" % sn, ntp64=stamp)


class Reader:
    """Notes what a subscriber would see, and keeps the requests for the test to answer."""

    def __init__(self, options: DeliveryOptions | None = None, *, history: bool = False) -> None:
        self.delivery = Delivery(options, awaiting_history=history)
        self.story: list[int | tuple[int, int]] = []
        self.requests: list[Request] = []

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Deliver(samples):
                    self.story += [one.sn for one in samples]
                case Missed(_, _, first, last):
                    self.story.append((first, last))
                case Request():
                    self.requests.append(output)

    def live(self, *samples: Sample, now_ns: int = 0) -> None:
        self.take(self.delivery.live(samples, now_ns, now_ns))

    def answer(self, *samples: Sample, now_ns: int = 0, more: bool = False) -> None:
        request = self.requests.pop(0)
        self.take(self.delivery.recovered(request.request_id, samples, now_ns))
        self.take(self.delivery.ended(request.request_id, more, now_ns))

    @property
    def delivered(self) -> list[int]:
        return [one for one in self.story if isinstance(one, int)]


def test_a_gap_is_asked_for_at_once_with_exactly_the_missing_range() -> None:
    reader = Reader()
    reader.live(sample(10), sample(14))
    assert [(one.first, one.last) for one in reader.requests] == [(11, 13)]
    assert reader.story == [10]
    reader.answer(sample(13), sample(11), sample(12))
    assert reader.story == [10, 11, 12, 13, 14]


def test_one_lost_answer_is_no_loss() -> None:
    reader = Reader()
    reader.live(sample(0), sample(2))
    reader.answer()
    for now_ms in range(0, 20_000, 50):
        reader.take(reader.delivery.tick(now_ms * MILLISECOND))
        if reader.requests:
            break
    reader.answer(sample(1), now_ns=SECOND)
    assert reader.story == [0, 1, 2]


def test_an_answer_that_is_slow_is_waited_for_past_the_timeout() -> None:
    reader = Reader(DeliveryOptions(gap_timeout_seconds=1))
    reader.live(sample(0), sample(2))
    reader.take(reader.delivery.tick(round(1.5 * SECOND)))
    assert reader.story == [0]
    reader.answer(sample(1), now_ns=round(1.6 * SECOND))
    assert reader.story == [0, 1, 2]


def test_after_a_reported_miss_the_late_sample_is_dropped() -> None:
    reader = Reader(DeliveryOptions(gap_timeout_seconds=1))
    reader.live(sample(0), sample(2))
    reader.answer()
    reader.take(reader.delivery.tick(2 * SECOND))
    reader.live(sample(1), now_ns=3 * SECOND)
    assert reader.story == [0, (1, 1), 2]
    assert reader.delivery.duplicates == 1


def test_samples_of_other_sources_do_not_wait_for_a_gap() -> None:
    reader = Reader()
    other = SourceId("cd", 1)
    reader.live(sample(0), sample(5), sample(100, source=other), sample(101, source=other))
    assert reader.story == [0, 100, 101]


def test_a_forged_number_far_ahead_holds_up_nobody() -> None:
    reader = Reader(DeliveryOptions(window_size_samples=1000))
    reader.live(sample(0))
    reader.live(sample(2**32 - 1))
    reader.live(*(sample(sn) for sn in range(1, 101)))
    assert reader.delivered == list(range(101))


def test_a_confirmed_jump_is_recovered_in_pages() -> None:
    reader = Reader(DeliveryOptions(window_size_samples=100, request_samples_max=50))
    reader.live(sample(0))
    reader.live(sample(300))
    reader.requests.clear()
    reader.live(sample(301))
    while reader.requests:
        wanted = reader.requests[0]
        assert wanted.last is not None
        reader.answer(*(sample(sn) for sn in range(wanted.first, wanted.last + 1)))
        reader.take(reader.delivery.tick(SECOND))
    assert reader.delivered == list(range(302))


def test_a_new_epoch_begins_at_zero_and_what_is_missing_of_it_is_asked_for() -> None:
    reader = Reader()
    reader.take(reader.delivery.declared(SOURCE, 10))
    reader.live(sample(0), sample(1))
    reader.take(reader.delivery.declared(SOURCE, 11))
    reader.live(sample(1, ntp64=9 << 32))
    assert [(one.epoch, one.first, one.last) for one in reader.requests] == [(11, 0, 0)]
    reader.answer(sample(0, epoch=11, ntp64=8 << 32))
    assert reader.story == [0, 1, 0, 1]


def test_a_foreign_publishers_restart_is_seen_by_its_clock() -> None:
    reader = Reader()
    reader.live(sample(0), sample(1), sample(2))
    reader.live(sample(0, ntp64=9 << 32), sample(1, ntp64=(9 << 32) + 1))
    assert reader.story == [0, 1, 2, 0, 1]


def test_an_answer_from_another_incarnation_is_left_out() -> None:
    reader = Reader()
    reader.take(reader.delivery.declared(SOURCE, 20))
    reader.live(sample(0), sample(2))
    reader.answer(sample(1, epoch=19))
    assert reader.story == [0]


@pytest.mark.parametrize("seed", range(300))
def test_whatever_is_lost_delayed_or_repeated_each_sample_comes_once_or_is_reported(
    seed: int,
) -> None:
    chance = random.Random(seed)
    history = chance.random() < 0.3
    options = DeliveryOptions(gap_timeout_seconds=5, pending_samples_max=chance.choice([5, 1000]))
    reader = Reader(options, history=history)
    first, end = chance.randint(0, 3), chance.randint(5, 60)
    cached: set[int] = set()
    now_ns = 0

    def answer_some(answered: float) -> None:
        while reader.requests and chance.random() < 0.7:
            request = reader.requests.pop(chance.randrange(len(reader.requests)))
            last = end if request.last is None else request.last
            if chance.random() < answered:
                found = [sample(sn) for sn in cached if request.first <= sn <= last]
                reader.take(reader.delivery.recovered(request.request_id, found, now_ns))
            reader.take(reader.delivery.ended(request.request_id, False, now_ns))

    for sn in range(first, end):
        if chance.random() < 0.9:
            cached.add(sn)
        if chance.random() < 0.75 or sn in (first, end - 1):
            repeats = 2 if chance.random() < 0.1 else 1
            reader.live(*[sample(sn)] * repeats, now_ns=now_ns)
        now_ns += 10 * MILLISECOND
        answer_some(0.8)
        reader.take(reader.delivery.tick(now_ns))
    if history:
        old = [sample(sn) for sn in cached]
        reader.take(reader.delivery.history(old, now_ns, now_ns))
    for _ in range(3000):
        now_ns += 50 * MILLISECOND
        answer_some(1.0)
        reader.take(reader.delivery.tick(now_ns))
    assert reader.delivered == sorted(set(reader.delivered))
    missed = {
        sn for one in reader.story if isinstance(one, tuple) for sn in range(one[0], one[1] + 1)
    }
    assert not missed & cached
    begun = min(reader.delivered)
    assert missed | set(reader.delivered) == set(range(begun, end))
