"""Do the SQL views answer about runs, gaps, delivery and the newest values what is so."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from durable_cache.errors import ConfigError
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Kind, Skip, SourceId
from durable_cache.spark import register_views
from durable_cache.spark.numbering import missing_ranges, runs
from durable_cache.spark.table import open_table
from durable_cache.spark.views import VIEWS
from durable_cache.testing.conformance.unnumbered import plain
from tests.servers.spark import START, make, plan_of, spark, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta]

SOURCE = SourceId("a1", 7)
HELD = (0, 1, 2, 5, 6, 9, 10, 14)
SKIPS = (Skip(SOURCE, 5, 3, 3), Skip(SOURCE, 5, 6, 8), Skip(SOURCE, 5, 15, 20))


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One source: 3 and 7..8 missed, 4 and 11..13 open, 15..20 missed at the end."""
    path = tmp_path_factory.mktemp("holes") / "holes"
    return write(path, [make(sn=sn) for sn in HELD], SKIPS)


@pytest.fixture(scope="module")
def views(spark: SparkSession, holes: Path) -> str:
    register_views(spark, holes, prefix="holes_")
    return "holes_"


def test_every_view_is_registered(spark: SparkSession, views: str) -> None:
    held = {table.name for table in spark.catalog.listTables() if table.isTemporary}
    assert {views + name for name in VIEWS} <= held


def test_runs_are_unbroken(spark: SparkSession, views: str) -> None:
    rows = spark.sql(f"select * from {views}runs order by first_sn").collect()
    assert [(row["first_sn"], row["last_sn"], row["samples"]) for row in rows] == [
        (0, 2, 3),
        (5, 6, 2),
        (9, 10, 2),
        (14, 14, 1),
    ]
    assert rows[0]["bytes"] == 3
    assert (rows[1]["last_timestamp"] - rows[1]["first_timestamp"]).seconds == 1


def test_streams_sum_their_runs_up(spark: SparkSession, views: str) -> None:
    (row,) = spark.sql(f"select * from {views}streams").collect()
    assert (row["runs"], row["samples"], row["first_sn"], row["last_sn"]) == (4, 8, 0, 14)
    assert row["source"] == "a1:7"


def test_gaps_name_each_missing_range_and_its_neighbours(spark: SparkSession, views: str) -> None:
    rows = spark.sql(f"select * from {views}gaps order by first_sn").collect()
    assert [(r["first_sn"], r["last_sn"], r["missing"], r["state"]) for r in rows] == [
        (3, 3, 1, "miss"),
        (4, 4, 1, "open"),
        (7, 8, 2, "miss"),
        (11, 13, 3, "open"),
        (15, 20, 6, "miss"),
    ]
    assert rows[3]["before_received_at"].second == 10
    assert rows[3]["after_received_at"].second == 14
    assert rows[0]["after_timestamp"].second == 5
    assert rows[4]["after_timestamp"] is None


def test_misses_are_skips_that_no_sample_replaced(spark: SparkSession, views: str) -> None:
    rows = spark.sql(f"select first_sn, last_sn from {views}misses order by 1").collect()
    assert [tuple(row) for row in rows] == [(3, 3), (7, 8), (15, 20)]


def test_delivery_counts_sent_received_and_unique(spark: SparkSession, views: str) -> None:
    rows = spark.sql(f"select * from {views}delivery order by key_expr nulls last").collect()
    kept, beyond = rows
    assert (kept["sent"], kept["received"], kept["unique"], kept["missing"]) == (15, 8, 8, 7)
    assert kept["R"] == pytest.approx(8 / 15)
    assert kept["UR"] == 1.0
    assert kept["day"] == START.date()
    assert (beyond["key_expr"], beyond["missing"], beyond["R"], beyond["UR"]) == (
        None,
        6,
        None,
        None,
    )


def test_a_row_that_is_there_twice_shows_in_ur(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [make(sn=0), make(sn=1)])
    write(tmp_path, [make(sn=1), make(sn=3)])
    register_views(spark, tmp_path, prefix="twice_")
    (row,) = spark.sql("select * from twice_delivery").collect()
    assert (row["received"], row["unique"], row["sent"]) == (4, 3, 4)
    assert row["UR"] == 0.75
    (run, _) = spark.sql("select * from twice_runs order by first_sn").collect()
    assert (run["first_sn"], run["last_sn"], run["samples"]) == (0, 1, 3)


