"""What do acknowledgements and the promise of order cost? Puts in flight, and plain Zenoh beside.

    python benchmarks/acknowledged.py puts --seconds 4
    python benchmarks/acknowledged.py overhead --pairs 10 --seconds 2
    python benchmarks/acknowledged.py control --pairs 10 --seconds 2

Every publisher, subscriber and cache is a process of its own; publisher and subscriber are joined
without a router. Plain Zenoh blocks where there is no room, as a reliable publisher does, and its
subscriber reads the key, the payload, the encoding and the timestamp of each sample.

`control` says what this machine makes of the least that numbers a sample: a plain publisher that
gives each put its source, its number and a timestamp, and a plain one that does not.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import zenoh

from benchmarks.ends import cpu_seconds, wake_on_time
from benchmarks.pairs import interval
from durable_cache import (
    CacheOptions,
    Durability,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
    open_session,
)
from durable_cache.endpoints.session import close_session
from durable_cache.testing.network import free_port

PAYLOAD_BYTES, CLOCK_BYTES = 256, 8
IN_FLIGHT = (1, 100, 1_000, 20_000)
RATES = (10_000, 50_000, 0)
PAUSE_SECONDS_MIN = 0.0001
"""Samples that are due within so long go together: 10,000 a second one by one, 50,000 in fives."""
IDLE_SECONDS = 1.0
"""So long nothing comes: the publisher is done."""


def settings(listen: list[str], connect: list[str]) -> dict[str, object]:
    return {
        "mode": "peer",
        "scouting": {"multicast": {"enabled": False}},
        "timestamping": {"enabled": True},
        "listen": {"endpoints": listen},
        "connect": {"endpoints": connect},
    }


class Publishes(Enum):
    """How a benchmark publishes."""

    PLAIN = "plain"
    NUMBERED = "numbered"
    RELIABLE = "reliable"


class Peer:
    """A process, the pipe to it, and where it listens."""

    def __init__(self, run: Callable[..., None], *given: object) -> None:
        context = mp.get_context("spawn")
        self.endpoint = f"tcp/127.0.0.1:{free_port()}"
        self.near, far = context.Pipe()
        self._process = context.Process(target=run, args=(self.endpoint, *given, far))
        self._process.start()
        self.near.recv()

    def end(self) -> object:
        self.near.send("end")
        told = self.near.recv()
        self._process.join()
        return told


# Acknowledged puts


def run_cache(endpoint: str, directory: str, level: Durability, pipe: Connection) -> None:
    session = open_session(settings([endpoint], []))
    cache = declare_reliability_cache(
        session,
        "bench/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=Path(directory) / "state",
        options=CacheOptions(acknowledge=level),
    )
    pipe.send("ready")
    pipe.recv()
    commits = cache.status().commits
    cache.close()
    close_session(session)
    pipe.send(commits)


def put_for(
    caches: list[Peer], level: Durability, in_flight: int, seconds: float
) -> tuple[int, float]:
    """Return how many puts were acknowledged, and in which time, with so many under way at most."""
    session = open_session(settings([], [cache.endpoint for cache in caches]))
    with declare_reliable_publisher(
        session, "bench/a", cache=False, acknowledgements=len(caches), level=level
    ) as publisher:
        payload = os.urandom(PAYLOAD_BYTES)
        assert publisher.put(payload).wait(20)
        began, done = time.monotonic(), 0
        waiting = deque([publisher.put(payload) for _ in range(in_flight)])
        while time.monotonic() - began < seconds:
            assert waiting.popleft().wait(20)
            done += 1
            waiting.append(publisher.put(payload))
        took = time.monotonic() - began
    close_session(session)
    return done, took


def puts(arguments: argparse.Namespace) -> None:
    """Print how many puts a second are acknowledged, for each number of them under way."""
    for level in (Durability.PROCESS, Durability.DISK):
        for copies in (1, 2):
            for in_flight in IN_FLIGHT:
                with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                    places = [Path(directory) / str(at) for at in range(copies)]
                    for place in places:
                        place.mkdir()
                    caches = [Peer(run_cache, str(place), level) for place in places]
                    done, took = put_for(caches, level, in_flight, arguments.seconds)
                    commits = [cache.end() for cache in caches]
                print(
                    f"{level.name.lower()}, {copies} caches, {in_flight:,} in flight: "
                    f"{done / took:,.0f}/s, one after {1e3 * in_flight * took / done:.2f} ms; "
                    f"commits of each cache for {done:,} puts: {commits}",
                    flush=True,
                )


# Over plain publishing and subscribing


class Received(NamedTuple):
    """What one subscriber had, and what it and its publisher spent."""

    samples: int
    samples_a_second: float
    cpu_seconds_each: float
    latency_seconds: float
    """The median."""


def run_subscriber(endpoint: str, reliable: bool, pipe: Connection) -> None:
    session = open_session(settings([endpoint], []))
    times: list[int] = []
    latencies: list[int] = []

    def note(payload: bytes) -> None:
        now = time.monotonic_ns()
        times.append(now)
        latencies.append(now - int.from_bytes(payload[:CLOCK_BYTES], "big"))

    def take(sample: Sample) -> None:
        note(sample.payload)

    def take_plain(sample: zenoh.Sample) -> None:
        str(sample.key_expr), str(sample.encoding), sample.timestamp, sample.source_info
        note(sample.payload.to_bytes())

    subscriber = None if reliable else session.declare_subscriber("bench/**", take_plain)
    ours = declare_reliable_subscriber(session, "bench/**", take) if reliable else None
    pipe.send("ready")
    while not times:
        time.sleep(0.001)
    began, count = cpu_seconds(), len(times)
    while (time.monotonic_ns() - times[-1]) / 1e9 < IDLE_SECONDS:
        time.sleep(0.05)
    spent = cpu_seconds() - began
    took = (times[-1] - times[count - 1]) / 1e9
    pipe.recv()
    pipe.send(
        Received(
            len(times),
            (len(times) - count) / took,
            spent / max(1, len(times) - count),
            statistics.median(latencies) / 1e9,
        )
    )
    if ours is not None:
        ours.close()
    del subscriber
    close_session(session)


def publish(endpoint: str, how: Publishes, seconds: float, rate: int) -> tuple[int, float]:
    """Publish as told; return how many, and the CPU seconds of each."""
    session = open_session(settings([], [endpoint]))
    ours, put = declare(session, how)
    time.sleep(0.5)  # until they know each other
    rest = os.urandom(PAYLOAD_BYTES - CLOCK_BYTES)
    wake_on_time()
    began, spent, count = time.monotonic(), cpu_seconds(), 0
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * rate) - count if rate else 100
        if due <= 0:
            time.sleep(max(PAUSE_SECONDS_MIN, (count + 1) / rate - passed))
            continue
        for _ in range(due):
            put(time.monotonic_ns().to_bytes(CLOCK_BYTES, "big") + rest)
        count += due
    spent = cpu_seconds() - spent
    time.sleep(IDLE_SECONDS)
    if ours is not None:
        ours.close()
    close_session(session)
    return count, spent / count


def declare(
    session: zenoh.Session, how: Publishes
) -> tuple[ReliablePublisher[None] | None, Callable[[bytes], object]]:
    """Declare a publisher; return it where it is ours, and what puts a payload."""
    if how is Publishes.RELIABLE:
        ours = declare_reliable_publisher(session, "bench/a")
        return ours, ours.put
    blocks = zenoh.CongestionControl.BLOCK
    plain = session.declare_publisher("bench/a", congestion_control=blocks)
    if how is Publishes.PLAIN:
        return None, plain.put
    source, numbers = plain.id, itertools.count()
    stamp, name = session.new_timestamp, zenoh.SourceInfo

    def put(payload: bytes) -> None:
        plain.put(payload, timestamp=stamp(), source_info=name(source, next(numbers)))

    return None, put


def measured(how: Publishes, seconds: float, rate: int) -> Received:
    subscriber = Peer(run_subscriber, how is Publishes.RELIABLE)
    count, spent = publish(subscriber.endpoint, how, seconds, rate)
    received = subscriber.end()
    assert isinstance(received, Received)
    if received.samples != count:
        print(f"  published {count:,}, received {received.samples:,}")
    return received._replace(cpu_seconds_each=received.cpu_seconds_each + spent)


def overhead(arguments: argparse.Namespace) -> None:
    """Pairs in turn, at each rate: a reliable publisher and subscriber, and plain ones."""
    for rate in RATES:
        compare(arguments, Publishes.RELIABLE, rate)


def control(arguments: argparse.Namespace) -> None:
    """The same, of plain ones whose publisher numbers what it puts."""
    for rate in RATES:
        compare(arguments, Publishes.NUMBERED, rate)


def compare(arguments: argparse.Namespace, how: Publishes, rate: int) -> None:
    """Print what pairs in turn with plain ones say."""
    rates, cpu, later = [], [], []
    for pair in range(arguments.pairs):
        first = measured(how, arguments.seconds, rate) if pair % 2 else None
        plain = measured(Publishes.PLAIN, arguments.seconds, rate)
        one = first or measured(how, arguments.seconds, rate)
        rates.append(one.samples_a_second / plain.samples_a_second)
        cpu.append(plain.cpu_seconds_each / one.cpu_seconds_each)
        later.append(1e6 * (one.latency_seconds - plain.latency_seconds))
        print(
            f"  {how.value} {one.samples_a_second:,.0f}/s, {1e6 * one.cpu_seconds_each:.1f} us "
            f"of CPU, {1e6 * one.latency_seconds:,.0f} us late; plain "
            f"{plain.samples_a_second:,.0f}/s, {1e6 * plain.cpu_seconds_each:.1f} us, "
            f"{1e6 * plain.latency_seconds:,.0f} us late",
            flush=True,
        )
    print(
        f"{f'{rate:,}/s' if rate else 'full speed'}: throughput {interval(rates)} of plain, "
        f"by CPU {interval(cpu)}; {interval(later)} us later in the median",
        flush=True,
    )


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "puts": puts,
    "overhead": overhead,
    "control": control,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--pairs", type=int, default=10, help="of overhead and control")
    parser.add_argument("--directory", help="on the disk to be measured, of puts")
    arguments = parser.parse_args()
    PARTS[arguments.part](arguments)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
