"""What is stored, asked of the running caches: the verb ``query``."""

from __future__ import annotations

import argparse
import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import KeyExpression, parse_short
from durable_cache.model.newest import is_update, latest_values
from durable_cache.model.sample import Kind, Sample
from durable_cache.model.selection import (
    Order,
    Selection,
    parse_max,
    parse_sn,
    parse_source,
    parse_time,
)
from durable_cache.service.files import (
    BINARY,
    SampleFile,
    check_output,
    format_of,
    order_of,
    samples_to,
)
from durable_cache.service.output import counted, say
from durable_cache.service.verbs.options import (
    add_client_options,
    add_domain_option,
    add_format_option,
    add_output_option,
)
from durable_cache.service.verbs.parsing import Verbs, add_verb

if TYPE_CHECKING:
    from durable_cache.endpoints.asking import Asking
    from durable_cache.service.client import Pages

_PARSERS: Mapping[str, Callable[[str], object]] = {
    "_sn": parse_sn,
    "_max": parse_max,
    "_time": lambda text: parse_time(text, 0),
}
_LIMIT_DEFAULT = 1000
_BATCH = 200
_ZID_DIGITS_CERTAIN = 16
"""A shorter hex word may be a key's first chunk; caches draw the same line."""


class Asked(NamedTuple):
    """A selector as the command line names it."""

    key_expr: str
    parameters: str


class Reading(NamedTuple):
    """One of the things a selector may mean: keys of a source, or of every source (``*``)."""

    prefix: str
    key_expr: str


def add_verbs(verbs: Verbs) -> None:
    """Add ``query``."""
    parser = add_verb(
        verbs,
        "query",
        examples=(
            "durable-cache query 'fleet/*/pose' --latest",
            "durable-cache query 'fleet/**?_time=[now(-1h)..];_max=10' --format csv",
            "durable-cache query '*/fleet/**?_sn=10..20' --json",
            "durable-cache query 'fleet/**?_max=10' --follow",
            "durable-cache query 'fleet/**' --output fleet.parquet",
        ),
    )
    parser.add_argument("selector", help="key expression, then ?_sn=…;_time=…;_max=… as wanted")
    parser.add_argument("--source", default="*", metavar="ZID[:EID]", help="only this source")
    parser.add_argument(
        "--latest", action="store_true", help="only what each key holds now, deleted keys left out"
    )
    parser.add_argument(
        "--wildcard-updates",
        action="store_true",
        help="also what was published on key expressions with wildcards, under the expression",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="first what is stored, then what comes, each once and in order, until Ctrl-C",
    )
    add_format_option(parser, "csv", *BINARY)
    add_output_option(parser)
    parser.set_defaults(format="")
    parser.add_argument(
        "--limit",
        type=int,
        default=None,
        help=f"stop after so many samples; 0: no limit; {_LIMIT_DEFAULT} where text is shown",
    )
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    add_domain_option(parser)
    add_client_options(parser)
    parser.set_defaults(run=_query)


def parse_selector(text: str) -> Asked:
    """Split and check a selector; ConfigError says what to write instead."""
    key_expr, _, parameters = text.partition("?")
    with wrong_at("selector"):
        parse_short(key_expr)
    # A ";" parts parameters only where a name follows: _time=[start;duration] holds one as well.
    for piece in filter(None, re.split(r";(?=[^;=\]]*=|$)", parameters)):
        name, _, value = piece.partition("=")
        parse = _PARSERS.get(name)
        if parse is None:
            known = ", ".join(sorted(_PARSERS))
            raise ConfigError(f"selector: unknown parameter {name[:40]!r}; known: {known}")
        with wrong_at("selector"):
            parse(value)
    return Asked(key_expr, parameters)


def readings_of(key_expr: str, source: str) -> tuple[Reading, ...]:
    """Return what a key expression asks for: its first chunk may name a source, as for any client.

    ``*/rest`` is read both ways: `rest` of every source, and keys with any first chunk.
    """
    first, _, rest = key_expr.partition("/")
    if source != "*" or not rest:
        return (Reading(source, key_expr),)
    if first == "*":
        return Reading("*", rest), Reading("*", key_expr)
    try:
        zid, eid = parse_source(first)
    except ValueError:
        return (Reading("*", key_expr),)
    if zid is not None and (eid is not None or len(zid) >= _ZID_DIGITS_CERTAIN):
        return (Reading(first, rest),)
    return (Reading("*", key_expr),)


def read_all(
    asking: Asking,
    readings: Sequence[Reading],
    parameters: str,
    trouble: Pages,
    order: Order = Order.IDENTITY,
) -> Iterator[Sample]:
    """Return what caches hold under any of the readings, each sample once, in `order`."""
    parts = [
        _read(asking, readings[: at + 1], parameters, trouble, order) for at in range(len(readings))
    ]
    return heapq.merge(*parts, key=Selection(order=order).place)


