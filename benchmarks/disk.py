"""How much room does a sample take on disk?

    python benchmarks/disk.py --samples 200000

Fills one storage of each kind with samples of 50 sources, a key each, with a tenth of a millisecond
between them, and looks at the files once they are closed; a Delta table is measured as it was
written. Random payloads cannot be compressed, so what is above the payload is what everything else
takes. A server is measured where ``--postgres URL`` names one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import psycopg

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.storage.journaled.journal import Journal
from durable_cache.storage.plugins import open_storage

START_NS, STEP_NS, BATCH, SOURCES = 1_790_000_000_000_000_000, 100_000, 5_000, 50


def batches(samples: int, payload_bytes: int) -> Iterator[SampleBatch]:
    made = random.Random(7)
    sources = [SourceId(f"{made.getrandbits(128) | 1 << 127:x}", 3) for _ in range(SOURCES)]
    for start in range(0, samples, BATCH):
        batch = []
        for number in range(start, min(start + BATCH, samples)):
            at_ns, source = START_NS + number * STEP_NS, number % SOURCES
            batch.append(
                Sample(
                    f"fleet/robot{source:03}/pose",
                    sources[source],
                    7,
                    number // SOURCES,
                    made.randbytes(payload_bytes),
                    encoding="application/cdr;geometry_msgs/Pose",
                    ntp64=ntp64_from_ns(at_ns),
                    timestamp_id=sources[source].zid,
                    received_ns=at_ns + 400_000,
                )
            )
        yield SampleBatch(batch)


def fill(backend: str, options: Mapping[str, object], samples: int, payload_bytes: int) -> None:
    with open_storage(backend, f"bench{payload_bytes}", options) as storage:
        for batch in batches(samples, payload_bytes):
            storage.append(batch)


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def measured(backend: str, samples: int, payload_bytes: int, url: str) -> float:
    """Return the bytes on disk for one sample."""
    if backend == "postgres":
        with psycopg.connect(url) as server:
            query = "SELECT pg_database_size(current_database())"
            before = server.execute(query).fetchone()
            fill("sql", {"url": url}, samples, payload_bytes)
            after = server.execute(query).fetchone()
        assert before is not None
        assert after is not None
        return float(after[0] - before[0]) / samples
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if backend == "journal":
            with closing(Journal(directory / "journal.db")) as journal:
                for batch in batches(samples, payload_bytes):
                    journal.commit(batch)
            return size(directory) / samples
        options = {"url": f"sqlite:///{name}/samples.db"} if backend == "sqlite" else {"path": name}
        fill("sql" if backend == "sqlite" else backend, options, samples, payload_bytes)
        return size(directory) / samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--payloads", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--postgres", metavar="URL")
    given = parser.parse_args()
    backends = ["journal", "sqlite", "delta", *(["postgres"] if given.postgres else [])]
    print(f"{given.samples} samples; bytes a sample on disk, in brackets above its payload")
    for backend in backends:
        for payload_bytes in given.payloads:
            each = measured(backend, given.samples, payload_bytes, given.postgres or "")
            print(
                f"{backend:9} payload {payload_bytes:5}: {each:7.0f} ({each - payload_bytes:.0f})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
