"""Do payloads become the text, numbers and structs that their encoding says they are."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as fn

from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.spark import register_decoder, with_value
from durable_cache.spark.cdr import cdr_decoder, cdr_returns
from durable_cache.spark.decoding import number
from durable_cache.spark.failures import spark_errors
from tests.servers.spark import plan_of, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]
pytestmark = pytest.mark.spark


def frame(spark: SparkSession, rows: list[tuple[bytes, str]]) -> DataFrame:
    numbered = [(at, payload, encoding) for at, (payload, encoding) in enumerate(rows)]
    return spark.createDataFrame(numbered, "at int, payload binary, encoding string")


def test_text_is_text_only_where_the_encoding_says_so(spark: SparkSession) -> None:
    rows = frame(
        spark,
        [
            ("grüß".encode(), "zenoh/string"),
            (b"plain", "text/plain;utf-8"),
            (b'{"a": 1}', "application/json"),
            (b"\xff\xfe", "text/plain"),
            (b"bytes", "zenoh/bytes"),
        ],
    )
    found = [row["text"] for row in with_value(rows).orderBy("at").collect()]
    assert found == ["grüß", "plain", '{"a": 1}', None, None]


def test_json_becomes_a_struct(spark: SparkSession) -> None:
    rows = frame(spark, [(b'{"x": 1.5}', "application/json"), (b"{", "application/json")])
    found = with_value(rows, "x double").orderBy("at").collect()
    assert found[0]["json"]["x"] == 1.5
    assert found[1]["json"] is None or found[1]["json"]["x"] is None


NUMBERS: list[tuple[bytes, str, float | None]] = [
    (b"42", "text/plain", 42.0),
    (b"-1.5e3", "application/json", -1500.0),
    (b"words", "text/plain", None),
    (b"42", "zenoh/bytes", None),
    (struct.pack("<i", -7), "zenoh/serialized;i32", -7.0),
    (struct.pack("<b", -128), "zenoh/bytes;i8", -128.0),
    (struct.pack("<h", 3), "zenoh/bytes;i32", None),
    (struct.pack("<Q", 2**64 - 1), "zenoh/serialized;u64", float(2**64 - 1)),
    (struct.pack("<q", -(2**63)), "zenoh/serialized;i64", -float(2**63)),
    (b"", "zenoh/serialized;u8", None),
]
DOUBLES = [0.0, 1.0, -1.0, 0.1, math.pi, 1e300, -1e-300, 5e-324, 2.2250738585072014e-308, math.inf]
FLOATS = [0.0, 1.0, -0.5, 1.0000001192092896, 1e-45, 3.4028234663852886e38, -math.inf]


def test_numbers_by_encoding(spark: SparkSession) -> None:
    cases = NUMBERS.copy()
    cases += [(struct.pack("<d", value), "zenoh/serialized;f64", value) for value in DOUBLES]
    cases += [
        (packed := struct.pack("<f", value), "x/y;f32", struct.unpack("<f", packed)[0])
        for value in FLOATS
    ]
    rows = frame(spark, [(payload, encoding) for payload, encoding, _ in cases])
    decoded = rows.withColumn("number", number()).orderBy("at")
    assert "Python" not in plan_of(decoded)
    found = [row["number"] for row in decoded.collect()]
    assert found == [value for _, _, value in cases]


def test_not_a_number_is_one(spark: SparkSession) -> None:
    rows = frame(spark, [(struct.pack("<d", math.nan), "zenoh/serialized;f64")])
    assert math.isnan(rows.select(number()).collect()[0][0])


STAMPED = "int32 sec; uint32 nanosec; string frame_id; float64[3] position; float32[] ranges"


def stamped(order: str) -> bytes:
    text = b"map\x00"
    body = struct.pack(f"{order}iII{len(text)}s", 12, 34, len(text), text)
    body += struct.pack(f"{order}3d", 1.0, 2.0, 3.0)
    body += struct.pack(f"{order}I2f", 2, 0.5, 0.25)
    return (b"\x00\x01" if order == "<" else b"\x00\x00") + b"\x00\x00" + body


@pytest.mark.parametrize("order", ["<", ">"])
def test_cdr_through_a_registered_function(spark: SparkSession, order: str) -> None:
    register_decoder(spark, "stamped", cdr_decoder(STAMPED), cdr_returns(STAMPED))
    rows = frame(spark, [(stamped(order), "application/cdr")])
    found = rows.select(fn.expr("stamped(payload)").alias("m")).select("m.*").collect()[0]
    assert (found["sec"], found["nanosec"], found["frame_id"]) == (12, 34, "map")
    assert found["position"] == [1.0, 2.0, 3.0]
    assert found["ranges"] == [0.5, 0.25]


def test_cdr_aligns_from_the_body() -> None:
    payload = b"\x00\x01\x00\x00" + struct.pack("<B7xd", 9, 2.5)
    assert cdr_decoder("uint8 a; float64 b")(payload) == (9, 2.5)
    assert cdr_decoder("string[] s")(b"\x00\x01\x00\x00" + struct.pack("<II2s", 1, 2, b"x")) == (
        ["x"],
    )


@pytest.mark.parametrize("payload", [b"", b"\x00\x01", b"\x07\x07\x00\x00abcd", stamped("<")[:-1]])
def test_bytes_that_are_no_message_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"CDR header|needed"):
        cdr_decoder(STAMPED)(payload)


def test_a_forged_length_makes_no_list() -> None:
    forged = b"\x00\x01\x00\x00" + b"\xff\xff\xff\xff"
    for fields in ("string[] s", "float64[] x", "string s"):
        with pytest.raises(ValueError, match="needed"):
            cdr_decoder(fields)(forged)


def test_fields_that_cannot_be_read_are_refused() -> None:
    for fields in ("", "quaternion q", "float64", "float64 x y"):
        with pytest.raises(ConfigError, match="write"):
            cdr_decoder(fields)


def test_a_decoder_that_fails_says_so_or_gives_null(spark: SparkSession) -> None:
    def refuse(payload: bytes) -> str:
        raise ValueError(f"refused {len(payload)} bytes")

    rows = frame(spark, [(b"abc", "x")])
    register_decoder(spark, "strict", refuse, "string")
    with pytest.raises(StorageUnavailable, match="refused 3 bytes"), spark_errors("rows"):
        rows.select(fn.expr("strict(payload)")).collect()
    register_decoder(spark, "lenient", refuse, "string", errors="null")
    assert rows.select(fn.expr("lenient(payload)")).collect()[0][0] is None
    with pytest.raises(ConfigError, match="decoder name"):
        register_decoder(spark, "a; drop", refuse, "string")


def test_unsigned_numbers_of_cdr_are_decimals(spark: SparkSession) -> None:
    register_decoder(spark, "big", cdr_decoder("uint64 n"), cdr_returns("uint64 n"))
    rows = frame(spark, [(b"\x00\x01\x00\x00" + b"\xff" * 8, "application/cdr")])
    assert rows.select(fn.expr("big(payload).n")).collect()[0][0] == Decimal(2**64 - 1)


def test_protobuf_is_decoded_by_a_registered_function(spark: SparkSession) -> None:
    """The wire format's own documented examples, and what a receiver that knows less skips."""

    def state(message: bytes) -> tuple[int | None, str | None, float | None]:
        """Decode ``{int32 a = 1; string b = 2; double c = 3;}`` as generated code would."""
        import struct

        at, found = 0, dict[int, object]()

        def varint() -> int:
            nonlocal at
            shift = value = 0
            while True:
                byte = message[at]
                value |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if byte < 0x80:
                    return value

        while at < len(message):
            tag = varint()
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                found[number] = varint()
            elif wire == 1:
                found[number] = struct.unpack_from("<d", message, at)[0]
                at += 8
            elif wire == 2:
                size = varint()
                found[number] = message[at : at + size].decode()
                at += size
            else:
                raise ValueError(f"wire type {wire} is none")
        return found.get(1), found.get(2), found.get(3)  # type: ignore[return-value]

    a150, testing = bytes.fromhex("089601"), bytes.fromhex("120774657374696e67")
    c = b"\x19" + struct.pack("<d", 2.5)
    rows = frame(
        spark,
        [
            (a150 + testing + c, "application/protobuf;fleet.State"),
            (testing, "application/protobuf;fleet.State"),
            (a150 + bytes.fromhex("2a03e282ac"), "application/protobuf;fleet.State"),
            (b"\x0f", "application/protobuf;fleet.State"),
        ],
    )
    register_decoder(spark, "state", state, "a int, b string, c double", errors="null")
    told = rows.selectExpr("at", "state(payload) as state").select("at", "state.*").orderBy("at")
    assert [tuple(row)[1:] for row in told.collect()] == [
        (150, "testing", 2.5),
        (None, "testing", None),
        (150, None, None),
        (None, None, None),
    ]
