"""Which numbers of each source came, which are missing, and what stood next to them.

A numbering is one (source, epoch) over all keys of a storage; a stream is one key of it. Runs are
found without carrying a payload, in blocks of numbers, so that one busy source does not make one
busy task; everything after that works on runs, of which there are few.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as fn

NUMBERING = ("source_zid", "source_eid", "epoch")
STREAM = ("key_expr", *NUMBERING)

BLOCK_SNS = 1 << 17
"""Numbers of one source that one task sorts at a time."""


def runs(samples: DataFrame, by: tuple[str, ...] = NUMBERING) -> DataFrame:
    """Return every unbroken run of numbers, one row each, of `by` = NUMBERING or STREAM.

    Columns: `by`, first_sn, last_sn, samples (rows; more than the width when a number is there
    twice), bytes, and `first` and `last`: struct (key_expr, timestamp, received_at) of the ends.
    """
    pieces = _pieces(samples, by)
    order = Window.partitionBy(*by).orderBy("first_sn")
    fresh = fn.col("first_sn") - fn.lag("last_sn").over(order) > 1
    numbered = pieces.withColumn("_run", _count_up(fresh, order))
    return numbered.groupBy(*by, "_run").agg(
        fn.min("first_sn").alias("first_sn"),
        fn.max("last_sn").alias("last_sn"),
        fn.sum("samples").alias("samples"),
        fn.sum("bytes").alias("bytes"),
        fn.min_by("first", "first_sn").alias("first"),
        fn.max_by("last", "last_sn").alias("last"),
    )


def _pieces(samples: DataFrame, by: tuple[str, ...]) -> DataFrame:
    """Return the runs within each block of numbers: rows at the ends of runs are paired up."""
    block = fn.floor(fn.col("sn") / BLOCK_SNS)
    order = Window.partitionBy(*by, "_block").orderBy("sn")
    rows = samples.select(
        *by,
        block.alias("_block"),
        "sn",
        fn.struct("key_expr", "timestamp", "received_at").alias("_at"),
        fn.col("payload_bytes").alias("_bytes"),
    )
    before, after = fn.lag("sn").over(order), fn.lead("sn").over(order)
    ends = rows.select(
        "*",
        fn.coalesce(fn.col("sn") - before > 1, fn.lit(True)).alias("_starts"),
        fn.coalesce(after - fn.col("sn") > 1, fn.lit(True)).alias("_stops"),
        fn.row_number().over(order).alias("_row"),
        fn.sum("_bytes").over(order.rowsBetween(Window.unboundedPreceding, 0)).alias("_total"),
    ).where("_starts or _stops")
    # A run's last row is its first row itself, or the next of these rows.
    order = Window.partitionBy(*by, "_block").orderBy("sn", "_row")
    last = fn.struct("sn", "_row", "_total", "_at")
    paired = ends.withColumn("_last", fn.when(fn.col("_stops"), last).otherwise(_next(last, order)))
    return paired.where("_starts").select(
        *by,
        fn.col("sn").alias("first_sn"),
        fn.col("_last.sn").alias("last_sn"),
        (fn.col("_last._row") - fn.col("_row") + 1).alias("samples"),
        (fn.col("_last._total") - fn.col("_total") + fn.col("_bytes")).alias("bytes"),
        fn.col("_at").alias("first"),
        fn.col("_last._at").alias("last"),
    )


def _next(value: Column, order: WindowSpec) -> Column:
    return fn.lead(value).over(order)


def _count_up(fresh: Column, order: WindowSpec) -> Column:
    """Number the islands: one more at every row where `fresh` is true."""
    return fn.sum(fn.coalesce(fresh, fn.lit(False)).cast("int")).over(
        order.rowsBetween(Window.unboundedPreceding, 0)
    )


def missing_ranges(held: DataFrame, skips: DataFrame) -> DataFrame:
    """Return every maximal range of numbers that is not held, with its neighbours.

    `held` is `runs` by NUMBERING. Columns: NUMBERING, first_sn, last_sn, missing, state (``miss``
    where a skip says that the wait ended, ``open`` otherwise), `before` and `after`: the struct
    (key_expr, timestamp, received_at) of the nearest sample held, or null.

    A sweep over the ends of runs and skips: sorted once, never a join of ranges.
    """
    marks = _marks(held, skips)
    order = Window.partitionBy(*NUMBERING).orderBy("sn")
    upto = order.rowsBetween(Window.unboundedPreceding, 0)
    later = order.rowsBetween(1, Window.unboundedFollowing)
    swept = marks.select(
        *NUMBERING,
        fn.col("sn").alias("first_sn"),
        (fn.lead("sn").over(order) - 1).alias("last_sn"),
        fn.sum("_held").over(upto).alias("_held"),
        (fn.sum("_skipped").over(upto) > 0).alias("_missed"),
        fn.last("_before", ignorenulls=True).over(upto).alias("before"),
        fn.first("_after", ignorenulls=True).over(later).alias("after"),
    )
    open_ended = swept.where("_held = 0 and last_sn is not null")
    fresh = (fn.col("first_sn") - fn.lag("last_sn").over(order.orderBy("first_sn")) > 1) | (
        fn.col("_missed") != fn.lag("_missed").over(order.orderBy("first_sn"))
    )
    joined = open_ended.withColumn("_range", _count_up(fresh, order.orderBy("first_sn")))
    return (
        joined.groupBy(*NUMBERING, "_range")
        .agg(
            fn.min("first_sn").alias("first_sn"),
            fn.max("last_sn").alias("last_sn"),
            fn.when(fn.first("_missed"), "miss").otherwise("open").alias("state"),
            fn.first("before").alias("before"),
            fn.first("after").alias("after"),
        )
        .withColumn("missing", fn.expr("last_sn - first_sn + 1"))
        .drop("_range")
    )


def _marks(held: DataFrame, skips: DataFrame) -> DataFrame:
    """Return one row per number at which a run or a skip begins, or has just ended."""
    at = "struct<key_expr:string,timestamp:timestamp,received_at:timestamp>"
    nothing = fn.lit(None).cast(at)
    zero = fn.lit(0)
    rows = (
        _mark(held, "first_sn", fn.lit(1), zero, after=fn.col("first"), before=nothing),
        _mark(held, "last_sn + 1", fn.lit(-1), zero, after=nothing, before=fn.col("last")),
        _mark(skips, "first_sn", zero, fn.lit(1), after=nothing, before=nothing),
        _mark(skips, "last_sn + 1", zero, fn.lit(-1), after=nothing, before=nothing),
    )
    marks = rows[0].unionByName(rows[1]).unionByName(rows[2]).unionByName(rows[3])
    return marks.groupBy(*NUMBERING, "sn").agg(
        fn.sum("_held").alias("_held"),
        fn.sum("_skipped").alias("_skipped"),
        fn.first("_before", ignorenulls=True).alias("_before"),
        fn.first("_after", ignorenulls=True).alias("_after"),
    )


def _mark(
    rows: DataFrame, at: str, held: Column, skipped: Column, *, before: Column, after: Column
) -> DataFrame:
    return rows.select(
        *NUMBERING,
        fn.expr(at).alias("sn"),
        held.alias("_held"),
        skipped.alias("_skipped"),
        before.alias("_before"),
        after.alias("_after"),
    )
