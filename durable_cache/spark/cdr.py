"""What a CDR payload (ROS 2, DDS) says, in Spark's types, to be given to `register_decoder`.

How the bytes are read: `durable_cache.model.cdr`.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import cast

from durable_cache.model import cdr
from durable_cache.model.cdr import CdrField, cdr_fields

_TYPES = {
    "bool": "boolean",
    "byte": "smallint",
    "char": "smallint",
    "int8": "smallint",
    "uint8": "smallint",
    "int16": "int",
    "uint16": "int",
    "int32": "bigint",
    "uint32": "bigint",
    "int64": "bigint",
    "uint64": "decimal(20,0)",
    "float32": "double",
    "float64": "double",
    "string": "string",
}


def cdr_returns(fields: str) -> str:
    """Return the Spark type (DDL text) of what `cdr_decoder` gives for the same `fields`."""
    columns = []
    for name, kind, _, many in cdr_fields(fields):
        spark_type = _TYPES[kind]
        columns.append(f"{name}: {f'array<{spark_type}>' if many else spark_type}")
    return f"struct<{', '.join(columns)}>"


def cdr_decoder(fields: str) -> Callable[[bytes], tuple[object, ...]]:
    """Return a decoder for a message of `fields`, as `durable_cache.model.cdr.cdr_decoder` does.

    Its numbers are those that Spark takes. Raises ConfigError for fields that cannot be read.
    """
    layout = cdr_fields(fields)
    decode = cdr.cdr_decoder(fields)
    if not any(field.kind == "uint64" for field in layout):
        return decode

    def decoded(payload: bytes) -> tuple[object, ...]:
        return tuple(map(_for_spark, layout, decode(payload)))

    return decoded


def _for_spark(field: CdrField, value: object) -> object:
    """Spark has no unsigned 64-bit number and takes no int for a decimal."""
    if field.kind != "uint64":
        return value
    if field.many:
        return [Decimal(number) for number in cast("list[int]", value)]
    return Decimal(cast("int", value))
