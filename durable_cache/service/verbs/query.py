"""What is stored, asked of the running caches: the verb ``query``."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from durable_cache.errors import ConfigError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Qos, Sample
from durable_cache.model.selection import parse_max, parse_sn, parse_source, parse_time
from durable_cache.model.timestamp import format_ntp64
from durable_cache.service.output import say, table_lines, write_csv
from durable_cache.service.verbs.options import Verbs, add_client_options

__all__ = ["Asked", "add_verbs", "parse_selector", "rows_of"]

_PARSERS: Mapping[str, Callable[[str], object]] = {
    "_sn": parse_sn,
    "_max": parse_max,
    "_time": lambda text: parse_time(text, 0),
}
_LIMIT_DEFAULT = 1000
_TABLE_ROWS = 200
_PAYLOAD_SHOWN = 60
_TABLE = ("key", "source", "epoch", "sn", "time", "kind", "encoding", "payload")
_CSV = ("key", "source", "epoch", "sn", "time", "kind", "encoding", "payload", "attachment")


class Asked(NamedTuple):
    """A selector as the command line names it."""

    key_expr: str
    parameters: str


def add_verbs(verbs: Verbs) -> None:
    """Add ``query``."""
    parser = verbs.add_parser(
        "query",
        help="print what the caches hold",
        epilog="example: durable-cache query 'fleet/**?_time=[now(-1h)..];_max=10'",
    )
    parser.add_argument("selector", help="key expression, then ?_sn=…;_time=…;_max=… as wanted")
    parser.add_argument("--source", default="*", metavar="ZID[:EID]", help="only this source")
    parser.add_argument(
        "--latest", action="store_true", help="only what each key holds now, deleted keys left out"
    )
    parser.add_argument("--format", choices=["table", "json", "csv"], default="table")
    parser.add_argument(
        "--limit", type=int, default=_LIMIT_DEFAULT, help="stop after so many samples; 0: no limit"
    )
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    add_client_options(parser)
    parser.set_defaults(run=_query)


def parse_selector(text: str) -> Asked:
    """Split and check a selector; ConfigError says what to write instead."""
    key_expr, _, parameters = text.partition("?")
    try:
        KeyExpression(key_expr)
    except ValueError as error:
        raise ConfigError(f"selector {text[:80]!r}: {error}") from error
    for piece in filter(None, parameters.split(";")):
        name, _, value = piece.partition("=")
        parse = _PARSERS.get(name)
        if parse is None:
            known = ", ".join(sorted(_PARSERS))
            raise ConfigError(f"selector: unknown parameter {name[:40]!r}; known: {known}")
        try:
            parse(value)
        except ValueError as error:
            raise ConfigError(f"selector: {error}") from error
    return Asked(key_expr, parameters)


def _query(arguments: argparse.Namespace) -> int:
    asked = parse_selector(arguments.selector)
    try:
        parse_source(arguments.source)
    except ValueError as error:
        raise ConfigError(f"--source: {error}") from error
    if arguments.latest and (asked.parameters or arguments.source != "*"):
        raise ConfigError("--latest: takes no parameters and no --source")
    if arguments.limit < 0 or not arguments.timeout > 0:
        raise ConfigError("--limit and --timeout: expected numbers above 0")
    from durable_cache.endpoints.asking import Asking
    from durable_cache.endpoints.session import zid_of
    from durable_cache.service.client import Pages, client_session, history_pages

    trouble = Pages()
    with client_session(arguments) as session:
        asking = Asking(session, zid_of(session), timeout_seconds=arguments.timeout)
        if arguments.latest:
            found = asking.select(asked.key_expr)
            trouble.errors += found.errors
            pages: Iterable[list[Sample]] = [_newest(found.plain)]
        else:
            pages = history_pages(
                asking, asked.key_expr, arguments.source, asked.parameters, trouble
            )
        shown, cut = _write(itertools.chain.from_iterable(pages), arguments)
    if cut:
        say(f"stopped after {shown} samples; --limit 0 shows all")
    elif not shown and not trouble.errors:
        say("nothing found")
    for reason in sorted(set(trouble.errors)):
        say(f"durable-cache: a cache could not answer: {reason}")
    return 1 if trouble.errors else 0


def _newest(samples: Iterable[Sample]) -> list[Sample]:
    """Return one sample per key, the newest that any cache named."""
    latest: dict[str, Sample] = {}
    for sample in samples:
        held = latest.get(sample.key)
        if held is None or sample.time_order[:2] > held.time_order[:2]:
            latest[sample.key] = sample
    return [latest[key] for key in sorted(latest)]


def _write(samples: Iterator[Sample], arguments: argparse.Namespace) -> tuple[int, bool]:
    """Write the samples as they come; returns how many, and whether there were more."""
    limit = arguments.limit or None
    count = 0
    chosen = itertools.islice(samples, limit)
    while batch := list(itertools.islice(chosen, _TABLE_ROWS)):
        match arguments.format:
            case "table":
                for line in table_lines(list(rows_of(batch)), _TABLE)[1 if count else 0 :]:
                    print(line)
            case "csv":
                write_csv(rows_of(batch, short=False), _CSV, heading=count == 0)
            case _:
                for row in rows_of(batch, short=False):
                    print(json.dumps(row, ensure_ascii=False))
        count += len(batch)
    return count, limit is not None and next(samples, None) is not None


def rows_of(samples: Iterable[Sample], *, short: bool = True) -> Iterator[dict[str, object]]:
    """Yield samples as rows for people (`short`), or whole for programs.

    Bytes that are no UTF-8 text are written as ``hex:`` and their digits.
    """
    for sample in samples:
        sourced = sample.source.eid != 0 or sample.source.zid != "0"
        row: dict[str, object] = {
            "key": sample.key,
            "source": str(sample.source) if sourced else "",
            "epoch": sample.epoch if sourced else "",
            "sn": sample.sn if sourced else "",
            "time": format_ntp64(sample.ntp64) if sample.ntp64 else "",
            "kind": sample.kind.name.lower(),
            "encoding": sample.encoding,
            "payload": _text(sample.payload),
        }
        if short:
            text = str(row["payload"])
            if len(text) > _PAYLOAD_SHOWN:
                row["payload"] = f"{text[:_PAYLOAD_SHOWN]}… ({len(sample.payload)} bytes)"
        else:
            row["attachment"] = None if sample.attachment is None else _text(sample.attachment)
            row["priority"] = Qos.unpack(sample.qos).priority
        yield row


def _text(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
    return f"hex:{data.hex()}" if text.startswith("hex:") or "\0" in text else text
