"""What an HLC timestamp's raw NTP64 number means: seconds in the upper half, fraction below."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

NTP64_MAX = (1 << 64) - 1
_SECOND_NS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def read_ntp64(stamp: object) -> int:
    """Return the number of what writes itself as ``<NTP64>/<id>``, as Zenoh's stamps, or alone."""
    return int(str(stamp).partition("/")[0])


def ntp64_to_ns(ntp64: int) -> int:
    """Return Unix nanoseconds, rounded down."""
    return (ntp64 >> 32) * _SECOND_NS + ((ntp64 & 0xFFFFFFFF) * _SECOND_NS >> 32)


def ntp64_at(unix_ns: int) -> int:
    """Return the smallest NTP64 that is not before a Unix time, even where 64 bits do not hold it.

    Rounded up so that `ntp64_to_ns` gives `unix_ns` back exactly.
    """
    seconds, nanoseconds = divmod(unix_ns, _SECOND_NS)
    return (seconds << 32) - (-(nanoseconds << 32) // _SECOND_NS)


def ntp64_from_ns(unix_ns: int) -> int:
    """Return `ntp64_at`, clamped to 0 and 2^64 - 1."""
    return min(max(0, ntp64_at(unix_ns)), NTP64_MAX)


def format_ntp64(ntp64: int) -> str:
    """Write the time for people, RFC 3339 in UTC with nanoseconds."""
    seconds, nanoseconds = divmod(ntp64_to_ns(ntp64), _SECOND_NS)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


def parse_rfc3339_ns(text: str) -> int:
    """Return the Unix nanoseconds of an RFC 3339 time; ValueError when it is none."""
    match = _RFC3339.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is no RFC 3339 time; write the date, 'T', the time with up to 9 digits of "
            "fraction, and 'Z' or an offset"
        )
    date, time, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{time}{zone.upper()}")
    except ValueError as error:
        raise ValueError(f"{text!r} is no RFC 3339 time: {error}") from error
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * _SECOND_NS + int((fraction or "").ljust(9, "0"))
