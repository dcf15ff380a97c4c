"""How a reliable subscriber is declared: one that delivers, or one that keeps what it gets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

from durable_cache.endpoints.key_expressions import parse_key_expr
from durable_cache.endpoints.session import IntoKeyExpr, Session, check_session, while_open
from durable_cache.endpoints.subscriber.asked import Confirm, ConsumerName
from durable_cache.endpoints.subscriber.consumer import ReliableConsumer
from durable_cache.endpoints.subscriber.exclusive import ExclusiveConsumer
from durable_cache.endpoints.subscriber.keeping import ConsumerOptions
from durable_cache.endpoints.subscriber.reader import ReliableReader
from durable_cache.endpoints.subscriber.retrying import RetryingSubscriber
from durable_cache.endpoints.subscriber.sharing import SharingConsumer
from durable_cache.endpoints.subscriber.subscriber import ReliableSubscriber, SubscriberOptions
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_kind, refused
from durable_cache.model.delivery import DeliveryMode
from durable_cache.protocol.modes import EXACTLY_ONCE, Mode, ModeOptions
from durable_cache.protocol.reader.profile import Profile, Reliability, find_profile
from durable_cache.protocol.subscriber.events import DeliveryOptions

FOR_CONSUMERS = DeliveryOptions(history_timeout_seconds=86_400.0)
"""A consumer waits for a cache rather than pass over what is in it: a day."""


@overload
def declare_reliable_subscriber(
    session: Session,
    key_expr: IntoKeyExpr,
    handler: object = None,
    *,
    mode: Literal["at-least-once", DeliveryMode.AT_LEAST_ONCE],
    mode_options: ModeOptions | None = None,
    confirm: Confirm = "auto",
    history: bool | int = False,
    periodic_queries: float | None = None,
    gap_timeout_seconds: float | None = None,
    history_timeout_seconds: float | None = None,
    query_timeout_seconds: float = 5.0,
    domain: str = "default",
    channel_samples: int = 100_000,
    payload_bytes_max: int = 64 << 20,
    options: DeliveryOptions | None = None,
) -> RetryingSubscriber: ...


@overload
def declare_reliable_subscriber(
    session: Session,
    key_expr: IntoKeyExpr,
    handler: object = None,
    *,
    profile: None = None,
    mode: DeliveryMode | str | None = None,
    mode_options: ModeOptions | None = None,
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
    exclusive: bool = False,
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
    exclusive: bool = False,
    consumer_options: ConsumerOptions | None = None,
    mode: DeliveryMode | str | None = None,
    mode_options: ModeOptions | None = None,
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
    go through. Each `periodic_queries` seconds missed tails are asked for. `options` sets the rest.

    With a `profile`, a Profile or its name, the subscriber keeps samples by instance for `read` and
    `take`; the profile decides on history and recovery. A PERSISTENT one waits up to
    `history_timeout_seconds` for a cache of the key expression, then raises ConfigError.

    A `consumer`, a name, makes it a durable one (docs/consumers.md): it goes on, after a crash too,
    behind what is confirmed, when the handler returns (`confirm` "auto") or by `confirm(sample)`;
    with `exclusive`, where a majority of the caches holds that. ConfigError: no cache stores its
    positions; StorageUnavailable or NoMajority, to be tried again; Closed on a closed session.

    `mode` is "exactly-once", "at-least-once", "at-most-once" or "unreliable" (docs/delivery.md).
    """
    check_session(session)
    parsed = parse_key_expr(key_expr)
    read = None if profile is None else find_profile(profile)
    delivery = _mode(mode, mode_options, alone=consumer is None and read is None)
    name = ConsumerName.of(consumer, confirm, consumer_options, retries=delivery.confirms)
    _check_exclusive(exclusive, name)
    if name is not None:
        _check_consumes_all(profile, history, recovery)
        history = True
    if read is not None:
        history, recovery = _of_profile(read, handler, history, recovery)
    chosen = _chosen(
        options if options is not None or name is None else FOR_CONSUMERS,
        recovery=recovery,
        periodic_queries_seconds=periodic_queries,
        gap_timeout_seconds=gap_timeout_seconds,
        history_timeout_seconds=history_timeout_seconds,
    )
    if mode is not None:
        _check_contradictions(delivery, chosen, recovery, history)
    asked, bounds = _asked(history), (query_timeout_seconds, channel_samples, payload_bytes_max)
    settings = SubscriberOptions(asked, chosen, domain, *bounds, mode=delivery).checked()
    with while_open(session):
        if read is not None:
            return ReliableReader(session, parsed, read, settings)
        if name is None and delivery.confirms:
            return RetryingSubscriber(session, parsed, handler, settings, confirm)
        kind = ReliableSubscriber if name is None else partial(_kind(name), name=name)
        return kind(session, parsed, handler, settings)


