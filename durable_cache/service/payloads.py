"""What a payload says, as text for people: by its encoding, else by its bytes."""

from __future__ import annotations

import json
import struct

from durable_cache.model.payloads import is_textual, number_layout

_STRUCT = {
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u8": "<B",
    "u16": "<H",
    "u32": "<I",
    "u64": "<Q",
    "f32": "<f",
    "f64": "<d",
}
_INDENTED_BYTES_MAX = 16_384


def payload_text(payload: bytes, encoding: str, chars_max: int) -> tuple[str, str]:
    """Return what a payload is (``json``, ``number``, ``text``, ``bytes``) and what it says.

    The text has at most `chars_max` characters; a longer one ends with ``…``. Nothing in it is
    made safe for a terminal or a browser: that is whoever shows it.
    """
    layout = number_layout(encoding)
    if layout is not None and len(payload) == layout[1]:
        return "number", str(struct.unpack(_STRUCT[layout[0]], payload)[0])
    form, text = _read(payload[: 4 * chars_max + 4], encoding, whole=len(payload) <= 4 * chars_max)
    return form, text if len(text) <= chars_max else text[: max(0, chars_max - 1)] + "…"


def _read(payload: bytes, encoding: str, *, whole: bool) -> tuple[str, str]:
    try:
        text = payload.decode("utf-8") if whole else payload.decode("utf-8", "ignore") + "…"
    except UnicodeDecodeError:
        return "bytes", payload.hex(" ")
    if encoding.partition(";")[0].endswith("json"):
        return "json", _indented(text) if whole and len(text) <= _INDENTED_BYTES_MAX else text
    is_plain = all(char.isprintable() or char in "\n\r\t" for char in text)
    if is_textual(encoding) or (is_plain and whole):
        return "text", text
    return "bytes", payload.hex(" ")


def _indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
