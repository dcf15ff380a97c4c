"""What a CDR payload (ROS 2, DDS) says, decoded by a list of its fields.

XCDR version 1, either byte order. A decoder is a plain function of the payload, made once and
registered with `register_decoder`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import cast

from durable_cache.errors import ConfigError

__all__ = ["cdr_decoder", "cdr_returns"]

_NUMBERS = {
    "bool": ("?", 1, "boolean"),
    "byte": ("B", 1, "smallint"),
    "char": ("B", 1, "smallint"),
    "int8": ("b", 1, "smallint"),
    "uint8": ("B", 1, "smallint"),
    "int16": ("h", 2, "int"),
    "uint16": ("H", 2, "int"),
    "int32": ("i", 4, "bigint"),
    "uint32": ("I", 4, "bigint"),
    "int64": ("q", 8, "bigint"),
    "uint64": ("Q", 8, "decimal(20,0)"),
    "float32": ("f", 4, "double"),
    "float64": ("d", 8, "double"),
}
_HEADER_BYTES = 4
_LITTLE, _BIG = b"\x00\x01", b"\x00\x00"
_FIELD = re.compile(r"([a-z0-9]+)(\[[0-9]*\])?\s+([A-Za-z_][A-Za-z0-9_]*)")
_FIELDS_MAX = 1000

Field = tuple[str, str, int | None, bool]
"""name, type, fixed length of an array, whether it is a list."""


def cdr_returns(fields: str) -> str:
    """Return the Spark type (DDL text) of what `cdr_decoder` gives for the same `fields`."""
    columns = []
    for name, kind, _, many in _parse(fields):
        spark_type = "string" if kind == "string" else _NUMBERS[kind][2]
        columns.append(f"{name}: {f'array<{spark_type}>' if many else spark_type}")
    return f"struct<{', '.join(columns)}>"


def cdr_decoder(fields: str) -> Callable[[bytes], tuple[object, ...]]:
    """Return a decoder for a message of `fields`, in the order of its definition.

    `fields` is like ``"int32 sec; uint32 nanosec; string frame_id; float64[3] position;
    float32[] ranges"``, nested messages written out. The decoder raises ValueError for bytes that
    are no such message. Raises ConfigError for fields that cannot be read.
    """
    layout = _parse(fields)

    def decode(payload: bytes) -> tuple[object, ...]:
        reader = _Reader(payload)
        return tuple(reader.field(*field[1:]) for field in layout)

    return decode


def _parse(fields: str) -> list[Field]:
    layout: list[Field] = []
    for text in filter(None, (part.strip() for part in fields.split(";"))):
        match = _FIELD.fullmatch(text)
        if match is None or (match[1] != "string" and match[1] not in _NUMBERS):
            known = ", ".join([*_NUMBERS, "string"])
            raise ConfigError(f"field {text!r}: write 'type name', with a type of: {known}")
        length = int(match[2][1:-1]) if match[2] and len(match[2]) > 2 else None
        layout.append((match[3], match[1], length, match[2] is not None))
    if not 0 < len(layout) <= _FIELDS_MAX:
        raise ConfigError(f"{len(layout)} fields: write 1 to {_FIELDS_MAX}, such as 'float64 x'")
    return layout


def _for_spark(kind: str, value: object) -> object:
    """Spark has no unsigned 64-bit number and takes no int for a decimal."""
    return Decimal(cast(int, value)) if kind == "uint64" else value


class _Reader:
    """A place in one payload; alignment counts from the end of the header."""

    def __init__(self, payload: bytes) -> None:
        if payload[:2] not in (_LITTLE, _BIG) or len(payload) < _HEADER_BYTES:
            raise ValueError(f"no CDR header: {payload[:_HEADER_BYTES].hex() or 'empty'}")
        self._order = "<" if payload[:2] == _LITTLE else ">"
        self._body = memoryview(payload)[_HEADER_BYTES:]
        self._at = 0

    def field(self, kind: str, length: int | None, many: bool) -> object:
        if not many:
            return self._text() if kind == "string" else self._number(kind)
        count = self._count() if length is None else length
        if kind == "string":
            self._room(count)
            return [self._text() for _ in range(count)]
        code, size, _ = _NUMBERS[kind]
        if count:
            self._align(size)
        taken = self._take(count * size)
        found = struct.unpack(f"{self._order}{count}{code}", taken)
        return [_for_spark(kind, value) for value in found]

    def _number(self, kind: str) -> object:
        code, size, _ = _NUMBERS[kind]
        self._align(size)
        return _for_spark(kind, struct.unpack(self._order + code, self._take(size))[0])

    def _count(self) -> int:
        self._align(4)
        return int(struct.unpack(self._order + "I", self._take(4))[0])

    def _text(self) -> str:
        taken = bytes(self._take(self._count()))
        return taken.removesuffix(b"\x00").decode("utf-8")

    def _align(self, size: int) -> None:
        self._at += -self._at % size

    def _take(self, size: int) -> memoryview:
        self._room(size)
        taken = self._body[self._at : self._at + size]
        self._at += size
        return taken

    def _room(self, size: int) -> None:
        """A forged length must not make a list of billions."""
        if size > len(self._body) - self._at:
            raise ValueError(f"{size} more bytes needed, {len(self._body) - self._at} left")
