"""Does a key expression select in Spark exactly the keys that it names in Zenoh."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as fn

from durable_cache.spark.predicates import named_by
from tests.servers.spark import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = pytest.mark.spark

CHUNKS = ("a", "a", "a", "b", "ab", "aab", "a.b", "é", "@a", "@b", "(x|y)", "a\nb", "🤖")
WILD = ("*", "**", "**", "$*a", "a$*", "a$*b", "$*b$*", "a", "ab", "@a", "a.b", "$*")


def _keys(count: int, choose: random.Random) -> list[str]:
    made = {"/".join(choose.choices(CHUNKS, k=choose.randint(1, 5))) for _ in range(5 * count)}
    return sorted(made)[:count] if len(made) <= count else choose.sample(sorted(made), count)


def _patterns(count: int, choose: random.Random) -> list[str]:
    import zenoh

    made: set[str] = {
        "**",
        "*",
        "a",
        "a/**",
        "@a/**",
        "**/a",
        "a/**/b",
        "**/@a",
        "$*a/**",
        "a b/**",
    }
    while len(made) < count:
        raw = "/".join(choose.choices(WILD, k=choose.randint(1, 5)))
        made.add(str(zenoh.KeyExpr.autocanonize(raw)))
    return sorted(made)


def test_sixteen_thousand_pairs_agree_with_zenoh(spark: SparkSession) -> None:
    zenoh = pytest.importorskip("zenoh")
    choose = random.Random(5)
    keys, patterns = _keys(200, choose), _patterns(80, choose)
    assert len(keys) * len(patterns) >= 16_000

    frame = spark.createDataFrame([(key,) for key in keys], "key_expr string")
    chosen = [named_by(pattern).alias(f"p{at}") for at, pattern in enumerate(patterns)]
    told = {row["key_expr"]: row[1:] for row in frame.select("key_expr", *chosen).collect()}

    wrong = [
        (pattern, key)
        for at, pattern in enumerate(patterns)
        for key in keys
        if told[key][at] != zenoh.KeyExpr(pattern).intersects(zenoh.KeyExpr(key))
    ]
    assert wrong == []
    assert 500 < sum(sum(row) for row in told.values()) < 15_000


def test_a_key_of_many_chunks_is_matched(spark: SparkSession) -> None:
    long = "a/" * 3_000 + "z"
    frame = spark.createDataFrame([(long,), (long + "/@x",)], "key_expr string")
    for pattern in ("a/**", "**", "a/**/z", "**/z", "**/a/**/a/**/z", "*/**", "a/**/a/*"):
        assert frame.where(named_by(pattern)).agg(fn.count("*")).first()[0] == 1, pattern
