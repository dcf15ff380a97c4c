"""How the running caches stand with each other: the verb ``align``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.service.output import say, write_json, write_table
from durable_cache.service.verbs.options import Verbs, add_client_options

if TYPE_CHECKING:
    from durable_cache.endpoints.session import Session

__all__ = ["add_verbs"]

Row = Mapping[str, object]
_COLUMNS = (
    "service",
    "storage",
    "peer",
    "equal",
    "streams",
    "streams_there",
    "samples",
    "samples_there",
    "quiet",
    "pulled",
    "conflicts",
    "refused",
)
_POLL_SECONDS = 1.0
_STEADY_SECONDS = 12.0
"""What was published just now is compared two slots later: equality must last as long."""


def add_verbs(verbs: Verbs) -> None:
    """Add the verb that looks at alignment and waits for it."""
    align = verbs.add_parser("align", help="how the caches stand with each other, peer by peer")
    align.add_argument("--wait", action="store_true", help="until every live peer is equal")
    align.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="of --wait")
    align.add_argument("--peer", default="", metavar="CACHE_ID", help="only this one")
    align.add_argument("--storage", default="*")
    align.add_argument("--format", choices=["table", "json"], default="table")
    align.set_defaults(run=_align)
    add_client_options(align)


def _align(arguments: argparse.Namespace) -> int:
    from durable_cache.service.client import client_session

    if not arguments.timeout > 0:
        raise ConfigError("--timeout: expected seconds above 0")
    deadline = time.monotonic() + arguments.timeout
    with client_session(arguments) as session:
        rows = _rows(session, arguments)
        equal_since = time.monotonic()
        while arguments.wait:
            now = time.monotonic()
            if not _aligned(rows):
                equal_since = now
            elif now - equal_since >= _STEADY_SECONDS:
                break
            if now > deadline:
                _show(rows, arguments.format)
                raise DurableCacheError("the caches were not equal within the time; see `refused`")
            say(_progress(rows))
            time.sleep(_POLL_SECONDS)
            rows = _rows(session, arguments)
    _show(rows, arguments.format)
    return 0


def _rows(session: Session, arguments: argparse.Namespace) -> list[Row]:
    from durable_cache.service.client import admin_values

    if "/" in arguments.storage:
        raise ConfigError(f"{arguments.storage[:80]!r} is no name of a storage")
    found = admin_values(session, f"storages/{arguments.storage}/alignment")
    if not found:
        raise DurableCacheError("no durable-cache service answers; is --connect right?")
    return [
        {**row, "service": zid[:8]}
        for zid, rows in found
        for row in cast("Sequence[Row]", rows)
        if row["live"] and (not arguments.peer or row["peer"] == arguments.peer)
    ]


def _aligned(rows: Sequence[Row]) -> bool:
    return bool(rows) and all(row["equal"] for row in rows)


def _progress(rows: Sequence[Row]) -> str:
    if not rows:
        return "no peer is in reach yet"
    here = sum(int(str(row["samples"])) for row in rows)
    there = sum(int(str(row["samples_there"])) for row in rows)
    equal = sum(bool(row["equal"]) for row in rows)
    return f"{equal} of {len(rows)} peers equal; {here:,} samples here, {there:,} there"


def _show(rows: Sequence[Row], form: str) -> None:
    if form == "json":
        write_json(rows)
        return
    write_table(rows, _COLUMNS)
    if not rows:
        say("no peer is in reach; is alignment enabled in the configuration?")