def _check_exclusive(exclusive: object, name: ConsumerName | None) -> None:
    """ConfigError where it is not said of how many caches a majority must hold positions."""
    if not isinstance(exclusive, bool):
        raise refused("exclusive", exclusive, "True or False")
    if exclusive and name is None:
        raise ConfigError("exclusive: name the consumer that is to process alone, as consumer=")
    caches = None if name is None else name.options.caches
    if exclusive and caches is None:
        raise ConfigError(
            "exclusive: say how many caches store the positions, as in "
            "consumer_options=ConsumerOptions(caches=3)"
        )
    if caches is not None and not exclusive:
        raise ConfigError("caches: it says of how many a majority is needed; add exclusive=True")


def _kind(name: ConsumerName) -> type[ReliableConsumer]:
    if name.options.caches is not None:
        return ExclusiveConsumer
    return SharingConsumer if name.options.shared else ReliableConsumer


def _of_profile(
    profile: Profile, handler: object, history: object, recovery: object
) -> tuple[bool | int, bool]:
    """Return which history and recovery a profile asks for; ConfigError where they are given."""
    if handler is not None or history is not False or recovery is not None:
        raise ConfigError(
            "a profile decides on history and recovery, and samples are read or taken: leave "
            "handler, history and recovery out"
        )
    return profile.history, profile.reliability is Reliability.RELIABLE


def _asked(history: bool | int) -> str | None:
    """Return the parameters of the question for history; None where none is asked."""
    if not isinstance(history, bool) and (not isinstance(history, int) or history < 1):
        raise refused("history", history, "True, False or a number of samples per key above 0")
    return None if history is False else "" if history is True else f"_max={history}"


def _mode(named: DeliveryMode | str | None, options: object, *, alone: bool) -> Mode:
    """Return the mode that is named; `alone`: no consumer and no profile decide on delivery."""
    if named is None:
        if options is not None:
            raise ConfigError("mode_options: name the mode they are of")
        return EXACTLY_ONCE
    given = ModeOptions() if options is None else options
    mode = Mode.of(named, check_kind("mode_options", given, ModeOptions, "a ModeOptions"))
    if not alone:
        raise ConfigError(
            "a consumer delivers until it is confirmed, a profile as its reliability says: leave "
            "mode and mode_options out"
        )
    return mode


def _check_contradictions(
    mode: Mode, options: DeliveryOptions, recovery: bool | None, history: object
) -> None:
    """ConfigError where recovery, history or periodic queries contradict a mode."""
    words = mode.delivery.words
    if mode.recovers and not options.recovery:
        raise ConfigError(f'mode="{words}" recovers what is missing: leave recovery=False out')
    if not mode.recovers and recovery:
        raise ConfigError(
            f'mode="{words}" recovers nothing: leave recovery out, or choose another mode'
        )
    if not mode.recovers and history is not False:
        raise ConfigError(
            f'mode="{words}" passes on what arrives and asks nobody: leave history out, or choose '
            'mode="exactly-once" or "at-least-once"'
        )
    if not mode.recovers and options.periodic_queries_seconds is not None:
        raise ConfigError(f'mode="{words}" recovers nothing: leave periodic_queries out')


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
