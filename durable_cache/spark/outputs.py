"""How a job's result is written: whole or not at all, and never into a storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from durable_cache.errors import ConfigError
from durable_cache.spark.failures import spark_errors
from durable_cache.spark.files import delete, rename, require_absent
from durable_cache.spark.table import Table

Format = Literal["parquet", "delta"]


def check_apart(table: Table, target: str | Path) -> str:
    """Return `target` as text; ConfigError when it lies in the storage that is read.

    The service is the only one that may commit to a storage's own tables.
    """
    place = _plain(str(target))
    home = _plain(table.samples_path).rpartition("/")[0]
    own = {_plain(path) for path in (table.samples_path, table.skips_path) if path}
    if place in own or place == home or any(place.startswith(f"{path}/") for path in own):
        raise ConfigError(f"{target} belongs to the storage that is read; name a folder beside it")
    return str(target).rstrip("/")


def _plain(path: str) -> str:
    return path if "://" in path else str(Path(path.removeprefix("file:")).resolve())


def write_frame(
    spark: SparkSession,
    frame: DataFrame,
    target: str,
    partition_by: Sequence[str] = (),
    form: Format = "parquet",
) -> None:
    """Write `frame` to the new folder `target`; on an error nothing is left there.

    Raises ConfigError when something is there already, `StorageUnavailable` (retry),
    `StorageCorrupt` when what is read is damaged.
    """
    require_absent(spark, target)
    # Beside the target: a rename within one file system is what makes it appear whole.
    partial = f"{target}.partial-{uuid4().hex[:8]}"
    try:
        with spark_errors(target):
            frame.write.format(form).partitionBy(*partition_by).save(partial)
        rename(spark, partial, target)
    except BaseException:
        delete(spark, partial)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a local file, whole or not at all; ConfigError when its folder is not there."""
    partial = path.with_name(f".{path.name}.partial-{uuid4().hex[:8]}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(
            f"{path}: {error.strerror}; name a file in a folder that exists"
        ) from error
