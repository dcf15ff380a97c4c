"""What does a profile cost a subscriber? Pairs in turn, with and without one, over real sessions.

    python benchmarks/profiles.py --pairs 10 --seconds 3

A publisher process puts as fast as it can and is held up by who receives. Without a profile a
handler counts the samples; with one a thread takes what is there, as often as something came.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import statistics
import threading
import time
from itertools import count
from multiprocessing.connection import Connection
from typing import NamedTuple

from benchmarks.ends import settings
from benchmarks.pairs import within
from durable_cache import (
    ReliableReader,
    ReliableSubscriber,
    declare_reliable_publisher,
    declare_reliable_subscriber,
    open_session,
)
from durable_cache.endpoints.session import close_session
from durable_cache.profiles import DestinationOrder, Profile
from durable_cache.testing.network import free_port

PAYLOAD_BYTES = 256
KEYS = 1_000
COST_MAX = 0.15
ROUND_SECONDS = 0.05
IDLE_SECONDS = 1.0
"""So long nothing comes: the publisher is done."""


class Received(NamedTuple):
    """What one subscriber did."""

    samples: int
    samples_a_second: float
    cpu_seconds_each: float


def run_publisher(endpoint: str, seconds: float, pipe: Connection) -> None:
    session = open_session(settings(endpoint, listen=False))
    publisher = declare_reliable_publisher(session, "bench/**", cache=False)
    while not publisher.matched:
        time.sleep(0.01)
    time.sleep(0.3)
    payload = os.urandom(PAYLOAD_BYTES)
    keys = [f"bench/{at}" for at in range(KEYS)]
    begun, done = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        for _ in range(200):
            publisher.put(payload, key=keys[done % KEYS])
            done += 1
    pipe.send(done)
    pipe.recv()
    publisher.close()
    close_session(session)


def run_subscriber(endpoint: str, depth: int, pipe: Connection) -> None:
    """Receive with a profile of that depth, or without one where it is 0."""
    session = open_session(settings(endpoint, listen=True))
    subscriber: ReliableSubscriber
    if depth:
        profile = Profile(depth=depth, destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP)
        subscriber = reader = declare_reliable_subscriber(session, "bench/**", profile=profile)
        threading.Thread(target=take, args=(reader,)).start()
    else:
        handled = count()
        subscriber = declare_reliable_subscriber(session, "bench/**", lambda _: next(handled))
    pipe.send("ready")
    while not subscriber.delivered:
        time.sleep(0.001)
    begun, usage = time.monotonic(), os.times()
    last, first, at = begun, subscriber.delivered, 0
    while time.monotonic() - last < IDLE_SECONDS:
        if subscriber.delivered != at:
            at, last = subscriber.delivered, time.monotonic()
        time.sleep(0.01)
    used = os.times()
    cpu_seconds = used.user + used.system - usage.user - usage.system
    pipe.send(Received(at, (at - first) / (last - begun), cpu_seconds / at))
    pipe.recv()
    subscriber.close()
    close_session(session)


def take(reader: ReliableReader) -> None:
    """Take what is there, as a program that works in rounds does."""
    while reader.wait(None):
        reader.take()
        time.sleep(ROUND_SECONDS)


def measured(seconds: float, depth: int) -> Received:
    context = mp.get_context("spawn")
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    near, far = context.Pipe()
    receiving = context.Process(target=run_subscriber, args=(endpoint, depth, far))
    receiving.start()
    near.recv()
    pub_near, pub_far = context.Pipe()
    publishing = context.Process(target=run_publisher, args=(endpoint, seconds, pub_far))
    publishing.start()
    published = pub_near.recv()
    received = near.recv()
    assert isinstance(received, Received)
    near.send("stop")
    pub_near.send("stop")
    publishing.join()
    receiving.join()
    if received.samples != published:
        print(f"  published {published:,}, received {received.samples:,}")
    return received


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--depth", type=int, default=1)
    arguments = parser.parse_args()
    costs: list[float] = []
    cpu_costs: list[float] = []
    for at in range(arguments.pairs):
        both = {}
        for depth in (0, arguments.depth)[:: 1 if at % 2 else -1]:
            both[bool(depth)] = measured(arguments.seconds, depth)
        plain, profiled = both[False], both[True]
        costs.append(1 - profiled.samples_a_second / plain.samples_a_second)
        cpu_costs.append(profiled.cpu_seconds_each / plain.cpu_seconds_each - 1)
        print(
            f"without {plain.samples_a_second:,.0f}/s, {plain.cpu_seconds_each * 1e6:.1f} us of "
            f"CPU each; with {profiled.samples_a_second:,.0f}/s, "
            f"{profiled.cpu_seconds_each * 1e6:.1f} us: {costs[-1]:+.1%}"
        )
    low, high = within(costs)
    median = statistics.median(costs)
    cpu = statistics.median(cpu_costs)
    print(
        f"the profile costs {median:.1%} of the throughput (median of {len(costs)} pairs; "
        f"{low:.1%} to {high:.1%}), and {cpu:.1%} more CPU for each sample"
    )
    return 0 if median <= COST_MAX else 1


if __name__ == "__main__":
    raise SystemExit(main())
