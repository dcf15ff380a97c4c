"""What a failure inside Spark means to a person: which of our errors it becomes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from durable_cache.errors import ConfigError, StorageCorrupt, StorageUnavailable

_DAMAGED = (
    "FAILED_READ_FILE",
    "DELTA_LOG_FILE",
    "DELTA_MISSING",
    "DELTA_STATE_RECOVER_ERROR",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_FILE_NOT_FOUND",
    "FileNotFoundException",
    "JsonParseException",
    "JsonEOFException",
    "JsonMappingException",
    "MALFORMED",
    "is not a Parquet file",
)
_REPAIR = (
    "restore the folder from a backup, or let the cache rebuild it from its peers "
    "(durable-cache align); deltalake's DeltaTable.repair() drops lost files from the log"
)
_LENGTH_MAX = 400


@contextmanager
def spark_errors(subject: str) -> Iterator[None]:
    """Translate Spark's errors into ours; `subject` names the table or file in the message.

    Damage becomes `StorageCorrupt` (stop), a wrong query or place `ConfigError`, anything else
    `StorageUnavailable` (retry).
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        said = str(error)
        told = f"{subject}: {_first_words(said)}"
        if any(sign in said for sign in _DAMAGED):
            raise StorageCorrupt(f"{told}; {_REPAIR}") from error
        if isinstance(error, AnalysisException):
            raise ConfigError(told) from error
        raise StorageUnavailable(told) from error


def _first_words(said: str) -> str:
    """Return what Spark says before its stack trace, or what a Python function raised."""
    lines = [line.strip() for line in said.splitlines()]
    if "Traceback (most recent call last)" in said:
        raised = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception): ", line)]
        if raised:
            return raised[-1][:_LENGTH_MAX]
    kept = [line for line in lines if line and not line.startswith(("at ", "=="))]
    java = "An error occurred while calling"
    return " ".join(line for line in kept[:4] if not line.startswith(java))[:_LENGTH_MAX]
