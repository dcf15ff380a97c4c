"""What does Delta cost in Spark: our table against the same rows, the same files, as plain Parquet.

``python benchmarks/spark.py --rows 2000000`` makes both in a temporary folder, runs the queries
in turns (ours, plain, ours, …) and prints the medians, their ratio and the files each one opened.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random

import deltalake
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.spark.numbering import missing_ranges, runs
from durable_cache.spark.reading import history
from durable_cache.spark.session import spark_session
from durable_cache.spark.table import SKIP_COLUMNS, Table, open_table
from durable_cache.spark.views import latest
from durable_cache_delta.schema import REQUIRED_CONFIGURATION, SAMPLES

START = datetime(2026, 3, 1, tzinfo=UTC)
START_S = int(START.timestamp())
DAYS, FLUSHES_PER_DAY = 5, 2
SOURCES, KEYS_PER_SOURCE = 50, 20
PAYLOAD_BYTES = 64
EPOCH = 203_000_000


class PlainTable(Table):
    """The same rows without the log: a folder of Parquet files partitioned by day."""

    def samples(self, spark: SparkSession) -> DataFrame:
        rows = spark.read.parquet(self.samples_path)
        return rows.withColumn("source", fn.concat_ws(":", "source_zid", "source_eid"))

    def skips(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([], ", ".join(f"{n} {k}" for n, k in SKIP_COLUMNS.items()))


def flush_of(at: int, rows: int, random: Random) -> pa.Table:
    """Make the rows of one flush, sorted as the backend sorts them; one number in 1,000 is lost."""
    streams = SOURCES * KEYS_PER_SOURCE
    each = rows // streams
    span_us = 86_400_000_000 // FLUSHES_PER_DAY
    places = [
        (stream, step)
        for stream in range(streams)
        for step in range(each)
        if random.random() >= 0.001
    ]
    count = len(places)
    sn = [at * each + step for _, step in places]
    micros = [START_S * 1_000_000 + at * span_us + step * (span_us // each) for _, step in places]
    sources = [divmod(stream, KEYS_PER_SOURCE) for stream, _ in places]
    payload, digest = random.randbytes(count * PAYLOAD_BYTES), random.randbytes(count * 16)
    columns: dict[str, list[object]] = {
        "key_expr": [f"fleet/r{source:02}/k{key:02}/state" for source, key in sources],
        "source_zid": [f"{0xA000 + source:x}" for source, _ in sources],
        "source_eid": [key + 1 for _, key in sources],
        "epoch": [EPOCH] * count,
        "sn": list(sn),
        "sequence": [Decimal((EPOCH << 35) + n + 1) for n in sn],
        "kind": ["PUT"] * count,
        "payload": [payload[i : i + PAYLOAD_BYTES] for i in range(0, len(payload), PAYLOAD_BYTES)],
        "encoding": ["zenoh/bytes"] * count,
        "encoding_schema": [None] * count,
        "attachment": [None] * count,
        "ntp64": [Decimal(ntp64_from_ns(us * 1000)) for us in micros],
        "timestamp_id": ["a1"] * count,
        "timestamp": list(micros),
        "stamped": [False] * count,
        "received_at": list(micros),
        "received_ns": [us * 1000 for us in micros],
        "priority": [5] * count,
        "congestion_control": [1] * count,
        "express": [False] * count,
        "payload_digest": [digest[i : i + 16] for i in range(0, len(digest), 16)],
        "payload_bytes": [PAYLOAD_BYTES] * count,
        "day": [(START + timedelta(microseconds=at * span_us)).date()] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SAMPLES]
    return pa.Table.from_arrays(arrays, schema=SAMPLES)


def write_tables(folder: Path, rows: int) -> tuple[Path, Path]:
    """Write the Delta table flush by flush and copy its files; returns (delta, plain)."""
    delta, plain = folder / "delta" / "samples", folder / "plain" / "samples"
    deltalake.DeltaTable.create(
        str(delta),
        SAMPLES,
        partition_by=["day"],
        configuration=REQUIRED_CONFIGURATION,
        raise_if_key_not_exists=False,
    )
    random = Random(5)
    flushes = DAYS * FLUSHES_PER_DAY
    properties = deltalake.WriterProperties(compression="ZSTD", max_row_group_size=131072)
    for at in range(flushes):
        deltalake.write_deltalake(
            str(delta),
            flush_of(at, rows // flushes, random),
            mode="append",
            writer_properties=properties,
        )
        print(f"flush {at + 1} of {flushes}", file=sys.stderr)
    shutil.copytree(delta, plain, ignore=shutil.ignore_patterns("_delta_log"))
    return delta.parent, plain


def questions(spark: SparkSession) -> dict[str, Callable[[Table], DataFrame]]:
    """Return what is asked, each as a DataFrame that is ready to be run."""
    noon = START + timedelta(days=2, hours=12)
    hour = (noon, noon + timedelta(hours=1))
    one = "fleet/r17/k03/state"
    return {
        "count": lambda t: t.samples(spark).agg(fn.count("*")),
        "one key, one hour": lambda t: history(spark, t, one, since=hour[0], until=hour[1]),
        "one key": lambda t: history(spark, t, one),
        "key expression": lambda t: history(spark, t, "fleet/r1$*/*/state"),
        "gap of 10": lambda t: history(spark, t, one, source="a011:4", sn=(500, 509)),
        "last per key": lambda t: latest(spark, t),
        "gaps": lambda t: missing_ranges(runs(t.samples(spark)), t.skips(spark)),
    }


def run_seconds(ask: Callable[[Table], DataFrame], table: Table) -> float:
    """Time one answer from the question on: Parquet lists its files before, Delta after that."""
    began = time.perf_counter()
    ask(table).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def files_of(frame: DataFrame) -> int:
    """Count the files the scan is planned over: for Parquet, Spark prunes partitions only."""
    return len(frame.inputFiles())


def measure(
    spark: SparkSession, ours: Table, plain: Table, rounds: int
) -> Iterator[dict[str, object]]:
    for name, ask in questions(spark).items():
        for table in (ours, plain):
            run_seconds(ask, table)
        times: dict[str, list[float]] = {"ours": [], "plain": []}
        for at in range(rounds):
            turns = [("ours", ours), ("plain", plain)]
            for who, table in turns if at % 2 == 0 else turns[::-1]:
                times[who].append(run_seconds(ask, table))
        medians = {who: statistics.median(taken) for who, taken in times.items()}
        row: dict[str, object] = {
            "query": name,
            "ours_s": round(medians["ours"], 3),
            "plain_s": round(medians["plain"], 3),
            "ratio": round(medians["ours"] / medians["plain"], 2),
            "ours_files": files_of(ask(ours)),
            "plain_files": files_of(ask(plain)),
            "all": {who: [round(t, 3) for t in taken] for who, taken in times.items()},
        }
        print(
            f"| {name} | {row['ours_s']} | {row['plain_s']} | {row['ratio']} | "
            f"{row['ours_files']} | {row['plain_files']} |",
            flush=True,
        )
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--json", type=Path, help="write every single time here")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="durable-cache-spark-") as folder:
        delta, plain = write_tables(Path(folder), chosen.rows)
        spark = spark_session("benchmark", master="local[2]", jars=chosen.jars)
        print("| query | ours s | plain s | ratio | files ours | files plain |")
        print("|---|---|---|---|---|---|")
        rows = list(
            measure(spark, open_table(spark, delta), PlainTable(str(plain), None), chosen.rounds)
        )
        spark.stop()
    if chosen.json:
        chosen.json.write_text(json.dumps({"rows": chosen.rows, "queries": rows}, indent=1))


if __name__ == "__main__":
    main()
