"""Which part of a table a job works on: the filters that all jobs share."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from durable_cache.spark.predicates import Moment, Numbers
from durable_cache.spark.reading import history
from durable_cache.spark.table import Table


@dataclass(frozen=True, slots=True)
class Part:
    """The arguments of `history`, kept together."""

    key_expr: str = "**"
    since: Moment | None = None
    until: Moment | None = None
    source: str = "*"
    sn: Numbers | None = None

    def of(self, spark: SparkSession, table: Table) -> DataFrame:
        """Return this part of `table`, lazily."""
        return history(
            spark,
            table,
            self.key_expr,
            since=self.since,
            until=self.until,
            source=self.source,
            sn=self.sn,
        )
