"""Settings that are durations or sizes, read as people write them."""

from __future__ import annotations

from durable_cache.errors import ConfigError
from durable_cache.model.quantities import (
    BYTES_EXAMPLE,
    SECONDS_EXAMPLE,
    read_size,
    read_span,
)


def plain_number(name: str, text: str, where: str) -> int | float | str:
    """Return a setting's text as seconds or bytes, as its name ends in; others as they are.

    Raises ConfigError that shows how it may be written.
    """
    parts = name.split("_")
    if "seconds" in parts:
        total, example = read_span(text), SECONDS_EXAMPLE
    elif "bytes" in parts:
        total, example = read_size(text), BYTES_EXAMPLE
    else:
        return text
    if total is None:
        raise ConfigError(f"{where}: expected a number, or {example}, got {text[:40]!r}")
    return int(total) if total.is_integer() else total
