"""What was lost, of whom: the verb ``loss``, RaiMS's table over subscribers and caches."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.service.output import say, write_anew, write_rows
from durable_cache.service.verbs.options import add_client_options, add_format_option
from durable_cache.service.verbs.parsing import Verbs, add_verb

if TYPE_CHECKING:
    from durable_cache.endpoints.session import Session
    from durable_cache.model.sample import SourceId
    from durable_cache.protocol.losses import LossRow, LossTable

Row = Mapping[str, object]
_COUNTS = (
    *("repeat", "rep time", "not sub", "not time"),
    *("msg loss", "loss time", "ibx loss", "ibx time"),
)
_COLUMNS = ("at", "user", *_COUNTS, "R", "UR", "mode")
_SUBJECTS = (
    *("at", "key_expr", "subjects", "perhaps_incomplete", "starts", "joined", "repeats"),
    *("skips", "lost", "unsubscribed", "rotated", "bytes"),
)
_SKIPS = ("storage", "source", "epoch", "first", "last", "samples")
_ASK_SECONDS = 5.0


def add_verbs(verbs: Verbs) -> None:
    """Add the verb."""
    loss = add_verb(
        verbs,
        "loss",
        examples=(
            "durable-cache loss",
            "durable-cache loss --watch",
            "durable-cache loss --skips --storage fleet",
        ),
        description=(
            "Show per publisher what every subscriber of durable_cache that runs, and every cache, "
            "counted: repeat, samples that came again; not sub, that came when the subscriber was "
            "closed; msg loss, that were given up; ibx loss, questions without a whole answer; "
            "each with the time of the last; R and UR, the reliability and the uniqueness rate "
            "from the publisher to the subscriber's program; its delivery mode. With --skips the "
            "numbers that caches gave up, with --subjects what subscribers counted of subject "
            "sequences."
        ),
    )
    loss.add_argument("--skips", action="store_true", help="the numbers that caches gave up")
    loss.add_argument("--subjects", action="store_true", help="what subscribers counted key by key")
    loss.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
    loss.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    loss.add_argument("--rounds", type=int, default=0, help="stop after so many; 0: until Ctrl-C")
    loss.add_argument("--storage", default="*", help="of caches, only this storage")
    loss.add_argument("--limit", type=int, default=1000, help="rows at most (default 1000)")
    add_format_option(loss)
    add_client_options(loss)
    loss.set_defaults(run=_loss)


def _loss(arguments: argparse.Namespace) -> int:
    from durable_cache.service.client import client_session

    if arguments.limit < 1:
        raise ConfigError("--limit: expected a number above 0")
    if not arguments.interval > 0:
        raise ConfigError(f"--interval: expected seconds above 0, got {arguments.interval:g}")
    if arguments.rounds < 0:
        raise ConfigError(f"--rounds: expected 0 or above, got {arguments.rounds}")
    if arguments.watch + arguments.skips + arguments.subjects > 1:
        raise ConfigError("--watch, --skips and --subjects each show something else: take one")
    storage = storage_name(arguments.storage)
    with client_session(arguments) as session:
        if arguments.skips:
            return _skips(session, storage, arguments)
        if arguments.watch:
            return _watch(session, storage, arguments)
        found, silent = _tables(session, storage)
        if arguments.subjects:
            _show_subjects(found, arguments, is_whole=not silent)
        else:
            rows = _rows(found, arguments.limit, people=arguments.format != "json")
            write_rows(rows, _COLUMNS, arguments.format)
            if not (silent or any(row.lost for table in found for row in table.rows)):
                say("no sample was lost")
    for reason in silent:
        say(f"not every table is shown: {reason}")
    return 1 if silent else 0


def _show_subjects(
    found: Sequence[LossTable], arguments: argparse.Namespace, *, is_whole: bool
) -> None:
    """Show what each subscriber counted of publishers that count each key by itself."""
    from durable_cache.protocol.subjects import SubjectCounts

    rows: list[Row] = [
        {"at": table.name, "key_expr": table.key_expr, **asdict(table.subjects)}
        for table in found
        if table.subjects != SubjectCounts(bytes=table.subjects.bytes)
    ]
    rows = rows[: arguments.limit]
    write_rows(rows, _SUBJECTS, arguments.format)
    if is_whole and not rows:
        say("no subscriber saw a subject sequence")


def storage_name(name: str) -> str:
    """Return a storage's name, or ``*`` for all; ConfigError for anything else."""
    if not name or "/" in name or ("*" in name and name != "*"):
        raise ConfigError(f"{name[:80]!r} is no name of a storage")
    return name


def nobody_answers() -> DurableCacheError:
    """Return what is said where no service is in reach."""
    return DurableCacheError("no durable-cache service answers; is --connect right?")


def no_such_storage(name: str) -> DurableCacheError:
    """Return what is said where no service that answers has the storage that was named."""
    return DurableCacheError(
        f"no service answers for a storage called {name!r}; durable-cache status lists them"
    )


