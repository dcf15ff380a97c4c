"""Every type of zenoh at every argument of the public API: it works, or it is refused at the call.

A refusal is a ConfigError that names the argument, the value's type and what is accepted. What
works is written down here, so that nothing begins to work by being ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zenoh

import durable_cache
from durable_cache import ext
from durable_cache.endpoints.publisher.options import PublisherSettings
from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.testing.network import LocalNetwork

ONLY_RECEIVED = {
    *("Hello", "Link", "LinkEvent", "LinkEventsListener", "Transport", "TransportEvent"),
    *("TransportEventsListener", "Query", "Reply", "ReplyError", "Scout", "TimestampStack"),
    *("TimestampStackRecord", "TimestampContext", "ZError", "MatchingListener", "ShmBufferPool"),
}
"""Zenoh hands these out for events of the network and takes them nowhere."""
NUMBERS = {name for name in dir(zenoh.ext) if name.startswith(("Int", "UInt", "Float"))}
"""Subclasses of int and float: numbers like any other."""
VALUES: Mapping[str, Callable[[zenoh.Session], object]] = {
    "KeyExpr": lambda _: zenoh.KeyExpr("a/b"),
    "ZBytes": lambda _: zenoh.ZBytes("x"),
    "Encoding": lambda _: zenoh.Encoding.TEXT_PLAIN,
    "Config": lambda _: zenoh.Config.from_json5("{scouting:{multicast:{enabled:false}}}"),
    "CongestionControl": lambda _: zenoh.CongestionControl.BLOCK,
    "Priority": lambda _: zenoh.Priority.DATA,
    "Reliability": lambda _: zenoh.Reliability.RELIABLE,
    "Locality": lambda _: zenoh.Locality.ANY,
    "SampleKind": lambda _: zenoh.SampleKind.PUT,
    "Timestamp": lambda session: session.new_timestamp(),
    "NTP64": lambda _: zenoh.NTP64(1, 2),
    "TimestampId": lambda session: session.new_timestamp().get_id(),
    "EntityGlobalId": lambda session: session.declare_publisher("v/id").id,
    "SourceInfo": lambda session: zenoh.SourceInfo(session.declare_publisher("v/i").id, 1),
    "ZenohId": lambda session: session.zid(),
    "Parameters": lambda _: zenoh.Parameters("a=b"),
    "Selector": lambda _: zenoh.Selector("a/b"),
    "QueryTarget": lambda _: zenoh.QueryTarget.ALL,
    "QueryConsolidation": lambda _: zenoh.QueryConsolidation.AUTO,
    "ConsolidationMode": lambda _: zenoh.ConsolidationMode.NONE,
    "ReplyKeyExpr": lambda _: zenoh.ReplyKeyExpr.ANY,
    "WhatAmI": lambda _: zenoh.WhatAmI.PEER,
    "WhatAmIMatcher": lambda _: zenoh.WhatAmIMatcher("peer"),
    "SetIntersectionLevel": lambda _: zenoh.SetIntersectionLevel.EQUALS,
    "InterceptionPoint": lambda _: zenoh.InterceptionPoint.SEND,
    "Session": lambda session: session,
    "SessionInfo": lambda session: session.info,
    "Publisher": lambda session: session.declare_publisher("v/p"),
    "Subscriber": lambda session: session.declare_subscriber("v/s"),
    "Queryable": lambda session: session.declare_queryable("v/q"),
    "Querier": lambda session: session.declare_querier("v/q"),
    "Liveliness": lambda session: session.liveliness(),
    "LivelinessToken": lambda session: session.liveliness().declare_token("v/t"),
    "MatchingStatus": lambda session: session.declare_publisher("v/m").matching_status,
    "CancellationToken": lambda _: zenoh.CancellationToken(),
    "TimestampInstrumentationBuilder": lambda _: zenoh.TimestampInstrumentationBuilder(),
    "TimestampInstrumentation": lambda _: (
        zenoh.TimestampInstrumentationBuilder().set_send(True).build()
    ),
    "Sample": lambda session: own_sample(session),
    "Handler": lambda session: session.declare_subscriber("v/h").handler,
    "DefaultHandler": lambda _: zenoh.handlers.DefaultHandler(),
    "FifoChannel": lambda _: zenoh.handlers.FifoChannel(2),
    "RingChannel": lambda _: zenoh.handlers.RingChannel(2),
    "Callback": lambda _: zenoh.handlers.Callback(lambda _: None),
    "ext.CacheConfig": lambda _: zenoh.ext.CacheConfig(),
    "ext.HistoryConfig": lambda _: zenoh.ext.HistoryConfig(),
    "ext.RecoveryConfig": lambda _: zenoh.ext.RecoveryConfig(heartbeat=True),
    "ext.MissDetectionConfig": lambda _: zenoh.ext.MissDetectionConfig(heartbeat=1),
    "ext.RepliesConfig": lambda _: zenoh.ext.RepliesConfig(),
    "ext.AdvancedPublisher": lambda session: zenoh.ext.declare_advanced_publisher(session, "v/a"),
    "ext.AdvancedSubscriber": lambda session: zenoh.ext.declare_advanced_subscriber(session, "v/a"),
    "ext.SampleMissListener": lambda session: zenoh.ext.declare_advanced_subscriber(
        session, "v/l"
    ).sample_miss_listener(),
    "NTP64 (class)": lambda _: zenoh.NTP64,
}
HANDLERS = {"DefaultHandler", "FifoChannel", "RingChannel", "Callback"}
BYTES, KEYS = {"ZBytes"}, {"KeyExpr"}


def own_sample(session: zenoh.Session) -> zenoh.Sample:
    subscriber = session.declare_subscriber("v/own")
    session.put("v/own", b"x")
    return subscriber.recv()


class Called:
    """What calls are made on: each is made anew, so that no call sees what another one left."""

    def __init__(self, session: zenoh.Session, directory: Path) -> None:
        self.session, self.directory = session, directory
        self._open: list[Any] = []

    def keep(self, made: Any) -> Any:
        self._open.append(made)
        return made

    def publisher(self, **named: Any) -> Any:
        return self.keep(durable_cache.declare_reliable_publisher(self.session, "a/*", **named))

    def asked(self) -> Any:
        return self.publisher(acknowledgements=1, epochs_timeout_seconds=0)

    def receipt(self) -> Any:
        return self.asked().put(b"x", key="a/b")

    def subscriber(self, *arguments: Any, **named: Any) -> Any:
        declare = durable_cache.declare_reliable_subscriber
        return self.keep(declare(self.session, "a/b", *arguments, **named))

    def reader(self) -> Any:
        return self.subscriber(profile="eventually-consistent")

    def cache(self, **named: Any) -> Any:
        return self.keep(durable_cache.declare_reliability_cache(self.session, "a/b", **named))

    def advanced(self, **named: Any) -> Any:
        return self.keep(ext.declare_advanced_publisher(self.session, "a/b", **named))

    def listening(self, *arguments: Any, **named: Any) -> Any:
        return self.keep(ext.declare_advanced_subscriber(self.session, "a/b", *arguments, **named))

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


Call = Callable[[Called, Any], object]


def calls() -> Iterator[tuple[str, Call, set[str]]]:
    """Yield each argument as ``call.argument``, how it is passed, and the types that work."""
    dc = durable_cache
    yield "open_session.settings", lambda c, v: c.keep(dc.open_session(v)), {"Config"}
    declare_publisher = dc.declare_reliable_publisher
    yield (
        "declare_reliable_publisher.session",
        lambda c, v: c.keep(declare_publisher(v, "a")),
        {"Session"},
    )
    yield (
        "declare_reliable_publisher.key_expr",
        lambda c, v: c.keep(declare_publisher(c.session, v)),
        KEYS,
    )
    works = {
        "encoding": {"Encoding"},
        "congestion_control": {"CongestionControl"},
        "priority": {"Priority"},
        "allowed_destination": {"Locality"},
    }
    for name in ("acknowledgements", "options", *PublisherSettings.__annotations__):
        yield (
            f"declare_reliable_publisher.{name}",
            lambda c, v, name=name: c.publisher(**{name: v}),  # type: ignore[misc]
            works.get(name, set()),
        )
    yield (
        "declare_reliable_publisher.reliability",
        lambda c, v: c.keep(declare_publisher(c.session, "a", reliability=v)),
        {"Reliability"},
    )
    put = {"encoding": {"Encoding"}, "attachment": BYTES, "key": KEYS, "timestamp": {"Timestamp"}}
    yield "put.payload", lambda c, v: c.publisher().put(v, key="a/b"), BYTES
    for name, accepted in put.items():
        yield (
            f"put.{name}",
            lambda c, v, name=name: c.publisher().put(b"x", **{"key": "a/b", name: v}),  # type: ignore[misc]
            accepted,
        )
    for name in ("attachment", "key", "timestamp"):
        yield (
            f"delete.{name}",
            lambda c, v, name=name: c.publisher().delete(**{"key": "a/b", name: v}),  # type: ignore[misc]
            put[name],
        )
    yield "unregister.key", lambda c, v: c.publisher().unregister(v), KEYS
    yield "flush.timeout_seconds", lambda c, v: c.publisher().flush(v), set()
    yield "wait_for_all_acked.timeout_seconds", lambda c, v: c.asked().wait_for_all_acked(v), set()
    yield "wait.timeout_seconds", lambda c, v: c.receipt().wait(v), set()
    yield "result.timeout_seconds", lambda c, v: c.receipt().result(v), set()
    yield "on_done.callback", lambda c, v: c.receipt().on_done(v), {"Callback"}
    declare_subscriber: Any = dc.declare_reliable_subscriber
    yield (
        "declare_reliable_subscriber.session",
        lambda c, v: c.keep(declare_subscriber(v, "a")),
        {"Session"},
    )
    yield (
        "declare_reliable_subscriber.key_expr",
        lambda c, v: c.keep(declare_subscriber(c.session, v)),
        KEYS,
    )
    yield "declare_reliable_subscriber.handler", lambda c, v: c.subscriber(v), HANDLERS
    yield (
        "declare_reliable_subscriber.(handler, given)",
        lambda c, v: c.subscriber((v, None)),
        {"Callback"},
    )
    for name in (
        *("profile", "history", "recovery", "periodic_queries", "gap_timeout_seconds"),
        *("history_timeout_seconds", "query_timeout_seconds", "domain", "channel_samples"),
        *("payload_bytes_max", "options", "consumer", "confirm", "mode"),
    ):
        yield (
            f"declare_reliable_subscriber.{name}",
            lambda c, v, name=name: c.subscriber(**{name: v}),  # type: ignore[misc]
            set(),
        )
    yield (
        "declare_reliable_subscriber.consumer_options",
        lambda c, v: c.subscriber(consumer="a", consumer_options=v),
        set(),
    )
    yield (
        "declare_reliable_subscriber.exclusive",
        lambda c, v: c.subscriber(consumer="a", exclusive=v),
        set(),
    )
    yield (
        "declare_reliable_subscriber.mode_options",
        lambda c, v: c.subscriber(mode="unreliable", mode_options=v),
        set(),
    )
    yield (
        "sample_miss_listener.handler",
        lambda c, v: c.subscriber().sample_miss_listener(v),
        HANDLERS,
    )
    yield "recv.timeout_seconds", lambda c, v: c.subscriber().recv(v), set()
    yield "close.timeout_seconds", lambda c, v: c.subscriber().close(v), set()
    for name in ("sample_states", "view_states", "instance_states"):
        for verb in ("read", "take"):
            yield (
                f"{verb}.{name}",
                lambda c, v, name=name, verb=verb: getattr(c.reader(), verb)(**{name: v}),  # type: ignore[misc]
                set(),
            )
    yield "reader.wait.timeout_seconds", lambda c, v: c.reader().wait(v), set()
    yield "sample_lost_listener.handler", lambda c, v: c.reader().sample_lost_listener(v), HANDLERS
    declare_cache = dc.declare_reliability_cache
    yield (
        "declare_reliability_cache.session",
        lambda c, v: c.keep(declare_cache(v, "a")),
        {"Session"},
    )
    for how, wrap in (("", lambda v: v), (" in a list", lambda v: ["c/d", v])):
        yield (
            f"declare_reliability_cache.key_expr{how}",
            lambda c, v, wrap=wrap: c.keep(declare_cache(c.session, wrap(v))),  # type: ignore[misc]
            KEYS,
        )
    yield "declare_reliability_cache.exclude", lambda c, v: c.cache(exclude=[v]), KEYS
    for name in (
        *("backend", "backend_options", "history", "allowed_origin", "resources_limit"),
        *("source", "state_dir", "options", "pool", "unnumbered"),
    ):
        yield (
            f"declare_reliability_cache.{name}",
            lambda c, v, name=name: c.cache(**{name: v}),  # type: ignore[misc]
            {"Locality"} if name == "allowed_origin" else set(),
        )
    for name in ("age_seconds_max", "samples_max", "bytes_max"):
        yield (
            f"Retention.{name}",
            lambda c, v, name=name: c.cache(  # type: ignore[misc]
                options=dc.CacheOptions(retention=dc.Retention(**{name: v}))
            ),
            set(),
        )
    yield "FifoChannel.capacity", lambda _, v: dc.FifoChannel(v), set()
    yield "RingChannel.capacity", lambda _, v: dc.RingChannel(v), set()
    yield from ext_calls()


def ext_calls() -> Iterator[tuple[str, Call, set[str]]]:
    publish, subscribe = ext.declare_advanced_publisher, ext.declare_advanced_subscriber
    for where, declare in (("publisher", publish), ("subscriber", subscribe)):
        yield (
            f"declare_advanced_{where}.session",
            lambda c, v, declare=declare: c.keep(declare(v, "a")),  # type: ignore[misc]
            {"Session"},
        )
        yield (
            f"declare_advanced_{where}.key_expr",
            lambda c, v, declare=declare: c.keep(declare(c.session, v)),  # type: ignore[misc]
            KEYS,
        )
    declared = {
        "encoding": {"Encoding"},
        "congestion_control": {"CongestionControl"},
        "priority": {"Priority"},
        "express": set[str](),
        "reliability": {"Reliability"},
        "allowed_destination": {"Locality"},
        "cache": set[str](),
        "sample_miss_detection": set[str](),
        "publisher_detection": set[str](),
    }
    for name, accepted in declared.items():
        yield (
            f"declare_advanced_publisher.{name}",
            lambda c, v, name=name: c.advanced(**{name: v}),  # type: ignore[misc]
            accepted,
        )
    yield "AdvancedPublisher.put.payload", lambda c, v: c.advanced().put(v), BYTES
    put = {"encoding": {"Encoding"}, "attachment": BYTES, "timestamp": {"Timestamp"}}
    for name, accepted in {**put, "timestamp_instrumentation": set[str]()}.items():
        yield (
            f"AdvancedPublisher.put.{name}",
            lambda c, v, name=name: c.advanced().put(b"x", **{name: v}),  # type: ignore[misc]
            accepted,
        )
        if name != "encoding":
            yield (
                f"AdvancedPublisher.delete.{name}",
                lambda c, v, name=name: c.advanced().delete(**{name: v}),  # type: ignore[misc]
                accepted,
            )
    yield "declare_advanced_subscriber.handler", lambda c, v: c.listening(v), HANDLERS
    for name in ("allowed_origin", "history", "recovery", "subscriber_detection"):
        yield (
            f"declare_advanced_subscriber.{name}",
            lambda c, v, name=name: c.listening(**{name: v}),  # type: ignore[misc]
            {"Locality"} if name == "allowed_origin" else set(),
        )
    yield "AdvancedSubscriber.recv.timeout_seconds", lambda c, v: c.listening().recv(v), set()
    yield (
        "AdvancedSubscriber.sample_miss_listener.handler",
        lambda c, v: c.listening().sample_miss_listener(v),
        HANDLERS,
    )
    yield (
        "detect_publishers.handler",
        lambda c, v: c.keep(c.listening().detect_publishers(v)),
        HANDLERS,
    )
    yield (
        "detect_publishers.history",
        lambda c, v: c.keep(c.listening().detect_publishers(history=v)),
        set(),
    )
    configs: Mapping[Any, tuple[str, ...]] = {
        ext.CacheConfig: ("max_samples", "replies_config"),
        ext.HistoryConfig: ("detect_late_publishers", "max_samples", "max_age"),
        ext.RecoveryConfig: ("periodic_queries", "heartbeat"),
        ext.MissDetectionConfig: ("heartbeat", "sporadic_heartbeat"),
    }
    for config, names in configs.items():
        for name in names:
            yield (
                f"{config.__name__}.{name}",
                lambda _, v, config=config, name=name: config(**{name: v}),  # type: ignore[misc]
                set(),
            )
    replies = {
        "congestion_control": {"CongestionControl"},
        "priority": {"Priority"},
        "express": set[str](),
    }
    for name, accepted in replies.items():
        yield (
            f"RepliesConfig.{name}",
            lambda _, v, name=name: ext.RepliesConfig(**{name: v}),  # type: ignore[misc]
            accepted,
        )


CALLS = {name: (call, works) for name, call, works in calls()}


@pytest.fixture(scope="module")
def session() -> Iterator[zenoh.Session]:
    with LocalNetwork() as network:
        yield network.client()


@pytest.fixture(scope="module")
def values(session: zenoh.Session) -> Mapping[str, object]:
    return {name: make(session) for name, make in VALUES.items()}


@pytest.mark.parametrize("argument", CALLS)
def test_every_type_of_zenoh_works_or_is_refused_by_name(
    session: zenoh.Session, values: Mapping[str, object], argument: str, tmp_path: Path
) -> None:
    call, works = CALLS[argument]
    name = argument.rpartition(".")[2].split(" ")[0].strip("(,")
    wrong = []
    for kind, value in values.items():
        called = Called(session, tmp_path)
        try:
            call(called, value)
        except ConfigError as error:
            said = str(error)
            type_name = kind.split(".")[-1].split(" ")[0]
            if kind in works:
                wrong.append(f"{kind} is refused: {said}")
            elif not (name in said and type_name in said):
                wrong.append(f"{kind}: the message names too little: {said}")
            elif "expected" not in said and " is one of " not in said and " is a " not in said:
                wrong.append(f"{kind}: the message does not say what is accepted: {said}")
        except Exception as error:
            wrong.append(f"{kind}: {type(error).__name__}: {error}")
        else:
            if kind not in works:
                wrong.append(f"{kind} is taken")
        finally:
            with suppress(DurableCacheError):
                called.close()
    assert not wrong, "\n".join(wrong)


def test_no_type_of_zenoh_is_left_out() -> None:
    def types(module: Any, prefix: str) -> set[str]:
        public = (name for name in dir(module) if not name.startswith("_"))
        return {prefix + name for name in public if isinstance(getattr(module, name), type)}

    known = types(zenoh, "") | types(zenoh.handlers, "") | types(zenoh.ext, "ext.")
    left = known - set(VALUES) - ONLY_RECEIVED - {f"ext.{name}" for name in NUMBERS}
    assert left <= {"ext.Miss", "ext.ZDeserializeError"}


def test_no_argument_is_left_out() -> None:
    import inspect

    from durable_cache.ext import AdvancedPublisher, AdvancedSubscriber

    public: Mapping[str, Any] = {
        "open_session": durable_cache.open_session,
        "declare_reliable_publisher": durable_cache.declare_reliable_publisher,
        "declare_reliable_subscriber": durable_cache.declare_reliable_subscriber,
        "declare_reliability_cache": durable_cache.declare_reliability_cache,
        "declare_advanced_publisher": ext.declare_advanced_publisher,
        "declare_advanced_subscriber": ext.declare_advanced_subscriber,
        "put": durable_cache.ReliablePublisher.put,
        "delete": durable_cache.ReliablePublisher.delete,
        "AdvancedPublisher.put": AdvancedPublisher.put,
        "AdvancedPublisher.delete": AdvancedPublisher.delete,
        "AdvancedSubscriber.recv": AdvancedSubscriber.recv,
        "detect_publishers": AdvancedSubscriber.detect_publishers,
    }
    missing = [
        f"{call}.{name}"
        for call, function in public.items()
        for name in inspect.signature(function).parameters
        if name not in {"self", "named"} and f"{call}.{name}" not in CALLS
    ]
    assert not missing
