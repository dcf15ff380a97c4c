"""What an encoding says of a payload: that it is text, or a number of some width.

The one rule of every reader: Spark states it in its own engine, `durable_cache.frame` in Arrow's.
And how a text is shown to people, whatever is in it.
"""

from __future__ import annotations

import re

TEXTUAL = (
    r"^(zenoh/string|text/.*|application/(json|yaml|xml|sql|x-www-form-urlencoded|json-seq"
    r"|jsonpath|openmetrics-text|coap-payload-json))$"
)
"""Which encodings are texts, their schema aside; Python and Java read the expression alike."""
INTEGERS = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8}
"""Bytes of the integers that an encoding's schema may name, little-endian."""
FLOATS = {"f32": 4, "f64": 8}
"""Bytes of the IEEE 754 numbers that it may name, little-endian."""

_TEXTUAL = re.compile(TEXTUAL)


def is_textual(encoding: str) -> bool:
    """Tell whether a payload of this encoding is a text."""
    return _TEXTUAL.match(encoding.partition(";")[0]) is not None


def number_layout(encoding: str) -> tuple[str, int] | None:
    """Return the name and the width in bytes of the number that a payload is, or None."""
    _, _, schema = encoding.partition(";")
    name = schema.partition(";")[0]
    width = INTEGERS.get(name) or FLOATS.get(name)
    return None if width is None else (name, width)


def printable(text: str) -> str:
    """Return a text on one line, with an escape for what would move a terminal's cursor."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
