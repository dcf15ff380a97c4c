"""How values are published from a terminal, each held by a cache before the command ends well."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from durable_cache.errors import ConfigError, DurableCacheError, Unacknowledged
from durable_cache.model.key_expression import KeyExpression, parse_short
from durable_cache.protocol.wire import is_own
from durable_cache.service.output import Progress, counted, say
from durable_cache.service.verbs.options import (
    add_client_options,
    add_domain_option,
    add_guarantee_options,
    domain_of,
)
from durable_cache.service.verbs.parsing import Verbs, add_verb

if TYPE_CHECKING:
    from durable_cache.endpoints.publisher import Receipt, ReliablePublisher
    from durable_cache.endpoints.session import Session

_LINE_BYTES_MAX = 8 << 20
"""What caches take by default (`payload_bytes_max`)."""
_MATCH_SECONDS = 0.5
_LOOK_SECONDS = 0.01
_TOKENS_SECONDS = 3.0


def add_verbs(verbs: Verbs) -> None:
    """Add ``put``."""
    parser = add_verb(
        verbs,
        "put",
        description="Publish values under a key and wait until caches hold them. Exit code 1 when "
        "they have not said so in time: then it is not known whether the sample is stored.",
        examples=(
            "durable-cache put fleet/7/pose 'x=1 y=2'",
            "durable-cache put fleet/7/state '{\"battery\": 71}' --encoding application/json",
            "seq 1000 | durable-cache put fleet/7/count - --rate 100",
            "durable-cache put fleet/7/pose x=2 --acknowledgements 2 --connect tcp/10.0.0.7:7447",
        ),
    )
    parser.add_argument("key", help="one key, as in fleet/7/pose")
    parser.add_argument("value", help="the payload as text; - publishes each line of stdin")
    parser.add_argument("--encoding", default="", help="as in application/json; zenoh/bytes else")
    parser.add_argument("--attachment", default=None, metavar="TEXT")
    parser.add_argument(
        "--rate", type=float, default=0.0, metavar="PER_SECOND", help="lines a second, evenly"
    )
    add_guarantee_options(parser)
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait for caches: nothing is known then"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    add_domain_option(parser)
    add_client_options(parser)
    parser.set_defaults(run=_put)


class _Outcome(NamedTuple):
    """What became of the samples of one command."""

    published: int
    acknowledged: int
    last: Receipt | None


def _put(arguments: argparse.Namespace) -> int:
    _check(arguments)
    from durable_cache.endpoints.publisher import declare_reliable_publisher
    from durable_cache.service.client import client_session

    # Why caches are silent is said at the end; the publisher's own record would stand beside it.
    logging.getLogger("durable_cache").addHandler(logging.NullHandler())
    wanted = 0 if arguments.no_wait else arguments.acknowledgements
    with ExitStack() as stack:
        session = stack.enter_context(client_session(arguments))
        publisher = stack.enter_context(
            declare_reliable_publisher(
                session,
                arguments.key,
                acknowledgements=wanted,
                level=arguments.level,
                domain=domain_of(arguments),
                encoding=arguments.encoding or None,
                put_timeout_seconds=arguments.timeout,
            )
        )
        if arguments.no_wait:
            _await_match(publisher)
        outcome = _publish(publisher, arguments)
        missing = outcome.published - outcome.acknowledged
        reason = "" if arguments.no_wait or not missing else _reason(session, outcome, arguments)
    _show(publisher, outcome, arguments)
    if reason:
        which = "" if outcome.published == 1 else f"{missing} of {outcome.published} samples "
        raise DurableCacheError(f"{which}not acknowledged within {arguments.timeout:g} s: {reason}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    try:
        if not parse_short(arguments.key).is_key:
            raise ValueError(f"{arguments.key[:80]!r}: name one key, without wildcards")
    except ValueError as error:
        raise ConfigError(f"key {error}") from error
    if is_own(parse_short(arguments.key)):
        raise ConfigError(
            f"key {arguments.key[:80]!r}: below @durable/ are durable-cache's own messages; "
            "choose another key"
        )
    if arguments.acknowledgements < 1:
        raise ConfigError("--acknowledgements: expected 1 or more; --no-wait waits for none")
    if arguments.rate < 0:
        raise ConfigError(f"--rate: expected 0, for no limit, or above, got {arguments.rate:g}")
    if not arguments.timeout > 0:
        raise ConfigError(f"--timeout: expected seconds above 0, got {arguments.timeout:g}")


def _values(arguments: argparse.Namespace) -> Iterator[bytes]:
    """Yield what is to be published, lines at the rate that was asked for."""
    if arguments.value != "-":
        yield arguments.value.encode("utf-8", "surrogateescape")
        return
    began, count = time.monotonic(), 0
    while line := sys.stdin.buffer.readline(_LINE_BYTES_MAX + 1):
        if len(line) > _LINE_BYTES_MAX:
            raise DurableCacheError(
                f"line {count + 1} of stdin: longer than {_LINE_BYTES_MAX >> 20} MiB, "
                "what caches take at most"
            )
        if arguments.rate:
            time.sleep(max(0.0, began + count / arguments.rate - time.monotonic()))
        yield line.removesuffix(b"\n").removesuffix(b"\r")
        count += 1


def _await_match(publisher: ReliablePublisher[Receipt]) -> None:
    """Wait a moment for somebody who listens: what nobody hears and nobody awaits is lost."""
    deadline = time.monotonic() + _MATCH_SECONDS
    while not publisher.matched and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _publish(publisher: ReliablePublisher[Receipt], arguments: argparse.Namespace) -> _Outcome:
    """Publish every value; returns how many were acknowledged before the time was over."""
    receipts: deque[Receipt] = deque()
    published = acknowledged = 0
    last: Receipt | None = None
    with ExitStack() as stack:
        stack.push(lambda kind, *_: _tell_of_end(kind, published, acknowledged, receipts))
        with ExitStack() as shown:
            progress = (
                shown.enter_context(Progress("published")) if arguments.value == "-" else None
            )
            try:
                for value in _values(arguments):
                    receipt: Receipt | None = publisher.put(value, attachment=arguments.attachment)
                    published += 1
                    if receipt is not None:
                        last = receipt
                        receipts.append(receipt)
                    while receipts and receipts[0].done:
                        receipts.popleft()
                        acknowledged += 1
                    if progress is not None:
                        progress.advance()
            except Unacknowledged:
                published += 1  # it was not, and neither was what follows it
        deadline = time.monotonic() + arguments.timeout
        acknowledged += sum(
            receipt.wait(max(0.0, deadline - time.monotonic())) for receipt in receipts
        )
    return _Outcome(published, acknowledged, last)


def _tell_of_end(
    kind: type[BaseException] | None, published: int, acknowledged: int, left: Iterable[Receipt]
) -> None:
    """Say of what was published before Ctrl-C how much is known to be held."""
    if kind is not None and issubclass(kind, KeyboardInterrupt) and published:
        held = acknowledged + sum(receipt.done for receipt in left)
        say(f"interrupted: {counted(published, 'sample')} published, {held} acknowledged")


def _reason(session: Session, outcome: _Outcome, arguments: argparse.Namespace) -> str:
    """Say why caches were silent, as far as their tokens tell, and what to do."""
    held = {} if outcome.last is None else dict(outcome.last.caches)
    lowest = min(held.values()).name.lower() if held else ""
    if len(held) >= arguments.acknowledgements and lowest != arguments.level:
        return (
            f"{counted(len(held), 'cache')} acknowledged at level {lowest}; --level {lowest} takes "
            "that for enough, acknowledge in its configuration raises it"
        )
    if held:
        return (
            f"{len(held)} of {arguments.acknowledgements} caches have it; start more, or ask for "
            "fewer with --acknowledgements"
        )
    stored = _stored(session, domain_of(arguments), KeyExpression(arguments.key))
    if not stored:
        return (
            f"no cache of the domain {domain_of(arguments)!r} is in reach; start one with "
            "`durable-cache serve`, or say where it is with --connect ENDPOINT"
        )
    if not any(KeyExpression(text).matches(arguments.key) for text in stored):
        shown = ", ".join(sorted(stored)[:5])
        return (
            f"the caches in reach store {shown}, not {arguments.key}; add it to a storage's "
            "key_expr"
        )
    return "a cache in reach stores it and has not answered; `durable-cache status` says why"


def _stored(session: Session, domain: str, key: KeyExpression) -> set[str]:
    """Return the key expressions that the caches of a domain store, those of a key for certain."""
    from durable_cache.endpoints.session import tokens_now
    from durable_cache.protocol.wire import own_key, tokens_about

    head, tokens = own_key(domain, "history", ""), set[str]()
    patterns = {own_key(domain, "history", "**"), tokens_about(domain, "history", key)}
    deadline = time.monotonic() + _TOKENS_SECONDS
    while not tokens and time.monotonic() < deadline:
        # On a busy machine Zenoh's answer ends now and then before the tokens in it have come.
        for pattern in patterns:
            tokens |= tokens_now(session, pattern, _TOKENS_SECONDS)
        time.sleep(_LOOK_SECONDS)
    parts = (token.removeprefix(head).split("/", 2) for token in tokens)
    found = set()
    for part in parts:
        try:
            found.add(str(KeyExpression(part[2])))
        except (IndexError, ValueError):
            continue  # not a token of a cache of ours
    return found


def _show(
    publisher: ReliablePublisher[Receipt], outcome: _Outcome, arguments: argparse.Namespace
) -> None:
    held = {} if outcome.last is None else dict(outcome.last.caches)
    if arguments.json:
        shown = {
            "key": arguments.key,
            "source": str(publisher.source),
            "epoch": publisher.epoch,
            "sn": publisher.next_sn - 1,
            "published": outcome.published,
            "acknowledged": outcome.acknowledged,
            "caches": {cache: level.name.lower() for cache, level in held.items()},
        }
        print(json.dumps(shown, ensure_ascii=False))
        return
    if arguments.no_wait:
        say(f"{counted(outcome.published, 'sample')} published; whether stored is not known")
    elif not outcome.published:
        say(f"{arguments.key}: nothing was published, standard input was empty")
    elif outcome.acknowledged == outcome.published:
        what = arguments.key
        if arguments.value == "-":
            what = f"{arguments.key}: {counted(outcome.published, 'sample')}"
        print(f"{what}: acknowledged by {counted(len(held), 'cache')} at level {arguments.level}")
