"""How a table of each key's newest sample is kept up to date, reading only what is new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from durable_cache.errors import ConfigError
from durable_cache.spark.failures import spark_errors
from durable_cache.spark.outputs import check_apart
from durable_cache.spark.predicates import named_by
from durable_cache.spark.table import SAMPLE_COLUMNS, is_delta, open_table
from durable_cache.spark.updates import is_update, newest_updates, with_updates
from durable_cache.spark.views import newest

KIND_PROPERTY = "durable_cache.table"
_KIND = "latest"
FILES_PER_BATCH_MAX = 1000
_ORDER = (
    "struct({0}.ntp64, lpad({0}.timestamp_id, 32, '0'), {0}.key_expr, "
    "lpad({0}.source_zid, 32, '0'), {0}.source_eid, {0}.epoch, {0}.sn)"
)
_SAME = "held.key_expr = new.key_expr and (not contains(new.key_expr, '*') or held.kind = new.kind)"
"""Of an expression with wildcards its newest put and its newest delete are kept."""


def update_latest(
    spark: SparkSession, table: str | Path, target: str | Path, key_expr: str = "**"
) -> int:
    """Bring the latest-table `target` up to date with a storage; return how many rows were read.

    Reads what was committed since the last call (its place is kept in `target`) and merges by
    HLC order, so that repeating it, or cutting it off at any point, changes nothing. Deleted keys
    stay as rows of kind DELETE: `read_latest` leaves them out. Raises what `open_table` raises,
    ConfigError when `target` is something else, `StorageUnavailable` (retry).
    """
    read: list[int] = []
    query = _start(spark, table, target, key_expr, read.append, every_seconds=None)
    with spark_errors(str(target)):
        query.awaitTermination()
    return sum(read)


def follow_latest(
    spark: SparkSession,
    table: str | Path,
    target: str | Path,
    key_expr: str = "**",
    *,
    every_seconds: float = 10.0,
    progress: Callable[[int], None] = lambda _: None,
) -> StreamingQuery:
    """Start keeping `target` up to date and return the running query; the caller stops it.

    As `update_latest`, again every `every_seconds`. `progress` is told the rows of each batch.
    """
    return _start(spark, table, target, key_expr, progress, every_seconds)


def read_latest(spark: SparkSession, target: str | Path) -> DataFrame:
    """Return the newest value of each key that is not deleted, from a latest-table."""
    _check_kind(spark, str(target))
    with spark_errors(str(target)):
        rows = spark.read.format("delta").load(str(target))
        return with_updates(rows.where(~is_update()), rows.where(is_update()))


def _start(
    spark: SparkSession,
    table: str | Path,
    target: str | Path,
    key_expr: str,
    progress: Callable[[int], None],
    every_seconds: float | None,
) -> StreamingQuery:
    wanted = named_by(key_expr) | is_update()  # any update may name a key that is wanted
    found = open_table(spark, table)
    place = check_apart(found, target)
    _create(spark, place)

    def merge(batch: DataFrame, _: int) -> None:
        rows = batch.persist()
        try:
            own = newest(rows.where(~is_update()))
            _merge(spark, place, own.unionByName(newest_updates(rows)))
            progress(rows.count())
        finally:
            rows.unpersist()

    with spark_errors(place):
        # Retention deletes rows of old days: those commits have nothing new.
        rows = (
            spark.readStream.format("delta")
            .option("skipChangeCommits", "true")
            .option("maxFilesPerTrigger", str(FILES_PER_BATCH_MAX))
            .load(found.samples_path)
        )
        writer = rows.where(wanted).select(*SAMPLE_COLUMNS).writeStream.foreachBatch(merge)
        writer = writer.option("checkpointLocation", f"{place}/_checkpoints/{_KIND}")
        if every_seconds is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every_seconds} seconds").start()


def _create(spark: SparkSession, place: str) -> None:
    if is_delta(spark, place):
        _check_kind(spark, place)
        return
    builder = DeltaTable.create(spark).location(place).property(KIND_PROPERTY, _KIND)
    for name, kind in SAMPLE_COLUMNS.items():
        builder = builder.addColumn(name, kind)
    with spark_errors(place):
        builder.execute()


def _check_kind(spark: SparkSession, place: str) -> None:
    properties: dict[str, str] = {}
    if is_delta(spark, place):
        with spark_errors(place):
            detail = DeltaTable.forPath(spark, place).detail().select("properties").first()
        properties = detail["properties"] if detail is not None else {}
    if properties.get(KIND_PROPERTY) != _KIND:
        raise ConfigError(f"{place}: no latest-table; name a new folder for `spark latest --to`")


def _merge(spark: SparkSession, place: str, rows: DataFrame) -> None:
    newer = f"{_ORDER.format('new')} > {_ORDER.format('held')}"
    (
        DeltaTable.forPath(spark, place)
        .alias("held")
        .merge(rows.alias("new"), _SAME)
        .whenMatchedUpdateAll(condition=newer)
        .whenNotMatchedInsertAll()
        .execute()
    )
