"""How fast does the Delta backend drain and answer, next to plain Parquet with the same flushes?

    python benchmarks/delta.py --rows 1000000 --batch 100000 --gaps 300

The bracket writes the same columns with pyarrow and flushes file and folder, without a table. The
rounds of both are interleaved. Times are wall time and, where it says so, the process's CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow.parquet as pq

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache_delta import DeltaBackend, DeltaOptions
from durable_cache_delta.choosing import choose
from durable_cache_delta.columns import table_of
from durable_cache_delta.maintenance import optimize
from durable_cache_delta.places import sync_file, sync_folder
from durable_cache_delta.storage import DeltaStorage
from durable_cache_delta.streams import StreamIndex

START_NS = 1_790_000_000_000_000_000
STEP_NS = 20_000


def batches(rows: int, size: int, sources: int) -> Iterator[SampleBatch]:
    """Yield batches of 64-byte samples; every source numbers its own key."""
    random = Random(7)
    named = [SourceId(f"{random.getrandbits(128) | 1 << 127:x}", 3) for _ in range(sources)]
    for first in range(0, rows, size):
        made = []
        for number in range(first, first + size):
            at, source = START_NS + number * STEP_NS, number % sources
            made.append(
                Sample(
                    f"fleet/robot{source:03}/pose",
                    named[source],
                    7,
                    number // sources,
                    random.randbytes(64),
                    encoding="application/cdr;geometry_msgs/Pose",
                    ntp64=ntp64_from_ns(at),
                    timestamp_id=named[source].zid,
                    received_ns=at + 400_000,
                )
            )
        batch = SampleBatch(made)
        assert batch.digests
        yield batch


def plain_parquet(folder: Path, number: int, batch: SampleBatch) -> float:
    """Write the rows as one Parquet file, flushed; returns the seconds, columns not counted."""
    choice = choose(batch, StreamIndex(1_000_000), lambda _: {})
    rows = table_of(choice.columns, choice.streams)
    started = time.perf_counter()
    path = folder / f"{number}.parquet"
    pq.write_table(rows, path, compression="zstd", compression_level=1)
    sync_file(path)
    sync_folder(folder)
    return time.perf_counter() - started


def columns_only(batch: SampleBatch) -> float:
    choice = choose(batch, StreamIndex(1_000_000), lambda _: {})
    started = time.perf_counter()
    table_of(choice.columns, choice.streams)
    return time.perf_counter() - started


def drain(storage: DeltaStorage, folder: Path, arguments: argparse.Namespace) -> None:
    wall, cpu, columns, plain = [], [], [], []
    for number, batch in enumerate(batches(arguments.rows, arguments.batch, arguments.sources)):
        plain.append(plain_parquet(folder, number, batch))
        columns.append(columns_only(batch))
        before, started = time.process_time(), time.perf_counter()
        storage.append(batch)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - before)
    size = arguments.batch
    for name, times in (
        ("append, the whole call", wall),
        ("append, CPU time", cpu),
        ("append less building columns", [a - b for a, b in zip(wall, columns, strict=True)]),
        ("plain Parquet + fsync, columns not counted", plain),
    ):
        print(f"{name:45} {size / statistics.median(times):12,.0f} rows/s (median)")


def gaps(storage: DeltaStorage, arguments: argparse.Namespace, label: str) -> None:
    random = Random(11)
    held = list(storage.held())
    wall, cpu = [], []
    for _ in range(arguments.gaps):
        one = random.choice(held)
        last = one.runs.last or 0
        first = random.randrange(max(1, last - 9))
        source = one.stream.source
        asked = Selection(zid=source.zid, eid=source.eid, epoch=7, sns=SnBounds(first, first + 9))
        before, started = time.process_time(), time.perf_counter()
        page = storage.read(asked, 100)
        wall.append((time.perf_counter() - started) * 1e3)
        cpu.append((time.process_time() - before) * 1e3)
        assert len(page.samples) == 10
    print(f"gap of 10, {label:30} {len(storage.files())} files  {_quantiles(wall)}")
    print(f"    CPU time {_quantiles(cpu)}")
    for name, selection in (
        ("first page by identity", Selection()),
        ("first page by time", Selection(order=Order.TIME)),
        ("newest of every key", Selection(newest=1)),
    ):
        started = time.perf_counter()
        found = len(storage.read(selection, 1000).samples)
        print(f"    {name}: {found} samples in {(time.perf_counter() - started) * 1e3:.0f} ms")


def _quantiles(milliseconds: list[float]) -> str:
    cuts = statistics.quantiles(milliseconds, n=100)
    return f"p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--sources", type=int, default=50)
    parser.add_argument("--gaps", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        folder = Path(made)
        (folder / "plain").mkdir()
        options = DeltaOptions(path=str(folder / "lake"), maintenance_interval_seconds=0)
        print(f"{arguments.rows} rows, {arguments.sources} sources, load {os.getloadavg()[0]:.1f}")
        with DeltaBackend().open("bench", options) as storage:
            drain(storage, folder / "plain", arguments)
            gaps(storage, arguments, "as appended")
        started = time.perf_counter()
        report = optimize(options, "bench")
        print(
            f"optimize: {report.files_before} -> {report.files_after} files in "
            f"{time.perf_counter() - started:.1f} s"
        )
        started = time.perf_counter()
        with DeltaBackend().open("bench", options) as storage:
            print(f"open with the index cache: {time.perf_counter() - started:.2f} s")
            gaps(storage, arguments, "after optimize")
        (folder / "lake" / "bench" / "index.cache").unlink()
        started = time.perf_counter()
        with DeltaBackend().open("bench", options):
            print(f"open without it: {time.perf_counter() - started:.2f} s")


if __name__ == "__main__":
    main()
