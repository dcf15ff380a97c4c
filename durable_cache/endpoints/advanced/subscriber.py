"""A reliable subscriber under zenoh.ext's names: its samples have zenoh's types."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from durable_cache.endpoints.advanced.configs import HistoryConfig, RecoveryConfig, check_ours
from durable_cache.endpoints.advanced.detecting import PublisherListener
from durable_cache.endpoints.closing import Closing
from durable_cache.endpoints.key_expressions import parse_key_expr
from durable_cache.endpoints.session import (
    IntoKeyExpr,
    KeyExpr,
    Locality,
    Origins,
    Session,
    ZenohSample,
    check_session,
    read_origins,
)
from durable_cache.endpoints.subscriber.channels import Callback, Delivery, Receiving, Sink, sink_of
from durable_cache.endpoints.subscriber.subscriber import (
    MissListener,
    ReliableSubscriber,
    SubscriberOptions,
)
from durable_cache.model.arguments import check_flag
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.events import DeliveryOptions


class AdvancedSubscriber(Receiving[ZenohSample], Closing):
    """A running subscriber; a context manager and iterable.

    `reliable` is the subscriber of ours that it stands for. A callback runs on its thread.
    """

    def __init__(
        self,
        session: Session,
        key_expr: KeyExpression,
        handler: object,
        options: SubscriberOptions,
    ) -> None:
        self._session = session
        self._key_expr = key_expr
        self._sink: Sink[ZenohSample]
        self._sink, self._handler = sink_of(handler, ZenohSample, session)
        self.reliable: ReliableSubscriber = _Naming(session, key_expr, self._sink, options)

    @property
    def id(self) -> SourceId:
        """The subscriber's global id, with zenoh's `zid` and `eid`."""
        return self.reliable.source

    @property
    def key_expr(self) -> KeyExpr:
        return KeyExpr(str(self._key_expr))

    def sample_miss_listener(self, handler: object = None) -> MissListener:
        """Tell `handler` of every loss; see `ReliableSubscriber.sample_miss_listener`."""
        return self.reliable.sample_miss_listener(handler)

    def detect_publishers(
        self, handler: object = None, *, history: bool | None = None
    ) -> PublisherListener:
        """Tell `handler` which publishers appear and leave, that let themselves be detected.

        Those of zenoh.ext and ours alike. With `history`, those that are there now too. Takes what
        a subscriber takes; raises ConfigError for anything else.
        """
        if history is not None:
            check_flag("history", history)
        return PublisherListener(self._session, self._key_expr, handler, history=bool(history))

    def close(self) -> None:
        """Undeclare; what was delivered to a channel can still be taken. Idempotent."""
        self.reliable.close()

    undeclare = close


class _Naming(ReliableSubscriber):
    """Delivers samples under zenoh's names."""

    def _open(self, handler: object) -> tuple[Delivery[Sample], object]:
        self._named: Sink[ZenohSample] = handler  # type: ignore[assignment]  # as it is made above
        return _Renaming(self._named), None

    @property
    def callback_errors(self) -> int:
        """How often a callback or a listener raised; delivery went on each time."""
        own = self._named.errors if isinstance(self._named, Callback) else 0
        return super().callback_errors + own


class _Renaming:
    """Delivers to a sink of zenoh's names."""

    def __init__(self, sink: Sink[ZenohSample]) -> None:
        self._sink = sink

    def deliver(self, items: Sequence[Sample]) -> None:
        """Deliver samples in this order; may wait."""
        self._sink.deliver([ZenohSample(sample) for sample in items])

    def close(self) -> None:
        """Nothing more will come."""
        with suppress(ValueError):
            self._sink.close()


def declare_advanced_subscriber(
    session: Session,
    key_expr: IntoKeyExpr,
    handler: object = None,
    *,
    allowed_origin: Locality | None = None,
    history: HistoryConfig | None = None,
    recovery: RecoveryConfig | None = None,
    subscriber_detection: bool | None = None,
) -> AdvancedSubscriber:
    """Declare a subscriber as `zenoh.ext.declare_advanced_subscriber` does.

    History comes from every durable cache and publisher's own cache of ours in reach. Without
    `recovery` a gap is reported at once. Raises ConfigError that names the argument nobody can work
    with.
    """
    check_session(session)
    if history is not None:
        check_ours("history", history, HistoryConfig)
    delivery = DeliveryOptions(recovery=recovery is not None)
    if recovery is not None:
        check_ours("recovery", recovery, RecoveryConfig)
        delivery = replace(delivery, periodic_queries_seconds=recovery.period_seconds)
    if subscriber_detection is not None:
        check_flag("subscriber_detection", subscriber_detection)
    origins = Origins.ANY
    if allowed_origin is not None:
        origins = read_origins(allowed_origin, "allowed_origin")
    options = SubscriberOptions(
        history=None if history is None else history.parameters,
        delivery=delivery,
        allowed_origin=origins,
        joins_late=True,
        detectable=bool(subscriber_detection),
    )
    return AdvancedSubscriber(session, parse_key_expr(key_expr), handler, options)
