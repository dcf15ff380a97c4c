"""What is in a folder that Spark can reach: local, HDFS or an object store.

The one module that speaks to Hadoop's file systems, which pyspark does not wrap.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from pyspark.sql import SparkSession

from durable_cache.errors import ConfigError
from durable_cache.spark.failures import spark_errors


class _Files(Protocol):
    def exists(self, path: object) -> bool: ...
    def rename(self, source: object, target: object) -> bool: ...
    def delete(self, path: object, recursive: bool) -> bool: ...


def _at(spark: SparkSession, path: str) -> tuple[_Files, object]:
    java: Any = spark.sparkContext._jvm
    place = java.org.apache.hadoop.fs.Path(path)
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    return cast(_Files, place.getFileSystem(conf)), place


def exists(spark: SparkSession, path: str) -> bool:
    """Tell whether there is a file or folder; `StorageUnavailable` when it cannot be known."""
    with spark_errors(path):
        files, place = _at(spark, path)
        return files.exists(place)


def rename(spark: SparkSession, source: str, target: str) -> None:
    """Move a folder; atomic on local disks and HDFS, not on object stores."""
    with spark_errors(target):
        files, place = _at(spark, source)
        if not files.rename(place, _at(spark, target)[1]):
            raise ConfigError(f"{target}: {source} could not be moved there; is it there already?")


def delete(spark: SparkSession, path: str) -> None:
    """Remove a folder and what is in it; nothing happens when it is not there."""
    with spark_errors(path):
        files, place = _at(spark, path)
        files.delete(place, True)


def require_absent(spark: SparkSession, path: str) -> None:
    """Refuse with ConfigError to write where something is."""
    if exists(spark, path):
        raise ConfigError(f"{path} is there already; name a new folder, or remove it first")
