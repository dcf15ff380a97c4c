"""Which samples of a table answer a question: history as a DataFrame."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from durable_cache.spark.key_expressions import parse_key_expr
from durable_cache.spark.predicates import (
    Moment,
    Numbers,
    named_by,
    of_source,
    received,
    sent,
    with_sn,
)
from durable_cache.spark.table import Table, open_table


def history(
    spark: SparkSession,
    table: str | Path | Table,
    key_expr: str = "**",
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    source: str = "*",
    sn: Numbers | None = None,
    received_within: tuple[Moment | None, Moment | None] = (None, None),
) -> DataFrame:
    """Return the samples asked for, lazily and unordered: nothing is read until an action.

    `key_expr` is a Zenoh key expression. `since` (included) and `until` (not included) go by the
    HLC timestamp; `received_within`, the same way, goes by the cache's own clock and is the one
    that prunes days. `source` is ``<zid>``, ``<zid>:<eid>`` or ``*``; `sn` a number, a pair with
    both ends included, or ``"a..b"``. Every filter is pushed down to the scan and skips files.
    Raises ConfigError for what cannot be read, and what `open_table` raises.
    """
    asked = parse_key_expr(key_expr)
    wanted = named_by(asked) & sent(since, until) & received(*received_within) & of_source(source)
    if sn is not None:
        wanted &= with_sn(sn)
    found = table if isinstance(table, Table) else open_table(spark, table)
    return found.samples(spark).where(wanted)
