"""Does the command line do what the functions do, for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from tests.servers.spark import make, spark, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta, pytest.mark.slow]

VERB_SECONDS = 600
PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from durable_cache.service.cli import main

with open(int(sys.argv[1]), "w") as answers:
    for line in sys.stdin:
        out, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            try:
                code = main(json.loads(line))
            except SystemExit as end:
                code = end.code
        print(json.dumps([code, out.getvalue(), errors.getvalue()]), file=answers, flush=True)
"""


@pytest.fixture(scope="module")
def storage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with one gap; `spark` is asked for because it settles whether Java is here."""
    path = tmp_path_factory.mktemp("verbs") / "fleet"
    return write(path, [make("fleet/r1/pose", sn) for sn in (0, 1, 2, 5)])


class Verbs:
    """One process that runs verbs in turn, as an operator's shell does, on one Java machine."""

    def __init__(self) -> None:
        answers, told = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(told)],
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=(told,),
        )
        os.close(told)
        self._answers = os.fdopen(answers)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        assert self._process.stdin is not None
        print(json.dumps(["spark", *arguments]), file=self._process.stdin, flush=True)
        assert select([self._answers], [], [], VERB_SECONDS)[0], f"{arguments} did not end"
        ended, out, errors = json.loads(self._answers.readline())
        assert ended == code, errors[-2000:]
        assert "Traceback" not in errors
        return str(out)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._answers.close()


@pytest.fixture(scope="module")
def run() -> Iterator[Verbs]:
    verbs = Verbs()
    yield verbs
    verbs.close()


def test_a_process_of_its_own(storage: Path) -> None:
    query = "select first_sn, last_sn, state from gaps"
    command = [sys.executable, "-m", "durable_cache.service", "spark", "sql", str(storage), query]
    done = subprocess.run(
        [*command, "--master", "local[1]", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=VERB_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"first_sn": 3, "last_sn": 4, "state": "open"}


def test_gap_report_and_its_parquet(
    run: Verbs, spark: SparkSession, storage: Path, tmp_path: Path
) -> None:
    out = run("gap-report", str(storage), "--to", str(tmp_path / "gaps"), "--master", "local[1]")
    assert out.splitlines()[1].startswith("a1:7")
    assert spark.read.parquet(str(tmp_path / "gaps")).count() == 1


def test_delivery_report(run: Verbs, storage: Path, tmp_path: Path) -> None:
    out = run("delivery-report", str(storage), "--html", str(tmp_path / "page.html"))
    assert json.loads(out)["missing"] == 2
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_latest_then_verify_then_an_error(run: Verbs, storage: Path, tmp_path: Path) -> None:
    assert run("latest", str(storage), "--to", str(tmp_path / "latest")) == "4 samples read\n"
    other = write(tmp_path / "other", [make("fleet/r1/pose", 0)])
    out = run("verify", str(storage), "--against", str(other), code=1)
    assert "only here 3" in out
    told = json.loads(run("verify", str(storage), "--against", str(other), "--json", code=1))
    assert (told["here"], told["there"], told["only_here"]) == (4, 1, 3)
    assert {example["key_expr"] for example in told["examples"]} <= {
        "fleet/r1/pose",
        "fleet/r2/pose",
    }
    run("sql", str(tmp_path / "nowhere"), "select 1", code=2)


def test_a_query_that_is_wrong_is_a_usage_error(run: Verbs, storage: Path) -> None:
    run("sql", str(storage), "select nothing from gaps", code=2)


def test_replay_plan_downsample_and_export(run: Verbs, storage: Path, tmp_path: Path) -> None:
    out = run("replay-plan", str(storage), "--to", str(tmp_path / "plan"), "--rate", "2")
    assert out.startswith("4 samples, 4 bytes, 2.500 s")
    run("downsample", str(storage), "--to", str(tmp_path / "thin"), "--every", "60")
    folder = str(tmp_path / "out")
    out = run("export", str(storage), "--to", folder, "--sn", "0..1", "--json")
    assert json.loads(out) == {"folder": folder}
    assert list((tmp_path / "out").glob("key_bucket=*/*.parquet"))
