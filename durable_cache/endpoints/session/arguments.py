"""What programs hand in as zenoh's own types becomes ours; anything else is refused by name."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import zenoh

from durable_cache.errors import ConfigError

__all__ = ["IntoBytes", "IntoEncoding", "IntoKeyExpr", "read_bytes", "read_encoding", "read_text"]

IntoBytes: TypeAlias = "bytes | bytearray | memoryview | str | zenoh.ZBytes"
IntoEncoding: TypeAlias = "str | zenoh.Encoding"
IntoKeyExpr: TypeAlias = "str | zenoh.KeyExpr"

_ENCODINGS_CACHED = 256
_ENCODING_BYTES_MAX = 1024
"""Zenoh's schemas end at 255 bytes; a longer text is a mistaken argument."""


def read_bytes(value: object, name: str) -> bytes:
    """Return a payload or an attachment as bytes; ConfigError names the argument otherwise."""
    match value:
        case bytes():
            return value
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"{name}: the text cannot be written as UTF-8: {error}") from None
        case zenoh.ZBytes():
            return value.to_bytes()
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            raise ConfigError(
                f"{name}: expected bytes, str or zenoh.ZBytes, got {type(value).__name__}"
            )


def read_encoding(value: object) -> str:
    """Return an encoding as Zenoh writes it; ConfigError when it is none."""
    match value:
        case str():
            return _canonical(value)
        case zenoh.Encoding():
            return str(value)
        case _:
            raise ConfigError(
                f"encoding: expected a str or a zenoh.Encoding, got {type(value).__name__}"
            )


@lru_cache(maxsize=_ENCODINGS_CACHED)
def _canonical(text: str) -> str:
    try:
        size = len(text.encode())
        if size > _ENCODING_BYTES_MAX:
            raise ConfigError(f"encoding: {size} bytes; {_ENCODING_BYTES_MAX} are allowed")
        return str(zenoh.Encoding(text))
    except (ValueError, zenoh.ZError) as error:
        raise ConfigError(f"encoding {text[:40]!r}: {error}") from None


def read_text(value: object, name: str) -> str:
    """Return a key or key expression as text; ConfigError when it is neither str nor KeyExpr."""
    if isinstance(value, str):
        return value
    if isinstance(value, zenoh.KeyExpr):
        return str(value)
    raise ConfigError(f"{name}: expected a str or a zenoh.KeyExpr, got {type(value).__name__}")
