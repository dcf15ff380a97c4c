"""Do the jobs make the tables they promise, whole or not at all."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from durable_cache.errors import ConfigError, StorageCorrupt
from durable_cache.model.sample import Kind, SampleBatch, Skip, SourceId
from durable_cache.spark.delivery_report import delivery_report
from durable_cache.spark.jobs import downsample, export, gap_report, replay_plan
from durable_cache.spark.latest_table import follow_latest, read_latest, update_latest
from durable_cache.spark.selecting import Part
from durable_cache.spark.verification import verify, verify_against
from durable_cache.storage.memory import MemoryStorage
from tests.servers.spark import START, make, spark, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta]

SOURCE = SourceId("a1", 7)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two keys of two sources, ten samples each but for two gaps."""
    keys = {"fleet/r1/pose": "a1:7", "fleet/r2/pose": "b2:8"}
    return write(
        tmp_path / "fleet",
        [
            make(key, sn, source=source, payload=f"{sn}".encode(), encoding="text/plain")
            for key, source in keys.items()
            for sn in range(10)
            if sn not in (4, 5, 8) or key == "fleet/r2/pose"
        ],
        [Skip(SOURCE, 5, 8, 8)],
    )


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "partial" in path.name)


def test_gap_report_lists_the_longest_first(spark: SparkSession, storage: Path) -> None:
    rows = gap_report(spark, storage, "fleet/**").collect()
    assert [(r["first_sn"], r["last_sn"], r["state"]) for r in rows] == [
        (4, 5, "open"),
        (8, 8, "miss"),
    ]
    assert gap_report(spark, storage, "fleet/r2/**").collect() == []


def test_delivery_report_is_a_page_and_a_table(
    spark: SparkSession, storage: Path, tmp_path: Path
) -> None:
    page, rows = tmp_path / "report.html", tmp_path / "report"
    total = delivery_report(spark, storage, page, rows)
    assert (total.sent, total.unique, total.missing) == (20, 17, 3)
    assert total.r == 17 / 20
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "85.0000\u00a0%" in text
    assert "fleet/r1/pose" in text
    assert "<svg" in text
    assert "<script" not in text
    found = spark.read.parquet(str(rows)).where("missing > 0").collect()
    assert [(row["key_expr"], row["R"]) for row in found] == [("fleet/r1/pose", 0.7)]
    assert leftovers(tmp_path) == []


def test_a_hostile_key_stays_text_in_the_page(spark: SparkSession, tmp_path: Path) -> None:
    key = "a/<script>alert(1)<~script>\n"
    write(tmp_path / "s", [make(key, 0), make(key, 2)])
    delivery_report(spark, tmp_path / "s", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_latest_reads_only_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    storage, target = tmp_path / "s", tmp_path / "latest"
    write(storage, [make("k/a", sn, payload=b"%d" % sn) for sn in range(5)])
    assert update_latest(spark, storage, target) == 5
    assert update_latest(spark, storage, target) == 0
    write(
        storage,
        [
            make("k/a", 5, payload=b"late", at_seconds=1),
            make("k/b", 6, payload=b"b"),
            make("k/c", 7),
            make("k/c", 8, kind=Kind.DELETE),
        ],
    )
    assert update_latest(spark, storage, target) == 4
    write(storage, [make("k/a", 9, payload=b"9"), make("k/c", 10, at_seconds=2)])
    assert update_latest(spark, storage, target) == 2
    found = {row["key_expr"]: bytes(row["payload"]) for row in read_latest(spark, target).collect()}
    assert found == {"k/a": b"9", "k/b": b"b"}


def test_latest_follows_a_table_that_grows(spark: SparkSession, tmp_path: Path) -> None:
    from time import monotonic, sleep

    storage, target = tmp_path / "s", tmp_path / "latest"
    write(storage, [make("k/a", 0, payload=b"0")])
    query = follow_latest(spark, storage, target, "k/**", every_seconds=0.2)
    try:
        write(storage, [make("k/a", 1, payload=b"1"), make("other", 2)])
        deadline = monotonic() + 60
        found: list[bytes] = []
        while found != [b"1"] and monotonic() < deadline:
            sleep(0.2)
            found = [bytes(row["payload"]) for row in read_latest(spark, target).collect()]
        assert found == [b"1"]
    finally:
        query.stop()


def test_latest_survives_retention_and_a_lost_place(spark: SparkSession, tmp_path: Path) -> None:
    import shutil

    import deltalake

    storage, target = tmp_path / "s", tmp_path / "latest"
    write(storage, [make("k/a", sn, payload=b"%d" % sn) for sn in range(4)])
    update_latest(spark, storage, target)
    deltalake.DeltaTable(str(storage / "samples")).delete("sn < 2")
    write(storage, [make("k/a", 4, payload=b"4")])
    assert update_latest(spark, storage, target) == 1
    shutil.rmtree(target / "_checkpoints")
    assert update_latest(spark, storage, target) == 3
    assert [bytes(row["payload"]) for row in read_latest(spark, target).collect()] == [b"4"]


def test_latest_refuses_a_folder_of_something_else(spark: SparkSession, storage: Path) -> None:
    for target in (storage / "samples", storage):
        with pytest.raises(ConfigError, match="belongs to the storage"):
            update_latest(spark, storage, target)
    write(storage.parent / "other", [make()])
    with pytest.raises(ConfigError, match="no latest-table"):
        update_latest(spark, storage, storage.parent / "other" / "samples")


@pytest.mark.parametrize(("keep", "sns"), [("last", [2, 5, 8, 9]), ("first", [0, 3, 6, 9])])
def test_downsample_keeps_one_sample_a_key_and_interval(
    spark: SparkSession, storage: Path, tmp_path: Path, keep: str, sns: list[int]
) -> None:
    part = Part(key_expr="fleet/r2/**")
    downsample(spark, storage, tmp_path / "thin", 3.0, keep=keep, part=part)  # type: ignore[arg-type]
    rows = spark.read.parquet(str(tmp_path / "thin")).orderBy("sn").collect()
    assert [row["sn"] for row in rows] == sns
    assert bytes(rows[0]["payload"]) == f"{sns[0]}".encode()


def test_downsample_means_numbers(spark: SparkSession, storage: Path, tmp_path: Path) -> None:
    downsample(
        spark,
        storage,
        tmp_path / "mean",
        5.0,
        keep="mean",
        part=Part(until=START + timedelta(seconds=10)),
        form="delta",
    )
    rows = spark.read.format("delta").load(str(tmp_path / "mean"))
    found = {
        (row["key_expr"], row["bucket"].second): (row["samples"], row["mean"])
        for row in rows.collect()
    }
    assert found[("fleet/r2/pose", 0)] == (5, 2.0)
    assert found[("fleet/r1/pose", 5)] == (3, pytest.approx((6 + 7 + 9) / 3))


def test_export_partitions_by_key_without_naming_folders_after_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    keys = ["../../etc", "a/b=c", "a/%2F", "a/\x01", "k/1", "k/2"]
    storage = write(tmp_path / "s", [make(key, n) for n, key in enumerate(keys)])
    export(spark, storage, tmp_path / "out", buckets=4)
    folders = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
    assert folders <= {f"key_bucket={n}" for n in range(4)}
    assert len(list((tmp_path / "out").glob("*/*.parquet"))) == len(folders)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row["sn"], row["key_expr"]) for row in rows) == list(enumerate(keys))


