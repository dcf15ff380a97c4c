"""How fast does the Delta backend drain and answer, next to plain Parquet with the same flushes?

    python benchmarks/delta.py --rows 10000000 --gaps 500 --folder /var/tmp/lake

Rounds of 500,000 samples go into a journal, as a cache commits them, and from there into the table,
as its drain does it; only the second is timed. After each round the bracket writes the rows of one
append with pyarrow and flushes file and folder, without a table. With ``--folder`` the table stays
there. CPU time is that of the whole process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyarrow.parquet as pq

from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.storage.contract import AppendResult
from durable_cache.storage.journaled.storage import JournaledStorage, JournalOptions
from durable_cache_delta import DeltaBackend, DeltaOptions
from durable_cache_delta.append import choose
from durable_cache_delta.columns import table_of
from durable_cache_delta.index import StreamIndex
from durable_cache_delta.maintenance import optimize
from durable_cache_delta.places import sync_file, sync_folder
from durable_cache_delta.storage import DeltaStorage

START_NS = 1_790_000_000_000_000_000
STEP_NS = 20_000
ROUND, COMMIT, APPEND = 500_000, 5_000, 100_000


def batches(rows: int, size: int, sources: int, step_ns: int = STEP_NS) -> Iterator[SampleBatch]:
    """Yield batches of 64-byte samples, one each `step_ns`; every source numbers its own key."""
    random = Random(7)
    named = [SourceId(f"{random.getrandbits(128) | 1 << 127:x}", 3) for _ in range(sources)]
    for first in range(0, rows, size):
        made = []
        for number in range(first, first + size):
            at, source = START_NS + number * step_ns, number % sources
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
        yield SampleBatch(made)


class Round(NamedTuple):
    """What one round took, in seconds for a row."""

    drain: float
    drain_cpu: float
    append: float
    append_cpu: float
    plain: float


def plain_parquet(folder: Path, batch: SampleBatch) -> float:
    """Write the rows as one Parquet file, flushed; returns the seconds, columns not counted."""
    choice = choose(batch, StreamIndex(1_000_000), lambda _: {})
    rows = table_of(choice.columns, choice.streams)
    started = time.perf_counter()
    path = folder / "plain.parquet"
    pq.write_table(rows, path, compression="zstd", compression_level=1)
    sync_file(path)
    sync_folder(folder)
    return time.perf_counter() - started


class Stopwatch(DeltaStorage):
    """A storage that knows how long its appends took."""

    wall = cpu = 0.0

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        assert batch.digests  # an append alone is measured without them, a drain with them
        before, started = time.process_time(), time.perf_counter()
        try:
            return super().append(batch, skips)
        finally:
            self.wall += time.perf_counter() - started
            self.cpu += time.process_time() - before


def drain(storage: DeltaStorage, folder: Path, arguments: argparse.Namespace) -> None:
    storage.__class__ = Stopwatch
    assert isinstance(storage, Stopwatch)
    options = JournalOptions(tail_bytes_max=1 << 30)
    journaled = JournaledStorage(storage, folder / "journal", options=options)
    rounds: list[Round] = []
    size = min(ROUND, arguments.rows)
    for made in batches(arguments.rows, size, arguments.sources):
        for at in range(0, size, COMMIT):
            journaled.commit(SampleBatch(made.samples[at : at + COMMIT]))
        storage.wall = storage.cpu = 0.0
        before, started = time.process_time(), time.perf_counter()
        while journaled.drain():
            pass
        wall, cpu = time.perf_counter() - started, time.process_time() - before
        part = SampleBatch(made.samples[:APPEND])
        plain = plain_parquet(folder, part) / len(part)
        each = (wall / size, cpu / size, storage.wall / size, storage.cpu / size)
        rounds.append(Round(*each, plain))
    for name, times in zip(
        (
            "drain from the journal, digests and index counted",
            "    CPU time",
            "append of 100,000 rows, digests given",
            "    CPU time",
            "plain Parquet + fsync, columns not counted",
        ),
        zip(*rounds, strict=True),
        strict=True,
    ):
        median, worst = 1 / statistics.median(times), 1 / max(times)
        print(f"{name:50} {median:10,.0f} rows/s (median of {len(times)}; slowest {worst:,.0f})")


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
    parser.add_argument("--sources", type=int, default=50)
    parser.add_argument("--gaps", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; kept")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        kept = arguments.folder
        made = kept or stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(made)
        folder.mkdir(exist_ok=True)
        options = DeltaOptions(path=str(folder / "lake"), maintenance_interval_seconds=0)
        print(f"{arguments.rows} rows, {arguments.sources} sources, load {os.getloadavg()[0]:.1f}")
        with DeltaBackend().open("bench", options) as storage:
            drain(storage, folder, arguments)
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
