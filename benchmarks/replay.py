"""How fast is a replay once a cache is warm? The median of several, and what it costs each side.

    python benchmarks/replay.py --stored 20000 --replays 9

`recovery.py` replays once. There it is chance whether Python's collector looks at all objects of
the cache's process just then, for a third of the time that 20,000 samples take.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.recovery import SOURCES, run_cache, settings, source
from durable_cache import open_session
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import close_session, zid_of
from durable_cache.testing.network import free_port

GAPS = 200
"""Questions for ten numbers each before the first replay."""


def cpu_seconds_of(pid: int) -> float:
    """Return the processor time that another process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stored", type=int, default=20_000)
    parser.add_argument("--replays", type=int, default=9)
    arguments = parser.parse_args()
    context = mp.get_context("spawn")
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    near, far = context.Pipe()
    chance = random.Random(2)
    with tempfile.TemporaryDirectory() as directory:
        server = context.Process(
            target=run_cache, args=(endpoint, directory, [arguments.stored], far)
        )
        server.start()
        stored = near.recv()
        session = open_session(settings(endpoint, listen=False))
        asking = Asking(session, zid_of(session), timeout_seconds=60)
        time.sleep(0.5)
        for _ in range(GAPS):
            number = chance.randrange(max(1, stored - 10 * SOURCES))
            first = number // SOURCES
            asking.caches("bench/**", str(source(number)), f"_sn={first}..{first + 9}")
        pid = server.pid
        assert pid is not None
        seconds, asker, cache = [], time.process_time(), cpu_seconds_of(pid)
        for _ in range(arguments.replays):
            begun = time.perf_counter()
            assert sum(len(page) for page in asking.history("bench/**", "*")) == stored
            seconds.append(time.perf_counter() - begun)
        asker, cache = time.process_time() - asker, cpu_seconds_of(pid) - cache
        each = 1e6 / (stored * arguments.replays)
        print(
            f"replay {stored / statistics.median(seconds):,.0f} samples/s in the median of "
            f"{arguments.replays}; CPU a sample: {each * asker:.2f} us of the asker, "
            f"{each * cache:.2f} us of the cache",
            flush=True,
        )
        near.send("on")
        server.join()
        close_session(session)


if __name__ == "__main__":
    main()
