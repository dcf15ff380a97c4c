"""Which moment somebody means: an RFC 3339 time, a date, a `datetime`, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from durable_cache.errors import ConfigError
from durable_cache.model.selection import NO_TIME, TimeBounds
from durable_cache.model.timestamp import NTP64_MAX, ntp64_at, parse_rfc3339_ns
from durable_cache.service.quantities import plain_number

When = str | datetime | timedelta
"""A moment: ``"2026-11-22T12:00:00Z"``, ``"2026-11-22"`` (its midnight in UTC), a `datetime` with a
time zone; ``"1h 30m"`` or a `timedelta`: so long ago."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REMEDY = (
    'write a time, "2026-11-22T12:00:00Z", a date, "2026-11-22", or how long ago, "90s", "1h 30m"'
)


def read_times(since: When | None, until: When | None, now_ns: int) -> TimeBounds:
    """Return the bounds that two moments mean, both included; ConfigError names the wrong one."""
    first = None if since is None else _moment_ns("since", since, now_ns)
    last = None if until is None else _moment_ns("until", until, now_ns)
    if first is not None and last is not None and last < first:
        raise ConfigError(f"until={until!r} is before since={since!r}: exchange them")
    low = 0 if first is None else ntp64_at(first)
    high = NTP64_MAX if last is None else ntp64_at(last + 1) - 1
    if low > NTP64_MAX or high < 0:
        return NO_TIME
    return TimeBounds(max(0, low), min(high, NTP64_MAX))


def _moment_ns(name: str, when: object, now_ns: int) -> int:
    match when:
        case str():
            return _text_ns(name, when.strip(), now_ns)
        case datetime():
            if when.tzinfo is None:
                raise ConfigError(f"{name}={when!r} has no time zone: add one, as in tzinfo=UTC")
            return (when - _EPOCH) // timedelta(microseconds=1) * 1000
        case timedelta():
            if when < timedelta(0):
                raise ConfigError(f"{name}={when!r} is negative: a duration means so long ago")
            return now_ns - when // timedelta(microseconds=1) * 1000
        case _:
            raise ConfigError(f"{name}={when!r}: {_REMEDY}")


def _text_ns(name: str, text: str, now_ns: int) -> int:
    if re.match(r"[0-9]{4}-", text):
        try:
            return parse_rfc3339_ns(text if len(text) > 10 else f"{text}T00:00:00Z")
        except ValueError as error:
            raise ConfigError(f"{name}={text[:60]!r}: {_REMEDY}") from error
    try:
        seconds = plain_number("seconds", text, name)
    except ConfigError as error:
        raise ConfigError(f"{name}={text[:60]!r}: {_REMEDY}") from error
    return now_ns - round(float(seconds) * 1_000_000_000)
