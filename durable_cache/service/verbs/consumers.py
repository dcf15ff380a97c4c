"""How far durable consumers have come, what they could not process, and rewinding one."""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import wrong_at
from durable_cache.model.sample import SourceId
from durable_cache.model.selection import NO_TIME, parse_time
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.service.output import (
    counted,
    say,
    write_json,
    write_result,
    write_rows,
    write_table,
)
from durable_cache.service.verbs.options import (
    add_client_options,
    add_domain_option,
    add_format_option,
    domain_of,
)
from durable_cache.service.verbs.parsing import Verbs, add_verb, in_words_of

if TYPE_CHECKING:
    from durable_cache.endpoints.session import Session
    from durable_cache.endpoints.subscriber.overview import ConsumerStatus, RunStatus

_COLUMNS = (
    *("consumer", "key_expr", "runs", "behind", "open", "dead_letters", "members"),
    *("exclusive", "processed_twice"),
)
_RUNS = ("source", "epoch", "confirmed_to", "reached", "open", "newest", "behind", "member")
_LETTERS = ("key", "source", "epoch", "sn", "attempts", "reason", "payload")
_PREDECESSOR_SECONDS = 1.0
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


def add_verbs(verbs: Verbs) -> None:
    """Add the verb."""
    consumers = add_verb(
        verbs,
        "consumers",
        examples=(
            "durable-cache consumers",
            "durable-cache consumers billing --json",
            "durable-cache consumers billing --dead-letters",
            "durable-cache consumers --reset billing --to 2026-11-22T08:00:00Z",
            "durable-cache consumers --reset billing --to 'now(-1h)'",
        ),
        description=(
            "How far durable consumers have come. `behind` counts numbers of their sources that "
            "are not confirmed, those of keys that are not consumed among them. `member` is which "
            "of those that live processes the source. `processed_twice` counts samples that were "
            "processed on both sides of a network that was cut; it is empty where a member does "
            "not answer, or none lives."
        ),
    )
    consumers.add_argument("consumer", metavar="NAME", nargs="?", default="", help="one, in detail")
    consumers.add_argument(
        "--dead-letters", action="store_true", help="what NAME could not process, and why"
    )
    consumers.add_argument(
        "--reset",
        default="",
        metavar="NAME",
        help="rewind a consumer that is not running: what was confirmed is delivered again",
    )
    consumers.add_argument(
        "--to",
        default="",
        metavar="TIME|SN",
        help="with --reset: from this time or number on; all that caches keep without it",
    )
    consumers.add_argument(
        "--source", default="", metavar="ZID:EID", help="with --to SN: whose number it is"
    )
    consumers.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="wait so long for caches"
    )
    add_format_option(consumers)
    add_domain_option(consumers)
    add_client_options(consumers)
    consumers.set_defaults(run=_consumers)


def _consumers(arguments: argparse.Namespace) -> int:
    from durable_cache.service.client import client_session

    if not arguments.timeout > 0:
        raise ConfigError("--timeout: expected seconds above 0")
    if arguments.reset and (arguments.consumer or arguments.dead_letters):
        raise ConfigError("--reset: it names the consumer; leave NAME and --dead-letters out")
    if arguments.dead_letters and not arguments.consumer:
        raise ConfigError("--dead-letters: name the consumer, as in: consumers billing")
    if not arguments.reset and (arguments.to or arguments.source):
        raise ConfigError("--to, --source: they say where --reset NAME goes back to")
    with client_session(arguments) as session:
        if arguments.reset:
            return _reset(session, arguments)
        if arguments.dead_letters:
            return _dead_letters(session, arguments)
        return _show(session, arguments)