def test_nothing_is_overwritten_and_nothing_half_written(
    spark: SparkSession, storage: Path, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="there already"):
        export(spark, storage, tmp_path / "there")
    with pytest.raises(ConfigError, match="belongs to the storage"):
        export(spark, storage, storage / "samples" / "x")
    for file in (storage / "samples").glob("day=*/*.parquet"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(StorageCorrupt, match="restore"):
        export(spark, storage, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert leftovers(tmp_path) == []


def test_a_missing_file_is_corruption(spark: SparkSession, storage: Path, tmp_path: Path) -> None:
    for file in (storage / "samples").glob("day=*/*.parquet"):
        file.unlink()
    with pytest.raises(StorageCorrupt, match="align"):
        replay_plan(spark, storage, tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_replay_plan_keeps_the_pace(spark: SparkSession, storage: Path, tmp_path: Path) -> None:
    found = replay_plan(
        spark, storage, tmp_path / "plan", rate=2.0, part=Part(key_expr="fleet/r2/*")
    )
    assert (found.samples, found.payload_bytes, found.samples_per_second_max) == (10, 10, 2)
    assert found.seconds == pytest.approx(4.5)
    rows = spark.read.parquet(str(tmp_path / "plan")).collect()
    assert [row["due_us"] for row in rows] == [500_000 * sn for sn in range(10)]


def test_an_empty_part_gives_an_empty_plan(
    spark: SparkSession, storage: Path, tmp_path: Path
) -> None:
    found = replay_plan(spark, storage, tmp_path / "plan", part=Part(key_expr="none/**"))
    assert (found.samples, found.seconds) == (0, 0.0)


def test_verify_names_what_differs(spark: SparkSession, tmp_path: Path) -> None:
    one = write(tmp_path / "one", [make(sn=sn) for sn in range(6)])
    same = write(tmp_path / "same", [make(sn=sn) for sn in range(6)])
    other = write(
        tmp_path / "other",
        [make(sn=sn, payload=b"y" if sn == 2 else b"x") for sn in range(1, 8) if sn != 4],
    )
    assert verify(spark, one, same, payloads=True).agrees
    found = verify(spark, one, other)
    assert not found.agrees
    assert (found.here, found.there, found.only_here) == (6, 6, 2)
    assert (found.only_there, found.different) == (2, 1)
    assert [(row.sn, row.what) for row in found.examples] == [
        (0, "only here"),
        (2, "another payload"),
        (4, "only here"),
        (6, "only there"),
        (7, "only there"),
    ]


def test_verify_finds_a_payload_that_is_not_its_digest(spark: SparkSession, tmp_path: Path) -> None:
    import deltalake

    table = write(tmp_path / "one", [make(sn=sn, attachment=b"at") for sn in range(3)])
    delta = deltalake.DeltaTable(str(table / "samples"))
    delta.update(predicate="sn = 1", updates={"payload": "X'ff'"})
    found = verify(spark, table, table, payloads=True)
    assert (found.damaged, found.agrees) == (1, False)


def test_verify_against_a_live_storage(spark: SparkSession, tmp_path: Path) -> None:
    table = write(tmp_path / "one", [make(sn=sn) for sn in range(6)])
    with MemoryStorage() as live:
        live.append(SampleBatch([make(sn=sn) for sn in range(6)]))
        read: list[int] = []
        assert verify_against(spark, table, live, progress=read.append).agrees
        assert read == [6]
        live.append(SampleBatch([make(sn=6)]))
        found = verify_against(spark, table, live, "fleet/**")
        assert (found.only_there, found.only_here) == (1, 0)
    with MemoryStorage() as empty:
        assert verify_against(spark, table, empty).only_here == 6


def test_the_summary_is_plain_json(spark: SparkSession, storage: Path, tmp_path: Path) -> None:
    total = delivery_report(spark, storage, None, tmp_path / "rows", "fleet/r2/**")
    assert json.loads(json.dumps(total._asdict())) == {
        "sent": 10,
        "received": 10,
        "unique": 10,
        "missing": 0,
    }
