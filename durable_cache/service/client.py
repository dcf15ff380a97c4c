"""How verbs ask running services and caches over a Zenoh session of their own."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import Decoder, Session, ask, open_session, read_config, zid_of
from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.sample import Sample
from durable_cache.model.selection import Cursor, Order, Selection
from durable_cache.model.sequence import SN_MAX
from durable_cache.service.contexts import chosen_context
from durable_cache.service.document import read_document
from durable_cache.service.layers import Overrides, lay_over_zenoh

NOBODY_ANSWERED = "no cache is in reach; is one running, is --connect right?"
_SN_OF_NOBODY = SN_MAX
"""No source comes to it, and no timestamp after the first seconds of 1970 stands for it."""

_REPLY_BYTES_MAX = 256 << 20
_SCOUTING_OFF = {"multicast": {"enabled": False}}
_ZENOH_TIMEOUT = "Timeout"
"""What Zenoh replies itself for those who did not."""
_HERE = "tcp/127.0.0.1:7447"
"""Where `durable-cache serve` and zenohd listen by default: networks without multicast exist."""


@contextmanager
def client_session(arguments: argparse.Namespace) -> Iterator[Session]:
    """Open a session as the command line says, closed at the end of the block.

    Where neither it, nor the environment, nor a context names an endpoint or a file, what listens
    on this machine's default port is asked, and where nothing does, services are scouted for.
    Raises ConfigError on a wrong setting, else `DurableCacheError`.
    """
    asked = asked_services(arguments, os.environ)
    session = _open_first(session_settings(arguments, asked), asked.context)
    try:
        yield session
    finally:
        session.close()  # type: ignore[no-untyped-call]


def _open_first(settings: Sequence[Mapping[str, object]], context: str) -> Session:
    """Open a session with the first settings that lead somewhere."""
    for tried in settings:
        read_config(tried)
    for tried in settings[:-1]:
        try:
            return open_session(tried)
        except ConfigError:
            continue  # nobody is there
    try:
        return open_session(settings[-1])
    except ConfigError as error:
        told = f"context {context!r}" if context else "--connect"
        raise DurableCacheError(f"{error}; is the service running, is {told} right?") from error


class AskedServices(NamedTuple):
    """Which services are asked, and who said so."""

    endpoints: Sequence[str]
    file: str
    context: str = ""
    """The profile that named them; empty where options or environment did."""


def asked_services(arguments: argparse.Namespace, environment: Mapping[str, str]) -> AskedServices:
    """Return what options name, else the environment, else a context; ConfigError for a wrong one.

    ``--context`` goes before the environment, and what options name is laid over it.
    """
    if arguments.context:
        return _of_context(arguments, environment)
    file = arguments.config or environment.get("ZENOH_CONFIG", "")
    named = environment.get("DURABLE_CACHE_CONNECT", "").split(",")
    endpoints = arguments.connect or [part.strip() for part in named if part.strip()]
    if file or endpoints or arguments.mode or arguments.listen:
        return AskedServices(endpoints, file)
    return _of_context(arguments, environment)


def _of_context(arguments: argparse.Namespace, environment: Mapping[str, str]) -> AskedServices:
    name, context = chosen_context(arguments.context, environment)
    return AskedServices(
        arguments.connect or context.connect, arguments.config or context.config, name
    )


def session_settings(
    arguments: argparse.Namespace, asked: AskedServices
) -> list[dict[str, object]]:
    """Return Zenoh's settings for a verb that asks or publishes, to be tried in this order.

    A client before a peer: what it publishes is heard by all at once, while two peers that have
    just come know each other a little later. Raises ConfigError.
    """
    endpoints, file, _ = asked
    overrides = Overrides(
        mode=arguments.mode,
        listen=arguments.listen,
        connect=endpoints,
        cfg=arguments.cfg,
        scouting_off=arguments.no_multicast_scouting,
    )
    settings: list[dict[str, object]] = [read_document(Path(file)) if file else {}]
    settings[0].pop("plugins", None)
    if endpoints:
        settings[0].setdefault("mode", "client")
        settings[0].setdefault("scouting", _SCOUTING_OFF)
    elif not file and not arguments.mode and not arguments.listen:
        here: dict[str, object] = {
            "mode": "client",
            "connect": {"endpoints": [_HERE]},
            "scouting": _SCOUTING_OFF,
        }
        settings = [here, {"mode": "peer"}]
    for tried in settings:
        lay_over_zenoh(tried, overrides)
    return settings


def admin_values(
    session: Session,
    path: str,
    parameters: Mapping[str, str] | None = None,
    *,
    zid: str = "*",
    timeout_seconds: float = 10.0,
) -> list[tuple[str, object]]:
    """Ask every service, or one, for ``@/<zid>/durable_cache/<path>``; returns (zid, value) each.

    Raises DurableCacheError with the reason a service gave for refusing.
    """
    given = ";".join(f"{name}={_value(text)}" for name, text in (parameters or {}).items())
    selector = f"@/{zid}/durable_cache/{path}" + (f"?{given}" if given else "")
    decoder = Decoder(zid_of(session), _REPLY_BYTES_MAX)
    found: list[tuple[str, object]] = []
    errors = []
    for answer in ask(session, selector, timeout_seconds=timeout_seconds, decoder=decoder):
        if answer.sample is None:
            errors.append(answer.error)
        else:
            replier = answer.sample.key.split("/")[1]
            found.append((replier, cast("object", json.loads(answer.sample.payload))))
    if errors:
        reasons = {why_silent(reason, timeout_seconds) for reason in errors}
        raise DurableCacheError("; ".join(sorted(reasons)))
    return found


def why_silent(reason: str, timeout_seconds: float) -> str:
    """Return in words why somebody who is there did not answer."""
    if reason != _ZENOH_TIMEOUT:
        return reason
    return (
        f"no answer within {timeout_seconds:g} s; it is stopped, too busy, or its link was just cut"
    )


def _value(text: str) -> str:
    if ";" in text or "=" in text:
        raise ConfigError(f"{text[:80]!r}: a selector has no room for ; and =; write * for them")
    return text


@dataclass(slots=True)
class Pages:
    """What became of questions for history; filled by `history_pages`."""

    errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why samples were left out, one reason each."""
    repliers: set[str] = field(default_factory=set)
    """The services that answered."""
    answers: int = 0
    """A cache that holds nothing answers too: none means that nobody was asked."""


