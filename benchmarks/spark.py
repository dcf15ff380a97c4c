"""What does Delta cost in Spark: our table against the same rows, the same files, as plain Parquet.

    python -m benchmarks.spark --rows 10000000 --folder /var/tmp/lake --only count "one key"

The backend writes the table in appends of 100,000 rows and merges it, as the service does; the same
files, linked into another folder, are the plain Parquet. Both are asked in turns (ours, plain,
plain, ours, …); printed are the medians, their ratio and the files each one is planned over. A
folder that has the tables already is asked again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.delta import START_NS, batches
from durable_cache.model.sample import SampleBatch
from durable_cache.spark.numbering import missing_ranges, runs
from durable_cache.spark.reading import history
from durable_cache.spark.session import spark_session
from durable_cache.spark.table import SKIP_COLUMNS, Table, open_table
from durable_cache.spark.views import latest
from durable_cache_delta import DeltaBackend, DeltaOptions
from durable_cache_delta.maintenance import optimize

START = datetime.fromtimestamp(START_NS // 10**9, UTC)
DAYS, SOURCES, APPEND = 5, 1000, 100_000


class PlainTable(Table):
    """The same rows without the log: a folder of Parquet files partitioned by day."""

    def samples(self, spark: SparkSession) -> DataFrame:
        rows = spark.read.parquet(self.samples_path)
        return rows.withColumn("source", fn.concat_ws(":", "source_zid", "source_eid"))

    def skips(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([], ", ".join(f"{n} {k}" for n, k in SKIP_COLUMNS.items()))


def write_tables(folder: Path, rows: int) -> tuple[Path, Path]:
    """Write the storage as the service would and link its files; one number in 1,000 is lost."""
    ours, plain = folder / "lake" / "fleet", folder / "plain" / "samples"
    if plain.exists():
        return ours, plain.parent
    options = DeltaOptions(path=str(folder / "lake"), maintenance_interval_seconds=0)
    step_ns = DAYS * 86_400 * 10**9 // rows
    with DeltaBackend().open("fleet", options) as storage:
        for number, made in enumerate(batches(rows, APPEND, SOURCES, step_ns)):
            storage.append(SampleBatch(s for at, s in enumerate(made) if (at + number) % 1000))
    report = optimize(options, "fleet")
    print(f"{report.files_before} files merged to {report.files_after}", file=sys.stderr)
    samples = ours / "samples"
    for file in DeltaBackend().open("fleet", options, writer=False).files():
        (plain / file.path).parent.mkdir(parents=True, exist_ok=True)
        os.link(samples / file.path, plain / file.path)
    return ours, plain.parent


def questions(spark: SparkSession) -> dict[str, Callable[[Table], DataFrame]]:
    """Return what is asked, each as a DataFrame that is ready to be run."""
    noon = START + timedelta(days=2)
    hour = (noon, noon + timedelta(hours=1))
    one = "fleet/robot317/pose"
    return {
        "count": lambda t: t.samples(spark).agg(fn.count("*")),
        "gap of 10": lambda t: history(spark, t, one, sn=(500, 509)),
        "one key, one hour": lambda t: history(spark, t, one, since=hour[0], until=hour[1]),
        "one key": lambda t: history(spark, t, one),
        "key expression": lambda t: history(spark, t, "fleet/robot1$*/pose"),
        "bytes per key": lambda t: (
            t.samples(spark).groupBy("key_expr").agg(fn.sum("payload_bytes"))
        ),
        "last per key": lambda t: latest(spark, t),
        "gaps": lambda t: missing_ranges(runs(t.samples(spark)), t.skips(spark)),
    }


def run_seconds(ask: Callable[[Table], DataFrame], table: Table) -> float:
    """Time one answer from the question on: Parquet lists its files before, Delta after that."""
    began = time.perf_counter()
    ask(table).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def measure(
    spark: SparkSession, ours: Table, plain: Table, chosen: argparse.Namespace
) -> Iterator[dict[str, object]]:
    asked = {
        name: ask
        for name, ask in questions(spark).items()
        if not chosen.only or name in chosen.only
    }
    for ask in [*asked.values()] * chosen.warm:
        for table in (ours, plain):
            run_seconds(ask, table)
    for name, ask in asked.items():
        times: dict[str, list[float]] = {"ours": [], "plain": []}
        for at in range(chosen.rounds):
            turns = [("ours", ours), ("plain", plain)]
            for who, table in turns if at % 2 == 0 else turns[::-1]:
                times[who].append(run_seconds(ask, table))
        medians = {who: statistics.median(taken) for who, taken in times.items()}
        row: dict[str, object] = {
            "query": name,
            "ours_s": round(medians["ours"], 3),
            "plain_s": round(medians["plain"], 3),
            "ratio": round(medians["ours"] / medians["plain"], 2),
            "ours_files": len(ask(ours).inputFiles()),
            "plain_files": len(ask(plain).inputFiles()),
            "all": {who: [round(t, 3) for t in taken] for who, taken in times.items()},
        }
        print("| " + " | ".join(str(value) for value in list(row.values())[:-1]) + " |", flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2, help="unmeasured rounds of all before")
    parser.add_argument("--folder", type=Path, help="where the tables are kept")
    parser.add_argument("--only", nargs="*", default=[], metavar="QUERY")
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--json", type=Path, help="write every single time here")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="durable-cache-spark-") as made:
        began = time.monotonic()
        ours, plain = write_tables(chosen.folder or Path(made), chosen.rows)
        print(f"{chosen.rows} rows in {time.monotonic() - began:.0f} s", file=sys.stderr)
        spark = spark_session("benchmark", master="local[2]", jars=chosen.jars)
        print("| query | ours s | plain s | ratio | files ours | files plain |")
        print("|---|---|---|---|---|---|")
        plain_table = PlainTable(str(plain / "samples"), None)
        rows = list(measure(spark, open_table(spark, ours), plain_table, chosen))
        spark.stop()
    if chosen.json:
        chosen.json.write_text(json.dumps({"rows": chosen.rows, "queries": rows}, indent=1))


if __name__ == "__main__":
    main()
