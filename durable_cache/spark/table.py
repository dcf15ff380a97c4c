"""Which folder holds a storage's history, and is it one that this version can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from durable_cache.errors import ConfigError, SchemaOutdated
from durable_cache.spark.failures import spark_errors
from durable_cache.spark.files import exists

SCHEMA_VERSION = 1
VERSION_PROPERTY = "durable_cache.schema_version"

SAMPLE_COLUMNS = {
    "key_expr": "string",
    "source_zid": "string",
    "source_eid": "bigint",
    "epoch": "bigint",
    "sn": "bigint",
    "sequence": "decimal(20,0)",
    "kind": "string",
    "payload": "binary",
    "encoding": "string",
    "encoding_schema": "string",
    "attachment": "binary",
    "ntp64": "decimal(20,0)",
    "timestamp_id": "string",
    "timestamp": "timestamp",
    "stamped": "boolean",
    "received_at": "timestamp",
    "received_ns": "bigint",
    "priority": "int",
    "congestion_control": "int",
    "express": "boolean",
    "payload_digest": "binary",
    "payload_bytes": "bigint",
    "day": "date",
}
"""The public columns of a samples table and their Spark types."""

SKIP_COLUMNS = {
    "source_zid": "string",
    "source_eid": "bigint",
    "epoch": "bigint",
    "first_sn": "bigint",
    "last_sn": "bigint",
    "recorded_at": "timestamp",
}


@dataclass(frozen=True, slots=True)
class Table:
    """One storage's history: where its samples are, and its skips if it has any."""

    samples_path: str
    skips_path: str | None

    def samples(self, spark: SparkSession) -> DataFrame:
        """Return every sample, lazily, with `source` written ``<zid>:<eid>``; a native scan."""
        with spark_errors(self.samples_path):
            rows = spark.read.format("delta").load(self.samples_path)
        source = fn.concat_ws(":", fn.col("source_zid"), fn.col("source_eid").cast("string"))
        return rows.withColumn("source", source)

    def skips(self, spark: SparkSession) -> DataFrame:
        """Return every recorded skip, lazily; those that samples replaced later included."""
        if self.skips_path is None:
            columns = ", ".join(f"{name} {kind}" for name, kind in SKIP_COLUMNS.items())
            return spark.createDataFrame([], columns)
        with spark_errors(self.skips_path):
            return spark.read.format("delta").load(self.skips_path).select(*SKIP_COLUMNS)


def open_table(spark: SparkSession, table: str | Path) -> Table:
    """Find a storage's tables in `table`, its folder or its samples table, and check them.

    Reads the table's log, no history. Raises ConfigError (no such table, or another one),
    `SchemaOutdated` or `StorageCorrupt`; none is worth a retry as is.
    """
    place = str(table).rstrip("/")
    nested = f"{place}/samples"
    if is_delta(spark, nested):
        samples, folder = nested, place
    elif is_delta(spark, place):
        samples, folder = place, place.rpartition("/")[0] or "."
    else:
        raise ConfigError(
            f"{place}: no Delta table here, nor in {nested}; name the folder of a storage of the "
            "delta backend (<volume path>/<storage name>)"
        )
    _check(spark, samples, SAMPLE_COLUMNS)
    skips = f"{folder}/skips"
    if not is_delta(spark, skips):
        return Table(samples, None)
    _check(spark, skips, SKIP_COLUMNS)
    return Table(samples, skips)


def is_delta(spark: SparkSession, path: str) -> bool:
    """Tell whether a folder holds a Delta table; False for a folder that is not there."""
    # Delta's own test says yes to a folder anywhere below a table.
    return exists(spark, f"{path}/_delta_log")


def _check(spark: SparkSession, path: str, columns: dict[str, str]) -> None:
    with spark_errors(path):
        found = dict(spark.read.format("delta").load(path).dtypes)
        detail = DeltaTable.forPath(spark, path).detail().select("properties").first()
    properties = detail["properties"] if detail is not None else {}
    _check_version(path, properties.get(VERSION_PROPERTY))
    wrong = [
        f"{name} is {found.get(name, 'missing')}, not {kind}"
        for name, kind in columns.items()
        if found.get(name) != kind
    ]
    if wrong:
        raise ConfigError(
            f"{path}: another kind of table: {'; '.join(wrong[:3])}"
            f"{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}; "
            "name a table written by the delta backend"
        )


def _check_version(path: str, found: str | None) -> None:
    """Columns decide about a table without the property: a copy loses it, and is still readable."""
    if found is None or found == str(SCHEMA_VERSION):
        return
    newer = found.isascii() and found.isdigit() and int(found) > SCHEMA_VERSION
    remedy = (
        f"{path} was written by a newer durable-cache: install that version"
        if newer
        else f"bring {path} up to date: durable-cache migrate"
    )
    raise SchemaOutdated(found, str(SCHEMA_VERSION), remedy)
