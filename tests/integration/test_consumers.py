"""Durable consumers over real sessions: they go on where they stood, or say why they cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durable_cache import (
    FifoChannel,
    Miss,
    ReliabilityCache,
    ReliablePublisher,
    Retention,
    RingChannel,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions, ReliableConsumer
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.session import (
    Session,
    build_timestamp,
    close_session,
    open_session,
)
from durable_cache.errors import (
    Closed,
    ConfigError,
    LocalProtocolError,
    OutcomeUnknown,
    RemoteProtocolError,
)
from durable_cache.model.sample import Kind
from durable_cache.protocol.consumers import position_key
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.service.config import read_settings
from durable_cache.service.service import Service
from durable_cache.storage.contract import Floor
from durable_cache.testing.network import LocalNetwork, free_port, wait_until

POSITIONS = "@durable/v1/default/consumers/**"
SOON = ConsumerOptions(level="memory", confirm_seconds=0.01)
IMPATIENT = ConsumerOptions(level="memory", predecessor_seconds=0.3, caches_seconds=0.3)


@pytest.fixture
def cache(network: LocalNetwork) -> Iterator[ReliabilityCache]:
    with declare_reliability_cache(network.client(), ["a/**", POSITIONS]) as cache:
        yield cache


@pytest.fixture
def publisher(network: LocalNetwork, cache: ReliabilityCache) -> Iterator[ReliablePublisher[Any]]:
    assert cache.key_exprs
    with declare_reliable_publisher(
        network.client(), "a/**", acknowledgements=1, level="memory"
    ) as publisher:
        yield publisher


def put(publisher: ReliablePublisher[Any], count: int, key: str = "a/b") -> None:
    """Put so many samples, and wait until the cache has them."""
    for _ in range(count):
        publisher.put(b"", key=key)
    publisher.flush(10)


def consume(
    session: Session,
    handler: object = None,
    *,
    name: str = "bill",
    key_expr: str = "a/**",
    consumer_options: ConsumerOptions = SOON,
    **chosen: Any,
) -> ReliableConsumer:
    return declare_reliable_subscriber(
        session, key_expr, handler, consumer=name, consumer_options=consumer_options, **chosen
    )


def received(consumer: ReliableConsumer, count: int) -> list[Sample]:
    return [consumer.recv(10) for _ in range(count)]


def numbers(samples: list[Sample]) -> list[int]:
    return [sample.sn for sample in samples]


def test_what_a_handler_returned_from_is_not_handled_again(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 5)
    handled: list[Sample] = []
    with consume(network.client(), handled.append):
        wait_until(lambda: len(handled) == 5)
        put(publisher, 3)
        wait_until(lambda: len(handled) == 8)
    put(publisher, 4)
    with consume(network.client(), handled.append):
        wait_until(lambda: len(handled) >= 12)
        put(publisher, 2)
        wait_until(lambda: len(handled) >= 14)
    assert numbers(handled) == [*range(14)]


def test_what_is_confirmed_in_any_order_is_not_delivered_again_and_the_rest_is(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 6)
    with consume(network.client(), confirm="manual") as consumer:
        samples = received(consumer, 6)
        consumer.confirm(samples[4], samples[0])
        consumer.confirm(samples[1])
        consumer.confirm(samples[1])
        assert consumer.unconfirmed == 3
        consumer.flush(10)
    with consume(network.client(), confirm="manual") as consumer:
        left = received(consumer, 3)
        assert numbers(left) == [2, 3, 5]
        consumer.confirm(*left)
        put(publisher, 1)
        assert numbers(received(consumer, 1)) == [6]


def test_a_handler_that_raises_gets_its_sample_again_after_a_restart(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    handled: list[int] = []

    def fail_once(sample: Sample) -> None:
        if sample.sn == 2 and 3 not in handled:
            raise ValueError("no")
        handled.append(sample.sn)

    put(publisher, 5)
    with consume(network.client(), fail_once) as consumer:
        wait_until(lambda: len(handled) == 4)
        assert consumer.unconfirmed == 1
        assert consumer.callback_errors == 1
    assert handled == [0, 1, 3, 4]
    with consume(network.client(), fail_once):
        wait_until(lambda: len(handled) == 5)
    assert handled == [0, 1, 3, 4, 2]


def test_history_of_many_pages_is_gone_on_with_where_it_was_left(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 300, "a/one")
    paged = DeliveryOptions(history_page_samples=20)
    with consume(network.client(), confirm="manual", options=paged) as consumer:
        consumer.confirm(*received(consumer, 130))
        consumer.flush(10)
    put(publisher, 50, "a/two")
    with consume(network.client(), confirm="manual", options=paged) as consumer:
        put(publisher, 10)
        assert numbers(received(consumer, 230)) == [*range(130, 360)]


def test_positions_outlive_a_restart_of_the_cache(network: LocalNetwork, tmp_path: Path) -> None:
    def declare() -> ReliabilityCache:
        return declare_reliability_cache(
            network.router,
            ["a/**", POSITIONS],
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
            state_dir=tmp_path,
        )

    handled: list[Sample] = []
    on_disk = ConsumerOptions(confirm_seconds=0.01)
    with declare_reliable_publisher(network.client(), "a/b", acknowledgements=1) as publisher:
        with declare():
            put(publisher, 5)
            with consume(network.client(), handled.append, consumer_options=on_disk) as consumer:
                wait_until(lambda: len(handled) == 5)
                consumer.flush(10)
        with declare():
            put(publisher, 5)
            with consume(network.client(), handled.append, consumer_options=on_disk):
                wait_until(lambda: len(handled) >= 10)
    assert numbers(handled) == [*range(10)]


def test_a_service_stores_positions_beside_the_samples_they_count(tmp_path: Path) -> None:
    """The key expression that the documentation gives."""
    port = free_port()
    storage = {"key_expr": ["a/**", "@durable/v1/default/consumers/*/**"], "volume": "main"}
    settings = {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}},
        "listen": {"endpoints": [f"tcp/127.0.0.1:{port}"]},
        "plugins": {
            "durable_cache": {
                "state_dir": str(tmp_path / "state"),
                "volumes": {"main": {"backend": "sql", "url": f"sqlite:///{tmp_path}/s.db"}},
                "storages": {"a": {**storage, "alignment": {"enabled": True}}},
            }
        },
    }
    handled: list[Sample] = []
    with Service(read_settings(settings)):
        session = open_session(
            {
                "mode": "client",
                "connect": {"endpoints": [f"tcp/127.0.0.1:{port}"]},
                "scouting": {"multicast": {"enabled": False}},
                "timestamping": {"enabled": True},
            }
        )
        with declare_reliable_publisher(session, "a/b", acknowledgements=1) as publisher:
            for count in (3, 6):
                put(publisher, 3)
                with consume(session, handled.append, consumer_options=ConsumerOptions()) as bill:
                    wait_until(lambda count=count: len(handled) >= count)
                    bill.flush(10)
        close_session(session)
    assert numbers(handled) == [*range(6)]


def test_confirmations_are_written_once_their_cache_is_back(
    network: LocalNetwork, tmp_path: Path
) -> None:
    def declare() -> ReliabilityCache:
        url = f"sqlite:///{tmp_path}/p.db"
        return declare_reliability_cache(
            network.router, POSITIONS, backend="sql", backend_options={"url": url}
        )

    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_publisher(network.client(), "a/b", acknowledgements=1) as publisher,
    ):
        positions = declare()
        put_at_once = [publisher.put(b"") for _ in range(4)]
        on_disk = ConsumerOptions(confirm_seconds=0.01)
        assert put_at_once
        with consume(network.client(), confirm="manual", consumer_options=on_disk) as consumer:
            first, second, third, _ = received(consumer, 4)
            consumer.confirm(first)
            consumer.flush(10)
            positions.close()
            consumer.confirm(second)
            with pytest.raises(OutcomeUnknown, match="'bill'"):
                consumer.flush(0.2)
            consumer.confirm(third)
            with declare():
                consumer.flush(20)
        with declare(), consume(network.client(), confirm="manual", consumer_options=on_disk) as on:
            assert numbers(received(on, 1)) == [3]


def test_what_was_removed_below_the_position_is_reported_and_not_skipped(
    network: LocalNetwork, cache: ReliabilityCache
) -> None:
    publisher = declare_reliable_publisher(
        network.client(), "a/**", acknowledgements=1, level="memory", cache=False
    )
    put(publisher, 4)
    with consume(network.client(), confirm="manual") as consumer:
        consumer.confirm(*received(consumer, 2))
        consumer.flush(10)
    put(publisher, 6)
    (stream,) = {sample.stream for sample in cache.find("a/**")}
    assert cache.purge([Floor(stream, 8)]) == 8
    story: list[int | tuple[int, int]] = []
    resumed = consume(network.client(), FifoChannel(1), confirm="manual")
    with resumed:
        resumed.sample_miss_listener(lambda miss: story.append((miss.first, miss.last)))
        story += numbers(received(resumed, 2))
        assert resumed.missed == 6
    assert story[-2:] == [8, 9]
    misses: list[Miss] = []
    with consume(network.client(), confirm="manual") as again:
        again.sample_miss_listener(misses.append)
        assert numbers(received(again, 2)) == [8, 9]
    assert misses == [], "a position passes over what was reported"
    publisher.close()


def test_positions_are_those_of_the_newest_consumer_though_its_clock_is_behind(
    network: LocalNetwork, cache: ReliabilityCache, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 3)
    with consume(network.client(), confirm="manual") as consumer:
        consumer.confirm(received(consumer, 1)[0])
        consumer.flush(10)
    written = cache.find(POSITIONS)[-1]
    ahead = network.client()
    stamp = (written.ntp64 >> 32) + 3600
    with declare_reliable_publisher(ahead, written.key, acknowledgements=1, level="memory") as late:
        theirs = build_timestamp(stamp << 32, "ab")  # a consumer there writes as this does
        late.publish(Kind.PUT, written.payload, "zenoh/bytes", None, None, theirs).result(10)
    with consume(network.client(), confirm="manual") as consumer:
        consumer.confirm(*received(consumer, 2))
        consumer.flush(10)
    with consume(network.client(), confirm="manual") as consumer:
        put(publisher, 1)
        assert numbers(received(consumer, 1)) == [3]


def test_delivery_waits_while_too_much_is_unconfirmed(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 10)
    few = ConsumerOptions(level="memory", confirm_seconds=0.01, unconfirmed_max=4)
    with consume(network.client(), confirm="manual", consumer_options=few) as consumer:
        samples = received(consumer, 4)
        with pytest.raises(TimeoutError):
            consumer.recv(0.3)
        assert consumer.unconfirmed == 4
        consumer.confirm(*samples[:3])
        samples += received(consumer, 3)
        assert numbers(samples) == [*range(7)]


def test_close_ends_a_delivery_that_waits(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 10)
    few = ConsumerOptions(level="memory", unconfirmed_max=1)
    consumer = consume(network.client(), confirm="manual", consumer_options=few)
    sample = consumer.recv(10)
    consumer.close()
    assert not [one.name for one in threading.enumerate() if one.name.startswith("dc-subscriber")]
    with pytest.raises(Closed):
        consumer.confirm(sample)


def test_a_loss_behind_what_was_not_handed_out_before_the_end_passes_over_nothing(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    for payload in (b"", b"", b"", bytes(1000), b""):
        publisher.put(payload, key="a/b")
    publisher.flush(10)
    handled: list[int] = []
    listening = threading.Event()

    def end_at_one(sample: Sample) -> None:
        handled.append(sample.sn)
        if sample.sn == 1:
            listening.wait(10)
            closing.start()
            with pytest.raises(Closed):
                misses.recv(10)

    small: dict[str, Any] = {"payload_bytes_max": 100}
    consumer = consume(network.client(), end_at_one, **small)
    closing = threading.Thread(target=consumer.close, args=(10,))
    misses = consumer.sample_miss_listener()
    listening.set()
    wait_until(lambda: closing.ident is not None)
    closing.join()
    with consume(network.client(), lambda sample: handled.append(sample.sn), **small) as again:
        wait_until(lambda: len(handled) == 4)
        assert again.missed == 1
    assert handled == [0, 1, 2, 4]


def test_a_second_consumer_of_a_name_is_refused_while_the_first_one_lives(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    assert publisher
    options = replace(IMPATIENT, caches_seconds=10.0)
    session = network.client()
    with consume(session, lambda _: None):
        for other in (session, network.client()):
            with pytest.raises(ConfigError, match="'bill' is in use by another subscriber"):
                consume(other, lambda _: None, consumer_options=options)
        with consume(session, lambda _: None, name="ship"):
            pass
    with consume(session, lambda _: None):
        pass


def test_a_consumer_waits_for_its_predecessor_to_go(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    assert publisher
    first = consume(network.client(), lambda _: None)
    leaving = threading.Timer(0.3, first.close)
    leaving.start()
    with consume(network.client(), lambda _: None):
        leaving.join()


def test_a_consumer_of_another_key_expression_is_refused(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 1)
    with consume(network.client(), confirm="manual") as consumer:
        consumer.confirm(consumer.recv(10))
    with pytest.raises(ConfigError, match=r"'bill' consumes a/\*\*, not a/\*: choose another"):
        consume(network.client(), confirm="manual", key_expr="a/*")


def test_caches_that_store_no_positions_are_an_error_that_names_the_remedy(
    network: LocalNetwork,
) -> None:
    with declare_reliability_cache(network.client(), "a/**"):
        with pytest.raises(ConfigError, match=r'"@durable/v1/default/consumers/\*/\*\*"'):
            consume(network.client(), lambda _: None, consumer_options=IMPATIENT)
    with declare_reliability_cache(network.client(), POSITIONS):
        with pytest.raises(ConfigError, match=r"stores anything of a/\*\*"):
            consume(network.client(), lambda _: None, consumer_options=IMPATIENT)


def test_a_position_that_cannot_be_read_is_an_error_that_names_it(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    key = position_key("default", "bill", publisher.source, 5)
    with declare_reliable_publisher(
        network.client(), key, acknowledgements=1, level="memory"
    ) as damaged:
        damaged.put(b"no frame").result(10)
    with pytest.raises(RemoteProtocolError, match=key):
        consume(network.client(), lambda _: None)


def test_more_positions_than_may_be_remembered_are_an_error(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 1)
    with declare_reliable_publisher(
        network.client(), "a/b", acknowledgements=1, level="memory"
    ) as other:
        put(other, 1)
        with consume(network.client(), confirm="manual") as consumer:
            consumer.confirm(*received(consumer, 2))
    one = ConsumerOptions(level="memory", runs_max=1)
    with pytest.raises(ConfigError, match="positions in 2 runs of sources: raise runs_max"):
        consume(network.client(), confirm="manual", consumer_options=one)


def test_what_this_subscriber_did_not_deliver_cannot_be_confirmed(
    network: LocalNetwork, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 2)
    with consume(network.client(), confirm="manual") as consumer:
        sample = received(consumer, 2)[1]
        put(publisher, 1)
        later = consumer.recv(10)
    with consume(network.client(), confirm="manual") as again:
        received(again, 1)
        with pytest.raises(LocalProtocolError, match="was not delivered by this subscriber"):
            again.confirm(Sample("a/b", later.source, later.epoch, 77, b""))
        with pytest.raises(ConfigError, match="sample"):
            again.confirm(sample.sn)  # type: ignore[arg-type]


def test_a_sample_that_cannot_be_confirmed_costs_those_before_it_nothing(
    network: LocalNetwork, cache: ReliabilityCache, publisher: ReliablePublisher[Any]
) -> None:
    put(publisher, 1)
    at_once = ConsumerOptions(level="memory", confirm_seconds=0)
    with consume(network.client(), confirm="manual", consumer_options=at_once) as consumer:
        (sample,) = received(consumer, 1)
        consumer.flush(10)
        before = cache.status().appended
        stranger = Sample("a/b", sample.source, sample.epoch, 77, b"")
        with pytest.raises(LocalProtocolError, match="was not delivered by this subscriber"):
            consumer.confirm(sample, stranger)
        wait_until(lambda: cache.status().appended > before, what="the position to be written")


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"name": "a/b"}, "consumer"),
        ({"name": ""}, "consumer"),
        ({"confirm": "perhaps"}, "confirm"),
        ({"confirm": "auto"}, "handler"),
        ({"confirm": "manual", "handler": RingChannel(3)}, "ring"),
        ({"confirm": "manual", "history": 3}, "history"),
        ({"confirm": "manual", "recovery": False}, "recovery"),
        ({"confirm": "manual", "profile": "PERSISTENT"}, "profile"),
        ({"consumer_options": ConsumerOptions(acknowledgements=0)}, "acknowledgements"),
        ({"consumer_options": ConsumerOptions(level="gold")}, "level"),
        ({"consumer_options": ConsumerOptions(confirm_seconds=-1)}, "confirm_seconds"),
        ({"consumer_options": {}}, "consumer_options"),
    ],
)
def test_what_no_consumer_can_work_with_is_refused(
    network: LocalNetwork,
    publisher: ReliablePublisher[Any],
    chosen: dict[str, Any],
    named: str,
) -> None:
    assert publisher
    with pytest.raises(ConfigError, match=named):
        consume(network.client(), **chosen)


def test_confirm_without_a_consumer_is_refused(network: LocalNetwork) -> None:
    with pytest.raises(ConfigError, match="name the consumer"):
        declare_reliable_subscriber(network.client(), "a/**", confirm="manual")  # type: ignore[call-overload]


def test_positions_take_one_sample_each_where_one_is_kept(
    network: LocalNetwork,
) -> None:
    kept = CacheOptions(retention=Retention(samples_max=1), retention_seconds=0.05)
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliability_cache(network.client(), POSITIONS, options=kept) as positions,
        declare_reliable_publisher(
            network.client(), "a/b", acknowledgements=1, level="memory"
        ) as publisher,
        consume(network.client(), lambda _: time.sleep(0.01)) as consumer,
    ):
        put(publisher, 50)
        wait_until(lambda: consumer.delivered == 50)
        consumer.flush(10)
        wait_until(lambda: len(positions.find(POSITIONS)) == 1)
