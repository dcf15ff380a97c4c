"""What is confirmed twice, by a program, a lost reply or the network, counts once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zenoh

from durable_cache import (
    ReliabilityCache,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions, ReliableConsumer, find_consumers
from durable_cache.pipes import PipeOptions, declare_reliable_pipe
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.bridge import Bridge, Message

POSITIONS = "@durable/v1/default/consumers/**"
KEPT = ["a/**", POSITIONS]
SOON = ConsumerOptions(level="memory", confirm_seconds=0.01, predecessor_seconds=5)
COUNT = 30


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Recorded:
    """What was published on a key expression, to be published once more as it was."""

    def __init__(self, network: LocalNetwork, key_expr: str) -> None:
        self.samples: list[zenoh.Sample] = []
        self._session = network.client()
        self._session.declare_subscriber(key_expr, self.samples.append)

    def again(self, *samples: zenoh.Sample) -> None:
        """Publish samples once more, as a network that doubles and delays them would."""
        for one in samples:
            self._session.put(
                one.key_expr,
                one.payload,
                encoding=one.encoding,
                attachment=one.attachment,
                timestamp=one.timestamp,
                source_info=one.source_info,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )


def publish(network: LocalNetwork, count: int = COUNT) -> None:
    with declare_reliable_publisher(
        network.client(), "a/b", acknowledgements=1, level="memory"
    ) as publisher:
        for at in range(count):
            publisher.put(b"%d" % at)
        publisher.flush(10)


def consume(network: LocalNetwork, name: str = "bill") -> ReliableConsumer:
    return declare_reliable_subscriber(
        network.client(), "a/**", consumer=name, confirm="manual", consumer_options=SOON
    )


def received(consumer: ReliableConsumer, count: int) -> list[Sample]:
    return [consumer.recv(20) for _ in range(count)]


def stands(network: LocalNetwork, name: str = "bill") -> tuple[int, int]:
    """Return up to which number caches know a consumer's one run, and how many are open below."""
    (status,) = find_consumers(network.client(), name)
    (run,) = status.runs
    return run.confirmed_to, run.open


def appended(cache: ReliabilityCache) -> int:
    return cache.status().appended


def test_a_program_may_confirm_a_sample_as_often_as_it_likes(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), KEPT) as cache:
        publish(network)
        with consume(network) as consumer:
            samples = received(consumer, COUNT)
            consumer.confirm(samples[0], samples[0])
            consumer.confirm(samples[2])
            consumer.confirm(samples[0])
            consumer.confirm(samples[2], samples[2])
            assert consumer.unconfirmed == COUNT - 2
            consumer.flush(10)
            before = appended(cache)
            consumer.confirm(samples[2], samples[0])
            consumer.flush(10)
            assert appended(cache) == before, "nothing is written where nothing changed"
            assert consumer.unconfirmed == COUNT - 2
        with consume(network) as consumer:
            rest = received(consumer, COUNT - 2)
            assert [one.sn for one in rest] == [1, *range(3, COUNT)]
            consumer.confirm(*rest)
            consumer.confirm(*reversed(rest))
            consumer.flush(10)
            assert consumer.unconfirmed == 0
        assert stands(network) == (COUNT - 1, 0)


def test_a_confirmation_that_is_sent_again_after_a_lost_reply_counts_once(
    network: LocalNetwork, farther: LocalNetwork
) -> None:
    """Every first acknowledgement of a position is lost on its way to the consumer."""
    lost: set[bytes] = set()

    def loses(message: Message) -> bool:
        is_first = message.is_ack and message.payload not in lost
        lost.update([message.payload] * is_first)
        return is_first

    with declare_reliability_cache(network.client(), KEPT) as cache:
        publish(network)
        with Bridge(network, farther, loses), consume(farther) as consumer:
            samples = received(consumer, COUNT)
            consumer.flush(30)
            before = appended(cache)
            for at in range(0, COUNT, 10):
                consumer.confirm(*samples[at : at + 10])
                consumer.flush(30)
                assert consumer.unconfirmed == COUNT - at - 10
            assert lost
            assert appended(cache) - before == 3, "each position is stored once"
            assert cache.status().conflicts == 0
        assert stands(network) == (COUNT - 1, 0)


def test_an_older_confirmation_behind_a_newer_one_takes_nothing_back(
    network: LocalNetwork,
) -> None:
    recorded = Recorded(network, POSITIONS)
    with declare_reliability_cache(network.client(), KEPT) as cache:
        publish(network)
        with consume(network) as consumer:
            samples = received(consumer, COUNT)
            for part in (samples[:10], samples[10:20]):
                consumer.confirm(*part)
                consumer.flush(10)
            wait_until(lambda: len(recorded.samples) >= 2, what="both positions")
            older, newer = recorded.samples[0], recorded.samples[-1]
            before = appended(cache)
            for doubled in (newer, older, older, newer, older):
                told = cache.status().duplicates
                recorded.again(doubled)
                wait_until(lambda told=told: cache.status().duplicates > told, what="a repeat")
            assert appended(cache) == before
            assert stands(network) == (19, COUNT - 20)
            assert consumer.unconfirmed == COUNT - 20
        with consume(network) as consumer:
            rest = received(consumer, COUNT - 20)
            assert [one.sn for one in rest] == [*range(20, COUNT)]


def test_a_pipe_counts_once_what_the_next_hop_confirms_again(
    network: LocalNetwork, farther: LocalNetwork, stack: ExitStack
) -> None:
    """Acknowledgements of the far cache, and positions of its consumer: twice, and late."""
    acks = Recorded(farther, "@durable/v1/default/ack/**")
    positions = Recorded(farther, "@durable/v1/default/consumers/bill/**")
    stack.enter_context(declare_reliability_cache(network.client(), KEPT))
    far_cache = stack.enter_context(declare_reliability_cache(farther.client(), KEPT))
    consumer = stack.enter_context(consume(farther))
    options = PipeOptions(
        level="memory", consumer_options=SOON, retry_seconds=0.3, processed_by="bill"
    )
    pipe = stack.enter_context(
        declare_reliable_pipe(network.client(), farther.client(), "a/**", options=options)
    )
    publish(network)
    samples = received(consumer, COUNT)
    wait_until(lambda: pipe.status().passed == COUNT, what="the far cache")
    acks.again(*acks.samples)
    for part in (samples[:10], samples[10:20]):
        consumer.confirm(*part)
        consumer.flush(10)
    wait_until(lambda: pipe.status().confirmed == 20, 20, "what was processed")
    wait_until(lambda: len(positions.samples) >= 2, what="both positions")
    older, newer = positions.samples[0], positions.samples[-1]
    positions.again(newer, older, newer, older)
    acks.again(*acks.samples)
    consumer.confirm(*samples)
    consumer.confirm(*samples)
    pipe.flush(20)
    positions.again(older)
    acks.again(*acks.samples)
    publish(network, 5)  # of another run; it comes behind all of that
    consumer.confirm(*received(consumer, 5))
    pipe.flush(20)
    status = pipe.status()
    assert (status.taken, status.passed, status.confirmed) == (COUNT + 5,) * 3
    assert (status.under_way, status.missed, status.given_up) == (0, 0, 0)
    assert status.rates == status.route == (1.0, 1.0)
    assert len(far_cache.find("a/**")) == COUNT + 5
    assert far_cache.status().conflicts == 0
    assert [run.open for run in find_consumers(network.client(), "pipe")[0].runs] == [0, 0]
