"""The one Spark session of a test run, and tables written without the store under test."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from durable_cache.errors import DurableCacheError
from durable_cache.model.sample import Kind, Qos, Sample, Skip, SourceId, sample_digest
from durable_cache.model.timestamp import ntp64_from_ns, ntp64_to_ns
from durable_cache.testing.services import require
from durable_cache_delta.schema import REQUIRED_CONFIGURATION, SAMPLES, SKIPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND_NS = 10**9
START_NS = int(START.timestamp()) * SECOND_NS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """Local Spark with two tasks; skips without Java or jars unless `spark` is required."""
    try:
        return _session()
    except (DurableCacheError, ModuleNotFoundError) as error:
        require("spark", str(error))


@lru_cache(maxsize=1)
def _session() -> SparkSession:
    from durable_cache.spark.session import spark_session

    session = spark_session(
        "durable-cache-tests",
        master="local[2]",
        options={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": f"{gettempdir()}/durable-cache-spark-{os.getpid()}",
        },
    )
    atexit.register(session.stop)
    return session


def moment(ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ns // 1000)


def make(
    key: str = "fleet/r1/pose",
    sn: int = 0,
    *,
    source: str = "a1:7",
    epoch: int = 5,
    payload: bytes = b"x",
    at_seconds: float | None = None,
    received_seconds: float | None = None,
    kind: Kind = Kind.PUT,
    encoding: str = "zenoh/bytes",
    attachment: bytes | None = None,
    timestamp_id: str = "a1",
) -> Sample:
    """Make a sample sent `at_seconds` after START (its sn by default), received then or later."""
    sent = START_NS + round((sn if at_seconds is None else at_seconds) * SECOND_NS)
    came = sent if received_seconds is None else START_NS + round(received_seconds * SECOND_NS)
    return Sample(
        key=key,
        source=SourceId.parse(source),
        epoch=epoch,
        sn=sn,
        payload=payload,
        kind=kind,
        encoding=encoding,
        attachment=attachment,
        ntp64=ntp64_from_ns(sent),
        timestamp_id=timestamp_id,
        received_ns=came,
    )


def row(sample: Sample) -> dict[str, object]:
    qos = Qos.unpack(sample.qos)
    return {
        "key_expr": sample.key,
        "source_zid": sample.source.zid,
        "source_eid": sample.source.eid,
        "epoch": sample.epoch,
        "sn": sample.sn,
        "sequence": Decimal(sample.sequence),
        "kind": sample.kind.name,
        "payload": sample.payload,
        "encoding": sample.encoding,
        "encoding_schema": sample.encoding.partition(";")[2] or None,
        "attachment": sample.attachment,
        "ntp64": Decimal(sample.ntp64),
        "timestamp_id": sample.timestamp_id,
        "timestamp": moment(ntp64_to_ns(sample.ntp64)),
        "stamped": sample.stamped,
        "received_at": moment(sample.received_ns),
        "received_ns": sample.received_ns,
        "priority": qos.priority,
        "congestion_control": qos.congestion,
        "express": qos.express,
        "payload_digest": sample_digest(sample),
        "payload_bytes": len(sample.payload),
        "day": moment(sample.received_ns).date(),
    }


def write(path: Path, samples: Iterable[Sample], skips: Sequence[Skip] = ()) -> Path:
    """Append one commit to the storage in folder `path`, creating it; returns `path`."""
    rows = sorted((row(sample) for sample in samples), key=lambda r: (r["key_expr"], r["sn"]))
    _append(path / "samples", pa.Table.from_pylist(rows, schema=SAMPLES), ["day"])
    if skips:
        recorded = [
            dict(zip(SKIPS.names, (*skip.source, *skip[1:], START), strict=True)) for skip in skips
        ]
        _append(path / "skips", pa.Table.from_pylist(recorded, schema=SKIPS), [])
    return path


def _append(path: Path, rows: pa.Table, partition_by: list[str]) -> None:
    if not path.exists():
        deltalake.DeltaTable.create(
            str(path),
            rows.schema,
            partition_by=partition_by,
            configuration=REQUIRED_CONFIGURATION,
            raise_if_key_not_exists=False,
        )
    deltalake.write_deltalake(str(path), rows, mode="append")


def plan_of(frame: DataFrame) -> str:
    """Return the physical plan as Spark prints it."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def files_of(frame: DataFrame) -> int:
    """Count the data files that the query would open, after partitions and statistics."""
    return len(frame.inputFiles())
