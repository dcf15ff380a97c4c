"""Durations and sizes as people write them: ``"7d"``, ``"1h 30m"``, ``"10 MiB"``."""

from __future__ import annotations

import re
from typing import cast

from durable_cache.errors import ConfigError

__all__ = ["plain_number"]

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    "KB": 1000,
}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


def plain_number(name: str, text: str, where: str) -> int | float | str:
    """Return a setting's text as seconds or bytes, as its name ends in; others as they are.

    Raises ConfigError that shows how it may be written.
    """
    parts = name.split("_")
    if "seconds" in parts:
        units, example = _SECONDS, '"90s", "1h 30m" or "7d"'
    elif "bytes" in parts:
        units, example = cast("dict[str, float]", _BYTES), '"64 KiB", "10 MiB" or "2 GB"'
    else:
        return text
    total, end = 0.0, 0
    while (part := _PART.match(text, end)) is not None and part[2] in units:
        total += float(part[1]) * units[part[2]]
        end = part.end()
    if not end or text[end:].strip():
        raise ConfigError(f"{where}: expected a number, or {example}, got {text[:40]!r}")
    return int(total) if total.is_integer() else total
