"""How fast does history drain into InfluxDB, against raw line protocol of the same points?

    python -m benchmarks.influxdb [--samples 100000] [--keys 20] [--payload 64]

Both ways go to one server in one run, in turns, three times each: `append` of journal-sized batches
into a storage, and the very lines it makes, built before the clock starts, posted in the same
requests. The server is the one of the tests: named by DURABLE_CACHE_TEST_INFLUXDB_URL, or started.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.selection import Order, Selection
from durable_cache.model.timestamp import ntp64_from_ns, ntp64_to_ns
from durable_cache_influxdb import InfluxDbBackend, InfluxDbOptions
from durable_cache_influxdb.client import Client
from durable_cache_influxdb.lines import line_of, series_of
from durable_cache_influxdb.slots import Slot
from durable_cache_influxdb.typed_fields import TypedFields
from tests.servers.influxdb import influx_server

START_NS = 1_790_000_000_000_000_000
ROUNDS = 3


def made(count: int, keys: int, payload_bytes: int) -> list[Sample]:
    """Return samples of `keys` publishers at 1 kHz, every other one a number in text."""
    samples = []
    for n in range(count):
        key, sn = n % keys, n // keys
        at = START_NS + sn * 1_000_000 + key
        number = key % 2 == 0
        samples.append(
            Sample(
                f"benchmark/robot/{key}/pose",
                SourceId(f"{key + 1:x}", 1),
                7,
                sn,
                b"%.6f" % (n / 7) if number else bytes(n % 251 for _ in range(payload_bytes)),
                encoding="zenoh/string" if number else "zenoh/bytes",
                ntp64=ntp64_from_ns(at),
                timestamp_id="ab",
                received_ns=at + 50_000,
            )
        )
    return samples


def raw_requests(samples: list[Sample], options: InfluxDbOptions, name: str) -> list[bytes]:
    """Return the lines of the samples as the bodies of requests, within the same bounds."""
    typed = TypedFields(options, set())
    bodies: list[bytes] = []
    lines: list[str] = []
    held = 0
    for sample in samples:
        series = series_of(name, sample.stream, options)
        line = line_of(series, sample, Slot(0, ntp64_to_ns(sample.ntp64)), typed.text(sample))
        if lines and (
            held + len(line) >= options.batch_bytes_max or len(lines) >= options.batch_lines_max
        ):
            bodies.append("\n".join(lines).encode())
            lines, held = [], 0
        lines.append(line)
        held += len(line) + 1
    bodies.append("\n".join(lines).encode())
    return bodies


def timed(what: Callable[[], object]) -> float:
    """Return the seconds a call takes."""
    begun = time.perf_counter()
    what()
    return time.perf_counter() - begun


def in_batches(samples: list[Sample], size: int) -> Iterable[list[Sample]]:
    """Cut samples into batches."""
    return (samples[at : at + size] for at in range(0, len(samples), size))


def main() -> None:
    """Run it and print one line a measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--gzip", action="store_true")
    given = parser.parse_args()
    server = influx_server()
    options = server.options(gzip=given.gzip, shard_group_seconds=7 * 86_400)
    samples = made(given.samples, given.keys, given.payload)
    drained: list[float] = []
    raw: list[float] = []
    run = f"b{uuid.uuid4().hex[:8]}"
    for turn in range(ROUNDS):
        with InfluxDbBackend().open(f"{run}-{turn}", options) as storage:
            batches = [SampleBatch(part) for part in in_batches(samples, given.batch)]
            drained.append(timed(lambda: [storage.append(batch) for batch in batches]))  # noqa: B023
            if turn == ROUNDS - 1:
                reads(storage, len(samples))
        client = Client(options)
        bodies = raw_requests(samples, options, f"{run}-raw-{turn}")
        raw.append(timed(lambda: [client.write(body) for body in bodies]))  # noqa: B023
        client.close()
    ours, theirs = (given.samples / statistics.median(times) for times in (drained, raw))
    print(f"drained ingest    {ours:>10,.0f} samples/s")
    print(f"raw line protocol {theirs:>10,.0f} points/s")
    print(f"ratio             {theirs / ours:>10.2f} (target: at most 3)")


def reads(storage: object, count: int) -> None:
    """Print what reading back costs."""
    from durable_cache.storage.contract import Storage

    assert isinstance(storage, Storage)
    for order in Order:
        pages, found, cursor = 0, 0, None
        begun = time.perf_counter()
        while pages < 20:
            page = storage.read(Selection(order=order), 1000, cursor)
            found += len(page.samples)
            pages += 1
            cursor = page.cursor
            if cursor is None:
                break
        seconds = time.perf_counter() - begun
        print(f"read by {order.value:<9} {found / seconds:>10,.0f} samples/s, pages of 1,000")
    seconds = timed(lambda: storage.read(Selection(newest=1), 1000))
    print(f"newest of each    {seconds * 1000:>10.1f} ms")
    print(f"held              {timed(lambda: list(storage.held())) * 1000:>10.1f} ms of {count:,}")


if __name__ == "__main__":
    main()
