"""Which tables can be made from a storage's history: thinned out, exported, planned for replay.

Every job writes to a new folder of its own; nothing is collected to the driver but totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from durable_cache.errors import ConfigError
from durable_cache.spark.decoding import number
from durable_cache.spark.failures import spark_errors
from durable_cache.spark.outputs import Format, check_apart, write_frame
from durable_cache.spark.predicates import named_by
from durable_cache.spark.selecting import Part
from durable_cache.spark.table import Table, open_table
from durable_cache.spark.updates import time_order
from durable_cache.spark.views import gaps

Keep = Literal["first", "last", "mean"]
_MICROS = 1_000_000
BUCKETS_MAX = 4096


def gap_report(spark: SparkSession, table: str | Path | Table, key_expr: str = "**") -> DataFrame:
    """Return every missing range next to a sample that `key_expr` names, the longest first.

    A missing number has no key: it counts where the sample before or after it does.
    """
    wanted = fn.coalesce(named_by(key_expr, "before_key_expr"), fn.lit(False)) | fn.coalesce(
        named_by(key_expr, "after_key_expr"), fn.lit(False)
    )
    found = table if isinstance(table, Table) else open_table(spark, table)
    order = (fn.desc("missing"), "source", "epoch", "first_sn")
    return gaps(spark, found).where(wanted).orderBy(*order)


def downsample(
    spark: SparkSession,
    table: str | Path,
    target: str | Path,
    every_seconds: float,
    *,
    keep: Keep = "last",
    part: Part | None = None,
    form: Format = "parquet",
) -> None:
    """Write one row per key and `every_seconds` of HLC time to the new folder `target`.

    ``first`` and ``last`` keep whole samples (puts only), ``mean`` writes count, mean, min and
    max of the payloads that are numbers. Raises as `write_frame` does.
    """
    if not every_seconds * _MICROS >= 1:
        raise ConfigError(f"every {every_seconds} s: write a time above 0")
    found = open_table(spark, table)
    place = check_apart(found, target)
    step = fn.lit(round(every_seconds * _MICROS)).cast("bigint")
    micros = fn.unix_micros("timestamp")
    bucket = fn.timestamp_micros(micros - fn.pmod(micros, step))
    rows = (part or Part()).of(spark, found).where("kind = 'PUT'").withColumn("bucket", bucket)
    write_frame(spark, _thinned(rows, keep), place, form=form)


def _thinned(rows: DataFrame, keep: Keep) -> DataFrame:
    match keep:
        case "mean":
            value = number()
            return (
                rows.withColumn("_value", value)
                .where("_value is not null")
                .groupBy("key_expr", "bucket")
                .agg(
                    fn.count("*").alias("samples"),
                    fn.avg("_value").alias("mean"),
                    fn.min("_value").alias("min"),
                    fn.max("_value").alias("max"),
                )
            )
        case "first":
            order = [column.asc() for column in time_order()]
        case "last":
            order = [column.desc() for column in time_order()]
        case _:
            assert_never(keep)
    window = Window.partitionBy("key_expr", "bucket").orderBy(*order)
    ranked = rows.withColumn("_place", fn.row_number().over(window))
    return ranked.where("_place = 1").drop("_place")


def export(
    spark: SparkSession,
    table: str | Path,
    target: str | Path,
    *,
    buckets: int = 16,
    part: Part | None = None,
) -> None:
    """Write samples as plain Parquet to the new folder `target`, partitioned by key.

    A key is data and no folder name: a partition ``key_bucket=0`` to ``buckets - 1`` holds the
    keys whose hash falls there, each in one file, sorted by key, source, epoch and sn, so that
    readers skip by the statistics of `key_expr`. Raises as `write_frame` does.
    """
    if not 1 <= buckets <= BUCKETS_MAX:
        raise ConfigError(f"{buckets} buckets: write 1 to {BUCKETS_MAX}")
    found = open_table(spark, table)
    place = check_apart(found, target)
    bucket = fn.pmod(fn.xxhash64("key_expr"), fn.lit(buckets)).cast("int")
    rows = (part or Part()).of(spark, found).withColumn("key_bucket", bucket)
    sorted_rows = rows.repartition(buckets, "key_bucket").sortWithinPartitions(
        "key_bucket", "key_expr", "source_zid", "source_eid", "epoch", "sn"
    )
    write_frame(spark, sorted_rows, place, ["key_bucket"])


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """What a replay will be like."""

    samples: int
    payload_bytes: int
    seconds: float
    """How long it takes at the plan's rate."""
    samples_per_second_max: int
    """The busiest second of the replay."""


def replay_plan(
    spark: SparkSession,
    table: str | Path,
    target: str | Path,
    *,
    rate: float = 1.0,
    part: Part | None = None,
) -> ReplaySummary:
    """Write when each sample is due in a replay to the new folder `target`, in due order.

    `due_us` counts from the first sample's HLC time, divided by `rate` (2.0 is twice as fast);
    the sample itself stays in the table, found by its identity. Raises as `write_frame` does.
    """
    if not 0 < rate < float("inf"):
        raise ConfigError(f"rate {rate}: write a number above 0")
    found = open_table(spark, table)
    place = check_apart(found, target)
    rows = (part or Part()).of(spark, found)
    with spark_errors(found.samples_path):
        began = rows.agg(fn.min("ntp64").alias("ntp64")).first()
    start = began["ntp64"] if began is not None and began["ntp64"] is not None else 0
    # NTP64 counts 2^-32 s; the product of its distance and 10^6 fits decimal(38).
    ticks = (fn.col("ntp64") - fn.lit(start).cast("decimal(20,0)")).cast("double")
    due = fn.floor(ticks / float(1 << 32) * (_MICROS / rate)).cast("bigint")
    names = ("key_expr", "source_zid", "source_eid", "epoch", "sn", "kind", "payload_bytes")
    order = [fn.col("due_us"), *time_order()]
    planned = rows.select(due.alias("due_us"), "ntp64", "timestamp_id", *names).orderBy(*order)
    write_frame(spark, planned, place)
    return _summary(spark, place)


def _summary(spark: SparkSession, place: str) -> ReplaySummary:
    with spark_errors(place):
        plan = spark.read.parquet(place)
        total = plan.agg(
            fn.count("*").alias("samples"),
            fn.coalesce(fn.sum("payload_bytes"), fn.lit(0)).alias("bytes"),
            fn.coalesce(fn.max("due_us"), fn.lit(0)).alias("last_us"),
        ).first()
        second = fn.floor(fn.col("due_us") / _MICROS)
        busiest = plan.groupBy(second).count().agg(fn.max("count")).first()
    if total is None or busiest is None:
        return ReplaySummary(0, 0, 0.0, 0)
    return ReplaySummary(
        total["samples"], total["bytes"], total["last_us"] / _MICROS, busiest[0] or 0
    )
