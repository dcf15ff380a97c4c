"""How fast does a new cache get the history that another has?

A service process on SQLite holds `--samples` samples of 0 to 40 bytes in 130 streams; an empty
cache on SQLite joins, over a router on the loopback, and pulls everything into its journal.

    python -m benchmarks.bootstrap --samples 100000
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from durable_cache import CacheOptions, ReliabilityCache, declare_reliability_cache
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.alignment import (
    AlignerOptions,
)
from durable_cache.storage.plugins import open_storage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.faults import ModuleProcess

STREAMS = 130
RATE = 500 << 20
"""No throttle: how fast it is, not how fast it may be."""


def history(count: int) -> SampleBatch:
    """Return samples that have settled long ago."""
    chance = random.Random(1)
    began_ns = time.time_ns() - 3600 * 10**9
    return SampleBatch(
        Sample(
            f"bench/{at % STREAMS}",
            SourceId("ab12", at % STREAMS + 1),
            9,
            at // STREAMS,
            chance.randbytes(chance.randint(0, 40)),
            ntp64=ntp64_from_ns(began_ns + at),
            timestamp_id="ab12",
            received_ns=began_ns + at,
        )
        for at in range(count)
    )


def holder(folder: Path, endpoint: str) -> ModuleProcess:
    """Return the service that has the history."""
    alignment = {"enabled": True, "slot_seconds": 1, "settle_seconds": 0.2}
    storage = {"key_expr": "bench/**", "alignment": alignment}
    config = {
        "mode": "client",
        "connect": {"endpoints": [endpoint]},
        "scouting": {"multicast": {"enabled": False}},
        "plugins": {
            "durable_cache": {
                "state_dir": str(folder / "state"),
                "volumes": {"main": {"backend": "sql", "url": f"sqlite:///{folder}/fleet.db"}},
                "storages": {"fleet": storage},
            }
        },
    }
    path = folder / "config.json5"
    path.write_text(json.dumps(config))
    arguments = ["serve", "--config", str(path)]
    return ModuleProcess("durable_cache.service", arguments, ready="try from another terminal")


def newcomer(network: LocalNetwork, folder: Path) -> ReliabilityCache:
    """Return the cache that has nothing."""
    aligner = AlignerOptions(slot_seconds=1, settle_seconds=0.2, rate_bytes_per_second=RATE)
    return declare_reliability_cache(
        network.client(),
        "bench/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{folder}/new.db"},
        options=CacheOptions(name="new", align=True, aligner=aligner, state_dir=folder / "new"),
    )


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=100_000)
    count = parser.parse_args().samples
    with TemporaryDirectory() as name, LocalNetwork() as network:
        folder = Path(name)
        with open_storage("sql", "fleet", {"url": f"sqlite:///{folder}/fleet.db"}) as storage:
            storage.append(history(count))
        with holder(folder, network.endpoint):
            began = time.perf_counter()
            with newcomer(network, folder) as cache:
                wait_until(lambda: cache.status().appended, 60, "the first sample")
                first = time.perf_counter()
                wait_until(lambda: cache.status().appended >= count, 200, "everything")
                ended = time.perf_counter()
                received = cache.status().alignment.bytes_received
    print(
        f"{count} samples: the first after {first - began:.1f} s, all {ended - first:.1f} s later,"
    )
    print(
        f"{count / (ended - first):.0f} samples/s, {received / count:.0f} bytes a sample received"
    )


if __name__ == "__main__":
    main()
