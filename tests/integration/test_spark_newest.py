"""Do the view `latest` and the latest-table say what every other reader of a history says?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from pyspark.sql import functions as fn

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample
from durable_cache.spark import register_views
from durable_cache.spark.latest_table import read_latest, update_latest
from durable_cache.spark.updates import pattern_of, verbatim_of
from durable_cache.testing.conformance.newest import NEWEST_CASES, values
from durable_cache.testing.samples import HOSTILE_KEYS
from tests.servers.spark import spark, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta]

Found = dict[str, tuple[str, int, int, int]]


def told(samples: list[Sample]) -> Found:
    return {
        each.key: (each.source.zid, each.epoch, each.sn, each.ntp64)
        for each in samples
        if each.kind is Kind.PUT
    }


def moved(samples: list[Sample], at: int) -> list[Sample]:
    """Give each case keys of its own, so that one table holds them all."""
    return [msgspec.structs.replace(each, key=f"c{at}/{each.key}") for each in samples]


def collected(rows: list[object]) -> Found:
    return {
        row["key_expr"]: (row["source_zid"], row["epoch"], row["sn"], int(row["ntp64"]))  # type: ignore[index]
        for row in rows
    }


def test_latest_is_the_table_of_every_reader(spark: SparkSession, tmp_path: Path) -> None:
    storage, target = tmp_path / "cases", tmp_path / "latest"
    expected: Found = {}
    first: list[Sample] = []
    second: list[Sample] = []
    for at, case in enumerate(NEWEST_CASES):
        expected |= told(moved(values(case), at))
        first += moved(list(case.samples[:1]), at)
        second += moved(list(case.samples[1:]), at)
    write(storage, first)
    update_latest(spark, storage, target)
    write(storage, second)
    update_latest(spark, storage, target)
    register_views(spark, storage, prefix="cases_")
    assert collected(spark.sql("select * from cases_latest").collect()) == expected
    assert collected(read_latest(spark, target).collect()) == expected


EXPRESSIONS = (
    "**",
    "a/*",
    "a/**/b",
    "**/b",
    "**/a/**/b/**",
    "$*a$*/b",
    "a/'$*/**",
    "a/@verbatim/*",
    "*/@verbatim/**",
    "a/$*\\E$*/b",
    "a/back\\slash/**",
    "long/*",
)


def test_an_expression_names_in_spark_the_keys_that_it_names(spark: SparkSession) -> None:
    keys = [*HOSTILE_KEYS, "a/x\\Ey/b", "a", "b", "a/c/b", "a/@c/b", "x/a/y/b/z"]
    pairs = spark.createDataFrame([(e, k) for e in EXPRESSIONS for k in keys], "e string, k string")
    slashed = fn.concat(fn.lit("/"), fn.col("k"))
    fits = verbatim_of(fn.col("e")) == verbatim_of(fn.col("k"))
    rows = pairs.where(fits & fn.regexp_like(slashed, pattern_of(fn.col("e")))).collect()
    found = sorted((row["e"], row["k"]) for row in rows)
    assert found == sorted(
        (text, key) for text in EXPRESSIONS for key in keys if KeyExpression(text).matches(key)
    )
