"""Which numbers, truths and texts of a payload can a person chart?

Numbers become `value`, booleans `flag`, text `text`; a JSON document gives one field a leaf, as in
`value.pose.x`. A name always has the same type, so that two keys cannot disagree about it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from durable_cache.model.sample import Kind, Sample
from durable_cache_influxdb.options import InfluxDbOptions

Leaf = tuple[str, float | bool | str]

_JSON = frozenset(("application/json", "text/json"))
_TEXT = frozenset(("zenoh/string", "text/plain", "application/integer", "application/float"))
_PACKED = {
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
    "float32": "<f",
    "float64": "<d",
}
_NUMBER = re.compile(r"[+-]?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_NAME_LENGTH_MAX = 128
_DEPTH_MAX = 16
_JSON_BYTES_MAX = 1 << 20


class TypedFields:
    """Makes the text of typed fields, within the bounds of the options; one thread at a time."""

    def __init__(self, options: InfluxDbOptions, known: set[str]) -> None:
        self._options = options
        self._names = known
        self._barred: set[str] = set()
        self.conflicts = 0
        """How often a field was left out because the server holds it with another type."""

    def bar(self, name: str | None) -> None:
        """Write no more fields of a name that the server has with another type."""
        self.conflicts += 1
        if name is not None and len(self._barred) < self._options.field_names_max:
            self._barred.add(name)

    def text(self, sample: Sample) -> str:
        """Return ``,name=value`` for every leaf, ready for a line; usually one or none."""
        options = self._options
        if not options.typed_fields or sample.kind is Kind.DELETE:
            return ""
        kind = _kind(sample.encoding)
        if kind is None:
            return ""
        parts: dict[str, str] = {}
        for leaf, value in _leaves(kind, sample.payload):
            name = _UNSAFE.sub("_", options.field_prefix + leaf)[:_NAME_LENGTH_MAX]
            if len(parts) >= options.fields_per_sample_max or not self._admits(name):
                continue
            written = _written(value, options.text_bytes_max)
            if written is not None:
                parts.setdefault(name, f",{name}={written}")
        return "".join(parts.values())

    def _admits(self, name: str) -> bool:
        if name in self._barred:
            self.conflicts += 1
            return False
        if name not in self._names:
            if len(self._names) >= self._options.field_names_max:
                return False
            self._names.add(name)
        return True


def _written(value: float | bool | str, text_bytes_max: int) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    encoded = value.encode("utf-8", "replace")
    if len(encoded) > text_bytes_max or "\x00" in value:
        return None
    escaped = encoded.decode("utf-8").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@lru_cache(maxsize=1024)
def _kind(encoding: str) -> str | None:
    """Return how payloads of an encoding are read, or None when there is nothing to chart."""
    name = encoding.partition(";")[0]
    short = name.removeprefix("zenoh/")
    if name in _JSON:
        return "json"
    if short in _PACKED or short == "bool":
        return short
    return "text" if name in _TEXT else None


def _leaves(kind: str, payload: bytes) -> Iterator[Leaf]:
    if kind == "json":
        if len(payload) <= _JSON_BYTES_MAX:
            try:
                document: object = msgspec.json.decode(payload)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return
            yield from _walk("", document, 0)
        return
    packed = _PACKED.get(kind)
    if packed is not None and len(payload) == struct.calcsize(packed):
        yield from _number("", struct.unpack(packed, payload)[0])
    elif kind == "bool" and payload in (b"\x00", b"\x01"):
        yield "flag", payload == b"\x01"
    else:
        yield from _of_text(payload)


def _of_text(payload: bytes) -> Iterator[Leaf]:
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        return
    if _NUMBER.fullmatch(text):
        yield from _number("", float(text))
    elif text in ("true", "false"):
        yield "flag", text == "true"
    else:
        yield "text", text


def _walk(path: str, node: object, depth: int) -> Iterator[Leaf]:
    if depth > _DEPTH_MAX:
        return
    match node:
        case bool():
            yield f"flag{path}", node
        case int() | float():
            yield from _number(path, node)
        case str():
            yield f"text{path}", node
        case dict():
            for name, child in node.items():
                yield from _walk(f"{path}.{name}", child, depth + 1)
        case list():
            for at, child in enumerate(node):
                yield from _walk(f"{path}.{at}", child, depth + 1)


def _number(path: str, value: float) -> Iterator[Leaf]:
    try:
        number = float(value)
    except OverflowError:
        return
    if math.isfinite(number):
        yield f"value{path}", number
