"""Which questions SQL can ask of a storage's history: the views, one call registers them.

A view is a plan, not a result: it reads the table as it is when it is queried.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from durable_cache.errors import ConfigError
from durable_cache.spark.numbering import NUMBERING, STREAM, missing_ranges, runs
from durable_cache.spark.table import Table, open_table
from durable_cache.spark.updates import is_update, newest_updates, time_order, with_updates

_SOURCE = "concat_ws(':', source_zid, cast(source_eid as string))"
_NUMBERED = "source_eid <> 0"
"""Between two samples without a number, whose number is a timestamp, nothing is missing."""


def register_views(spark: SparkSession, table: str | Path, *, prefix: str = "") -> tuple[str, ...]:
    """Register the temporary views of one storage and return their names, `prefix` before each.

    Nothing is read but the table's log. Registering again replaces them. Raises ConfigError for a
    prefix that is no SQL name, and what `open_table` raises.
    """
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]{0,63})?", prefix):
        raise ConfigError(f"prefix {prefix!r}: write letters, digits and _, such as 'fleet_'")
    found = open_table(spark, table)
    for name, view in VIEWS.items():
        view(spark, found).createOrReplaceTempView(prefix + name)
    return tuple(prefix + name for name in VIEWS)


def _samples(spark: SparkSession, table: Table) -> DataFrame:
    return table.samples(spark)


def newest(samples: DataFrame) -> DataFrame:
    """Return the newest sample of each key by `time_order`, deletes included.

    The greatest time of each key is found from two columns; only the samples of that time, few of
    them for each key, are then put in order. Without it every payload would be sorted.
    """
    times = samples.groupBy("key_expr").agg(fn.max("ntp64").alias("ntp64"))
    last = samples.join(times, ["key_expr", "ntp64"]).select(*samples.columns)
    order = Window.partitionBy("key_expr").orderBy(*(column.desc() for column in time_order()))
    return last.withColumn("_place", fn.row_number().over(order)).where("_place = 1").drop("_place")


def latest(spark: SparkSession, table: Table) -> DataFrame:
    """Return each key's newest value, wildcard updates applied; a deleted key has none."""
    samples = table.samples(spark)
    return with_updates(newest(samples.where(~is_update())), newest_updates(samples))


def instances(spark: SparkSession, table: Table) -> DataFrame:
    """Return what each key is by its own samples, as readers with a profile call it.

    `disposed` counts how often a put followed a delete. Who is there to write it, and whether
    nobody is, no table knows: `writers` and `no_writers` are NULL.
    """
    samples = table.samples(spark)
    order = Window.partitionBy("key_expr").orderBy(*time_order())
    revived = (fn.col("kind") == "PUT") & (fn.lag("kind").over(order) == "DELETE")
    lives = (
        samples.withColumn("_revived", revived)
        .groupBy("key_expr")
        .agg(fn.count_if("_revived").alias("disposed"))
    )
    disposed = fn.col("kind") == "DELETE"
    unknown = fn.lit(None).cast("int")
    return (
        newest(samples)
        .join(lives, "key_expr")
        .select(
            "key_expr",
            fn.when(disposed, "NOT_ALIVE_DISPOSED").otherwise("ALIVE").alias("state"),
            unknown.alias("writers"),
            "disposed",
            unknown.alias("no_writers"),
            *("kind", "timestamp", "source", "epoch", "sn", "payload"),
        )
    )


def stream_runs(spark: SparkSession, table: Table) -> DataFrame:
    """Return the unbroken runs of numbers held, per stream (key, source, epoch)."""
    held = runs(table.samples(spark), STREAM)
    return held.select(
        "key_expr",
        fn.expr(_SOURCE).alias("source"),
        *NUMBERING,
        *("first_sn", "last_sn", "samples", "bytes"),
        *_ends("first", "last"),
    )


def _ends(*names: str) -> list[Column]:
    return [
        fn.col(f"{name}.{field}").alias(f"{name}_{field}")
        for field in ("timestamp", "received_at")
        for name in names
    ]


