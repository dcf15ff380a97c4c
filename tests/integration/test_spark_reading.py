"""Does `history` return what was asked for, and open no file it need not open."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from durable_cache.errors import ConfigError, SchemaOutdated, StorageCorrupt
from durable_cache.spark import history
from tests.servers.spark import START, files_of, make, plan_of, spark, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta]
DAY = 86400.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days, one commit a day and key group: six files of ten samples."""
    path = tmp_path_factory.mktemp("fleet") / "fleet"
    for day in range(3):
        for robot in ("r1", "r2"):
            write(
                path,
                (
                    make(
                        f"fleet/{robot}/{name}",
                        10 * day + number,
                        source=f"{'a1' if robot == 'r1' else 'b2'}:7",
                        at_seconds=day * DAY + number,
                        payload=name.encode(),
                    )
                    for number in range(10)
                    for name in ("pose" if number % 2 else "battery",)
                ),
            )
    return path


def sns(frame: DataFrame) -> list[int]:
    return sorted(found["sn"] for found in frame.select("sn").collect())


def test_the_whole_history_comes_back_with_every_column(spark: SparkSession, fleet: Path) -> None:
    found = history(spark, fleet).where("sn = 11 and source_zid = 'a1'").collect()
    assert len(found) == 1
    assert found[0]["key_expr"] == "fleet/r1/pose"
    assert found[0]["source"] == "a1:7"
    assert bytes(found[0]["payload"]) == b"pose"
    assert found[0]["ntp64"] == make(sn=11, at_seconds=DAY + 1).ntp64
    assert history(spark, fleet / "samples").count() == 60


@pytest.mark.parametrize(
    ("key_expr", "rows", "files"),
    [
        ("**", 60, 6),
        ("fleet/r1/pose", 15, 3),
        ("fleet/r1/*", 30, 3),
        ("fleet/r2/**", 30, 3),
        ("fleet/r$*/pose", 30, 6),
        ("fleet/*/pose", 30, 6),
        ("**/pose", 30, 6),
        ("*", 0, 6),
        ("other/**", 0, 0),
    ],
)
def test_a_key_expression_selects_and_skips_files(
    spark: SparkSession, fleet: Path, key_expr: str, rows: int, files: int
) -> None:
    found = history(spark, fleet, key_expr)
    assert found.count() == rows
    assert files_of(found) == files


def test_times_are_half_open_and_skip_files(spark: SparkSession, fleet: Path) -> None:
    day = START + timedelta(days=1)
    found = history(
        spark, fleet, since=day + timedelta(seconds=3), until=day + timedelta(seconds=6)
    )
    assert sns(found) == [13, 13, 14, 14, 15, 15]
    assert files_of(found) == 2
    assert sns(history(spark, fleet, since="2026-03-03T12:00:09Z")) == [29, 29]


def test_a_time_between_two_microseconds_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [make(sn=n, at_seconds=n * 2e-7) for n in range(10)])
    found = history(
        spark,
        tmp_path,
        since="2026-03-01T12:00:00.000000600Z",
        until="2026-03-01T12:00:00.0000012Z",
    )
    assert sns(found) == [3, 4, 5]


def test_receipt_prunes_whole_days(spark: SparkSession, fleet: Path) -> None:
    day = START + timedelta(days=2)
    found = history(spark, fleet, received_within=(day, day + timedelta(seconds=2)))
    assert sns(found) == [20, 20, 21, 21]
    assert files_of(found) == 2
    filters = plan_of(found).partition("PartitionFilters: [")[2].partition("]")[0]
    assert "day" in filters


def test_source_and_numbers_select(spark: SparkSession, fleet: Path) -> None:
    assert sns(history(spark, fleet, source="a1", sn="8..11")) == [8, 9, 10, 11]
    assert sns(history(spark, fleet, source="b2:7", sn=(28, None))) == [28, 29]
    assert sns(history(spark, fleet, source="b2:8")) == []
    one = history(spark, fleet, source="a1:7", sn=14)
    assert sns(one) == [14]
    assert files_of(one) == 1


def test_the_plan_is_native(spark: SparkSession, fleet: Path) -> None:
    plan = plan_of(history(spark, fleet, "fleet/*/pose", source="a1", sn="1..20"))
    assert "FileScan parquet" in plan
    for foreign in ("Python", "CartesianProduct", "Exchange", "BatchEvalPython"):
        assert foreign not in plan
    assert "StringStartsWith(key_expr,fleet/)" in plan


def test_history_sees_what_is_written_later(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [make(sn=1)])
    found = history(spark, tmp_path, "fleet/**")
    assert found.count() == 1
    write(tmp_path, [make(sn=2), make(sn=3)])
    assert found.count() == 3


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"key_expr": "fleet//pose"}, "empty chunk"),
        ({"key_expr": "fleet/**/**"}, "canonical"),
        ({"since": "yesterday"}, "RFC 3339"),
        ({"since": START.replace(tzinfo=None)}, "time zone"),
        ({"source": "A1:7"}, "source_id"),
        ({"sn": "5..1"}, "ends before"),
    ],
)
def test_a_question_that_is_none_is_refused(
    spark: SparkSession, fleet: Path, asked: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        history(spark, fleet, **asked)  # type: ignore[arg-type]


def test_a_hostile_key_is_data(spark: SparkSession, tmp_path: Path) -> None:
    keys = ["a/'; drop table x --", "a/`b`", "a/\\E.+\\Q", "a/b\nc", "a/../..", "a/{b}", "a/%_x"]
    write(tmp_path, [make(key, n) for n, key in enumerate(keys)])
    for n, key in enumerate(keys):
        assert sns(history(spark, tmp_path, key)) == [n]
        glob = key.replace("/", "/$*", 1)
        assert sns(history(spark, tmp_path, glob)) == [n]


def test_a_place_without_a_table_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.*folder of a storage"):
        history(spark, tmp_path / "nowhere")


def test_another_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    import deltalake
    import pyarrow as pa

    deltalake.write_deltalake(str(tmp_path / "other"), pa.table({"key_expr": ["a"], "sn": [1]}))
    with pytest.raises(ConfigError, match=r"another kind of table.*source_zid is missing"):
        history(spark, tmp_path / "other")


@pytest.mark.parametrize(("version", "remedy"), [("99", "newer durable-cache"), ("0", "migrate")])
def test_another_version_is_refused(
    spark: SparkSession, tmp_path: Path, version: str, remedy: str
) -> None:
    import deltalake

    write(tmp_path, [make()])
    table = deltalake.DeltaTable(str(tmp_path / "samples"))
    table.alter.set_table_properties({"durable_cache.schema_version": version}, False)
    with pytest.raises(SchemaOutdated, match=remedy):
        history(spark, tmp_path)


def test_a_torn_log_is_corruption(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [make()])
    log = tmp_path / "samples" / "_delta_log" / "00000000000000000000.json"
    log.write_bytes(log.read_bytes()[:100])
    with pytest.raises(StorageCorrupt, match="samples"):
        history(spark, tmp_path)


def test_the_columns_are_those_the_backend_writes() -> None:
    from durable_cache.spark import table
    from durable_cache_delta import schema

    assert list(table.SAMPLE_COLUMNS) == schema.SAMPLES.names
    assert list(table.SKIP_COLUMNS) == schema.SKIPS.names
    assert table.SCHEMA_VERSION == schema.SCHEMA_VERSION
    assert table.VERSION_PROPERTY == schema.VERSION_PROPERTY
