"""Durations and sizes as people write them: ``"7d"``, ``"1h 30m"``, ``"60 sec"``, ``"10 mb"``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from durable_cache.model.arguments import FOR_EVER_SECONDS, refused

SECONDS_EXAMPLE = '"90s", "1h 30m" or "7d"'
BYTES_EXAMPLE = '"64 KiB", "10 MiB" or "2 GB"'
_SECONDS = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "sec": 1.0,
    "secs": 1.0,
}
_BYTES = {
    "B": 1.0,
    **{f"{letter}B": 1000.0**power for power, letter in enumerate("kMGT", 1)},
    **{f"{letter}iB": 1024.0**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}b": 1000.0**power for power, letter in enumerate("kmgt", 1)},
    "KB": 1000.0,
}
_BYTES_MAX = 1 << 62
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


def read_span(text: str) -> float | None:
    """Return a duration in seconds; None where the text is none. A number needs its unit."""
    return _sum(text, _SECONDS)


def read_size(text: str) -> float | None:
    """Return a size in bytes; None where the text is none. ``mb`` and ``MB`` are 10^6, as RaiMS
    writes them; ``MiB`` is 2^20.
    """
    return _sum(text, _BYTES)


def _sum(text: str, units: Mapping[str, float]) -> float | None:
    total, end = 0.0, 0
    while (part := _PART.match(text, end)) is not None and part[2] in units:
        total += float(part[1]) * units[part[2]]
        end = part.end()
    return None if not end or text[end:].strip() else total


def bytes_of(name: str, value: int | str, least: int) -> int:
    """Return an argument that is a size, a number or as people write it, in bytes.

    Raises ConfigError that names the argument, where it is none or below `least`.
    """
    size = read_size(value) if isinstance(value, str) else value
    if isinstance(value, bool) or not isinstance(size, (int, float)) or not size >= least:
        raise refused(name, value, f'a size of at least {least} bytes, as 4000000 or "10 mb"')
    return int(min(size, _BYTES_MAX))


def seconds_of(name: str, value: float | str, least: float) -> float:
    """Return an argument that is a duration, a number or as people write it, in seconds.

    Raises ConfigError that names the argument, where it is none or below `least`.
    """
    span = read_span(value) if isinstance(value, str) else value
    if isinstance(value, bool) or not isinstance(span, (int, float)) or not span >= least:
        raise refused(name, value, f'a duration of at least {least:g} s, as 10 or "60 sec"')
    return float(min(span, FOR_EVER_SECONDS))
