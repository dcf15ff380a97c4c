"""Do Spark and the delta backend, the writer of these tables, get on with each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from durable_cache.errors import DurableCacheError, StorageLocked
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.spark import history, register_views
from durable_cache.spark.importing import import_history
from durable_cache.spark.latest_table import read_latest, update_latest
from durable_cache.spark.verification import verify_against
from durable_cache.storage.contract import Storage
from durable_cache.storage.plugins import open_storage
from tests.servers.spark import files_of, make, spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta]

QUIET = {"maintenance_interval_seconds": 0}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def fleet(lake: Path) -> Iterator[Storage]:
    """A storage of the backend, open for writing all through the test."""
    with open_storage("delta", "fleet", {"path": str(lake), **QUIET}) as storage:
        yield storage


def batch(first: int, count: int, key: str = "fleet/r1/pose") -> SampleBatch:
    return SampleBatch(make(key, sn) for sn in range(first, first + count))


def read_all(storage: Storage, selection: Selection) -> list[Sample]:
    found: list[Sample] = []
    cursor = None
    while True:
        page = storage.read(selection, 1000, cursor)
        found += page.samples
        cursor = page.cursor
        if cursor is None:
            return found


def test_spark_answers_as_the_backend_does(spark: SparkSession, lake: Path, fleet: Storage) -> None:
    samples = [
        make(f"fleet/{robot}/{name}", sn, source=f"{zid}:7", payload=f"{sn}".encode())
        for robot, zid in (("r1", "a1"), ("r2", "b2"))
        for name in ("pose", "@hidden")
        for sn in range(20)
        if sn % 2 == (name == "pose")
    ]
    fleet.append(SampleBatch(samples), [Skip(SourceId("a1", 7), 5, 20, 21)])
    fleet.append(SampleBatch([make("fleet/r1/pose", 23, kind=Kind.DELETE, attachment=b"a\x00")]))
    asked: list[tuple[str, str, tuple[int | None, int | None]]] = [
        ("**", "*", (None, None)),
        ("fleet/*/pose", "a1", (3, 11)),
        ("fleet/**", "b2:7", (None, 9)),
        ("fleet/*/@hidden", "*", (None, None)),
        ("fleet/r1/pose", "*", (23, 23)),
    ]
    for key_expr, source, (first, last) in asked:
        zid, _, eid = source.partition(":")
        selection = Selection(
            key_expr=KeyExpression(key_expr),
            zid=None if zid == "*" else zid,
            eid=int(eid) if eid else None,
            sns=SnBounds(first, last),
        )
        expected = [
            (*s.identity[:1], s.sn, bytes(s.payload), s.ntp64, s.received_ns, s.kind.name)
            for s in read_all(fleet, selection)
        ]
        frame = history(spark, lake / "fleet", key_expr, source=source, sn=(first, last))
        rows = frame.orderBy("key_expr", "source_zid", "sn").collect()
        found = [
            (r["key_expr"], r["sn"], bytes(r["payload"]), r["ntp64"], r["received_ns"], r["kind"])
            for r in rows
        ]
        assert expected
        assert found == expected, key_expr
    register_views(spark, lake / "fleet", prefix="svc_")
    misses = spark.sql("select first_sn, last_sn from svc_misses").collect()
    assert [tuple(row) for row in misses] == [(20, 21)]
    assert verify_against(spark, lake / "fleet", fleet, payloads=True).agrees


def test_files_of_the_backend_are_skipped(spark: SparkSession, lake: Path, fleet: Storage) -> None:
    for flush in range(4):
        fleet.append(batch(10 * flush, 10))
        fleet.append(batch(10 * flush, 10, "fleet/r2/odom"))
    assert files_of(history(spark, lake / "fleet")) == 8
    assert files_of(history(spark, lake / "fleet", "fleet/r1/**")) == 4
    assert files_of(history(spark, lake / "fleet", "fleet/r2/*", sn="12..15")) == 1


def test_spark_reads_whole_commits_while_the_service_writes(
    spark: SparkSession, lake: Path, fleet: Storage
) -> None:
    fleet.append(batch(0, 100))
    done, failed = Event(), []

    def write() -> None:
        try:
            for flush in range(1, 40):
                if done.is_set():
                    return
                fleet.append(batch(100 * flush, 100))
        except DurableCacheError as error:
            failed.append(error)

    writer = Thread(target=write)
    writer.start()
    try:
        counts = [history(spark, lake / "fleet").count() for _ in range(8)]
    finally:
        done.set()
        writer.join()
    assert failed == []
    assert counts == sorted(counts)
    assert all(count % 100 == 0 for count in counts)


@pytest.mark.slow
def test_the_service_goes_on_after_an_operators_optimize_and_delete(
    spark: SparkSession, lake: Path
) -> None:
    from delta.tables import DeltaTable

    def write_and_read(first: int) -> list[int]:
        with open_storage("delta", "fleet", {"path": str(lake), **QUIET}) as storage:
            storage.append(batch(first, 5))
            storage.append(batch(first, 5))
            return [sample.sn for sample in read_all(storage, Selection())]

    assert write_and_read(0) == list(range(5))
    assert write_and_read(5) == list(range(10))
    table = DeltaTable.forPath(spark, str(lake / "fleet" / "samples"))
    table.optimize().executeCompaction()
    assert write_and_read(10) == list(range(15))
    table.delete("sn < 3")
    assert write_and_read(15) == list(range(3, 20))
    table.optimize().executeZOrderBy("key_expr")
    assert write_and_read(20) == list(range(3, 25))
    assert history(spark, lake / "fleet").count() == 22


def test_a_table_that_deltalake_cannot_write_is_refused(spark: SparkSession, lake: Path) -> None:
    options = {"path": str(lake), **QUIET}
    with open_storage("delta", "fleet", options) as storage:
        storage.append(batch(0, 5))
    path = lake / "fleet" / "samples"
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableRowTracking' = true)")
    with pytest.raises(DurableCacheError, match=r"(?i)row.?tracking"):
        with open_storage("delta", "fleet", options) as storage:
            storage.append(batch(5, 5))
    assert history(spark, lake / "fleet").count() == 5


def test_latest_follows_the_backend_through_its_own_maintenance(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    with open_storage("delta", "fleet", {"path": str(lake), **QUIET}) as storage:
        storage.append(batch(0, 10))
        assert update_latest(spark, lake / "fleet", tmp_path / "latest") == 10
        storage.append(batch(10, 5, "fleet/r2/pose"))
        assert update_latest(spark, lake / "fleet", tmp_path / "latest") == 5
    rows = read_latest(spark, tmp_path / "latest").orderBy("key_expr").collect()
    assert [(row["key_expr"], row["sn"]) for row in rows] == [
        ("fleet/r1/pose", 9),
        ("fleet/r2/pose", 14),
    ]


def test_import_takes_each_identity_once(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    source = ("sql", "fleet", {"url": f"sqlite:///{tmp_path / 'samples.db'}"})
    with open_storage(*source) as held:
        held.append(batch(0, 50), [Skip(SourceId("a1", 7), 5, 50, 52)])
    with open_storage("delta", "fleet", {"path": str(lake), **QUIET}) as storage:
        storage.append(batch(20, 5))
        with pytest.raises(StorageLocked):
            import_history(source, lake, "fleet")
    first = import_history(source, lake, "fleet")
    assert (first.new, first.missing, first.conflicts) == (45, 0, 0)
    again = import_history(source, lake, "fleet")
    assert (again.new, again.missing) == (0, 0)
    with open_storage(*source, writer=False) as held:
        assert verify_against(spark, lake / "fleet", held).agrees
    register_views(spark, lake / "fleet", prefix="imported_")
    misses = spark.sql("select first_sn, last_sn from imported_misses").collect()
    assert [tuple(row) for row in misses] == [(50, 52)]


@pytest.mark.slow
def test_the_example_shows_the_way(spark: SparkSession, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "examples" / "zenoh_to_dataframe.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "|fleet/r1/battery|0  |" in done.stdout
    assert "|    100|   1|       0|     99|" in done.stdout
    assert history(spark, tmp_path / "delta" / "demo").count() == 100
