"""How a reliable subscriber is declared: one that delivers, or one that keeps what it gets."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

from durable_cache.endpoints.key_expressions import parse_key_expr
from durable_cache.endpoints.session import IntoKeyExpr, Session, check_session
from durable_cache.endpoints.subscriber.reader import ReliableReader
from durable_cache.endpoints.subscriber.subscriber import ReliableSubscriber, SubscriberOptions
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_kind, refused
from durable_cache.protocol.reader.profile import Profile, Reliability, find_profile
from durable_cache.protocol.subscriber.events import DeliveryOptions

__all__ = ["declare_reliable_subscriber"]


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
    """
    check_session(session)
    parsed = parse_key_expr(key_expr)
    if options is not None:
        check_kind("options", options, DeliveryOptions, "a DeliveryOptions")
    chosen = options or DeliveryOptions()
    read = None if profile is None else find_profile(profile)
    if read is not None:
        if handler is not None or history is not False or recovery is not None:
            raise ConfigError(
                "a profile decides on history and recovery, and samples are read or taken: leave "
                "handler, history and recovery out"
            )
        history, recovery = read.history, read.reliability is Reliability.RELIABLE
    if recovery is not None:
        chosen = replace(chosen, recovery=recovery)
    if periodic_queries is not None:
        chosen = replace(chosen, periodic_queries_seconds=periodic_queries)
    if gap_timeout_seconds is not None:
        chosen = replace(chosen, gap_timeout_seconds=gap_timeout_seconds)
    if history_timeout_seconds is not None:
        chosen = replace(chosen, history_timeout_seconds=history_timeout_seconds)
    if not isinstance(history, bool) and (not isinstance(history, int) or history < 1):
        raise refused("history", history, "True, False or a number of samples per key above 0")
    asked = None if history is False else "" if history is True else f"_max={history}"
    settings = SubscriberOptions(
        asked, chosen, domain, query_timeout_seconds, channel_samples, payload_bytes_max
    ).checked()
    if read is not None:
        return ReliableReader(session, parsed, read, settings)
    return ReliableSubscriber(session, parsed, handler, settings)
