"""What an HLC timestamp's raw NTP64 number means: seconds in the upper half, fraction below."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["NTP64_MAX", "format_ntp64", "ntp64_from_ns", "ntp64_to_ns", "parse_rfc3339_ns"]

NTP64_MAX = (1 << 64) - 1
_SECOND_NS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ntp64_to_ns(ntp64: int) -> int:
    """Return Unix nanoseconds, rounded down."""
    return (ntp64 >> 32) * _SECOND_NS + ((ntp64 & 0xFFFFFFFF) * _SECOND_NS >> 32)


def ntp64_from_ns(unix_ns: int) -> int:
    """Return the smallest NTP64 that is not before a Unix time; clamped to 0 and 2^64 - 1.

    Rounded up so that `ntp64_to_ns` gives `unix_ns` back exactly.
    """
    seconds, nanoseconds = divmod(unix_ns, _SECOND_NS)
    fraction = -(-(nanoseconds << 32) // _SECOND_NS)
    return min(max(0, (seconds << 32) + fraction), NTP64_MAX)


def format_ntp64(ntp64: int) -> str:
    """Write the time for people, RFC 3339 in UTC with nanoseconds."""
    seconds, nanoseconds = divmod(ntp64_to_ns(ntp64), _SECOND_NS)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


def parse_rfc3339_ns(text: str) -> int:
    """Return the Unix nanoseconds of an RFC 3339 time; ValueError when it is none."""
    stamp = text.strip()
    head, dot, tail = stamp.partition(".")
    digits = ""
    if dot:
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
        stamp = head + tail[len(digits) :]
        if not digits or len(digits) > 9:
            raise ValueError(f"{text!r}: a fraction has 1 to 9 digits")
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError as error:
        raise ValueError(f"{text!r} is no RFC 3339 time") from error
    if "T" not in stamp.upper() or moment.tzinfo is None:
        raise ValueError(f"{text!r}: write the date, 'T', the time and 'Z' or an offset")
    whole = round((moment - _EPOCH) / timedelta(seconds=1))
    return whole * _SECOND_NS + int(digits.ljust(9, "0") or 0)