def test_latest_goes_by_the_clock_of_the_publisher_and_keeps_deletes_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(
        tmp_path,
        [
            make("k/old-arrives-late", 1, payload=b"new", at_seconds=10, received_seconds=10),
            make("k/old-arrives-late", 0, payload=b"old", at_seconds=5, received_seconds=60),
            make("k/deleted", 2, at_seconds=1),
            make("k/deleted", 3, at_seconds=2, kind=Kind.DELETE),
            make("k/back", 4, at_seconds=2, kind=Kind.DELETE),
            make("k/back", 5, payload=b"again", at_seconds=3),
            make("k/tie", 6, payload=b"low", at_seconds=9, timestamp_id="ff"),
            make("k/tie", 7, payload=b"high", at_seconds=9, timestamp_id="100"),
        ],
    )
    register_views(spark, tmp_path, prefix="now_")
    rows = spark.sql("select key_expr, payload from now_latest").collect()
    assert {row["key_expr"]: bytes(row["payload"]) for row in rows} == {
        "k/old-arrives-late": b"new",
        "k/back": b"again",
        "k/tie": b"high",
    }


def test_rates_per_minute(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [make(sn=sn, payload=b"four") for sn in range(90)])
    register_views(spark, tmp_path, prefix="rate_")
    rows = spark.sql("select * from rate_rates order by minute").collect()
    assert [(row["samples"], row["bytes"]) for row in rows] == [(60, 240), (30, 120)]
    assert rows[0]["samples_per_second"] == 1.0


def test_samples_without_a_number_leave_no_gaps(spark: SparkSession, tmp_path: Path) -> None:
    seconds = [plain((1_790_000_000 + at) << 32) for at in (0, 1, 5)]
    write(tmp_path, [*seconds, make(sn=1), make(sn=3)])
    register_views(spark, tmp_path, prefix="plain_")
    gaps = spark.sql("select source, first_sn, last_sn from plain_gaps").collect()
    assert [tuple(row) for row in gaps] == [("a1:7", 2, 2)]
    sources = spark.sql("select distinct source from plain_delivery").collect()
    assert [row["source"] for row in sources] == ["a1:7"]
    newest = spark.sql("select source, sequence from plain_latest order by source").collect()
    assert [(row["source"], int(row["sequence"])) for row in newest] == [
        ("a1:7", make(sn=3).sequence),
        ("c10c:0", seconds[-1].ntp64 + 1),
    ]


def test_random_histories_agree_with_range_sets(spark: SparkSession, tmp_path: Path) -> None:
    choose = random.Random(11)
    held: dict[SourceId, RangeSet] = {}
    samples, skips = [], []
    for eid in range(12):
        source = SourceId("c3", eid)
        numbers = sorted(choose.sample(range(300_000), choose.randint(1, 60)))
        numbers += [n + 1 for n in numbers if choose.random() < 0.5]
        held[source] = RangeSet.of(numbers)
        keys = choose.choices(("k/a", "k/b"), k=400)
        samples += [make(keys[n % 400], n, source=str(source)) for n in set(numbers)]
        for _ in range(choose.randint(0, 8)):
            first = choose.randrange(300_000)
            skips.append(Skip(source, 5, first, first + choose.randrange(40_000)))
    table = open_table(spark, write(tmp_path, samples, skips))
    rows = missing_ranges(runs(table.samples(spark)), table.skips(spark)).collect()
    for source, numbers in held.items():
        given_up = RangeSet([skip[2:] for skip in skips if skip.source == source])
        missed = given_up.difference(numbers)
        waiting = numbers.gaps(numbers.first or 0, numbers.last or 0).difference(missed)
        ends = numbers.copy()
        ends.update(missed)
        waiting.update(ends.gaps(ends.first or 0, ends.last or 0))
        found = {
            state: RangeSet(
                (row["first_sn"], row["last_sn"])
                for row in rows
                if row["source_eid"] == source.eid and row["state"] == state
            )
            for state in ("miss", "open")
        }
        assert found == {"miss": missed, "open": waiting}


def test_no_plan_joins_or_leaves_the_engine(spark: SparkSession, views: str) -> None:
    """`latest` alone joins: keys with the few wildcard updates, which are broadcast (ADR 0095)."""
    for name in VIEWS:
        plan = plan_of(spark.table(views + name))
        if name == "latest":
            plan = plan.replace("BroadcastNestedLoopJoin", "")
        for foreign in ("CartesianProduct", "NestedLoopJoin", "Python"):
            assert foreign not in plan, name


def test_gaps_do_not_read_payloads(spark: SparkSession, views: str) -> None:
    for name in ("runs", "gaps", "misses", "delivery", "rates", "streams"):
        scanned = plan_of(spark.table(views + name)).split("ReadSchema: ")[1:]
        assert scanned
        assert not any("payload:binary" in columns for columns in scanned), name


def test_a_prefix_that_is_no_name_is_refused(spark: SparkSession, holes: Path) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        register_views(spark, holes, prefix="a; drop table b")
