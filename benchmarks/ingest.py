"""How many samples a second become durable and acknowledged through real Zenoh sessions.

Processes on the loopback: a publisher, a cache on SQLite at level ``disk``, and, in turns with the
cache, the brackets: a plain zenoh-python subscriber that reads every field, and a file that is
appended to and fsynced with batches of the same size.

    python benchmarks/ingest.py --seconds 20 --rate 0
    python benchmarks/ingest.py --seconds 20 --unacknowledged 20000
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import durable_cache  # each process imports what it uses of it
from benchmarks.ends import settings
from durable_cache.endpoints.session import (
    Decoder,
    Origins,
    close_session,
    declare_subscriber,
    receive,
    undeclare,
)
from durable_cache.testing.network import free_port

PAYLOAD_BYTES = 256


def run_cache(endpoint: str, directory: str, pipe: Connection) -> None:
    session = durable_cache.open_session(settings(endpoint, listen=True))
    cache = durable_cache.declare_reliability_cache(
        session,
        "bench/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=Path(directory) / "state",
        options=durable_cache.CacheOptions(name="bench"),
    )
    pipe.send("ready")
    lag_max = 0
    while not pipe.poll(0.05):
        lag_max = max(lag_max, cache.status().journal_samples)
    pipe.recv()
    lag_end = cache.status().journal_samples
    begun = time.monotonic()
    drained = cache.wait_drained(120)
    status = cache.status()
    usage = os.times()
    pipe.send(
        {
            "appended": status.appended,
            "commits": status.commits,
            "refused": status.refused,
            "append_seconds": status.append_seconds,
            "lag_max": lag_max,
            "lag_end": lag_end,
            "drained": drained,
            "drain_seconds_after": time.monotonic() - begun,
            "cpu_seconds": usage.user + usage.system,
        }
    )
    cache.close()
    close_session(session)


def run_plain(endpoint: str, pipe: Connection) -> None:
    session = durable_cache.open_session(settings(endpoint, listen=True))
    subscriber = declare_subscriber(session, "bench/**", Origins.ANY, 100_000)
    decoder = Decoder("ab", 1 << 20)
    count = 0
    first = last = 0.0
    pipe.send("ready")

    def consume() -> None:
        nonlocal count, first, last
        while taken := receive(subscriber, 5000):
            first = first or time.monotonic()
            count += len(decoder.decode(taken, time.time_ns()))
            last = time.monotonic()

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    pipe.recv()
    usage = os.times()
    pipe.send(
        {"received": count, "seconds": last - first, "cpu_seconds": usage.user + usage.system}
    )
    undeclare(subscriber)
    consumer.join()
    close_session(session)


def run_publisher(
    endpoint: str, seconds: float, rate: int, unacknowledged_max: int, pipe: Connection
) -> None:
    """Publish; `unacknowledged_max` 0: nothing is acknowledged."""
    session = durable_cache.open_session(settings(endpoint, listen=False))
    publisher = durable_cache.declare_reliable_publisher(
        session,
        "bench/topic",
        cache=False,
        acknowledgements=1 if unacknowledged_max else 0,
        unacknowledged_max=unacknowledged_max or 1,
    )
    while not publisher.matched:
        time.sleep(0.01)
    time.sleep(0.5)
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(1000)]
    latencies: list[float] = []
    whole: list[float] = []
    lock = threading.Lock()
    begun = time.monotonic()
    count = 0
    receipt = None
    while (now := time.monotonic()) - begun < seconds:
        due = 200 if not rate else int((now - begun) * rate) - count
        if due <= 0:
            time.sleep(0.0005)
            continue
        for at in range(due):
            count += 1
            if not unacknowledged_max or count % 101:
                receipt = publisher.put(payloads[at % 1000])
                continue
            called = time.monotonic()
            receipt = publisher.put(payloads[at % 1000])
            if receipt is not None:
                sent = time.monotonic()

                def note(_: object, called: float = called, sent: float = sent) -> None:
                    with lock:
                        latencies.append(time.monotonic() - sent)
                        whole.append(time.monotonic() - called)

                receipt.on_done(note)
    published = time.monotonic() - begun
    done = receipt.wait(120) if receipt is not None else True
    total = time.monotonic() - begun
    cuts, whole_cuts = (
        statistics.quantiles(times, n=100) if len(times) > 100 else [0.0] * 99
        for times in (latencies, whole)
    )
    usage = os.times()
    pipe.send(
        {
            "published": count,
            "publish_seconds": published,
            "acknowledged_seconds": total,
            "all_acknowledged": done,
            "ack_p50_ms": round(cuts[49] * 1000, 2),
            "ack_p99_ms": round(cuts[98] * 1000, 2),
            "put_to_ack_p50_ms": round(whole_cuts[49] * 1000, 2),
            "put_to_ack_p99_ms": round(whole_cuts[98] * 1000, 2),
            "cpu_seconds": usage.user + usage.system,
        }
    )
    pipe.recv()
    publisher.close()
    close_session(session)


def plain_appender(directory: Path, seconds: float, batch_samples: int) -> float:
    """Return samples a second of a plain file with an fdatasync a batch."""
    batch = os.urandom(PAYLOAD_BYTES * max(1, batch_samples))
    handle = os.open(directory / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count = 0
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        os.write(handle, batch)
        os.fdatasync(handle)
        count += max(1, batch_samples)
    os.close(handle)
    return count / (time.monotonic() - begun)


def measure(
    kind: str, directory: str, seconds: float, rate: int, unacknowledged_max: int = 100_000
) -> dict[str, object]:
    context = mp.get_context("spawn")
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    near, far = context.Pipe()
    target, arguments = (
        (run_cache, (endpoint, directory, far)) if kind == "cache" else (run_plain, (endpoint, far))
    )
    server = context.Process(target=target, args=arguments)
    server.start()
    near.recv()
    pub_near, pub_far = context.Pipe()
    publisher = context.Process(
        target=run_publisher,
        args=(endpoint, seconds, rate, unacknowledged_max if kind == "cache" else 0, pub_far),
    )
    publisher.start()
    published = pub_near.recv()
    if kind == "plain":
        time.sleep(1.0)
    near.send("stop")
    served = near.recv()
    pub_near.send("stop")
    publisher.join()
    server.join()
    return {"kind": kind, **published, **{f"server_{k}": v for k, v in served.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=int, default=0, help="samples a second; 0 is all it can")
    parser.add_argument(
        "--unacknowledged", type=int, default=100_000, help="samples that wait at most"
    )
    parser.add_argument("--directory", help="on the disk to be measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        unacknowledged_max = arguments.unacknowledged
        cache = measure("cache", directory, arguments.seconds, arguments.rate, unacknowledged_max)
        plain = measure("plain", directory, min(arguments.seconds, 10), arguments.rate)
        commits = max(1, int(str(cache["server_commits"])))
        size = int(str(cache["server_appended"])) // commits
        appender = plain_appender(Path(directory), 3, size)
    rate = float(str(cache["published"])) / float(str(cache["acknowledged_seconds"]))
    plain_rate = float(str(plain["server_received"])) / float(str(plain["server_seconds"]))
    print(json.dumps({"cache": cache, "plain": plain}, indent=1))
    print(f"acknowledged at level disk: {rate:,.0f}/s, {size} samples a commit")
    print(
        f"ack p50 {cache['ack_p50_ms']} ms, p99 {cache['ack_p99_ms']} ms; from the call of put "
        f"p50 {cache['put_to_ack_p50_ms']} ms, p99 {cache['put_to_ack_p99_ms']} ms; drain at most "
        f"{cache['server_lag_max']} samples behind, {cache['server_lag_end']} at the end, "
        f"all drained {float(str(cache['server_drain_seconds_after'])):.1f} s later"
    )
    print(f"plain subscriber, every field read: {plain_rate:,.0f}/s; ratio {rate / plain_rate:.2f}")
    print(f"plain file, same batches and fsyncs: {appender:,.0f}/s; ratio {rate / appender:.2f}")


if __name__ == "__main__":
    main()
