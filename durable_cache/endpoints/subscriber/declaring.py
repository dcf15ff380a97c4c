"""How a reliable subscriber is declared: one that delivers, or one that keeps what it gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, overload

from durable_cache.endpoints.key_expressions import parse_key_expr
from durable_cache.endpoints.session import IntoKeyExpr, Session, check_session
from durable_cache.endpoints.subscriber.consumer import Confirm, ConsumerName, ReliableConsumer
from durable_cache.endpoints.subscriber.keeping import ConsumerOptions
from durable_cache.endpoints.subscriber.reader import ReliableReader
from durable_cache.endpoints.subscriber.subscriber import ReliableSubscriber, SubscriberOptions
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_kind, refused
from durable_cache.protocol.reader.profile import Profile, Reliability, find_profile
from durable_cache.protocol.subscriber.events import DeliveryOptions

__all__ = ["declare_reliable_subscriber"]

_FOR_CONSUMERS = DeliveryOptions(history_timeout_seconds=86_400.0)
"""A consumer waits for a cache rather than pass over what is in it: a day."""


@overload
def declare_reliable_subscriber(
    session: Session,
    key_expr: IntoKeyExpr,
    handler: object = None,
    *,
    profile: None = None,
    history: bool | int = False,
    recovery: bool | None = None,
    periodic_queries: float | None = None,
    gap_timeout_seconds: float | None = None,
    history_timeout_seconds: float | None = None,
    query_timeout_seconds: float = 5.0,
    domain: str = "default",
    channel_samples: int = 100_000,
    payload_bytes_max: int = 64 << 20,
    options: DeliveryOptions | None = None,
) -> ReliableSubscriber: ...


@overload
def declare_reliable_subscriber(
    session: Session,
    key_expr: IntoKeyExpr,
    handler: object = None,
    *,
    consumer: str,
    confirm: Confirm = "auto",
    consumer_options: ConsumerOptions | None = None,
    periodic_queries: float | None = None,
    gap_timeout_seconds: float | None = None,
    history_timeout_seconds: float | None = None,
    query_timeout_seconds: float = 5.0,
    domain: str = "default",
    channel_samples: int = 100_000,
    payload_bytes_max: int = 64 << 20,
    options: DeliveryOptions | None = None,
) -> ReliableConsumer: ...


@overload
def declare_reliable_subscriber(
    session: Session,
    key_expr: IntoKeyExpr,
    handler: None = None,
    *,
    profile: Profile | str,
    periodic_queries: float | None = None,
    gap_timeout_seconds: float | None = None,
    history_timeout_seconds: float | None = None,
    query_timeout_seconds: float = 5.0,
    domain: str = "default",
    channel_samples: int = 100_000,
    payload_bytes_max: int = 64 << 20,
    options: DeliveryOptions | None = None,
) -> ReliableReader: ...


def declare_reliable_subscriber(  # noqa: PLR0913  # one call, as zenoh.ext has it
    session: Session,
    key_expr: IntoKeyExpr,
    handler: object = None,
    *,
    profile: Profile | str | None = None,
    consumer: str | None = None,
    confirm: Confirm = "auto",
    consumer_options: ConsumerOptions | None = None,
    history: bool | int = False,
    recovery: bool | None = None,
    periodic_queries: float | None = None,
    gap_timeout_seconds: float | None = None,
    history_timeout_seconds: float | None = None,
    query_timeout_seconds: float = 5.0,
    domain: str = "default",
    channel_samples: int = 100_000,
    payload_bytes_max: int = 64 << 20,
    options: DeliveryOptions | None = None,
) -> ReliableSubscriber:
    """Declare a subscriber that recovers what it misses (RFC, "The ReliableSubscriber").

    `handler` is what zenoh-python takes: a callable, a channel, ``(callable, handler)``, or None
    for a FIFO to receive from. `history` True asks for all that caches hold first, a number for so
    many samples per key; where nobody answers whole within `history_timeout_seconds`, live samples
    go through and `history_complete` is False. `periodic_queries` is the period in seconds in which
    missed tails are asked for. `options` sets everything else; named arguments win over it.

    With a `profile`, a Profile or the name of one, the subscriber keeps samples by instance for
    `read` and `take` and hands none out; the profile decides on history and recovery. A PERSISTENT
    one waits up to `history_timeout_seconds` for the token of a cache that stores the key
    expression. Raises ConfigError on a bad argument, and where that cache is not there.

    A `consumer`, a name, makes it a durable one: it delivers all that caches hold and goes on,
    after a crash too, behind what is confirmed, when the handler returns (`confirm` "auto") or by
    `confirm(sample)` ("manual"). Raises ConfigError where no cache stores its positions, or the
    name is in use; StorageUnavailable, to be tried again, where caches do not answer.
    """
    check_session(session)
    parsed = parse_key_expr(key_expr)
    name = ConsumerName.of(consumer, confirm, consumer_options)
    read = None if profile is None else find_profile(profile)
    if name is not None:
        _check_consumes_all(profile, history, recovery)
        history = True
    if read is not None:
        if handler is not None or history is not False or recovery is not None:
            raise ConfigError(
                "a profile decides on history and recovery, and samples are read or taken: leave "
                "handler, history and recovery out"
            )
        history, recovery = read.history, read.reliability is Reliability.RELIABLE
    chosen = _chosen(
        options if options is not None or name is None else _FOR_CONSUMERS,
        recovery=recovery,
        periodic_queries_seconds=periodic_queries,
        gap_timeout_seconds=gap_timeout_seconds,
        history_timeout_seconds=history_timeout_seconds,
    )
    if not isinstance(history, bool) and (not isinstance(history, int) or history < 1):
        raise refused("history", history, "True, False or a number of samples per key above 0")
    asked = None if history is False else "" if history is True else f"_max={history}"
    settings = SubscriberOptions(
        asked, chosen, domain, query_timeout_seconds, channel_samples, payload_bytes_max
    ).checked()
    if read is not None:
        return ReliableReader(session, parsed, read, settings)
    if name is not None:
        return ReliableConsumer(session, parsed, handler, settings, name)
    return ReliableSubscriber(session, parsed, handler, settings)


def _chosen(options: DeliveryOptions | None, **named: bool | float | None) -> DeliveryOptions:
    """Return the options with those that are named."""
    if options is not None:
        check_kind("options", options, DeliveryOptions, "a DeliveryOptions")
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    return replace(options or DeliveryOptions(), **given)


def _check_consumes_all(profile: object, history: object, recovery: object) -> None:
    if profile is not None:
        raise ConfigError("a profile keeps samples to be read, a consumer confirms them: take one")
    if not isinstance(history, bool) or recovery is False:
        raise ConfigError(
            "a consumer goes on where it stood, with all that came since: leave history and "
            "recovery out"
        )