def are_caches_in_reach(asking: Asking) -> bool:
    """Tell whether some cache, whatever it stores, answers at all."""
    return asking.caches("**", "*", f"_sn={_SN_OF_NOBODY}").answers > 0


def history_pages(
    asking: Asking,
    key_expr: str,
    prefix: str,
    parameters: str,
    pages: Pages,
    order: Order = Order.IDENTITY,
) -> Iterator[list[Sample]]:
    """Yield what all caches hold, each sample once, in `order`.

    Answers of several caches may be cut at different places: what lies beyond the earliest cut
    waits for the next page.
    """
    place = Selection(order=order).place
    if order is Order.TIME:
        parameters = ";".join(filter(None, (parameters, "_order=time")))
    after: Sample | None = None
    last: Cursor | None = None
    while True:
        gathered = asking.page(key_expr, prefix, parameters, after)
        cut = after = gathered.following(after)
        pages.errors += [f"a cache could not answer: {reason}" for reason in gathered.errors]
        pages.answers += gathered.answers
        pages.repliers |= gathered.repliers
        pages.refused += gathered.refused
        samples = gathered.ordered()
        if order is Order.TIME:
            samples = sorted(samples, key=place)
        yield [
            sample
            for sample in samples
            if (last is None or place(sample) > last)
            and (cut is None or place(sample) <= place(cut))
        ]
        if cut is None:
            return
        last = place(cut)
