"""How a Spark session that reads Delta tables is started, or one's own is taught to.

What can be wrong with the machine (Java, jars, pyspark) is found out before a JVM starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from durable_cache.errors import ConfigError
from durable_cache.spark.jars import COORDINATES, default_folder, fetch_jars, jars_in
from durable_cache.spark.java import check_java

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def spark_options(jars: str | Path | None = None, *, small: bool = True) -> dict[str, str]:
    """Return the settings that a session of one's own needs to read our tables.

    `jars` is a folder of jars; without it the settings name the Maven coordinates and Spark
    fetches them itself. `small` adds what suits tables below some hundred files and a machine of
    a few cores. Raises ConfigError when the folder lacks the Delta jar.
    """
    options = {
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": _CATALOG,
        "spark.sql.session.timeZone": "UTC",
    }
    if jars is None:
        options["spark.jars.packages"] = COORDINATES
    else:
        options["spark.jars"] = ",".join(str(jar.resolve()) for jar in jars_in(Path(jars)))
    if small:
        options |= {
            # 50 by default: 50 tasks in every query to read the state of a table of ten files.
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 2))),
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
            "spark.ui.enabled": "false",
        }
    return options


def spark_session(
    app: str = "durable-cache",
    *,
    master: str = "local[*]",
    jars: str | Path | None = None,
    driver_memory: str = "2g",
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session that reads Delta tables; the caller stops it.

    The jars come from `jars`, else from `default_folder`, which is filled from Maven the first
    time. `options` are Spark settings that win over ours. A session that runs already is returned
    as it is. Raises ConfigError for a missing or too old Java, missing jars, or a running session
    without Delta; only unreachable Maven is worth a retry.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return _with_delta(running)
    check_java()
    folder = Path(jars) if jars is not None else default_folder()
    if jars is None:
        fetch_jars(folder)
    settings = spark_options(folder, small=master.startswith("local"))
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {"spark.driver.memory": driver_memory, **(options or {})}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Without this, py4j's and Spark's own log lines drown the answer of a short job.
    settings.setdefault("spark.log.level", "ERROR")
    settings.setdefault("spark.ui.showConsoleProgress", "false")
    builder = SparkSession.builder.master(master).appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return _with_delta(builder.getOrCreate())


def _with_delta(session: SparkSession) -> SparkSession:
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    catalog = session.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    if _EXTENSION not in extensions or catalog != _CATALOG:
        raise ConfigError(
            "the running Spark session does not know Delta; stop it first, or start it with the "
            "settings of durable_cache.spark.spark_options()"
        )
    return session
