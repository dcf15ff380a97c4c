"""Which columns do the tables of a storage have: the public contract with every reader.

A storage called `name` below the volume's `path` is two Delta tables, ``<path>/<name>/samples`` and
``<path>/<name>/skips``. Columns are only ever added, never renamed or retyped, within one schema
version; readers must ignore columns they do not know.
"""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]

SCHEMA_VERSION = 1
VERSION_PROPERTY = "durable_cache.schema_version"
TABLE_PROPERTY = "durable_cache.table"
PARTITION = "day"


def _field(name: str, kind: pa.DataType, comment: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"comment": comment})


_MICROSECONDS = pa.timestamp("us", tz="UTC")
_UNSIGNED_64 = pa.decimal128(20, 0)

SAMPLES: pa.Schema = pa.schema(
    [
        _field("key_expr", pa.string(), "the key the sample was published on"),
        _field("source_zid", pa.string(), "Zenoh id of the publisher, lowercase hexadecimal"),
        _field("source_eid", pa.int64(), "entity id of the publisher, an unsigned 32-bit number"),
        _field("epoch", pa.int64(), "which run of the source's numbering, in frames of 2^33 ns"),
        _field("sn", pa.int64(), "number of the sample within its source and epoch"),
        _field("sequence", _UNSIGNED_64, "epoch << 35 | (sn + 1), the packed RaiMS form"),
        _field("kind", pa.string(), "PUT or DELETE"),
        _field("payload", pa.binary(), "the payload, byte for byte"),
        _field("encoding", pa.string(), "Zenoh's encoding as published, with its schema"),
        _field(
            "encoding_schema",
            pa.string(),
            "what follows the first ';' of the encoding; null without one",
            nullable=True,
        ),
        _field("attachment", pa.binary(), "byte for byte; null when there is none", nullable=True),
        _field("ntp64", _UNSIGNED_64, "the HLC timestamp as its raw NTP64 number; exact"),
        _field("timestamp_id", pa.string(), "id of the HLC that made the timestamp, hexadecimal"),
        _field("timestamp", _MICROSECONDS, "the HLC timestamp, rounded down to a microsecond"),
        _field("stamped", pa.bool_(), "published without a timestamp: the cache stamped it"),
        _field("received_at", _MICROSECONDS, "when the first cache received it, rounded down"),
        _field("received_ns", pa.int64(), "the same in Unix nanoseconds; exact"),
        _field("priority", pa.int32(), "1 (real time) to 7 (background)"),
        _field("congestion_control", pa.int32(), "0 drop, 1 block, 2 block first"),
        _field("express", pa.bool_(), "published without batching"),
        _field("payload_digest", pa.binary(), "BLAKE2b-128 of kind, encoding, payload, attachment"),
        _field("payload_bytes", pa.int64(), "length of the payload"),
        _field("day", pa.date32(), "UTC day of receipt; the partition"),
    ]
)
"""The samples table. (key_expr, source_zid, source_eid, epoch, sn) is unique."""

SAMPLES_IN_FILES: pa.Schema = SAMPLES.remove(SAMPLES.get_field_index(PARTITION))
"""What the Parquet files hold: a Delta table keeps its partition column in the log."""

SKIPS: pa.Schema = pa.schema(
    [
        _field("source_zid", pa.string(), "Zenoh id of the publisher"),
        _field("source_eid", pa.int64(), "entity id of the publisher"),
        _field("epoch", pa.int64(), "which run of the source's numbering"),
        _field("first_sn", pa.int64(), "first number whose wait ended without a sample"),
        _field("last_sn", pa.int64(), "last such number, included"),
        _field("recorded_at", _MICROSECONDS, "when the cache gave the numbers up"),
    ]
)
"""The skips table: disjoint ranges; those that samples replaced later are taken out again."""

STATS_COLUMNS = (
    "key_expr",
    "source_zid",
    "source_eid",
    "epoch",
    "sn",
    "ntp64",
    "timestamp",
    "received_at",
    "received_ns",
)
"""The columns whose least and greatest value per file are in the log, for skipping files."""

REQUIRED_CONFIGURATION = {
    VERSION_PROPERTY: str(SCHEMA_VERSION),
    "delta.dataSkippingStatsColumns": ",".join(STATS_COLUMNS),
}


def encoding_schema(encoding: str) -> str | None:
    """Return what follows the first ``;`` of an encoding, or None without one."""
    _, found, schema = encoding.partition(";")
    return schema if found else None
