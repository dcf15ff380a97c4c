"""What payloads say, as Arrow columns: text and numbers by their encoding, the rest by a function.

Text and numbers follow `durable_cache.model.payloads`, as Spark's `with_value` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from durable_cache.errors import ConfigError
from durable_cache.model.cdr import cdr_decoder, cdr_fields
from durable_cache.model.payloads import is_textual, number_layout

_NUMBER = (
    r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$|(?i)^\s*[+-]?(nan|inf(inity)?)\s*$"
)
_ARROW_NUMBERS = {
    "i8": pa.int8(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
    "f32": pa.float32(),
    "f64": pa.float64(),
}
_CDR_TYPES = {
    "bool": pa.bool_(),
    "byte": pa.uint8(),
    "char": pa.uint8(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
}


class PayloadDecoder(NamedTuple):
    """How the column `value` is made of payloads; see `json_values`, `cdr_values`, `decoded_by`."""

    returns: pa.DataType
    decode: Callable[[bytes], object]
    """Returns what Arrow makes a value of `returns` of."""
    errors: Literal["raise", "null"] = "raise"
    textual: bool = False
    """Only payloads are decoded whose encoding says that they are texts; others give null."""


def json_values(returns: pa.DataType) -> PayloadDecoder:
    """Read texts as JSON of the type `returns`, such as ``pa.struct({"x": pa.float64()})``.

    Null where the encoding is no text or the text no JSON of that shape, as in Spark.
    """
    _check_type(returns)
    return PayloadDecoder(returns, msgspec.json.decode, "null", textual=True)


def cdr_values(fields: str, *, errors: Literal["raise", "null"] = "raise") -> PayloadDecoder:
    """Read payloads as CDR messages (ROS 2, DDS) of `fields`, such as ``"float64 x; float64 y"``.

    Raises ConfigError for fields that cannot be read. A payload that is no such message fails the
    read and is named, or with ``errors="null"`` gives null.
    """
    layout = cdr_fields(fields)
    names = [field.name for field in layout]
    decode = cdr_decoder(fields)
    returns = pa.struct(
        [
            (name, pa.list_(_CDR_TYPES[kind]) if many else _CDR_TYPES[kind])
            for name, kind, _, many in layout
        ]
    )
    return PayloadDecoder(
        returns, lambda payload: dict(zip(names, decode(payload), strict=True)), errors
    )


def decoded_by(
    decode: Callable[[bytes], object],
    returns: pa.DataType,
    *,
    errors: Literal["raise", "null"] = "raise",
) -> PayloadDecoder:
    """Read payloads with a function of one's own, for protobuf or anything else.

    `decode` is called with the bytes of one payload at a time and returns what Arrow makes a
    `returns` of: a number, a text, a dict for a struct. What it raises fails the read, or with
    ``errors="null"`` gives null.
    """
    _check_type(returns)
    return PayloadDecoder(returns, decode, errors)


def _check_type(returns: object) -> None:
    if not isinstance(returns, pa.DataType):
        raise ConfigError(
            f"value: {str(returns)[:60]!r} is no Arrow type; write pa.float64() or the like"
        )


def texts(payloads: pa.Array, encodings: Sequence[str]) -> pa.Array:
    """Return payloads as texts where encoding and bytes say that they are, else null."""
    textual = {encoding for encoding in set(encodings) if is_textual(encoding)}
    chosen = _of(payloads, encodings, textual)
    if chosen is None:
        return pa.nulls(len(payloads), pa.string())
    try:
        return chosen.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(payload) for payload in chosen.to_pylist()], pa.string())


def _of(payloads: pa.Array, encodings: Sequence[str], wanted: set[str]) -> pa.Array | None:
    """Return the payloads of some encodings, null in the place of others; None when all are."""
    if not wanted:
        return None
    if wanted.issuperset(encodings):
        return payloads
    here = pa.array([encoding in wanted for encoding in encodings], pa.bool_())
    return pc.if_else(here, payloads, pa.scalar(None, payloads.type))


def _text(payload: bytes | None) -> str | None:
    try:
        return None if payload is None else payload.decode()
    except UnicodeDecodeError:
        return None


def numbers(payloads: pa.Array, encodings: Sequence[str], text: pa.Array) -> pa.Array:
    """Return payloads as doubles where they are numbers, texts or bytes, else null."""
    written = _written(text)
    for encoding in set(encodings):
        layout = number_layout(encoding)
        chosen = None if layout is None else _of(payloads, encodings, {encoding})
        if layout is not None and chosen is not None:
            written = pc.coalesce(_packed(chosen, *layout), written)
    return written


def _written(text: pa.Array) -> pa.Array:
    if text.null_count == len(text):
        return pa.nulls(len(text), pa.float64())
    fits = pc.match_substring_regex(text, _NUMBER)
    digits = pc.utf8_ltrim(pc.utf8_trim_whitespace(text), "+")
    try:
        return pc.if_else(fits, digits, pa.scalar(None, pa.string())).cast(pa.float64())
    except pa.ArrowInvalid:  # beyond the range of a double
        found = zip(fits.to_pylist(), text.to_pylist(), strict=True)
        return pa.array([float(number) if fit else None for fit, number in found], pa.float64())


def _packed(payloads: pa.Array, name: str, width: int) -> pa.Array:
    """Read little-endian bytes as numbers; null where they are not of that width."""
    fits = pc.fill_null(pc.equal(pc.binary_length(payloads), width), False)
    stored = b"".join(payloads.filter(fits).to_pylist())
    kind = _ARROW_NUMBERS[name]
    found = pa.Array.from_buffers(kind, len(stored) // width, [None, pa.py_buffer(stored)])
    nothing = pa.nulls(len(payloads), pa.float64())
    return pc.replace_with_mask(nothing, fits, found.cast(pa.float64(), safe=False))


def values(
    payloads: Sequence[bytes | None], encodings: Sequence[str], decoder: PayloadDecoder
) -> pa.Array:
    """Return payloads as `decoder` reads them; None, a deletion's payload, gives null.

    Raises what the decoder raises, with a note that names the payload, unless it says null.
    """
    found = [*_decoded(payloads, encodings, decoder)]
    try:
        return pa.array(found, decoder.returns)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if decoder.errors == "raise":
            raise
    return pa.array([_fitting(value, decoder.returns) for value in found], decoder.returns)


def _decoded(
    payloads: Sequence[bytes | None], encodings: Sequence[str], decoder: PayloadDecoder
) -> Iterator[object]:
    textual = {encoding: is_textual(encoding) for encoding in set(encodings)}
    for payload, encoding in zip(payloads, encodings, strict=True):
        if payload is None or (decoder.textual and not textual[encoding]):
            yield None
            continue
        try:
            yield decoder.decode(payload)
        except Exception as error:
            if decoder.errors == "raise":
                error.add_note(f"payload {payload[:32]!r}, encoding {encoding!r}")
                raise
            yield None


def _fitting(value: object, kind: pa.DataType) -> Any:
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
