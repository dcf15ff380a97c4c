"""What the running services are doing: the verbs ``status``, ``streams``, ``top``, ``purge``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http.client import HTTPException
from typing import TYPE_CHECKING, cast
from urllib.request import urlopen

from durable_cache.errors import BackendNotInstalled, ConfigError, DurableCacheError
from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.selection import parse_source
from durable_cache.service.output import (
    can_draw,
    counted,
    say,
    write_anew,
    write_json,
    write_result,
    write_rows,
    write_table,
)
from durable_cache.service.verbs.losses import no_such_storage, nobody_answers, storage_name
from durable_cache.service.verbs.options import (
    add_client_options,
    add_format_option,
    add_json_option,
)
from durable_cache.service.verbs.parsing import Verbs, add_verb

if TYPE_CHECKING:
    from durable_cache.endpoints.session import Session

Row = Mapping[str, object]
_STATUS = (
    "service",
    "name",
    "level",
    "backend",
    "up",
    "received",
    "appended",
    "unnumbered",
    "ignored",
    "duplicates",
    "conflicts",
    "refused",
    "missed",
    "gaps_open",
    "streams",
    "journal_samples",
    "last_error",
)
_PIPES = (
    "service",
    "pipe",
    "key_expr",
    "mode",
    "between",
    "running",
    "confirmed",
    "under_way",
    "given_up",
    "lost",
    "missed",
    "failure",
)
_CONSUMERS = ("domain", "consumer", "members", "processed_twice")
_STREAMS = ("storage", "key", "source", "epoch", "samples", "runs", "floor", "newest")
_RATED = ("received", "appended", "drained", "queries_ok")
_UNRATED = ("service", "name", "gaps_open", "missed", "refused", "journal_samples")
_RATES = (*_UNRATED, *(f"{name}/s" for name in _RATED))
_HTTP_SECONDS = 10.0
_IS_IT_A_PAGE = "is it the address that http.listen names?"
_ROWS_MAX = 1000
_TOP_PACKAGES = frozenset({"textual", "rich"})


def add_verbs(verbs: Verbs) -> None:
    """Add the verbs that look at running services."""
    status = add_verb(
        verbs,
        "status",
        examples=(
            "durable-cache status",
            "durable-cache status --url http://127.0.0.1:8088 --json",
        ),
    )
    status.add_argument("--url", default="", help="ask a status page, as in http://127.0.0.1:8088")
    status.set_defaults(run=_status)
    streams = add_verb(
        verbs, "streams", examples=("durable-cache streams --key-expr 'fleet/**' --limit 20",)
    )
    streams.set_defaults(run=_streams)
    for parser in (status, streams):
        add_format_option(parser)
    top = add_verb(
        verbs,
        "top",
        examples=("durable-cache top", "durable-cache top --interval 5 --rounds 12 --json"),
        description="Show running services on the terminal, again and again: storages, their keys "
        "and sources with rates, single samples. Enter opens, s shows sources, p peers, / searches "
        "by key expression, < and > choose what to sort by, q quits. With --rounds or --json, and "
        "where there is no terminal, the rates of the storages are written line by line.",
    )
    top.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    top.add_argument(
        "--rows", type=int, default=50, metavar="N", help="keys, sources or samples a page; 1-1000"
    )
    top.add_argument("--rounds", type=int, default=0, help="stop after so many; 0: until Ctrl-C")
    top.add_argument("--json", action="store_true", help="one JSON object a storage and round")
    top.set_defaults(run=_top)
    purge = add_verb(
        verbs,
        "purge",
        examples=(
            "durable-cache purge fleet --key-expr 'fleet/old/**'",
            "durable-cache purge fleet --key-expr 'fleet/old/**' --yes",
        ),
    )
    purge.add_argument("storage")
    purge.add_argument("--below", default="", metavar="SN", help="only numbers below this one")
    purge.add_argument("--yes", action="store_true", help="really remove them")
    purge.add_argument("--key-expr", required=True, help="which keys; ** for all")
    add_json_option(purge)
    purge.set_defaults(run=_purge)
    streams.add_argument("--storage", default="*")
    streams.add_argument("--limit", type=int, default=1000)
    streams.add_argument("--key-expr", default="**")
    for parser in (streams, purge):
        parser.add_argument("--source", default="*", metavar="ZID[:EID]")
    for parser in (status, streams, top, purge):
        add_client_options(parser)


def _status(arguments: argparse.Namespace) -> int:
    reports = [_over_http(arguments.url)] if arguments.url else _reports(arguments)
    if arguments.format == "json":
        write_json(reports)
    else:
        write_table(_status_rows(reports), _STATUS)
        if pipes := _pipe_rows(reports):
            write_table(pipes, _PIPES)
        if consumers := _consumer_rows(reports):
            write_table(consumers, _CONSUMERS)
    return 0 if all(report.get("ready") for report in reports) else 1


def _over_http(url: str) -> Row:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url: expected http://host:port, got {url[:80]!r}")
    try:
        with urlopen(f"{url.rstrip('/')}/status.json", timeout=_HTTP_SECONDS) as reply:  # noqa: S310
            found = json.load(reply)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        told = getattr(reason, "strerror", None) or reason
        raise DurableCacheError(f"{url}: {told}; {_IS_IT_A_PAGE}") from error
    if not isinstance(found, dict) or not isinstance(found.get("storages"), list):
        raise DurableCacheError(f"{url}: no status of a service; {_IS_IT_A_PAGE}")
    return found


def _reports(arguments: argparse.Namespace) -> list[Row]:
    from durable_cache.service.client import client_session

    with client_session(arguments) as session:
        return _with_told(session, _ask_reports(session))


def _with_told(session: Session, reports: Sequence[Row]) -> list[Row]:
    """Return reports with what subscribers say now; services know what they said before."""
    from durable_cache.service.measured import told_now

    told: dict[str, Row] = {}
    for domain in sorted({str(report["domain"]) for report in reports}):
        answered, errors = told_now(session, domain)
        for error in errors:
            say(error)
        told[domain] = {
            "subscribers": [asdict(one) for one in answered.subscribers],
            "consumers": [one._asdict() for one in answered.consumers],
            "subjects": asdict(answered.subjects),
        }
    return [{**report, **told[str(report["domain"])]} for report in reports]


def _ask_reports(session: Session) -> list[Row]:
    from durable_cache.service.client import admin_values

    found = [cast("Row", value) for _, value in admin_values(session, "status")]
    if not found:
        raise nobody_answers()
    return sorted(found, key=lambda report: str(report["zid"]))


def _status_rows(reports: Sequence[Row]) -> list[Row]:
    return [
        {
            **status,
            "service": str(report["zid"])[:8],
            "up": status["storage_up"],
        }
        for report in reports
        for status in cast("Sequence[Row]", report["storages"])
    ]


def _pipe_rows(reports: Sequence[Row]) -> list[Row]:
    return [
        {
            **pipe,
            "service": str(report["zid"])[:8],
            "pipe": pipe["name"],
            "running": pipe["is_running"],
        }
        for report in reports
        for pipe in cast("Sequence[Row]", report.get("pipes", ()))  # an earlier service has none
    ]


def _consumer_rows(reports: Sequence[Row]) -> list[Row]:
    """Return the durable consumers that run, once for each domain."""
    by_domain = {str(report["domain"]): report.get("consumers", ()) for report in reports}
    return [
        {**one, "domain": domain}
        for domain, found in sorted(by_domain.items())
        for one in cast("Sequence[Row]", found)
    ]


def _listing(arguments: argparse.Namespace, page: str, parameters: Mapping[str, str]) -> list[Row]:
    from durable_cache.service.client import admin_values, client_session

    if arguments.limit < 1:
        raise ConfigError("--limit: expected a number above 0")
    path = f"storages/{storage_name(arguments.storage)}/{page}"
    with client_session(arguments) as session:
        reports = _ask_reports(session)
        found = admin_values(session, path, {**parameters, "limit": str(arguments.limit)})
    if not found and arguments.storage != "*":
        raise no_such_storage(arguments.storage)
    awaited = sum(_number(row["gaps_open"]) for row in _status_rows(reports))
    if awaited:
        say(f"{awaited:.0f} gaps are being recovered")
    return [row for _, rows in found for row in cast("Sequence[Row]", rows)]


def _filters(arguments: argparse.Namespace) -> dict[str, str]:
    with wrong_at("--key-expr"):
        KeyExpression(arguments.key_expr)
    with wrong_at("--source"):
        parse_source(arguments.source)
    return {"key_expr": arguments.key_expr, "source": arguments.source}


def _streams(arguments: argparse.Namespace) -> int:
    write_rows(_listing(arguments, "streams", _filters(arguments)), _STREAMS, arguments.format)
    return 0


def _top(arguments: argparse.Namespace) -> int:
    if not arguments.interval > 0:
        raise ConfigError("--interval: expected seconds above 0")
    if arguments.rounds < 0:
        raise ConfigError("--rounds: expected a number above 0; 0 goes on until Ctrl-C")
    if not 1 <= arguments.rows <= _ROWS_MAX:
        raise ConfigError(f"--rows: expected 1 to {_ROWS_MAX}")
    if arguments.json or arguments.rounds or not (sys.stdin.isatty() and can_draw(sys.stdout)):
        return _top_lines(arguments)
    return _top_view(arguments)


def _top_view(arguments: argparse.Namespace) -> int:
    """Show the terminal view until it is quit; BackendNotInstalled where its extra is missing."""
    from durable_cache.service.top.reach import Reach

    try:
        from durable_cache.service.top.app import Top
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _TOP_PACKAGES:
            raise
        raise BackendNotInstalled("top", "top", package) from error
    reach = Reach(arguments)
    try:
        view = Top(reach, interval_seconds=arguments.interval, rows_max=arguments.rows)
        return view.run() or view.return_code or 0
    finally:
        reach.close()


def _top_lines(arguments: argparse.Namespace) -> int:
    from durable_cache.service.client import client_session

    before: dict[tuple[str, str], Row] = {}
    last = rounds = 0.0
    with client_session(arguments) as session:
        while not arguments.rounds or rounds < arguments.rounds:
            rows = _status_rows(_ask_reports(session))
            now = time.monotonic()
            if before:
                write_anew(_rates(rows, before, now - last), _RATES, as_json=arguments.json)
                rounds += 1
            before = {(str(row["service"]), str(row["name"])): row for row in rows}
            last = now
            if not arguments.rounds or rounds < arguments.rounds:
                time.sleep(arguments.interval)
    return 0


def _rates(rows: Sequence[Row], before: Mapping[tuple[str, str], Row], seconds: float) -> list[Row]:
    found: list[Row] = []
    for row in rows:
        earlier = before.get((str(row["service"]), str(row["name"])), row)
        rates = {
            f"{name}/s": round((_number(row[name]) - _number(earlier[name])) / seconds)
            for name in _RATED
        }
        found.append({**{name: row[name] for name in _UNRATED}, **rates})
    return found


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _purge(arguments: argparse.Namespace) -> int:
    from durable_cache.service.client import admin_values, client_session

    if arguments.below and not arguments.below.isdigit():
        raise ConfigError("--below: expected a whole number")
    parameters = _filters(arguments)
    if arguments.below:
        parameters["below"] = arguments.below
    if arguments.yes:
        parameters["yes"] = "1"
    path = f"storages/{storage_name(arguments.storage)}/purge"
    with client_session(arguments) as session:
        found = admin_values(session, path, parameters, timeout_seconds=60)
    if not found:
        raise no_such_storage(arguments.storage)
    for zid, value in found:
        done = cast("Row", value)
        text = (
            f"{zid}: removed {_of(done['removed'], done)}"
            if arguments.yes
            else f"{zid}: would remove {_of(done['samples'], done)}"
        )
        write_result(text, {"service": zid, **done}, as_json=arguments.json)
    if not arguments.yes:
        say("nothing was removed; repeat with --yes")
    return 0


def _of(samples: object, done: Row) -> str:
    """Return ``3 samples of 1 stream``."""
    counts = int(str(samples)), int(str(done["streams"]))
    return f"{counted(counts[0], 'sample')} of {counted(counts[1], 'stream')}"