def _skips(session: Session, storage: str, arguments: argparse.Namespace) -> int:
    from durable_cache.service.client import admin_values

    path = f"storages/{storage}/skips"
    found = admin_values(session, path, {"limit": str(arguments.limit)})
    if not found and storage != "*":
        raise no_such_storage(storage)
    if not found:
        raise nobody_answers()
    rows = [row for _, rows in found if isinstance(rows, list) for row in rows]
    write_rows(rows, _SKIPS, arguments.format)
    if not rows:
        say("no sample was given up")
    return 0


def _watch(session: Session, storage: str, arguments: argparse.Namespace) -> int:
    rounds, as_json = 0, arguments.format == "json"
    told: Sequence[str] = []
    while True:
        found, silent = _tables(session, storage)
        rows = _rows(found, arguments.limit, people=not as_json)
        write_anew(rows, _COLUMNS, as_json=as_json)
        if silent != told:
            told = silent
            say(
                "; ".join(f"not every table is shown: {reason}" for reason in silent)
                or "every table is shown again"
            )
        rounds += 1
        if rounds == arguments.rounds:
            return 0
        time.sleep(arguments.interval)


def _tables(session: Session, storage: str) -> tuple[list[LossTable], Sequence[str]]:
    """Ask all subscribers and caches, and return why tables of some are missing, too.

    Sources of caches get the names that publishers show.
    """
    from durable_cache.endpoints.session import tokens_now
    from durable_cache.endpoints.subscriber.tables import ask_tables
    from durable_cache.protocol.advisories import LOSS_TABLES, USER_TOKENS, parse_any_user_token
    from durable_cache.protocol.losses import decode_rows
    from durable_cache.service.client import admin_values, why_silent

    answered, errors = ask_tables(session, LOSS_TABLES, timeout_seconds=_ASK_SECONDS)
    silent = [f"a subscriber: {why_silent(reason, _ASK_SECONDS)}" for reason in errors]
    found = [*answered]
    services = admin_values(session, "status", {"events": "0"})
    if not (services or found or silent):
        raise DurableCacheError(
            "no durable-cache service or subscriber answers; is --connect right?"
        )
    counted = admin_values(session, f"storages/{storage}/losses")
    if storage != "*" and not counted:
        raise no_such_storage(storage)
    for zid, value in counted:
        table = decode_rows(json.dumps(value).encode())
        found.append(table.at(f"{table.name}@{zid[:8]}"))
    tokens = tokens_now(session, USER_TOKENS, _ASK_SECONDS)
    names: dict[SourceId, str] = dict(filter(None, map(parse_any_user_token, tokens)))
    return [table.naming(names) for table in found], silent


def _rows(tables: Sequence[LossTable], rows_max: int, *, people: bool) -> list[Row]:
    """Return rows to show, those that lost most first."""
    found = [(table, row) for table in tables for row in table.rows]
    found.sort(key=lambda each: (-each[1].lost, -each[1].repeats, each[0].name, each[1].user))
    return [_row(table, row, people=people) for table, row in found[:rows_max]]


def _row(table: LossTable, row: LossRow, *, people: bool) -> Row:
    values = [row.repeats, row.repeat_ns, row.unsubscribed, row.unsubscribed_ns]
    values += [row.lost, row.lost_ns, row.inbox_lost, row.inbox_ns]
    shown: list[object] = list(values)
    shown[1::2] = [_clock(value) if people else _instant(value) for value in values[1::2]]
    rates = row.rates
    if people:
        told = {} if rates is None else {"R": _rate(rates[0]), "UR": _rate(rates[1])}
        return {
            "at": table.name,
            "user": row.user,
            **dict(zip(_COUNTS, shown, strict=True)),
            **told,
            "mode": table.mode,
        }
    names = [name.replace(" ", "_") for name in _COUNTS]
    source = None if row.source is None else str(row.source)
    about = {"at": table.name, "key_expr": table.key_expr, "user": row.user, "source": source}
    measured: dict[str, object] = {"mode": table.mode or None, "delivered": row.delivered}
    measured |= {"reliability": None, "uniqueness": None}
    if rates is not None:
        measured |= rates._asdict()
    return {**about, **dict(zip(names, shown, strict=True)), **measured}


def _rate(value: float) -> str:
    """Write a rate, and never round a loss away: 0.99999 is not 1."""
    return "1" if value == 1 else f"{math.floor(value * 1e4) / 1e4:.4f}"


def _clock(unix_ns: int) -> str:
    """Return the time of a day as the text shows it, with the day where it is another; empty: 0."""
    if not unix_ns:
        return ""
    then = datetime.fromtimestamp(unix_ns / 1e9).astimezone()
    day = "" if then.date() == datetime.now().astimezone().date() else f"{then:%Y-%m-%d} "
    return f"{day}{then:%H:%M:%S}.{then.microsecond // 1000:03}"


def _instant(unix_ns: int) -> str:
    if not unix_ns:
        return ""
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).isoformat(timespec="milliseconds")