def streams(spark: SparkSession, table: Table) -> DataFrame:
    """Return one row per stream: its runs counted, its ends, its size."""
    held = stream_runs(spark, table)
    return held.groupBy("key_expr", "source", *NUMBERING).agg(
        fn.count("*").alias("runs"),
        fn.sum("samples").alias("samples"),
        fn.sum("bytes").alias("bytes"),
        fn.min("first_sn").alias("first_sn"),
        fn.max("last_sn").alias("last_sn"),
        fn.min("first_received_at").alias("first_received_at"),
        fn.max("last_received_at").alias("last_received_at"),
    )


def _missing(spark: SparkSession, table: Table) -> DataFrame:
    return missing_ranges(runs(table.samples(spark).where(_NUMBERED)), table.skips(spark))


def gaps(spark: SparkSession, table: Table) -> DataFrame:
    """Return every missing range with its neighbours; state is ``miss`` or ``open``."""
    return _missing(spark, table).select(
        fn.expr(_SOURCE).alias("source"),
        *NUMBERING,
        *("first_sn", "last_sn", "missing", "state"),
        fn.col("before.key_expr").alias("before_key_expr"),
        fn.col("after.key_expr").alias("after_key_expr"),
        *_ends("before", "after"),
    )


def misses(spark: SparkSession, table: Table) -> DataFrame:
    """Return the ranges given up: skips that no sample replaced."""
    return gaps(spark, table).where("state = 'miss'").drop("state")


def delivery(spark: SparkSession, table: Table) -> DataFrame:
    """Return R and UR per day of receipt, source and key, of samples with a number.

    `received` counts rows, `unique` identities, `missing` the numbers not held between a source's
    lowest and highest number, on the day of the sample after them; `sent` is unique + missing,
    all that a store can know of it. Missing numbers belong to a key when the samples on both
    sides do, else to a row with neither key_expr nor R. R = unique / sent, and UR = unique /
    received: 1 in a table written by one cache, which stores an identity once.
    """
    identity = ("day", *STREAM)
    samples = table.samples(spark).where(_NUMBERED)
    held = samples.groupBy(*identity, "sn").agg(fn.count("*").alias("rows"))
    came = held.groupBy(*identity).agg(
        fn.sum("rows").alias("received"), fn.count("*").alias("unique")
    )
    both = fn.col("before_key_expr") == fn.col("after_key_expr")
    lost = gaps(spark, table).select(
        fn.to_date(fn.coalesce("after_received_at", "before_received_at")).alias("day"),
        fn.when(both, fn.col("after_key_expr")).alias("key_expr"),
        *NUMBERING,
        "missing",
    )
    nothing = fn.lit(0).cast("bigint")
    rows = came.withColumn("missing", nothing).unionByName(
        lost.withColumns({"received": nothing, "unique": nothing})
    )
    totals = rows.groupBy("day", fn.expr(_SOURCE).alias("source"), "key_expr").agg(
        *(fn.sum(name).alias(name) for name in ("received", "unique", "missing"))
    )
    sent = fn.col("unique") + fn.col("missing")
    return totals.select(
        *("day", "source", "key_expr"),
        sent.alias("sent"),
        *("received", "unique", "missing"),
        fn.when(fn.col("key_expr").isNotNull(), fn.col("unique") / sent).alias("R"),
        fn.when(fn.col("received") > 0, fn.col("unique") / fn.col("received")).alias("UR"),
    )


def rates(spark: SparkSession, table: Table) -> DataFrame:
    """Return samples and bytes per minute of receipt, per key and source."""
    minute = fn.window("received_at", "1 minute")
    return (
        table.samples(spark)
        .groupBy("key_expr", "source", minute.alias("_minute"))
        .agg(fn.count("*").alias("samples"), fn.sum("payload_bytes").alias("bytes"))
        .select(
            fn.col("_minute.start").alias("minute"),
            *("key_expr", "source", "samples", "bytes"),
            (fn.col("samples") / 60).alias("samples_per_second"),
            (fn.col("bytes") / 60).alias("bytes_per_second"),
        )
    )


VIEWS: dict[str, Callable[[SparkSession, Table], DataFrame]] = {
    "samples": _samples,
    "latest": latest,
    "instances": instances,
    "runs": stream_runs,
    "streams": streams,
    "gaps": gaps,
    "misses": misses,
    "delivery": delivery,
    "rates": rates,
}
"""Every view by its name; `register_views` registers these."""
