"""What a payload says: text, JSON and numbers in Spark's own engine, the rest by a function.

Only `register_decoder` runs Python for a row; everything else is native.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import DataType, StructType

from durable_cache.errors import ConfigError
from durable_cache.model.payloads import FLOATS, INTEGERS, TEXTUAL

_BITS = {"f32": (8, 23), "f64": (11, 52)}
"""Bits of exponent and fraction."""


def text(payload: str = "payload", encoding: str = "encoding") -> Column:
    """Return the payload as text where its encoding says that it is one, else null.

    Bytes that are no UTF-8 give null too: a text that is not one is no error of the query.
    """
    textual = fn.split_part(fn.col(encoding), fn.lit(";"), fn.lit(1)).rlike(TEXTUAL)
    return fn.when(textual, fn.try_validate_utf8(fn.col(payload).cast("string")))


def parsed_json(
    schema: StructType | str, payload: str = "payload", encoding: str = "encoding"
) -> Column:
    """Return the payload as a struct of `schema` (Spark's type or DDL text).

    Null where the encoding is no text or the text no JSON of that shape.
    """
    return fn.from_json(text(payload, encoding), schema)


def number(payload: str = "payload", encoding: str = "encoding") -> Column:
    """Return the payload as a double where it is a number, else null.

    A text is read as a number. Bytes are read as their encoding's schema says, little-endian:
    ``zenoh/serialized;f64``, or any of i8 i16 i32 i64 u8 u16 u32 u64 f32 f64.
    """
    schema = fn.split_part(fn.col(encoding), fn.lit(";"), fn.lit(2))
    value = fn.expr("cast(null as double)")
    for name, width in INTEGERS.items():
        right = (schema == name) & (fn.length(payload) == width)
        value = fn.when(right, _integer(payload, width, signed=name[0] == "i")).otherwise(value)
    for name, width in FLOATS.items():
        right = (schema == name) & (fn.length(payload) == width)
        value = fn.when(right, _float(payload, *_BITS[name])).otherwise(value)
    written = text(payload, encoding).try_cast("double")
    return fn.coalesce(value, written)


def _unsigned(payload: str) -> Column:
    """Return the little-endian bytes as decimal(20,0); Spark has no unsigned 64-bit number."""
    return fn.conv(fn.hex(fn.reverse(fn.col(payload))), 16, 10).cast("decimal(20,0)")


def _integer(payload: str, width: int, *, signed: bool) -> Column:
    value = _unsigned(payload)
    if signed:
        half, whole = (fn.lit(Decimal(1 << bits)) for bits in (8 * width - 1, 8 * width))
        value = fn.when(value >= half, value - whole).otherwise(value)
    return value.cast("double")


def _float(payload: str, exponent_bits: int, fraction_bits: int) -> Column:
    """Put an IEEE 754 number together from its bits: powers of two are exact in a double."""
    bits = _unsigned(payload)
    fraction_whole = fn.lit(1 << fraction_bits).cast("decimal(20,0)")
    fraction = (bits % fraction_whole).cast("double") / float(1 << fraction_bits)
    above = fn.floor(bits / fraction_whole).cast("bigint")
    exponent = above % (1 << exponent_bits)
    sign = fn.when(above >= (1 << exponent_bits), -1.0).otherwise(1.0)
    bias, top = (1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1
    normal = fn.pow(fn.lit(2.0), exponent - bias) * (1.0 + fraction)
    tiny = fn.pow(fn.lit(2.0), fn.lit(1 - bias)) * fraction
    infinite = fn.when(fraction == 0, float("inf")).otherwise(float("nan"))
    return sign * fn.when(exponent == top, infinite).when(exponent == 0, tiny).otherwise(normal)


def with_value(samples: DataFrame, schema: StructType | str | None = None) -> DataFrame:
    """Add `text`, `number` and, when `schema` is given, `json`: the payload by its encoding."""
    told = samples.withColumns({"text": text(), "number": number()})
    return told if schema is None else told.withColumn("json", parsed_json(schema))


def register_decoder(
    spark: SparkSession,
    name: str,
    decode: Callable[[bytes], object],
    returns: DataType | str,
    *,
    errors: Literal["raise", "null"] = "raise",
) -> None:
    """Make `decode` a SQL function of a payload, for CDR, protobuf or anything else.

    `decode` takes the bytes of one payload and returns what `returns` says (Spark's type or DDL
    text). It runs in Python workers, one row at a time: filter before decoding. With
    ``errors="null"`` a payload it refuses gives null, otherwise the query fails and names it.
    """
    if not name.isidentifier():
        raise ConfigError(f"decoder name {name!r}: write letters, digits and _, such as 'pose'")

    def decoded(payload: bytes | bytearray | None) -> object:
        if payload is None:
            return None
        try:
            return decode(bytes(payload))
        except Exception:
            if errors == "null":
                return None
            raise

    # Plain workers: Arrow ones need pandas as well.
    spark.udf.register(name, fn.udf(decoded, returns, useArrow=False))
