"""How fast is a reader's cache, beside a plain dict of deques, and what does it take in memory?

python benchmarks/reader.py --instances 100000 --depth 10
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import resource
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.reader.cache import ReaderCache
from durable_cache.protocol.reader.profile import DestinationOrder, DurabilityKind, Profile

BATCH = 2_000
SOURCE = SourceId("4f2a", 7)
INSERT_TIMES_MAX, TAKE_TIMES_MAX = 5.0, 5.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def made(instances: int, depth: int, payload_bytes: int) -> list[Sample]:
    payload = os.urandom(payload_bytes)
    return [
        Sample(
            f"bench/{at % 100}/{at}",
            SOURCE,
            1,
            turn * instances + at,
            payload + b"%d" % at,
            ntp64=(turn * instances + at) << 20,
            timestamp_id="4f2a",
            received_ns=time.time_ns(),
        )
        for turn in range(depth)
        for at in range(instances)
    ]


def batches(samples: list[Sample]) -> Iterator[list[Sample]]:
    for start in range(0, len(samples), BATCH):
        yield samples[start : start + BATCH]


def seconds_of_deques(samples: list[Sample], depth: int) -> float:
    plain: dict[str, deque[Sample]] = {}
    begun = time.perf_counter()
    for batch in batches(samples):
        for sample in batch:
            history = plain.get(sample.key)
            if history is None:
                history = plain[sample.key] = deque(maxlen=depth)
            history.append(sample)
    return time.perf_counter() - begun


def seconds_of_inserts(cache: ReaderCache, samples: list[Sample]) -> float:
    begun = time.perf_counter()
    for batch in batches(samples):
        cache.insert(batch)
    return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=100_000)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--payload-bytes", type=int, default=64)
    arguments = parser.parse_args()
    instances, depth = arguments.instances, arguments.depth
    profile = Profile(
        durability=DurabilityKind.TRANSIENT,
        depth=depth,
        instances_max=instances,
        destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP,
    )
    before = resident_bytes()
    samples = made(instances, depth, arguments.payload_bytes)
    for sample in samples:
        hash(sample.key)  # a key keeps its hash: whoever is measured first would pay for it
    of_samples = resident_bytes() - before
    plain_seconds = seconds_of_deques(samples, depth)
    gc.collect()
    cache, before = ReaderCache(profile), resident_bytes()
    seconds = seconds_of_inserts(cache, samples)
    of_cache = resident_bytes() - before
    count = len(samples)
    print(
        f"insert {count:,}: {seconds:.2f} s, {count / seconds:,.0f}/s, "
        f"{seconds / plain_seconds:.1f} times a dict of deques"
    )
    again = [
        Sample(s.key, s.source, 1, s.sn + count, s.payload, ntp64=s.ntp64 + (count << 20))
        for s in samples
    ]
    steady = seconds_of_inserts(cache, again)
    print(f"insert {count:,} more, each pushing one out: {count / steady:,.0f}/s")
    allowed = of_samples * 1.5 + 500 * instances
    print(
        f"memory: samples {of_samples / count:.0f} bytes each, the cache "
        f"{of_cache / instances:.0f} bytes more for each instance; "
        f"{of_samples + of_cache:,} of {allowed:,.0f} allowed"
    )
    one = ReaderCache(profile)
    newest = again[-instances:]
    for batch in batches(newest):
        one.insert(batch)
    begun = time.perf_counter()
    copies = [copy.copy(sample) for sample in newest]
    copying = time.perf_counter() - begun
    begun = time.perf_counter()
    taken = one.take()
    taking = time.perf_counter() - begun
    assert len(taken) == len(copies) == instances
    print(
        f"take {instances:,}: {taking * 1e3:.0f} ms, {taking / copying:.1f} times copying them "
        f"({copying * 1e3:.0f} ms)"
    )
    met = (
        seconds <= INSERT_TIMES_MAX * plain_seconds
        and taking <= TAKE_TIMES_MAX * copying
        and of_samples + of_cache <= allowed
    )
    print("all bounds are met" if met else "a bound is not met")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
