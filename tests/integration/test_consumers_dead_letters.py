"""What a durable consumer cannot process goes to the dead letters before it is passed over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_cache import (
    ReliabilityCache,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions, ReliableConsumer, read_dead_letters
from durable_cache.endpoints.session import Session
from durable_cache.errors import (
    ConfigError,
    LocalProtocolError,
    OutcomeUnknown,
    RemoteProtocolError,
    StorageUnavailable,
)
from durable_cache.testing.network import LocalNetwork, wait_until

KEPT = "@durable/v1/default/consumers/**"
THRICE = ConsumerOptions(
    level="memory", confirm_seconds=0.01, attempts_max=3, attempt_seconds=0.001
)


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network, declare_reliability_cache(network.client(), "a/**"):
        yield network


@pytest.fixture
def kept(network: LocalNetwork) -> Iterator[ReliabilityCache]:
    with declare_reliability_cache(network.client(), KEPT) as kept:
        yield kept


@pytest.fixture
def publisher(network: LocalNetwork) -> Iterator[ReliablePublisher[Any]]:
    with declare_reliable_publisher(
        network.client(), "a/**", acknowledgements=1, level="memory", cache=False
    ) as publisher:
        yield publisher


def put(publisher: ReliablePublisher[Any], count: int) -> None:
    for _ in range(count):
        publisher.put(b"poison?", key="a/b", encoding="text/plain", attachment=b"why")
    publisher.flush(10)


def consume(session: Session, handler: object = None, **chosen: Any) -> ReliableConsumer:
    chosen.setdefault("consumer_options", THRICE)
    return declare_reliable_subscriber(session, "a/**", handler, consumer="bill", **chosen)


def test_a_sample_that_raises_again_and_again_goes_to_the_dead_letters_as_it_was(
    network: LocalNetwork, kept: ReliabilityCache, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 4)
    handled: list[Sample] = []

    def handle(sample: Sample) -> None:
        handled.append(sample)
        if sample.sn == 1:
            raise ValueError("no such trip")

    session = network.client()
    with consume(session, handle) as consumer:
        wait_until(lambda: len(handled) == 6)
        assert [sample.sn for sample in handled] == [0, 1, 1, 1, 2, 3], "in order, then passed over"
        consumer.flush(10)
        assert (consumer.dead_letters, consumer.unconfirmed) == (1, 0)
        (letter,) = read_dead_letters(session, "bill")
    assert (letter.reason, letter.attempts) == ("ValueError: no such trip", 3)
    assert letter.sample == handled[1]
    assert (letter.sample.key, letter.sample.attachment) == ("a/b", b"why")
    assert kept.status().consumer_dead_letters == 1, "positions are not counted"
    with consume(network.client(), handle):
        put(publisher, 1)
        wait_until(lambda: len(handled) == 7)
    assert handled[-1].sn == 4


def test_a_handler_that_succeeds_at_last_leaves_no_dead_letter(
    network: LocalNetwork, kept: ReliabilityCache, publisher: ReliablePublisher[Any]
) -> None:
    assert kept.key_exprs
    put(publisher, 2)
    calls: list[int] = []

    def handle(sample: Sample) -> None:
        calls.append(sample.sn)
        if calls.count(0) < 3:
            raise ValueError("not yet")

    session = network.client()
    with consume(session, handle) as consumer:
        wait_until(lambda: calls == [0, 0, 0, 1])
        assert (consumer.dead_letters, list(read_dead_letters(session, "bill"))) == (0, [])


def test_a_poison_sample_is_not_lost_while_its_dead_letter_cannot_be_stored(
    network: LocalNetwork, publisher: ReliablePublisher[Any], tmp_path: Path
) -> None:
    def declare() -> ReliabilityCache:
        url = f"sqlite:///{tmp_path}/kept.db"
        return declare_reliability_cache(
            network.router, KEPT, backend="sql", backend_options={"url": url}
        )

    kept = declare()
    called = threading.Event()
    handled: list[int] = []

    def handle(sample: Sample) -> None:
        handled.append(sample.sn)
        if handled == [0]:
            kept.close()
        if sample.sn == 0:
            called.set()
            raise ValueError("poison")

    with consume(network.client(), handle) as consumer:
        put(publisher, 2)
        assert called.wait(10)
        wait_until(lambda: handled == [0, 0, 0])
        assert consumer.dead_letters == 0
    assert handled == [0, 0, 0], "nothing behind it was delivered meanwhile"
    with declare():
        with consume(network.client(), handle) as consumer:
            wait_until(lambda: handled == [0, 0, 0, 0, 0, 0, 1])
            assert consumer.dead_letters == 1


def test_a_program_rejects_what_it_was_delivered(
    network: LocalNetwork, kept: ReliabilityCache, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 3)
    session = network.client()
    with consume(session, confirm="manual") as consumer:
        samples = [consumer.recv(10) for _ in range(3)]
        consumer.reject(samples[1], "no such customer")
        consumer.confirm(samples[0])
        consumer.reject(samples[0], "too late: it is confirmed")
        with pytest.raises(LocalProtocolError, match="was not delivered"):
            consumer.reject(Sample("a/b", samples[0].source, samples[0].epoch, 9, b""), "no")
        with pytest.raises(ConfigError, match="reason"):
            consumer.reject(samples[2], "")
        consumer.flush(10)
        (letter,) = read_dead_letters(session, "bill")
        assert (letter.reason, letter.sample) == ("no such customer", samples[1])
        kept.close()
        with pytest.raises(OutcomeUnknown, match="dead letter of sample 2"):
            consumer.reject(samples[2], "nobody takes it", timeout_seconds=0.3)
        assert consumer.unconfirmed == 1


def test_dead_letters_that_cannot_be_read_are_no_empty_answer(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    session = network.client()
    with declare_reliability_cache(network.client(), KEPT):
        key = f"@durable/v1/default/consumers/bill/dead/{publisher.source}/5/1"
        with declare_reliable_publisher(
            session, key, acknowledgements=1, level="memory"
        ) as damaged:
            damaged.put(b"no frame").result(10)
        with pytest.raises(RemoteProtocolError, match=key):
            list(read_dead_letters(session, "bill"))
        with pytest.raises(ConfigError, match="consumer"):
            list(read_dead_letters(session, "a/b"))


def test_nobody_who_answers_for_dead_letters_is_an_error() -> None:
    with LocalNetwork() as network, pytest.raises(StorageUnavailable, match="no cache answered"):
        list(read_dead_letters(network.client(), "bill", query_timeout_seconds=1))
