"""How a reliable publisher is declared: typed by whether it wants acknowledgements."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Unpack, overload

from durable_cache.endpoints.key_expressions import parse_key_expr
from durable_cache.endpoints.publisher.options import PublisherOptions, PublisherSettings
from durable_cache.endpoints.publisher.publisher import ReliablePublisher
from durable_cache.endpoints.publisher.receipts import Receipt
from durable_cache.endpoints.session import IntoKeyExpr, Session, check_session, while_open
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import check_kind, with_named
from durable_cache.protocol.wire import is_stored_by_nobody


@overload
def declare_reliable_publisher(  # type: ignore[overload-overlap]  # 0 is an int: taken first
    session: Session,
    key_expr: IntoKeyExpr,
    *,
    acknowledgements: Literal[0] | None = None,
    options: None = None,
    **named: Unpack[PublisherSettings],
) -> ReliablePublisher[None]: ...


@overload
def declare_reliable_publisher(
    session: Session,
    key_expr: IntoKeyExpr,
    *,
    acknowledgements: int,
    options: PublisherOptions | None = None,
    **named: Unpack[PublisherSettings],
) -> ReliablePublisher[Receipt]: ...


@overload
def declare_reliable_publisher(
    session: Session,
    key_expr: IntoKeyExpr,
    *,
    acknowledgements: int | None = None,
    options: PublisherOptions,
    **named: Unpack[PublisherSettings],
) -> ReliablePublisher[Receipt | None]: ...


def declare_reliable_publisher(
    session: Session,
    key_expr: IntoKeyExpr,
    *,
    acknowledgements: int | None = None,
    options: PublisherOptions | None = None,
    **named: Unpack[PublisherSettings],
) -> ReliablePublisher[Receipt] | ReliablePublisher[None] | ReliablePublisher[Receipt | None]:
    """Declare a publisher whose samples can be recovered (RFC, "The ReliablePublisher").

    `cache` keeps its newest `history` samples in this process for recovery. With
    `acknowledgements` = k > 0 each put returns a receipt that is done when k caches hold the sample
    at `level`. Samples that wait for acknowledgements are all kept, at most `unacknowledged_max`:
    beyond, a put waits for `put_timeout_seconds` and then raises Unacknowledged. Every field of
    `PublisherOptions` is a named argument; those given win over `options`. The default quality of
    service blocks rather than drops. Raises ConfigError on a bad argument, Closed where the session
    is closed.
    """
    check_session(session)
    parsed = parse_key_expr(key_expr)
    if options is not None:
        check_kind("options", options, PublisherOptions, "durable_cache.PublisherOptions")
    chosen = with_named("declare_reliable_publisher", options or PublisherOptions(), named)
    if acknowledgements is not None:
        chosen = replace(chosen, acknowledgements=acknowledgements)
    if is_stored_by_nobody(parsed):
        raise ConfigError(
            f"key expression {str(parsed)[:80]!r}: below @durable/ are durable-cache's own "
            "messages, which no program publishes; choose other keys"
        )
    if chosen.reliability is not None and not parsed.is_key:
        raise ConfigError(
            f"reliability: a publisher on {parsed} sends through its session; declare it on a key"
        )
    with while_open(session):
        return ReliablePublisher(session, parsed, chosen.checked())
