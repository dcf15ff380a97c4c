"""A durable consumer goes back: what lies behind a number or a time comes again, once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durable_cache import (
    FifoChannel,
    ReliabilityCache,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions, ReliableConsumer
from durable_cache.endpoints.session import Session
from durable_cache.errors import Closed, ConfigError, LocalProtocolError
from durable_cache.model.sample import SourceId
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.protocol.subscriber.events import Declared, DeliveryOptions, Event
from durable_cache.protocol.subscriber.resuming import ResumingEngine
from durable_cache.storage.contract import Floor
from durable_cache.testing.network import LocalNetwork, wait_until

POSITIONS = "@durable/v1/default/consumers/**"
SOON = ConsumerOptions(level="memory", confirm_seconds=0.01)


@pytest.fixture
def cache(network: LocalNetwork) -> Iterator[ReliabilityCache]:
    with declare_reliability_cache(network.client(), ["a/**", POSITIONS]) as cache:
        yield cache


@pytest.fixture
def publisher(network: LocalNetwork, cache: ReliabilityCache) -> Iterator[ReliablePublisher[Any]]:
    assert cache.key_exprs
    with publish(network) as publisher:
        yield publisher


def publish(network: LocalNetwork) -> ReliablePublisher[Any]:
    return declare_reliable_publisher(
        network.client(), "a/**", acknowledgements=1, level="memory", cache=False
    )


def put(publisher: ReliablePublisher[Any], count: int) -> None:
    for _ in range(count):
        publisher.put(b"", key="a/b")
    publisher.flush(10)


def consume(session: Session, handler: object = None, **chosen: Any) -> ReliableConsumer:
    chosen.setdefault("confirm", "auto" if callable(handler) else "manual")
    return declare_reliable_subscriber(
        session, "a/**", handler, consumer="bill", consumer_options=SOON, **chosen
    )


def received(consumer: ReliableConsumer, count: int) -> list[Sample]:
    return [consumer.recv(10) for _ in range(count)]


def numbers(samples: list[Sample]) -> list[int]:
    return [sample.sn for sample in samples]


def at(sample: Sample) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(
        microseconds=ntp64_to_ns(sample.ntp64) // 1000
    )


def test_what_lies_behind_a_number_comes_again_in_order_then_what_is_live(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 10)
    paged = DeliveryOptions(history_page_samples=3)
    with consume(network.client(), options=paged) as consumer:
        consumer.confirm(*received(consumer, 10))
        consumer.rewind(4)
        put(publisher, 3)
        again = received(consumer, 9)
        assert numbers(again) == [*range(4, 13)]
        consumer.confirm(*again)
        put(publisher, 1)
        assert numbers(received(consumer, 1)) == [13]
        assert consumer.delivered == 20


def test_a_rewind_outlives_the_consumer_that_asked_for_it(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 6)
    with consume(network.client()) as consumer:
        consumer.confirm(*received(consumer, 6))
        consumer.rewind(2)
    with consume(network.client()) as consumer:
        again = received(consumer, 4)
        assert numbers(again) == [2, 3, 4, 5]
        consumer.confirm(*again)
    with consume(network.client()) as consumer:
        put(publisher, 1)
        assert numbers(received(consumer, 1)) == [6]


def test_a_handler_may_rewind_and_each_sample_behind_it_is_handled_again(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    handled: list[int] = []

    def handle(sample: Sample) -> None:
        handled.append(sample.sn)
        if handled == [0, 1, 2, 3]:
            consumer.rewind(1)

    with consume(network.client(), handle) as consumer:
        put(publisher, 5)
        wait_until(lambda: len(handled) >= 8)
        put(publisher, 1)
        wait_until(lambda: len(handled) >= 9)
    assert handled == [0, 1, 2, 3, 1, 2, 3, 4, 5]


def test_what_is_open_below_the_number_stays_open(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 6)
    with consume(network.client()) as consumer:
        samples = received(consumer, 6)
        consumer.confirm(*samples[:1], *samples[2:])
        consumer.rewind(samples[4])
        assert numbers(received(consumer, 3)) == [1, 4, 5]


def test_each_source_goes_back_to_its_first_sample_of_a_time(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    with publish(network) as other:
        put(publisher, 3)
        put(other, 2)
        put(publisher, 3)
        put(other, 2)
        with consume(network.client()) as consumer:
            samples = received(consumer, 10)
            consumer.confirm(*samples)
            consumer.rewind(at(samples[5]))
            assert numbers(received(consumer, 5)) == [3, 4, 5, 2, 3]
            with pytest.raises(ConfigError, match=r"2 sources were delivered.*name the source"):
                consumer.rewind(1)
            consumer.rewind(1, source=other.source)
            again = received(consumer, 6)
    assert numbers([one for one in again if one.source == other.source]) == [1, 2, 3]
    assert numbers([one for one in again if one.source != other.source]) == [3, 4, 5]


def test_what_waits_to_be_received_is_dropped_and_comes_again_once(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 20)
    with consume(network.client(), FifoChannel(2)) as consumer:
        first = received(consumer, 3)
        consumer.confirm(*first)
        consumer.rewind(1)
        assert numbers(received(consumer, 19)) == [*range(1, 20)]
        with pytest.raises(LocalProtocolError, match="was not delivered"):
            consumer.confirm(Sample("a/b", first[0].source, first[0].epoch, 25, b""))


def test_a_rewind_below_what_caches_keep_names_the_first_number_that_is_kept(
    network: LocalNetwork, cache: ReliabilityCache, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 10)
    with consume(network.client()) as consumer:
        samples = received(consumer, 10)
        consumer.confirm(*samples)
        assert cache.purge([Floor(samples[0].stream, 4)]) == 4
        with pytest.raises(ConfigError, match=r"from number 4 on, 2 was removed: rewind to 4"):
            consumer.rewind(2)
        with pytest.raises(ConfigError, match="from number 4 on, and what lies before it was"):
            consumer.rewind(at(samples[0]))
        consumer.rewind()
        assert numbers(received(consumer, 6)) == [*range(4, 10)]
        consumer.rewind(at(samples[7]))
        assert numbers(received(consumer, 6)) == [*range(4, 10)], "none of them was confirmed"
        assert consumer.missed == 0


def test_a_rewind_to_all_that_is_kept_outlives_the_consumer(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 3)
    with consume(network.client()) as consumer:
        consumer.confirm(*received(consumer, 3))
        consumer.rewind()
    with consume(network.client()) as consumer:
        consumer.confirm(*received(consumer, 3))
    with consume(network.client()) as consumer:
        put(publisher, 1)
        assert numbers(received(consumer, 1)) == [3]


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (3, {}, "number 3 of .* is ahead of what was reached, 2"),
    (-1, {}, "a number from 0 on"),
    ("yesterday", {}, "got 'yesterday'"),
    (datetime(2026, 1, 1), {}, "time zone"),  # what is refused
    (Sample("a/b", SourceId("ab", 1), 5, 1, b""), {}, "nothing of ab:1, epoch 5"),
    (1, {"source": SourceId("ab", 1)}, "nothing of ab:1 was delivered"),
    (None, {"source": SourceId("ab", 1)}, "source"),
    (1, {"source": "ab:1"}, "source"),
]


def test_what_cannot_be_rewound_to_is_refused_and_changes_nothing(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 3)
    with consume(network.client()) as consumer:
        consumer.confirm(*received(consumer, 3))
        for to, chosen, said in REFUSED:
            with pytest.raises(ConfigError, match=said):
                consumer.rewind(to, **chosen)
        put(publisher, 1)
        assert numbers(received(consumer, 1)) == [3]
    with pytest.raises(Closed):
        consumer.rewind()


def test_who_rewinds_knows_the_publishers_from_the_tokens_that_were_seen(
    network: LocalNetwork, publisher: ReliablePublisher[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked again: a router that is busy tells nothing at times."""
    told: dict[int, set[SourceId]] = {}
    handle = ResumingEngine.handle

    def listening(engine: ResumingEngine, event: Event) -> Any:
        if isinstance(event, Declared):
            told.setdefault(id(engine), set()).add(event.source)
        return handle(engine, event)

    monkeypatch.setattr(ResumingEngine, "handle", listening)
    put(publisher, 1)
    with consume(network.client(), lambda _: None) as consumer:
        wait_until(lambda: [*told.values()] == [{publisher.source}])
        consumer.rewind(timeout_seconds=10)
        wait_until(lambda: [*told.values()] == 2 * [{publisher.source}])