def _reset(session: Session, arguments: argparse.Namespace) -> int:
    from durable_cache.endpoints.subscriber.keeping import ConsumerOptions
    from durable_cache.endpoints.subscriber.overview import rewind_consumer

    target, source = _target(arguments.to), _source(arguments.source)
    with in_words_of({"to": "--to", "source": "--source", "consumer": "--reset"}):
        moved = rewind_consumer(
            session,
            arguments.reset,
            target,
            source=source,
            domain=domain_of(arguments),
            options=ConsumerOptions(
                predecessor_seconds=_PREDECESSOR_SECONDS, caches_seconds=arguments.timeout
            ),
            timeout_seconds=arguments.timeout,
        )
    to = f" to {arguments.to}" if arguments.to else ""
    write_result(
        f"{arguments.reset}: rewound{to} in {counted(moved, 'run')}",
        {"consumer": arguments.reset, "to": arguments.to or None, "runs": moved},
        as_json=arguments.format == "json",
    )
    return 0


def _target(text: str) -> datetime | int | None:
    if not text:
        return None
    if re.fullmatch("[0-9]{1,11}", text):
        return int(text)
    with wrong_at("--to"):
        times = parse_time(f"[{text}..]", time.time_ns())
        if times == NO_TIME:
            raise ConfigError(f"{text}: no sample bears a time after 2106-02-07, where Zenoh's end")
        first = times.first
    return _UNIX + timedelta(microseconds=ntp64_to_ns(first) // 1000)


def _source(text: str) -> SourceId | None:
    if not text:
        return None
    with wrong_at("--source"):
        return SourceId.parse(text)


def _dead_letters(session: Session, arguments: argparse.Namespace) -> int:
    from durable_cache.endpoints.subscriber.dead_letters import read_dead_letters
    from durable_cache.service.samples import rows_of

    letters = list(
        read_dead_letters(
            session,
            arguments.consumer,
            domain=domain_of(arguments),
            query_timeout_seconds=arguments.timeout,
        )
    )
    if not letters:
        _known(session, arguments)
    as_json = arguments.format == "json"
    samples = rows_of([letter.sample for letter in letters], short=not as_json)
    rows = [
        {**row, "attempts": letter.attempts, "reason": letter.reason}
        for letter, row in zip(letters, samples, strict=True)
    ]
    write_rows(rows, _LETTERS, arguments.format)
    if not as_json:
        say(counted(len(rows), "dead letter"))
    return 0


def _known(session: Session, arguments: argparse.Namespace) -> list[ConsumerStatus]:
    """Return the consumers that are asked for; ConfigError where one is named that is not known."""
    from durable_cache.endpoints.subscriber.overview import find_consumers

    found = find_consumers(
        session,
        arguments.consumer or "*",
        domain=domain_of(arguments),
        query_timeout_seconds=arguments.timeout,
    )
    if arguments.consumer and not found:
        raise ConfigError(
            f"no consumer is called {arguments.consumer!r}; durable-cache consumers lists them"
        )
    return found


def _show(session: Session, arguments: argparse.Namespace) -> int:
    found = _known(session, arguments)
    if arguments.format == "json":
        write_json([_object(status) for status in found])
    elif arguments.consumer:
        write_table([_run(run) for run in found[0].runs], _RUNS)
        about = f"{found[0].key_expr}, {counted(len(found[0].members), 'member')}"
        twice = found[0].processed_twice
        say(about + (f", {counted(twice, 'sample')} processed twice" if twice else ""))
    else:
        rows = [
            {**_object(one), "runs": len(one.runs), "members": len(one.members)} for one in found
        ]
        write_table(rows, _COLUMNS)
        say(counted(len(rows), "consumer"))
    errors = [error for status in found for error in status.errors]
    for error in errors:
        say(error)
    return 1 if errors else 0


def _object(status: ConsumerStatus) -> dict[str, object]:
    names = ("consumer", "key_expr", "behind", "open", "dead_letters", "exclusive", "members")
    values = {name: getattr(status, name) for name in (*names, "processed_twice")}
    return {**values, "runs": [_run(run) for run in status.runs]}


def _run(run: RunStatus) -> dict[str, object]:
    return {**{name: getattr(run, name) for name in (*_RUNS, "fence")}, "source": str(run.source)}
