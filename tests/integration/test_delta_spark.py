"""Does Spark read what the service writes, skip files by its statistics, and end up the same?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Skip
from durable_cache.spark import history
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import HOSTILE_KEYS, SOURCE, START_NS, batch, filled, sample
from durable_cache_delta.maintenance import optimize
from tests.servers.delta import lake, opened, write
from tests.servers.spark import files_of, spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta]
DAY_NS = 86_400 * 10**9


def test_spark_reads_a_storage_and_skips_its_files(spark: SparkSession, tmp_path: Path) -> None:
    for day in range(3):
        moment = START_NS + day * DAY_NS
        made = [sample(10 * day + n, "fleet/r1/pose", received_ns=moment + n) for n in range(10)]
        write(tmp_path, made, [Skip(SOURCE, 1, 100 + day, 100 + day)])
    folder = tmp_path / "fleet"
    assert history(spark, folder).count() == 30
    few = history(spark, folder, "fleet/*/pose", source=str(SOURCE), sn=(12, 17))
    assert sorted(found["sn"] for found in few.select("sn").collect()) == list(range(12, 18))
    assert files_of(few) == 1
    assert files_of(history(spark, folder, "other/**")) == 0


def test_spark_sees_every_field_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    made = [filled(1), *(sample(2, key) for key in HOSTILE_KEYS)]
    write(tmp_path, made)
    rows = history(spark, tmp_path / "fleet").collect()
    assert {(r["key_expr"], r["sn"], bytes(r["payload"]), int(r["ntp64"])) for r in rows} == {
        (s.key, s.sn, s.payload, s.ntp64) for s in made if KeyExpression("**").matches(s.key)
    }
    (full,) = (r for r in rows if r["sn"] == 1)
    assert (full["encoding"], bytes(full["attachment"])) == (made[0].encoding, made[0].attachment)
    assert int(full["sequence"]) == made[0].sequence


def test_an_optimize_by_spark_while_the_service_is_stopped_is_adopted(
    spark: SparkSession, tmp_path: Path
) -> None:
    for first in range(3):
        write(tmp_path, [sample(first)])
    spark.sql(f"OPTIMIZE delta.`{tmp_path}/fleet/samples`")
    with opened(tmp_path) as storage:
        assert len(storage.files()) == 1
        assert storage.append(batch(sample(n) for n in range(5))).new == 2
        assert [s.sn for s in read_all(storage)] == [0, 1, 2, 3, 4]
    optimize(lake(tmp_path), "fleet")
    assert history(spark, tmp_path / "fleet").count() == 5
