"""How fast is a frame beside the backend's own scan, and in how much memory?

python -m benchmarks.frame --samples 1000000 --backend sqlite

Servers are those of the tests.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

import durable_cache as dc
from durable_cache.frame.pages import storage_pages
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Storage
from durable_cache.storage.plugins import open_storage
from tests.servers.influxdb import influx_server
from tests.servers.postgres import options_for as postgres_options

BATCH = 20_000
KEYS = 100
SERVERS = ("postgres", "influxdb")
RATIO_MIN, GROWN_MIB_MAX = 0.6, 500


class Volume(NamedTuple):
    backend: str
    options: Mapping[str, object]


def postgres(directory: str) -> Volume:
    return Volume("sql", msgspec.structs.asdict(postgres_options(Path(directory))))


def influxdb(directory: str) -> Volume:
    options = influx_server().options(bucket=f"frame-{Path(directory).name}")
    return Volume("influxdb", msgspec.structs.asdict(options))


VOLUMES: dict[str, Callable[[str], Volume]] = {
    "sqlite": lambda directory: Volume("sql", {"url": f"sqlite:///{directory}/samples.db"}),
    "postgres": postgres,
    "influxdb": influxdb,
    "delta": lambda directory: Volume("delta", {"path": directory}),
}


class Measured(NamedTuple):
    rows: int
    seconds: float
    cpu_seconds: float
    grown_mib: float
    """What the pass added to the highest memory of its process."""

    def __str__(self) -> str:
        return (
            f"{self.rows / self.seconds:>9,.0f} rows/s, {self.rows / self.cpu_seconds:>9,.0f} "
            f"a second of CPU, {self.grown_mib:.0f} MiB more"
        )


def fill(storage: Storage, samples: int) -> None:
    """Store numbers as text, and twice as many payloads of 64 bytes that are nothing known.

    Every key has a publisher of its own: the runs of a stream have no holes.
    """
    for start in range(0, samples, BATCH):
        storage.append(
            SampleBatch(
                Sample(
                    f"bench/{at % KEYS}",
                    SourceId("4f2a", at % KEYS),
                    1,
                    at // KEYS,
                    os.urandom(64) if at % 3 else b"%d.5" % at,
                    encoding="zenoh/bytes" if at % 3 else "text/plain",
                    ntp64=(1_790_000_000 << 32) + (at << 16),
                    timestamp_id="4f2a",
                    received_ns=1_790_000_000_000_000_000 + at,
                )
                for at in range(start, min(start + BATCH, samples))
            )
        )


def highest_mib() -> float:
    """Return what this process took at most; `getrusage` would count its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def scan(storage: Storage) -> int:
    return sum(len(page) for page in storage_pages(storage, Selection(), latest=False))


def framed(storage: Storage) -> int:
    return sum(batch.num_rows for batch in dc.read(storage))


def measured(pass_name: str, volume: Volume) -> Measured:
    """Pass over the storage once, after a pass over nothing that loads what is needed."""
    passed = {"scan": scan, "frame": framed}[pass_name]
    with open_storage("memory", "empty") as empty:
        fill(empty, 10)
        passed(empty)
    with open_storage(volume.backend, "bench", volume.options, writer=False) as storage:
        before, begun, cpu = highest_mib(), time.perf_counter(), time.process_time()
        rows = passed(storage)
        return Measured(
            rows,
            time.perf_counter() - begun,
            time.process_time() - cpu,
            highest_mib() - before,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--backend", choices=sorted(VOLUMES), default="sqlite")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--directory")
    arguments = parser.parse_args()
    fresh = multiprocessing.get_context("spawn")
    clock: list[float] = []
    cpu: list[float] = []
    grown = 0.0
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        volume = VOLUMES[arguments.backend](directory)
        with open_storage(volume.backend, "bench", volume.options) as storage:
            fill(storage, arguments.samples)
        for _ in range(arguments.trials):
            found: dict[str, Measured] = {}
            for name in ("scan", "frame"):
                with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                    found[name] = pool.submit(measured, name, volume).result()
                assert found[name].rows == arguments.samples
                print(f"{name:>5}: {found[name]}", flush=True)
            clock.append(found["scan"].seconds / found["frame"].seconds)
            cpu.append(found["scan"].cpu_seconds / found["frame"].cpu_seconds)
            grown = max(grown, found["frame"].grown_mib)
    print(
        f"frame / scan, median of {arguments.trials} pairs: {median(clock):.2f} by the clock "
        f"({min(clock):.2f} to {max(clock):.2f}), {median(cpu):.2f} by this process's CPU "
        f"({min(cpu):.2f} to {max(cpu):.2f}); {grown:.0f} MiB more"
    )
    # A server's own work counts as much as what is done here.
    ratio = median(clock if arguments.backend in SERVERS else cpu)
    return 0 if ratio >= RATIO_MIN and grown <= GROWN_MIB_MAX else 1


if __name__ == "__main__":
    raise SystemExit(main())
