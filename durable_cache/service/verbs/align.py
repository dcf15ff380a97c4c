"""How the running caches stand with each other: the verb ``align``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from durable_cache.errors import ConfigError
from durable_cache.service.output import can_draw, say, write_rows
from durable_cache.service.verbs.losses import nobody_answers
from durable_cache.service.verbs.options import add_client_options, add_format_option
from durable_cache.service.verbs.parsing import Verbs, add_verb

if TYPE_CHECKING:
    from durable_cache.endpoints.session import Session

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
    "lag_seconds",
    "refused",
)
_DIFFERENCES = ("service", "storage", "peer", "equal", "different", "missing", "refused")
Row = Mapping[str, object]
_POLL_SECONDS = 1.0
_STEADY_SECONDS = 12.0
"""What was published just now is compared two slots later: equality must last as long."""
_BAR_CELLS = 24


def add_verbs(verbs: Verbs) -> None:
    """Add the verb that looks at alignment and waits for it."""
    align = add_verb(
        verbs,
        "align",
        examples=(
            "durable-cache align",
            "durable-cache align --wait --timeout 60",
            "durable-cache align --dry-run --storage fleet --json",
        ),
        description="Show how the running caches stand with each other. They align by themselves; "
        "this looks and waits. Exit code 0: all equal; 1: not, or no cache in reach.",
    )
    how = align.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="look once; the default")
    how.add_argument("--wait", action="store_true", help="until every live peer is equal")
    how.add_argument(
        "--dry-run", action="store_true", help="what each lacks of each other, by stream and sample"
    )
    align.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="of --wait")
    align.add_argument("--peer", default="", metavar="CACHE_ID", help="only this one")
    align.add_argument("--storage", default="*")
    add_format_option(align)
    align.set_defaults(run=_align)
    add_client_options(align)


def _align(arguments: argparse.Namespace) -> int:
    from durable_cache.service.client import client_session

    if not arguments.timeout > 0:
        raise ConfigError("--timeout: expected seconds above 0")
    columns = _DIFFERENCES if arguments.dry_run else _COLUMNS
    with client_session(arguments) as session:
        rows = _wait(session, arguments) if arguments.wait else _rows(session, arguments)
    write_rows(rows, columns, arguments.format)
    _advise(rows, arguments)
    return 0 if _aligned(rows) else 1


def _wait(session: Session, arguments: argparse.Namespace) -> list[Row]:
    """Return the rows once they have all been equal for a while, or when time is up."""
    line = _Line()
    deadline = time.monotonic() + arguments.timeout
    equal_since: float | None = None
    while True:
        rows = _rows(session, arguments)
        now = time.monotonic()
        equal_since = (equal_since or now) if _aligned(rows) else None
        steady = equal_since is not None and now - equal_since >= _STEADY_SECONDS
        if steady or now > deadline:
            line.end(_progress(rows))
            return rows
        line.show(_progress(rows))
        time.sleep(_POLL_SECONDS)


class _Line:
    """One line on stderr: drawn anew on a terminal, written when it changed elsewhere."""

    def __init__(self) -> None:
        self._live = can_draw(sys.stderr)
        self._shown = ""

    def show(self, text: str) -> None:
        if self._live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif text != self._shown:
            say(text)
        self._shown = text

    def end(self, text: str) -> None:
        self.show(text)
        if self._live:
            print(file=sys.stderr, flush=True)


def _rows(session: Session, arguments: argparse.Namespace) -> list[Row]:
    from durable_cache.service.client import admin_values

    if "/" in arguments.storage:
        raise ConfigError(f"{arguments.storage[:80]!r} is no name of a storage")
    found = admin_values(session, f"storages/{arguments.storage}/alignment")
    if not found:
        raise nobody_answers()
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
        return "no cache is in reach yet"
    pairs = [(_number(row, "samples"), _number(row, "samples_there")) for row in rows]
    done, total = (sum(map(choose, pairs)) for choose in (min, max))
    cells = _BAR_CELLS * done // total if total else _BAR_CELLS
    bar = "#" * cells + "." * (_BAR_CELLS - cells)
    equal = sum(bool(row["equal"]) for row in rows)
    return f"[{bar}] {done:,} of {total:,} samples on both sides; {equal} of {len(rows)} equal"


def _number(row: Row, name: str) -> int:
    return int(str(row[name]))


def _advise(rows: Sequence[Row], arguments: argparse.Namespace) -> None:
    if not rows:
        say("no other cache is in reach; is alignment enabled, do they share domain and keys?")
    elif any(row["refused"] for row in rows):
        say("some cannot be aligned; the reason is under `refused`")
    elif arguments.wait and not _aligned(rows):
        say("not all were equal within the time")
    elif arguments.dry_run and not _aligned(rows) and any(row["pulls"] for row in rows):
        say("services without `pull: false` pull what is missing by themselves")
