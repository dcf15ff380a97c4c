"""Does the command line do what the functions do, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from tests.servers.spark import make, spark, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta, pytest.mark.slow]


@pytest.fixture(scope="module")
def storage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with one gap; `spark` is asked for because it settles whether Java is here."""
    path = tmp_path_factory.mktemp("verbs") / "fleet"
    return write(path, [make("fleet/r1/pose", sn) for sn in (0, 1, 2, 5)])


def run(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "durable_cache.service", "spark", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return done.stdout


def test_sql_on_the_views(storage: Path) -> None:
    query = "select first_sn, last_sn, state from gaps"
    out = run("sql", str(storage), query, "--master", "local[1]", "--format", "json")
    assert json.loads(out) == {"first_sn": 3, "last_sn": 4, "state": "open"}


def test_gap_report_and_its_parquet(spark: SparkSession, storage: Path, tmp_path: Path) -> None:
    out = run("gap-report", str(storage), "--to", str(tmp_path / "gaps"), "--master", "local[1]")
    assert out.splitlines()[1].startswith("a1:7")
    assert spark.read.parquet(str(tmp_path / "gaps")).count() == 1


def test_delivery_report(storage: Path, tmp_path: Path) -> None:
    out = run("delivery-report", str(storage), "--html", str(tmp_path / "page.html"))
    assert json.loads(out)["missing"] == 2
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_latest_then_verify_then_an_error(storage: Path, tmp_path: Path) -> None:
    assert run("latest", str(storage), "--to", str(tmp_path / "latest")) == "4 samples read\n"
    other = write(tmp_path / "other", [make("fleet/r1/pose", 0)])
    out = run("verify", str(storage), "--against", str(other), code=1)
    assert "only here 3" in out
    run("sql", str(tmp_path / "nowhere"), "select 1", code=2)


def test_a_query_that_is_wrong_is_a_usage_error(storage: Path) -> None:
    run("sql", str(storage), "select nothing from gaps", code=2)


def test_replay_plan_downsample_and_export(storage: Path, tmp_path: Path) -> None:
    out = run("replay-plan", str(storage), "--to", str(tmp_path / "plan"), "--rate", "2")
    assert out.startswith("4 samples, 4 bytes, 2.500 s")
    run("downsample", str(storage), "--to", str(tmp_path / "thin"), "--every", "60")
    run("export", str(storage), "--to", str(tmp_path / "out"), "--sn", "0..1")
    assert list((tmp_path / "out").glob("key_bucket=*/*.parquet"))
