"""What a CDR payload (ROS 2, DDS) says, decoded by a list of its fields.

XCDR version 1, either byte order. A decoder is a plain function of the payload, made once.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from durable_cache.errors import ConfigError

_NUMBERS = {
    "bool": ("?", 1),
    "byte": ("B", 1),
    "char": ("B", 1),
    "int8": ("b", 1),
    "uint8": ("B", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "uint64": ("Q", 8),
    "float32": ("f", 4),
    "float64": ("d", 8),
}
"""The code of `struct` and the width in bytes of every type but ``string``."""
_HEADER_BYTES = 4
_LITTLE, _BIG = b"\x00\x01", b"\x00\x00"
_FIELD = re.compile(r"([a-z0-9]+)(\[[0-9]*\])?\s+([A-Za-z_][A-Za-z0-9_]*)")
_FIELDS_MAX = 1000


class CdrField(NamedTuple):
    """One field of a message."""

    name: str
    kind: str
    length: int | None
    """Of an array whose length is fixed."""
    many: bool
    """It is an array or a list."""


def cdr_decoder(fields: str) -> Callable[[bytes], tuple[object, ...]]:
    """Return a decoder for a message of `fields`, in the order of its definition.

    `fields` is like ``"int32 sec; uint32 nanosec; string frame_id; float64[3] position;
    float32[] ranges"``, nested messages written out. The decoder raises ValueError for bytes that
    are no such message. Raises ConfigError for fields that cannot be read.
    """
    layout = cdr_fields(fields)

    def decode(payload: bytes) -> tuple[object, ...]:
        reader = _Reader(payload)
        return tuple(reader.field(field) for field in layout)

    return decode


def cdr_fields(fields: str) -> list[CdrField]:
    """Return the fields that a text names, in order. Raises ConfigError as `cdr_decoder` does."""
    layout: list[CdrField] = []
    for text in filter(None, (part.strip() for part in fields.split(";"))):
        match = _FIELD.fullmatch(text)
        if match is None or (match[1] != "string" and match[1] not in _NUMBERS):
            known = ", ".join([*_NUMBERS, "string"])
            raise ConfigError(f"field {text!r}: write 'type name', with a type of: {known}")
        length = int(match[2][1:-1]) if match[2] and len(match[2]) > 2 else None
        layout.append(CdrField(match[3], match[1], length, match[2] is not None))
    if not 0 < len(layout) <= _FIELDS_MAX:
        raise ConfigError(f"{len(layout)} fields: write 1 to {_FIELDS_MAX}, such as 'float64 x'")
    return layout


class _Reader:
    """A place in one payload; alignment counts from the end of the header."""

    def __init__(self, payload: bytes) -> None:
        if payload[:2] not in (_LITTLE, _BIG) or len(payload) < _HEADER_BYTES:
            raise ValueError(f"no CDR header: {payload[:_HEADER_BYTES].hex() or 'empty'}")
        self._order = "<" if payload[:2] == _LITTLE else ">"
        self._body = memoryview(payload)[_HEADER_BYTES:]
        self._at = 0

    def field(self, field: CdrField) -> object:
        _, kind, length, many = field
        if not many:
            return self._text() if kind == "string" else self._number(kind)
        count = self._count() if length is None else length
        if kind == "string":
            self._room(count)
            return [self._text() for _ in range(count)]
        code, size = _NUMBERS[kind]
        if count:
            self._align(size)
        taken = self._take(count * size)
        return [*struct.unpack(f"{self._order}{count}{code}", taken)]

    def _number(self, kind: str) -> object:
        code, size = _NUMBERS[kind]
        self._align(size)
        value: object = struct.unpack(self._order + code, self._take(size))[0]
        return value

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
