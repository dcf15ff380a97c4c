"""What is a person told whose machine lacks Java, jars or a network, before any JVM starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from durable_cache.errors import ConfigError
from durable_cache.spark import spark_options
from durable_cache.spark.jars import COORDINATES, DELTA_VERSION, default_folder, fetch_jars, jars_in
from durable_cache.spark.java import check_java
from durable_cache.spark.session import spark_session
from tests.servers.spark import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = pytest.mark.spark


def fake_java(folder: Path, said: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    return folder


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no java on the PATH; install a JDK"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="JAVA_HOME is"):
        check_java()


def test_an_old_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "j8", 'java version "1.8.0_401"')))
    with pytest.raises(ConfigError, match="is Java 8, Spark needs 17"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "j11", 'openjdk version "11.0.2"')))
    with pytest.raises(ConfigError, match="is Java 11"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "j21", 'openjdk version "21.0.1"')))
    assert check_java() == 21


def test_a_folder_without_the_jar(tmp_path: Path) -> None:
    (tmp_path / "io.delta_delta-spark_2.13-3.0.0.jar").touch()
    for asked in (lambda: jars_in(tmp_path), lambda: spark_options(tmp_path)):
        with pytest.raises(ConfigError, match=r"is not there .*python -m durable_cache.spark.jars"):
            asked()


def test_an_unreachable_maven_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dead = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Dhttp.proxyHost=127.0.0.1"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{dead} -Dhttp.proxyPort=9 -Duser.home={tmp_path}")
    with pytest.raises(
        ConfigError, match=r"could not be fetched.*Without a network, copy a folder"
    ):
        fetch_jars(tmp_path / "jars")
    assert not (tmp_path / "jars").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".jars-")] == []


def test_a_filled_folder_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"io.delta_delta-spark_4.2_2.13-{DELTA_VERSION}.jar").touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("DURABLE_CACHE_SPARK_JARS", str(tmp_path))
    assert fetch_jars(default_folder()) == jars_in(tmp_path)
    assert spark_options(tmp_path)["spark.jars"].endswith(".jar")


def test_options_name_the_coordinates_without_a_folder() -> None:
    options = spark_options()
    assert options["spark.jars.packages"] == COORDINATES
    assert "spark.jars" not in options
    assert "spark.ui.enabled" not in spark_options(small=False)


def test_a_session_that_runs_is_used(spark: SparkSession) -> None:
    assert spark_session() is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_session_without_delta_is_refused(spark: SparkSession) -> None:
    bare = spark.newSession()
    catalog = spark.conf.get("spark.sql.catalog.spark_catalog")
    try:
        bare.conf.set("spark.sql.catalog.spark_catalog", "elsewhere")
        bare.sql("select 1")
        from durable_cache.spark.session import _with_delta

        with pytest.raises(ConfigError, match="does not know Delta; stop it first"):
            _with_delta(bare)
    finally:
        assert spark.conf.get("spark.sql.catalog.spark_catalog") == catalog
        spark.sql("select 1")


def test_the_verbs_are_known_without_pyspark() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from durable_cache.service.cli import build_parser\n"
        "from durable_cache.errors import BackendNotInstalled\n"
        "given = ['spark', 'sql', 'x', 'select 1']\n"
        "try:\n    chosen = build_parser('spark').parse_args(given)\n    chosen.run(chosen)\n"
        "except BackendNotInstalled as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert "pip install 'durable-cache[spark]'" in done.stdout


def test_no_java_ends_the_command_with_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "durable_cache.service", "spark", "sql", "x", "select 1"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "install a JDK" in done.stderr.splitlines()[-1]
