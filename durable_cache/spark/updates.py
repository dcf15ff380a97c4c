"""How wildcard updates are applied to the newest sample of each key, within one plan (ADR 0095).

The rule is that of `durable_cache.model.newest`, for one value a key: where a delete that is newer
names the key it is gone; else the newest put that names it and is newer is its value. For each
expression only its newest put and its newest delete can matter, so these travel in one row that
every key is held against; a table without updates pays for the row alone.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from durable_cache.spark.key_expressions import VERBATIM

_DOUBLE = "#"
"""Stands for a double wildcard: no key and no expression may hold it."""


def time_order() -> list[Column]:
    """Return the columns that order samples by time on every backend: HLC, its id, identity."""
    return [
        fn.col("ntp64"),
        fn.lpad("timestamp_id", 32, "0"),
        fn.col("key_expr"),
        fn.lpad("source_zid", 32, "0"),
        fn.col("source_eid"),
        fn.col("epoch"),
        fn.col("sn"),
    ]


def is_update() -> Column:
    """Return the predicate "this row was published on an expression with wildcards"."""
    return fn.col("key_expr").contains("*")


def newest_updates(samples: DataFrame) -> DataFrame:
    """Return the newest put and the newest delete on each expression with wildcards."""
    last = [column.desc() for column in time_order()]
    order = Window.partitionBy("key_expr", "kind").orderBy(*last)
    updates = samples.where(is_update()).withColumn("_place", fn.row_number().over(order))
    return updates.where("_place = 1").drop("_place")


def with_updates(newest: DataFrame, updates: DataFrame) -> DataFrame:
    """Return the newest value of each key that is there, from its newest sample and the updates.

    `updates` are those of `newest_updates`, with the columns of `newest`.
    """
    order = fn.struct(*(column.alias(f"_{at}") for at, column in enumerate(time_order())))
    each = fn.struct(
        order.alias("place"),
        pattern_of(fn.col("key_expr")).alias("pattern"),
        verbatim_of(fn.col("key_expr")).alias("verbatim"),
        fn.struct(*newest.columns).alias("row"),
    )
    row = updates.select(each.alias("_each")).agg(
        fn.sort_array(fn.collect_list("_each")).alias("_updates")
    )
    key, verbatim = fn.concat(fn.lit("/"), fn.col("key_expr")), verbatim_of(fn.col("key_expr"))
    named = fn.filter(
        "_updates",
        lambda update: (
            (update["place"] > order)
            & (update["verbatim"] == verbatim)
            & fn.regexp_like(key, update["pattern"])
        ),
    )
    held = newest.where("kind = 'PUT'").crossJoin(fn.broadcast(row))
    held = held.withColumn("_named", named)
    held = held.where(~fn.exists("_named", lambda update: update["row"]["kind"] == "DELETE"))
    last = fn.try_element_at("_named", fn.lit(-1))["row"]
    return held.select(
        *(
            fn.col(name)
            if name == "key_expr"
            else fn.when(fn.size("_named") > 0, last[name]).otherwise(fn.col(name)).alias(name)
            for name in newest.columns
        )
    )


def verbatim_of(expression: Column) -> Column:
    """Return how many chunks of an expression only themselves can match."""
    return fn.regexp_count(fn.concat(fn.lit("/"), expression), fn.lit(VERBATIM))


def pattern_of(expression: Column) -> Column:
    """Return from an expression what `key_expressions.slashed_pattern` returns in Python."""
    chunks = fn.transform(fn.split(expression, "/"), _chunk)
    parts = fn.split(fn.array_join(chunks, ""), _DOUBLE)
    middle = fn.transform(
        fn.slice(parts, fn.lit(2), fn.greatest(fn.size(parts) - 2, fn.lit(0))),
        lambda part: fn.concat(fn.lit("(?>(?:/.*?)??"), part, fn.lit(r"(?=/|\z))")),
    )
    double = fn.concat(
        fn.element_at(parts, 1),
        fn.array_join(middle, ""),
        fn.lit("(?:/.*)?"),
        fn.element_at(parts, -1),
    )
    whole = fn.when(fn.size(parts) == 1, fn.element_at(parts, 1)).otherwise(double)
    return fn.concat(fn.lit(r"(?s)\A"), whole, fn.lit(r"\z"))


def _chunk(chunk: Column) -> Column:
    literal = fn.transform(fn.split(chunk, r"\$\*"), _quoted)
    return (
        fn.when(chunk == "**", fn.lit(_DOUBLE))
        .when(chunk == "*", fn.lit("/[^/]+"))
        .otherwise(fn.concat(fn.lit("/"), fn.array_join(literal, "[^/]*")))
    )


def _quoted(text: Column) -> Column:
    inner = fn.replace(text, fn.lit(r"\E"), fn.lit(r"\E\\E\Q"))
    return fn.concat(fn.lit(r"\Q"), inner, fn.lit(r"\E"))
