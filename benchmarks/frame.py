"""How fast is a frame beside the backend's own scan, and in how much memory?

python benchmarks/frame.py --samples 1000000 --backend sql
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
from typing import NamedTuple

import durable_cache as dc
from durable_cache.frame.pages import storage_pages
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Storage
from durable_cache.storage.plugins import open_storage

BATCH = 20_000
KEYS = 100
SOURCE = SourceId("4f2a", 7)
RATIO_MIN, GROWN_MIB_MAX = 0.6, 500
OPTIONS: dict[str, Callable[[str], dict[str, object]]] = {
    "sql": lambda directory: {"url": f"sqlite:///{directory}/samples.db"},
    "delta": lambda directory: {"path": directory},
}


class Measured(NamedTuple):
    rows: int
    seconds: float
    cpu_seconds: float
    grown_mib: float
    """What the pass added to the highest memory of its process."""


def fill(storage: Storage, samples: int) -> None:
    """Store numbers as text, and twice as many payloads of 64 bytes that are nothing known."""
    for start in range(0, samples, BATCH):
        storage.append(
            SampleBatch(
                Sample(
                    f"bench/{at % KEYS}",
                    SOURCE,
                    1,
                    at,
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


def measured(pass_name: str, backend: str, options: Mapping[str, object]) -> Measured:
    """Pass over the storage once, after a pass over nothing that loads what is needed."""
    passed = {"scan": scan, "frame": framed}[pass_name]
    with open_storage("memory", "empty") as empty:
        fill(empty, 10)
        passed(empty)
    with open_storage(backend, "bench", options, writer=False) as storage:
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
    parser.add_argument("--backend", choices=sorted(OPTIONS), default="sql")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--directory")
    arguments = parser.parse_args()
    fresh = multiprocessing.get_context("spawn")
    best: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        options = OPTIONS[arguments.backend](directory)
        with open_storage(arguments.backend, "bench", options) as storage:
            fill(storage, arguments.samples)
        for _ in range(arguments.trials):
            for name in ("scan", "frame"):
                with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                    found = pool.submit(measured, name, arguments.backend, options).result()
                assert found.rows == arguments.samples
                print(
                    f"{name:>5}: {found.rows / found.seconds:>9,.0f} rows/s, "
                    f"{found.rows / found.cpu_seconds:>9,.0f} a second of CPU, "
                    f"{found.grown_mib:.0f} MiB more",
                    flush=True,
                )
                if name not in best or found.cpu_seconds < best[name].cpu_seconds:
                    best[name] = found
    ratio = best["scan"].cpu_seconds / best["frame"].cpu_seconds
    grown = best["frame"].grown_mib
    print(f"frame / scan: {ratio:.2f} of the rows a second of CPU; {grown:.0f} MiB more")
    return 0 if ratio >= RATIO_MIN and grown <= GROWN_MIB_MAX else 1


if __name__ == "__main__":
    raise SystemExit(main())
