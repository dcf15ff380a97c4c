"""Do two histories hold the same samples: by identity and payload digest, without payloads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from durable_cache.errors import BackendNotInstalled
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample, SourceId, sample_digest
from durable_cache.model.selection import Selection
from durable_cache.spark.failures import spark_errors
from durable_cache.spark.key_expressions import parse_key_expr
from durable_cache.spark.numbering import STREAM
from durable_cache.spark.predicates import named_by
from durable_cache.spark.table import open_table
from durable_cache.storage.contract import Storage
from durable_cache.storage.sized_pages import pages

IDENTITY = (*STREAM, "sn")
DIFFERENCES_MAX = 1000
PAGE_SAMPLES = 20_000


@dataclass(frozen=True, slots=True)
class Difference:
    """A run of samples of one stream that only one side has, or that differ."""

    key_expr: str
    source: SourceId
    epoch: int
    sn: int
    what: str
    """``only here``, ``only there`` or ``another payload``."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What a comparison found; the two histories agree when `agrees`."""

    here: int
    there: int
    only_here: int
    only_there: int
    different: int
    damaged: int
    """Samples here whose payload does not have the digest stored with it; 0 unless asked for."""
    examples: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        return not (self.only_here or self.only_there or self.different or self.damaged)


def verify(
    spark: SparkSession,
    table: str | Path,
    other: str | Path,
    key_expr: str = "**",
    *,
    payloads: bool = False,
    examples_max: int = 20,
) -> Verification:
    """Compare two tables by identity and digest; `payloads` also computes `table`'s digests anew.

    Raises what `open_table` raises, `StorageUnavailable` (retry).
    """
    there = open_table(spark, other)
    with spark_errors(there.samples_path):
        digests = there.samples(spark).where(named_by(key_expr)).select(*IDENTITY, _digest())
        return _compare(spark, table, digests, key_expr, payloads, examples_max)


def verify_against(
    spark: SparkSession,
    table: str | Path,
    storage: Storage,
    key_expr: str = "**",
    *,
    payloads: bool = False,
    examples_max: int = 20,
    progress: Callable[[int], None] = lambda _: None,
) -> Verification:
    """Compare a table with an open storage of any backend, live or not.

    The storage is read page by page on this machine; identities and digests go through a local
    temporary folder, about 80 bytes a sample, so `spark` must be local. `progress` is told the
    samples of each page. Raises what the storage raises as well.
    """
    asked = parse_key_expr(key_expr)
    with tempfile.TemporaryDirectory(prefix="durable-cache-verify-") as folder:
        _stage(storage, asked, Path(folder), progress)
        with spark_errors(folder):
            digests = spark.read.schema(_STAGED).parquet(folder)
            return _compare(spark, table, digests, key_expr, payloads, examples_max)


_STAGED = (
    "key_expr string, source_zid string, source_eid bigint, epoch bigint, sn bigint, digest binary"
)


def _digest() -> Column:
    return fn.col("payload_digest").alias("digest")


def _compare(
    spark: SparkSession,
    table: str | Path,
    there: DataFrame,
    key_expr: str,
    payloads: bool,
    examples_max: int,
) -> Verification:
    rows = open_table(spark, table).samples(spark).where(named_by(key_expr))
    here = rows.select(*IDENTITY, _digest())
    left, right = here.alias("here"), there.alias("there")
    same = reduce(
        lambda one, two: one & two,
        (fn.col(f"here.{name}") == fn.col(f"there.{name}") for name in IDENTITY),
    )
    what = (
        fn.when(fn.col("there.digest").isNull(), "only here")
        .when(fn.col("here.digest").isNull(), "only there")
        .when(fn.col("here.digest") != fn.col("there.digest"), "another payload")
    )
    pairs = left.join(right, same, "full_outer").select(
        what.alias("what"),
        *(fn.coalesce(f"here.{name}", f"there.{name}").alias(name) for name in IDENTITY),
    )
    counts = {row["what"]: row["count"] for row in pairs.groupBy("what").count().collect()}
    limit = min(examples_max, DIFFERENCES_MAX)
    found = pairs.where("what is not null").orderBy(*IDENTITY).limit(limit).collect()
    both = counts.get(None, 0) + counts.get("another payload", 0)
    return Verification(
        here=both + counts.get("only here", 0),
        there=both + counts.get("only there", 0),
        only_here=counts.get("only here", 0),
        only_there=counts.get("only there", 0),
        different=counts.get("another payload", 0),
        damaged=_damaged(rows) if payloads else 0,
        examples=tuple(
            Difference(
                row["key_expr"],
                SourceId(row["source_zid"], row["source_eid"]),
                row["epoch"],
                row["sn"],
                row["what"],
            )
            for row in found
        ),
    )


def _damaged(rows: DataFrame) -> int:
    """Count the rows whose digest is not their payload's; the one pass that runs Python."""

    def fresh(kind: str, encoding: str, payload: bytearray, attachment: bytearray | None) -> bytes:
        return sample_digest(
            Sample(
                key="",
                source=SourceId("1", 0),
                epoch=0,
                sn=0,
                payload=bytes(payload),
                kind=Kind[kind],
                encoding=encoding,
                attachment=None if attachment is None else bytes(attachment),
            )
        )

    # Plain workers: Arrow ones need pandas as well.
    digest = fn.udf(fresh, "binary", useArrow=False)("kind", "encoding", "payload", "attachment")
    return rows.where(digest != fn.col("payload_digest")).count()


def _stage(
    storage: Storage, key_expr: KeyExpression, folder: Path, progress: Callable[[int], None]
) -> None:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise BackendNotInstalled("delta", "delta", error.name or "pyarrow") from error
    every = pages(storage.read, Selection(key_expr=key_expr), PAGE_SAMPLES)
    for at, page in enumerate(filter(len, every)):
        columns = list(zip(*map(_identity, page.samples, page.digests), strict=True))
        names = [part.split()[0] for part in _STAGED.split(", ")]
        parquet.write_table(
            pa.table(dict(zip(names, columns, strict=True))), folder / f"{at}.parquet"
        )
        progress(len(page))


def _identity(sample: Sample, digest: bytes) -> tuple[str, str, int, int, int, bytes]:
    return sample.key, sample.source.zid, sample.source.eid, sample.epoch, sample.sn, digest
