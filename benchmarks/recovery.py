"""How long a gap and a replay take, against the number of samples stored.

One process holds a cache on SQLite, another asks it: the gap as a reliable subscriber asks for it
(ten numbers, packed), the replay as its historical query (everything, packed). The brackets, in the
same run: a plain zenoh-python queryable that answers with as many bytes and stores nothing.

    python benchmarks/recovery.py --stored 1000 100000 1000000 --trials 300
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import random
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import zenoh

from durable_cache import CacheOptions, declare_reliability_cache, open_session
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import close_session, zid_of
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.testing.network import free_port

SOURCES = 100
KEYS = 1000
PAYLOAD_BYTES = 256
BATCH = 20_000
SAMPLE_BYTES = PAYLOAD_BYTES + 90
"""A sample in a packed reply, with its key, source, number and times."""
REPLY_SAMPLES = 2000


def settings(endpoint: str, *, listen: bool) -> dict[str, object]:
    ends: dict[str, object] = {"endpoints": [endpoint]}
    return {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}},
        "listen": ends if listen else {"endpoints": []},
        "connect": {"endpoints": []} if listen else ends,
    }


def source(number: int) -> SourceId:
    return SourceId("ab12", 100 + number % SOURCES)


def answer_plain(query: zenoh.Query) -> None:
    """Answer with replies of the sizes a cache's have: as many as its parameters say."""
    with query:
        count, size = map(int, str(query.parameters).split(";"))
        for _ in range(count):
            query.reply(query.key_expr, bytes(size))


def ask_plain(session: zenoh.Session, count: int, size: int) -> int:
    replies = session.get(
        f"plain-bench?{count};{size}",
        zenoh.handlers.FifoChannel(1024),
        target=zenoh.QueryTarget.ALL,
        consolidation=zenoh.ConsolidationMode.NONE,
    )
    return sum(len(reply.ok.payload.to_bytes()) for reply in replies if reply.ok is not None)


def run_cache(endpoint: str, directory: str, sizes: list[int], pipe: Connection) -> None:
    session = open_session(settings(endpoint, listen=True))
    plain = session.declare_queryable("plain-bench", answer_plain)
    cache = declare_reliability_cache(
        session,
        "bench/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=Path(directory) / "state",
        options=CacheOptions(name="bench", query_samples_max=10**8, query_bytes_max=1 << 40),
    )
    chance = random.Random(1)
    payloads = [chance.randbytes(PAYLOAD_BYTES) for _ in range(100)]
    stored = 0
    for size in sizes:
        while stored < size:
            count = min(BATCH, size - stored)
            cache.store.backend.append(
                SampleBatch(
                    Sample(
                        f"bench/{at % KEYS}",
                        source(at),
                        1,
                        at // SOURCES,
                        payloads[at % 100],
                        ntp64=(1_700_000_000 << 32) + at,
                        timestamp_id="ab12",
                        received_ns=1_700_000_000_000_000_000 + at,
                    )
                    for at in range(stored, stored + count)
                )
            )
            stored += count
        pipe.send(size)
        pipe.recv()
    plain.undeclare()
    cache.close()
    close_session(session)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stored", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--directory")
    parser.add_argument("--replay-max", type=int, default=10**6, help="no replay beyond so many")
    arguments = parser.parse_args()
    context = mp.get_context("spawn")
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    near, far = context.Pipe()
    chance = random.Random(2)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        server = context.Process(
            target=run_cache, args=(endpoint, directory, sorted(arguments.stored), far)
        )
        server.start()
        session = None
        for _ in arguments.stored:
            size = near.recv()
            session = session or open_session(settings(endpoint, listen=False))
            asking = Asking(session, zid_of(session), timeout_seconds=60)
            time.sleep(0.5)
            times = []
            plain_times = []
            for _ in range(arguments.trials):
                begun = time.perf_counter()
                assert ask_plain(session, 1, 10 * SAMPLE_BYTES) == 10 * SAMPLE_BYTES
                plain_times.append(time.perf_counter() - begun)
                number = chance.randrange(max(1, size - 10 * SOURCES))
                first = number // SOURCES
                begun = time.perf_counter()
                found = asking.caches("bench/**", str(source(number)), f"_sn={first}..{first + 9}")
                times.append(time.perf_counter() - begun)
                assert len(found.samples) == min(10, size // SOURCES - first)
            cuts = statistics.quantiles(times, n=100)
            plain_cuts = statistics.quantiles(plain_times, n=100)
            replay = "not run"
            if size <= arguments.replay_max:
                begun = time.perf_counter()
                count = sum(len(page) for page in asking.history("bench/**", "*"))
                seconds = time.perf_counter() - begun
                assert count == size
                begun = time.perf_counter()
                ask_plain(session, max(1, size // REPLY_SAMPLES), REPLY_SAMPLES * SAMPLE_BYTES)
                ratio = seconds / (time.perf_counter() - begun)
                replay = f"{count / seconds:,.0f} samples/s, {ratio:.1f} times the plain query"
            print(
                f"{size:>10,} stored: gap of 10 p50 {cuts[49] * 1e3:.2f} ms, "
                f"p99 {cuts[98] * 1e3:.2f} ms (plain query of as many bytes: "
                f"{plain_cuts[49] * 1e3:.2f}, {plain_cuts[98] * 1e3:.2f}); replay {replay}",
                flush=True,
            )
            near.send("on")
        server.join()
        if session is not None:
            close_session(session)


if __name__ == "__main__":
    main()
