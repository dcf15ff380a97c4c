"""How a key expression, a time or a range of numbers becomes a predicate that skips files.

Delta skips files for equality, ranges and prefixes, never for a regular expression, so every
predicate has a part of the first kind. Keys are data: they enter as literals, never as SQL text.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as fn

from durable_cache.errors import ConfigError
from durable_cache.model.arguments import wrong_at
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.selection import SnBounds, parse_sn, parse_source
from durable_cache.model.timestamp import ntp64_from_ns, parse_rfc3339_ns
from durable_cache.spark.key_expressions import (
    VERBATIM,
    parse_key_expr,
    slashed_pattern,
    verbatim_chunks,
)

Moment = datetime | str
"""An aware datetime, or an RFC 3339 text, to the nanosecond."""
Numbers = int | tuple[int | None, int | None] | str
"""One sn, (first, last) with both ends included and None for no end, or text as in ``_sn``."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def named_by(key_expr: KeyExpression | str, column: str = "key_expr") -> Column:
    """Return the predicate "this column holds a key that `key_expr` names", as Zenoh decides it."""
    asked = key_expr if isinstance(key_expr, KeyExpression) else parse_key_expr(key_expr)
    key = fn.col(column)
    if asked.is_key:
        return key == fn.lit(asked.text)
    slashed = fn.concat(fn.lit("/"), key)
    verbatim = verbatim_chunks(asked)
    named = fn.regexp_count(slashed, fn.lit(VERBATIM)) == verbatim
    if not verbatim:
        named = ~key.startswith("@") & ~key.contains(VERBATIM)
    if asked.text != "**":
        named &= slashed.rlike(slashed_pattern(asked))
    return key.startswith(fn.lit(asked.prefix)) & named if asked.prefix else named


def of_source(source: str) -> Column:
    """Return the predicate for ``<zid>`` or ``<zid>:<eid>``; ``*`` is any; ConfigError else."""
    with wrong_at("source"):
        zid, eid = parse_source(source)
    held = fn.lit(True) if zid is None else fn.col("source_zid") == fn.lit(zid)
    return held if eid is None else held & (fn.col("source_eid") == fn.lit(eid))


def with_sn(sn: Numbers) -> Column:
    """Return the predicate for the numbers asked for, both ends included; ConfigError else."""
    bounds = _sn_bounds(sn)
    held = fn.lit(True)
    if bounds.first is not None:
        held &= fn.col("sn") >= fn.lit(bounds.first).cast("bigint")
    if bounds.last is not None:
        held &= fn.col("sn") <= fn.lit(bounds.last).cast("bigint")
    return held


def _sn_bounds(sn: Numbers) -> SnBounds:
    match sn:
        case str():
            try:
                return parse_sn(sn)
            except ValueError as error:
                raise ConfigError(str(error)) from error
        case int():
            return SnBounds(sn, sn)
        case (first, last):
            return SnBounds(first, last)


def sent(since: Moment | None, until: Moment | None) -> Column:
    """Return the predicate ``since <= HLC timestamp < until``, exact to the NTP64.

    The microsecond column is asked too, generously: it is the one with statistics for people's
    times, while the exact answer is the NTP64's.
    """
    held = fn.lit(True)
    if since is not None:
        ns = moment_ns(since, "since")
        held &= fn.col("timestamp") >= _literal(ns)
        held &= fn.col("ntp64") >= _ntp64(ns)
    if until is not None:
        ns = moment_ns(until, "until")
        held &= fn.col("timestamp") <= _literal(ns)
        held &= fn.col("ntp64") < _ntp64(ns)
    return held


def received(since: Moment | None, until: Moment | None) -> Column:
    """Return the predicate ``since <= receipt < until``; prunes whole days."""
    held = fn.lit(True)
    if since is not None:
        ns = moment_ns(since, "received since")
        held &= fn.col("day") >= fn.lit(_moment(ns).date())
        held &= fn.col("received_ns") >= fn.lit(ns).cast("bigint")
    if until is not None:
        ns = moment_ns(until, "received until")
        held &= fn.col("day") <= fn.lit(_moment(ns).date())
        held &= fn.col("received_ns") < fn.lit(ns).cast("bigint")
    return held


def moment_ns(moment: Moment, name: str) -> int:
    """Return Unix nanoseconds; ConfigError when `moment` is none or lacks its zone."""
    if isinstance(moment, str):
        try:
            return parse_rfc3339_ns(moment)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}, such as 2026-03-01T12:00:00Z") from error
    if moment.tzinfo is None:
        raise ConfigError(f"{name}: {moment} has no time zone; write tzinfo=UTC")
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _moment(ns: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=ns // 1000)
    except OverflowError as error:
        raise ConfigError(f"{ns} ns is beyond the calendar") from error


def _literal(ns: int) -> Column:
    return fn.lit(_moment(ns))


def _ntp64(ns: int) -> Column:
    return fn.lit(Decimal(ntp64_from_ns(ns))).cast("decimal(20,0)")
