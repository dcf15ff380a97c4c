"""Do the command line, SQL and Spark say the same of each key?"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.model.sample import Sample
from durable_cache.spark import register_views
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.spark import spark, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.delta]

Run = Callable[..., subprocess.CompletedProcess[str]]
Row = tuple[str, str, int, str, str, str]

STORY = {
    "fleet/lives": ("a", "B"),
    "fleet/gone": ("A", ""),
    "fleet/back": ("a", "", "B", "", "b"),
    "fleet/never": ("",),
}
"""What two publishers put on each key, one in small and one in capital letters; "" deletes."""
EXPECTED = [
    ("fleet/back", "ALIVE", 2, "put", "b"),
    ("fleet/gone", "NOT_ALIVE_DISPOSED", 0, "delete", ""),
    ("fleet/lives", "ALIVE", 0, "put", "B"),
    ("fleet/never", "NOT_ALIVE_DISPOSED", 0, "delete", ""),
]


def test_the_command_line_sql_and_spark_say_the_same_of_each_key(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    database = tmp_path / "samples.db"
    with (
        LocalNetwork() as network,
        declare_reliability_cache(
            network.client(),
            "fleet/**",
            backend="sql",
            backend_options={"url": f"sqlite:///{database}"},
            state_dir=tmp_path / "state",
        ) as cache,
        declare_reliable_publisher(network.client(), "fleet/*", acknowledgements=1) as small,
        declare_reliable_publisher(network.client(), "fleet/*", acknowledgements=1) as capital,
    ):
        for key, story in STORY.items():
            for payload in story:
                publisher = capital if payload.isupper() else small
                put = publisher.put(payload, key=key) if payload else publisher.delete(key=key)
                assert put.wait(30)
        shown = run(
            "instances", "fleet/**", "--depth", "99", "--json", "--connect", network.endpoint
        )
        held = history_of(network)
        assert cache.wait_drained(30)
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    by_command: list[Row] = [
        (row["key"], row["state"], row["disposed"], row["kind"], row["source"], row["payload"])
        for row in told
    ]
    assert [(*row[:4], row[5]) for row in by_command] == EXPECTED
    assert [row["writers"] for row in told] == [2, 2, 2, 1]

    with sqlite3.connect(database) as connection:
        by_sql = connection.execute(
            "SELECT key, state, disposed, kind, source_id, CAST(payload AS TEXT) FROM instances "
            "WHERE writers IS NULL AND no_writers IS NULL ORDER BY key"
        ).fetchall()
    connection.close()
    assert by_sql == by_command

    register_views(spark, write(tmp_path / "lake", held), prefix="told_")
    by_spark = spark.sql(
        "SELECT key_expr, state, disposed, lower(kind), source, cast(payload AS string) "
        "FROM told_instances WHERE writers IS NULL AND no_writers IS NULL ORDER BY key_expr"
    ).collect()
    assert [tuple(row) for row in by_spark] == by_command


def history_of(network: LocalNetwork) -> list[Sample]:
    """Return what caches hold, with the names that they give it."""
    held: list[Sample] = []
    with declare_reliable_subscriber(
        network.client(), "fleet/**", held.append, history=True
    ) as subscriber:
        wait_until(lambda: subscriber.history_complete)
    return held
