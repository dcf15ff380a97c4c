"""What do the guarantees of delivery cost: a spool's room, confirmations, a pipe, a resumption?

    python benchmarks/guarantees.py spool --samples 1000000 --directory /dev/shm
    python benchmarks/guarantees.py consumer --samples 100000 --pairs 4
    python benchmarks/guarantees.py pipe --samples 200000
    python benchmarks/guarantees.py resume --samples 1000000

Every process counts its own CPU, as the clock says little on a machine that does other work, too.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.ends import cpu_seconds, settings
from benchmarks.pairs import interval
from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
    open_session,
)
from durable_cache.consumers import ConsumerOptions
from durable_cache.endpoints.session import close_session
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.pipes import PipeOptions, declare_reliable_pipe
from durable_cache.testing.network import free_port, wait_until

PAYLOAD_BYTES, KEYS, SOURCES, BATCH = 256, 1_000, 20, 20_000
POSITIONS = "@durable/v1/default/consumers/**"
SOON = ConsumerOptions(level="memory", unconfirmed_max=20_000, caches_seconds=2.0)
WAIT_SECONDS = 600.0
BEGUN = 2_000
"""Samples that a consumer confirmed before it is so far behind."""
FIRST_NS = 1_790_000_000_000_000_000


def stored(first: int, samples: int) -> SampleBatch:
    payload = os.urandom(PAYLOAD_BYTES)
    return SampleBatch(
        Sample(
            f"bench/{at % KEYS}",
            SourceId("ab12", 100 + at % SOURCES),
            1,
            at // SOURCES,
            payload,
            ntp64=(1_790_000_000 << 32) + at * 4096,
            timestamp_id="ab12",
            received_ns=FIRST_NS + at * 1000,
        )
        for at in range(first, first + samples)
    )


def run_cache(endpoint: str, samples: int, url: str, pipe: Connection) -> None:
    """Hold a network's router and a cache with so many samples, until told to end."""
    session = open_session(settings(endpoint, listen=True, mode="router"))
    cache = declare_reliability_cache(
        session,
        ["bench/**", POSITIONS],
        backend="sql" if url else "memory",
        backend_options={"url": url} if url else None,
    )
    for first in range(0, samples, BATCH):
        cache.store.commit(stored(first, min(BATCH, samples - first)))
        wait_until(lambda: cache.status().journal_samples <= BATCH, WAIT_SECONDS)
    wait_until(lambda: cache.status().journal_samples == 0, WAIT_SECONDS)
    began = cpu_seconds()
    pipe.send("ready")
    pipe.recv()
    pipe.send(cpu_seconds() - began)
    cache.close()
    close_session(session)


class Network:
    """A router with a cache, in a process of its own."""

    def __init__(self, samples: int = 0, url: str = "") -> None:
        self.endpoint = f"tcp/127.0.0.1:{free_port()}"
        self._near, far = mp.get_context("spawn").Pipe()
        given = (self.endpoint, samples, url, far)
        self._process = mp.get_context("spawn").Process(target=run_cache, args=given)
        self._process.start()
        self._near.recv()

    def close(self) -> float:
        """End it; return the seconds of CPU since it was ready."""
        self._near.send("end")
        spent: float = self._near.recv()
        self._process.join()
        return spent