def _read(
    asking: Asking, readings: Sequence[Reading], parameters: str, trouble: Pages, order: Order
) -> Iterator[Sample]:
    """Yield what the last of the readings names, and none before it."""
    from durable_cache.service.client import history_pages

    *others, reading = readings
    before = [KeyExpression(other.key_expr) for other in others]
    for page in history_pages(asking, reading.key_expr, reading.prefix, parameters, trouble, order):
        for sample in page:
            if not any(earlier.matches(sample.key) for earlier in before):
                yield sample


def _query(arguments: argparse.Namespace) -> int:
    asked = parse_selector(arguments.selector)
    _check(asked, arguments)
    readings = readings_of(asked.key_expr, arguments.source)
    if arguments.follow:
        from durable_cache.service.verbs.following import follow

        return follow(asked, readings, arguments)
    from durable_cache.endpoints.asking import Asking
    from durable_cache.endpoints.session import zid_of
    from durable_cache.service.client import (
        NOBODY_ANSWERED,
        Pages,
        are_caches_in_reach,
        client_session,
    )

    trouble = Pages()
    with (
        client_session(arguments) as session,
        samples_to(arguments.format, arguments.output) as file,
    ):
        asking = Asking(session, zid_of(session), timeout_seconds=arguments.timeout)
        # People read what happened first first, and so does `--limit`.
        order = order_of(arguments.format) if arguments.format in BINARY else Order.TIME
        samples = (
            iter(_latest(asking, readings, trouble))
            if arguments.latest
            else read_all(asking, readings, asked.parameters, trouble, order)
        )
        left_out: list[Sample] = []
        if not arguments.wildcard_updates:
            samples = _on_keys(samples, left_out)
        shown, cut = _write(samples, file, arguments.limit)
        if not trouble.answers and not are_caches_in_reach(asking):
            trouble.errors.append(NOBODY_ANSWERED)
        if trouble.errors and (arguments.output or arguments.format in BINARY):
            raise DurableCacheError(f"no whole file was written: {_reasons(trouble)}")
    _sum_up(trouble, shown, cut, left_out)
    return 1 if trouble.errors else 0


def _check(asked: Asked, arguments: argparse.Namespace) -> None:
    with wrong_at("--source"):
        parse_source(arguments.source)
    if arguments.latest and (asked.parameters or arguments.source != "*"):
        raise ConfigError("--latest: takes no parameters and no --source")
    if arguments.follow and (arguments.output or arguments.format in BINARY):
        raise ConfigError("--follow: has no end that a file could have; write to stdout as json")
    arguments.format = format_of(arguments.format, arguments.output, "table")
    check_output(arguments.format, arguments.output)
    if arguments.limit is None:
        endless = arguments.follow or arguments.output or arguments.format in BINARY
        arguments.limit = 0 if endless else _LIMIT_DEFAULT
    if arguments.limit < 0:
        raise ConfigError(f"--limit: expected 0, for all, or above, got {arguments.limit}")
    if not arguments.timeout > 0:
        raise ConfigError(f"--timeout: expected seconds above 0, got {arguments.timeout:g}")


def _sum_up(trouble: Pages, shown: int, cut: bool, left_out: Sequence[Sample]) -> None:
    """Say on stderr how whole the answer is."""
    if trouble.repliers:
        from_caches = f"from {counted(len(trouble.repliers), 'cache')}"
        what = counted(shown, "sample") if shown else "nothing found"
        more = "; stopped there, --limit 0 shows all" if cut else ""
        say(f"{what} {from_caches}{more}")
    elif not shown and not trouble.errors:
        say("nothing found: no cache in reach stores it")
    if left_out:
        say(f"{counted(len(left_out), 'wildcard update')}; --wildcard-updates shows them")
    if trouble.refused:
        say(f"{counted(len(trouble.refused), 'sample')} left out: {trouble.refused[0]}")
    for reason in sorted(set(trouble.errors)):
        say(f"durable-cache: {reason}")


def _reasons(trouble: Pages) -> str:
    return "; ".join(sorted(set(trouble.errors)))


def _write(samples: Iterator[Sample], file: SampleFile, limit: int) -> tuple[int, bool]:
    """Write the samples as they come; returns how many, and whether there were more."""
    written = 0
    chosen = itertools.islice(samples, limit or None)
    while batch := list(itertools.islice(chosen, _BATCH)):
        file.write(batch)
        written += len(batch)
    return written, limit > 0 and next(samples, None) is not None


def _latest(asking: Asking, readings: Sequence[Reading], trouble: Pages) -> list[Sample]:
    """Return the newest sample of each key that is not deleted."""
    if len(readings) > 1 or readings[0].prefix != "*":
        found = latest_values(read_all(asking, readings, "_max=1", trouble))
        return [sample for sample in found if sample.kind is Kind.PUT]
    key_expr = readings[0].key_expr
    gathered = asking.select(key_expr)
    trouble.errors += [f"a cache could not answer: {reason}" for reason in gathered.errors]
    trouble.answers += gathered.answers
    trouble.repliers |= gathered.repliers
    return latest_values(gathered.plain)


def _on_keys(samples: Iterable[Sample], left_out: list[Sample]) -> Iterator[Sample]:
    """Yield what was published on keys; wildcard updates, which are few, go to `left_out`."""
    for sample in samples:
        if is_update(sample.key):
            left_out.append(sample)
        else:
            yield sample
