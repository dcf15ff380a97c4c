"""Does memory stay bounded while a million streams, each of a source of its own, pass through?

python benchmarks/streams.py --streams 1000000
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from durable_cache import CacheOptions, declare_reliability_cache, open_session
from durable_cache.endpoints.session import close_session
from durable_cache.model.sample import Sample, SourceId

BATCH = 2_000


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--directory")
    arguments = parser.parse_args()
    session = open_session(
        {"scouting": {"multicast": {"enabled": False}}, "listen": {"endpoints": []}}
    )
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        cache = declare_reliability_cache(
            session,
            "bench/**",
            backend="sql",
            backend_options={"url": f"sqlite:///{directory}/samples.db"},
            state_dir=directory,
            options=CacheOptions(name="bench"),
        )
        payload = os.urandom(64)
        begun = time.monotonic()
        for start in range(0, arguments.streams, BATCH):
            cache.ingest.offer(
                [
                    Sample(
                        f"bench/{at % 100}/{at}",
                        SourceId(f"{0x100000 + at:x}", 7),
                        0,
                        0,
                        payload,
                        ntp64=at << 20,
                        timestamp_id="ab12",
                        received_ns=time.time_ns(),
                    )
                    for at in range(start, min(start + BATCH, arguments.streams))
                ]
            )
            while cache.status().appended < start or cache.status().journal_samples > 100_000:
                time.sleep(0.01)
            if start % 100_000 == 0:
                print(
                    f"{start:>9,} streams: {resident_mib():.0f} MiB, "
                    f"{cache.status().sources:,} windows in memory, "
                    f"{time.monotonic() - begun:.0f} s",
                    flush=True,
                )
        cache.wait_drained(120)
        print(f"{cache.status().streams:>9,} streams stored: {resident_mib():.0f} MiB")
        cache.close(timeout_seconds=30)
    close_session(session)


if __name__ == "__main__":
    main()