def spool(arguments: argparse.Namespace) -> None:
    """Put with no cache in reach, and look at the files."""
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        session = open_session(settings(f"tcp/127.0.0.1:{free_port()}", listen=True, mode="router"))
        publisher = declare_reliable_publisher(
            session,
            "bench/**",
            acknowledgements=1,
            spool_dir=directory,
            cache=False,
            epochs_timeout_seconds=0,
            unacknowledged_max=arguments.samples,
            receipts_max=arguments.samples,
            unacknowledged_bytes_max=1 << 40,
            spool_bytes_max=1 << 40,
        )
        began, clock, own = cpu_seconds(), time.monotonic(), 0
        for at in range(arguments.samples):
            key, payload = f"bench/{at % KEYS}", os.urandom(arguments.payload)
            publisher.put(payload, key=key)
            own += len(key) + len(payload)
        spent, seconds = cpu_seconds() - began, time.monotonic() - clock
        sizes = {one.name: one.stat().st_size for one in Path(directory).iterdir()}
        ahead = sum(size for name, size in sizes.items() if name.endswith(("-wal", "-shm")))
        each = (sum(sizes.values()) - ahead) / arguments.samples
        own /= arguments.samples
        print(
            f"spool: {arguments.samples:,} samples of {own:.0f} bytes of key and payload take "
            f"{each:.0f} bytes each ({each / own:.2f} times), and {ahead:,} of a write-ahead log "
            f"once: {(each + ahead / 1e6) / own:.2f} times for a million; "
            f"{1e6 * spent / arguments.samples:.0f} us of CPU and "
            f"{1e6 * seconds / arguments.samples:.0f} us a put, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        os._exit(0)  # closing would wait for caches


def consumed(network: Network, samples: int, name: str | None) -> tuple[float, float]:
    """Return samples a second, and CPU seconds for each, of one handler that counts."""
    session = open_session(settings(network.endpoint, listen=False, mode="client"))
    handled = 0

    def handle(_: Sample) -> None:
        nonlocal handled
        handled += 1

    chosen = {} if name is None else {"consumer": name, "consumer_options": SOON}
    began, clock = cpu_seconds(), time.monotonic()
    subscriber = declare_reliable_subscriber(
        session,
        "bench/**",
        handle,
        **({"history": True} if name is None else chosen),
    )
    wait_until(lambda: handled >= samples, WAIT_SECONDS)
    spent, seconds = cpu_seconds() - began, time.monotonic() - clock
    subscriber.close()
    close_session(session)
    return samples / seconds, spent / samples


def consumer(arguments: argparse.Namespace) -> None:
    """Pairs in turn: with confirmations by itself, and a plain subscriber with history."""
    rates, cpu = [], []
    network = Network(arguments.samples)
    for pair in range(arguments.pairs):
        name = f"bench-{pair}"
        names = (None, name) if pair % 2 else (name, None)
        found = {each: consumed(network, arguments.samples, each) for each in names}
        rates.append(found[name][0] / found[None][0])
        cpu.append(found[None][1] / found[name][1])
        print(
            f"consumer: {found[name][0]:,.0f}/s of {found[None][0]:,.0f}/s, "
            f"{1e6 * found[name][1]:.2f} us of CPU a sample of {1e6 * found[None][1]:.2f}",
            flush=True,
        )
    network.close()
    print(f"consumer: {interval(rates)} of the throughput, {interval(cpu)} by CPU")


def pipe(arguments: argparse.Namespace) -> None:
    """Carry what one network's cache holds to another's, each in a process of its own."""
    near, far = Network(arguments.samples), Network()
    taken_from = open_session(settings(near.endpoint, listen=False, mode="client"))
    sent_to = open_session(settings(far.endpoint, listen=False, mode="client"))
    bound = SOON if arguments.mode == "exactly-once" else ConsumerOptions(unconfirmed_max=20_000)
    options = PipeOptions(level="memory", mode=arguments.mode, consumer_options=bound)
    began, clock = cpu_seconds(), time.monotonic()
    with declare_reliable_pipe(taken_from, sent_to, "bench/**", options=options) as carrying:
        # Its sources have no publishers: a pipe waits for their names first, some two seconds.
        wait_until(lambda: carrying.status().confirmed, WAIT_SECONDS)
        first, done = time.monotonic(), carrying.status().confirmed
        wait_until(lambda: carrying.status().confirmed >= arguments.samples, WAIT_SECONDS)
        spent, last = cpu_seconds() - began, time.monotonic()
    close_session(taken_from)
    close_session(sent_to)
    of_near, of_far = near.close(), far.close()
    each = 1e6 / arguments.samples
    print(
        f"pipe, {arguments.mode}: {(arguments.samples - done) / (last - first):,.0f}/s from the "
        f"first confirmation on, which came after {first - clock:.1f} s; CPU a sample: "
        f"{each * spent:.1f} us of the pipe ({arguments.samples / spent:,.0f} a second of a core), "
        f"{each * of_near:.1f} of the source's cache, {each * of_far:.1f} of the target's"
    )


def resume(arguments: argparse.Namespace) -> None:
    """Stop a consumer early; how soon does it have its next sample, so many behind?"""
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        network = Network(arguments.samples, f"sqlite:///{directory}/samples.db")
        for trial in range(arguments.pairs + 1):
            session = open_session(settings(network.endpoint, listen=False, mode="client"))
            clock = time.monotonic()
            with declare_reliable_subscriber(
                session, "bench/**", consumer="bench", confirm="manual", consumer_options=SOON
            ) as one:
                declared = time.monotonic() - clock
                sample = one.recv(WAIT_SECONDS)
                first = time.monotonic() - clock
                more = [one.recv(WAIT_SECONDS) for _ in range(0 if trial else BEGUN)]
                one.confirm(sample, *more)
                one.flush(10)
            close_session(session)
            if not trial:
                continue  # it had no position
            print(
                f"resume, {arguments.samples:,} behind: declared after {1e3 * declared:.0f} ms, "
                f"the first sample after {1e3 * first:.0f} ms",
                flush=True,
            )
        network.close()


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "spool": spool,
    "consumer": consumer,
    "pipe": pipe,
    "resume": resume,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=4, help="pairs of consumer, trials of resume")
    parser.add_argument("--payload", type=int, default=PAYLOAD_BYTES, help="bytes, of spool")
    modes = ["exactly-once", "at-least-once"]
    parser.add_argument("--mode", default=modes[0], choices=modes, help="of the pipe")
    parser.add_argument("--directory")
    arguments = parser.parse_args()
    PARTS[arguments.part](arguments)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
