"""zenoh.ext's names on real sessions: what each argument does, what programs of zenoh's see."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import zenoh

from durable_cache import (
    ReliableSubscriber,
    RingChannel,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.subscriber.subscriber import SubscriberOptions
from durable_cache.errors import ConfigError
from durable_cache.ext import (
    AdvancedPublisher,
    CacheConfig,
    HistoryConfig,
    MissDetectionConfig,
    RecoveryConfig,
    RepliesConfig,
    Sample,
    declare_advanced_publisher,
    declare_advanced_subscriber,
)
from durable_cache.model.key_expression import KeyExpression
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import connected


def reached(publisher: AdvancedPublisher) -> None:
    wait_until(lambda: publisher.reliable.matched, what="a path to the subscriber")


def texts(samples: list[Sample]) -> list[str]:
    return [sample.payload.to_string() for sample in samples]


def test_a_sample_has_zenohs_names_and_types(network: LocalNetwork) -> None:
    session = network.client()
    with (
        declare_advanced_subscriber(network.client(), zenoh.KeyExpr("a/**")) as subscriber,
        declare_advanced_publisher(
            session,
            "a/b",
            encoding=zenoh.Encoding.TEXT_PLAIN,
            congestion_control=zenoh.CongestionControl.BLOCK,
            priority=zenoh.Priority.REAL_TIME,
            express=True,
            reliability=zenoh.Reliability.RELIABLE,
        ) as publisher,
    ):
        assert publisher.key_expr == zenoh.KeyExpr("a/b")
        assert subscriber.key_expr == zenoh.KeyExpr("a/**")
        assert publisher.encoding == zenoh.Encoding.TEXT_PLAIN
        assert publisher.priority == zenoh.Priority.REAL_TIME
        assert publisher.congestion_control == zenoh.CongestionControl.BLOCK
        assert publisher.id.zid == str(session.zid())
        assert subscriber.id.eid > 0
        reached(publisher)
        stamp = session.new_timestamp()
        publisher.put(zenoh.ZBytes("x"), attachment=bytearray(b"note"), timestamp=stamp)
        publisher.delete()
        put, gone = subscriber.recv(10), subscriber.recv(10)
        assert put.key_expr == zenoh.KeyExpr("a/b")
        assert put.payload.to_string() == "x"
        assert put.encoding == zenoh.Encoding.TEXT_PLAIN
        assert put.timestamp is not None
        assert str(put.timestamp.get_id()) == str(stamp.get_id())
        assert 0 <= int(str(put.timestamp).split("/")[0]) - int(str(stamp).split("/")[0]) < 5
        assert put.sample.ntp64 == int(str(stamp).split("/")[0])
        assert put.attachment is not None
        assert put.attachment.to_bytes() == b"note"
        assert (put.kind, gone.kind) == (zenoh.SampleKind.PUT, zenoh.SampleKind.DELETE)
        assert (put.priority, put.express) == (zenoh.Priority.REAL_TIME, True)
        assert put.congestion_control == zenoh.CongestionControl.BLOCK
        assert put.source_info is not None
        assert put.source_info == (publisher.id, 0)
        assert put.timestamp_stack is None
        assert subscriber.try_recv() is None


def test_a_plain_sample_has_neither_source_nor_timestamp_of_ours(network: LocalNetwork) -> None:
    session = network.client(timestamping={"enabled": False})
    with declare_advanced_subscriber(network.client(), "a/**") as subscriber:
        plain = session.declare_publisher("a/b")
        connected(plain)
        plain.put("x")
        sample = subscriber.recv(10)
        assert (sample.source_info, sample.attachment) == (None, None)


@pytest.mark.parametrize("own", [False, True])
def test_a_ring_keeps_as_many_as_it_says(network: LocalNetwork, own: bool) -> None:
    ring: Any = RingChannel[Sample](3) if own else zenoh.handlers.RingChannel(3)
    with (
        declare_advanced_subscriber(network.client(), "a/b", ring) as subscriber,
        declare_advanced_publisher(network.client(), "a/b") as publisher,
    ):
        reached(publisher)
        for number in range(10):
            publisher.put(str(number))
        wait_until(lambda: subscriber.reliable.delivered == 10)
        held = [subscriber.recv(1) for _ in range(3)]
        assert texts(held) == ["7", "8", "9"]
        assert subscriber.try_recv() is None


@pytest.mark.parametrize("kind", ["fifo", "callback", "pair"])
def test_handlers_are_what_zenoh_takes(network: LocalNetwork, kind: str) -> None:
    heard: list[Sample] = []
    ended: list[str] = []
    callback = zenoh.handlers.Callback(heard.append, lambda: ended.append("dropped"))
    mine = object()
    handler: Any = {
        "fifo": zenoh.handlers.FifoChannel(2),
        "callback": callback,
        "pair": (callback, mine),
    }[kind]
    with (
        declare_advanced_subscriber(network.client(), "a/b", handler) as subscriber,
        declare_advanced_publisher(network.client(), "a/b") as publisher,
    ):
        reached(publisher)
        for number in range(5):
            publisher.put(str(number))
        if kind == "fifo":
            heard += [subscriber.recv(10) for _ in range(5)]
        wait_until(lambda: len(heard) == 5)
        assert texts(heard) == list("01234")
        assert subscriber.handler is {"callback": None, "pair": mine}.get(kind, subscriber.handler)
        assert not ended
    assert ended == ([] if kind == "fifo" else ["dropped"])


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        (HistoryConfig(), "01234"),
        (HistoryConfig(max_samples=2, detect_late_publishers=True), "34"),
        (HistoryConfig(max_age=timedelta(hours=1)), "01234"),
    ],
)
def test_history_is_what_its_bounds_leave(
    network: LocalNetwork, config: HistoryConfig, numbers: str
) -> None:
    with declare_advanced_publisher(network.client(), "a/b", cache=CacheConfig(100)) as publisher:
        for number in range(5):
            publisher.put(str(number))
        with declare_advanced_subscriber(network.client(), "a/b", history=config) as subscriber:
            assert texts([subscriber.recv(10) for _ in numbers]) == list(numbers)


def test_history_has_a_greatest_age(network: LocalNetwork) -> None:
    session = network.client()
    with declare_advanced_publisher(session, "a/b", cache=CacheConfig(9)) as publisher:
        long_ago = zenoh.Timestamp.parse_rfc3339(f"2020-01-01T00:00:00Z/{session.zid()}")
        publisher.put("old", timestamp=long_ago)
        publisher.put("new")
        config = HistoryConfig(max_age=60)
        with declare_advanced_subscriber(network.client(), "a/b", history=config) as subscriber:
            assert subscriber.recv(10).payload.to_string() == "new"


@pytest.mark.parametrize("sporadic", [False, True])
@pytest.mark.parametrize("native", [False, True])
def test_heartbeats_tell_the_last_number(
    network: LocalNetwork, sporadic: bool, native: bool
) -> None:
    beats: list[bytes] = []
    watch = network.client().declare_subscriber(
        "a/b/@adv/pub/**", lambda sample: beats.append(sample.payload.to_bytes())
    )
    if native:
        subscriber: Any = zenoh.ext.declare_advanced_subscriber(
            network.client(), "a/b", recovery=zenoh.ext.RecoveryConfig(heartbeat=True)
        )
    else:
        subscriber = declare_advanced_subscriber(
            network.client(), "a/b", recovery=RecoveryConfig(heartbeat=True)
        )
    detection = (
        MissDetectionConfig(sporadic_heartbeat=0.2)
        if sporadic
        else MissDetectionConfig(heartbeat=timedelta(seconds=0.2))
    )
    with declare_advanced_publisher(
        network.client(), "a/b", sample_miss_detection=detection, cache=CacheConfig(10)
    ) as publisher:
        reached(publisher)
        for _ in range(3):
            publisher.put("x")
            assert subscriber.recv() is not None
        wait_until(lambda: beats and beats[-1] == (2).to_bytes(4, "little"))
        if not sporadic:
            wait_until(lambda: len(beats) >= beats.index((2).to_bytes(4, "little")) + 3)
    subscriber.undeclare()
    watch.undeclare()


def test_a_sporadic_heartbeat_says_a_number_once() -> None:
    from durable_cache.endpoints.publisher.heartbeats import Heartbeats

    beats = Heartbeats(1.0, sporadic=True)
    assert [beats.due(sn, at) for sn, at in ((0, 0.0), (0, 1.5), (3, 3.0), (3, 4.5), (4, 6.0))] == [
        None,
        None,
        2,
        None,
        3,
    ]
    periodic = Heartbeats(1.0, sporadic=False)
    assert [periodic.due(3, at) for at in (0.0, 0.5, 1.0, 1.5, 2.0)] == [None, None, 2, None, 2]


def test_zenohs_own_subscribers_detect_our_publishers_and_ours_detect_theirs(
    network: LocalNetwork,
) -> None:
    ours = declare_advanced_subscriber(network.client(), "a/**", subscriber_detection=True)
    native = zenoh.ext.declare_advanced_subscriber(network.client(), "a/**")
    seen, theirs = ours.detect_publishers(history=True), native.detect_publishers(history=True)
    with declare_advanced_publisher(network.client(), "a/b", publisher_detection=True) as publisher:
        token = f"a/b/@adv/pub/{publisher.id.zid}/{publisher.id.eid}/_"
        assert str(seen.recv(10).key_expr) == token
        assert str(theirs.recv().key_expr) == token
    assert (seen.recv(10).kind, theirs.recv().kind) == (zenoh.SampleKind.DELETE,) * 2
    other = zenoh.ext.declare_advanced_publisher(network.client(), "a/c", publisher_detection=True)
    assert str(seen.recv(10).key_expr).startswith("a/c/@adv/pub/")
    tokens = network.client().liveliness().get("a/**/@adv/sub/**")
    assert [str(reply.ok.key_expr).split("/")[-2] for reply in tokens if reply.ok] == [
        str(ours.id.eid)
    ]
    other.undeclare()
    seen.undeclare()
    native.undeclare()
    ours.undeclare()


def test_a_publisher_that_is_there_already_is_joined_late(network: LocalNetwork) -> None:
    """What its small cache let go before is neither awaited nor reported as missed."""
    with declare_advanced_publisher(
        network.client(), "a/b", cache=CacheConfig(2), publisher_detection=True
    ) as publisher:
        for number in range(5):
            publisher.put(str(number))
        with declare_advanced_subscriber(
            network.client(), "a/b", history=HistoryConfig(), recovery=RecoveryConfig()
        ) as subscriber:
            misses = subscriber.sample_miss_listener()
            assert texts([subscriber.recv(10), subscriber.recv(10)]) == ["3", "4"]
            publisher.put("5")
            assert subscriber.recv(10).payload.to_string() == "5"
            assert misses.try_recv() is None


def test_who_joins_late_awaits_nothing_of_before(network: LocalNetwork) -> None:
    options = SubscriberOptions(joins_late=True)
    with declare_reliable_publisher(network.client(), "a/b", history=1) as publisher:
        for number in range(3):
            publisher.put(str(number))
        with ReliableSubscriber(
            network.client(), KeyExpression("a/b"), None, options
        ) as subscriber:
            wait_until(lambda: publisher.matched)
            publisher.put("3")
            assert subscriber.recv(10).payload == b"3"
            assert (subscriber.gaps_open, subscriber.missed) == (0, 0)


def test_samples_stay_within_the_session_where_that_is_asked_for(network: LocalNetwork) -> None:
    session = network.client()
    near = declare_advanced_subscriber(session, "a/b", allowed_origin=zenoh.Locality.SESSION_LOCAL)
    far = declare_advanced_subscriber(network.client(), "a/b")
    with declare_advanced_publisher(network.client(), "a/b") as publisher:
        reached(publisher)
        publisher.put("from afar")
        assert far.recv(10).payload.to_string() == "from afar"
    with declare_advanced_publisher(
        session, "a/b", allowed_destination=zenoh.Locality.SESSION_LOCAL
    ) as publisher:
        publisher.put("here")
        assert near.recv(10).payload.to_string() == "here"
    assert (near.try_recv(), far.try_recv()) == (None, None)
    near.undeclare()
    far.undeclare()


def test_our_own_declaration_takes_zenohs_words_too(network: LocalNetwork) -> None:
    with (
        declare_reliable_subscriber(network.client(), "a/**") as subscriber,
        declare_reliable_publisher(
            network.client(),
            "a/*",
            congestion_control=zenoh.CongestionControl.DROP,
            priority=zenoh.Priority.BACKGROUND,
            express=True,
            allowed_destination=zenoh.Locality.REMOTE,
            heartbeat_seconds=5,
            heartbeat_sporadic=True,
            detectable=True,
        ) as publisher,
    ):
        wait_until(lambda: publisher.matched)
        publisher.put("x", key="a/b")
        assert subscriber.recv(10).qos == 7 | 0 << 3 | 1 << 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CacheConfig(0), "max_samples: expected a whole number of at least 1"),
        (lambda: CacheConfig(replies_config=zenoh.ext.RepliesConfig()), "RepliesConfig"),
        (lambda: RepliesConfig(priority=zenoh.Priority.REAL_TIME), "replies_config: answers have"),
        (lambda: MissDetectionConfig(heartbeat=0), "heartbeat: expected seconds of at least 0.1"),
        (lambda: MissDetectionConfig(heartbeat=1, sporadic_heartbeat=1), "choose one"),
        (lambda: HistoryConfig(max_age="1h"), "max_age: expected seconds"),  # type: ignore[arg-type]
        (lambda: RecoveryConfig(heartbeat=True, periodic_queries=1), "choose one"),
        (lambda: RecoveryConfig(heartbeat=1), "heartbeat: expected True or False"),  # type: ignore[arg-type]
    ],
)
def test_a_configuration_is_checked_when_it_is_made(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_what_zenoh_takes_and_nobody_here_can_do_is_refused_by_name(network: LocalNetwork) -> None:
    session = network.client()
    with pytest.raises(ConfigError, match=r"key_expr: .*a/\*"):
        declare_advanced_publisher(session, "a/*")
    with pytest.raises(ConfigError, match=r"cache: expected a durable_cache.ext.CacheConfig"):
        declare_advanced_publisher(session, "a/b", cache=zenoh.ext.CacheConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reliability: a publisher on"):
        declare_reliable_publisher(session, "a/*", reliability=zenoh.Reliability.BEST_EFFORT)
    instrumentation = zenoh.TimestampInstrumentationBuilder().set_send(True).build()
    with (
        declare_advanced_publisher(session, "a/b") as publisher,
        pytest.raises(ConfigError, match="timestamp_instrumentation: expected None"),
    ):
        publisher.put("x", timestamp_instrumentation=instrumentation)


def test_a_ring_of_zenohs_is_counted_quickly(network: LocalNetwork) -> None:
    from durable_cache.endpoints.session import ring_capacity

    session = network.client()
    began = time.monotonic()
    assert [ring_capacity(session, zenoh.handlers.RingChannel(n)) for n in (1, 2, 3, 1000)] == [
        1,
        2,
        3,
        1000,
    ]
    assert ring_capacity(session, zenoh.handlers.FifoChannel(3)) is None
    assert time.monotonic() - began < 10
