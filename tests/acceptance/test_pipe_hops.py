"""Three pipes in a row, `A->P1; P1->P2; P2->P3; P3->B`, each of which is killed at any moment.

B writes what it gets and its position in one transaction. Killed are the pipes, B, and the service
that is B's network; the link to that network is cut. What A's cache acknowledged is in B's table
once, in order.
"""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from durable_cache import (
    ReliabilityCache,
    ReliablePublisher,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.testing.network import LocalNetwork, free_port, wait_until
from tests.kit.faults import ModuleProcess
from tests.kit.proxy import TcpProxy

KEPT = ["fleet/**", "@durable/v1/default/consumers/*/**"]
SOURCES = 2
ROUNDS, ROUNDS_NIGHTLY = 1, 12
CUT_SECONDS = 1.5
STILL_SECONDS_MAX = 90
"""How long nothing may come to B before all is there: a busy disk makes each hop slow."""
B = """
import sqlite3, sys, time
from durable_cache import declare_reliable_subscriber
from durable_cache.consumers import ConsumerOptions
from durable_cache.endpoints.session import open_session
from durable_cache.errors import DurableCacheError

endpoint, table = sys.argv[1:3]
database = sqlite3.connect(table, timeout=60)
database.execute("PRAGMA synchronous = OFF")  # it is killed, its machine is not
with database:
    database.execute("CREATE TABLE IF NOT EXISTS got (key TEXT, source TEXT, sn INT, payload BLOB)")
    database.execute("CREATE TABLE IF NOT EXISTS position (run TEXT PRIMARY KEY, value BLOB)")
retry = {"period_init_ms": 50, "period_max_ms": 200, "period_increase_factor": 1.5}
session = open_session({
    "mode": "client", "connect": {"endpoints": [endpoint], "timeout_ms": 20_000, "retry": retry},
    "scouting": {"multicast": {"enabled": False}}, "timestamping": {"enabled": True},
})
print("ready", flush=True)

def consume():
    kept = tuple(value for (value,) in database.execute("SELECT value FROM position"))
    options = ConsumerOptions(confirm_seconds=0.05, positions=kept)
    with declare_reliable_subscriber(
        session, "fleet/*", consumer="bill", confirm="manual", consumer_options=options
    ) as consumer:
        for sample in consumer:
            position = consumer.position(sample)
            with database:
                database.execute(
                    "INSERT INTO got VALUES (?, ?, ?, ?)",
                    (sample.key, str(sample.source), sample.sn, sample.payload),
                )
                database.execute("INSERT OR REPLACE INTO position VALUES (?, ?)", position)
            consumer.confirm(sample)

while True:
    try:
        consume()
    except DurableCacheError as error:  # the cache is killed just now
        print(error, file=sys.stderr, flush=True)
        time.sleep(0.2)
"""


class Publishing:
    """Sources that put all the time, until they are told to end."""

    def __init__(self, network: LocalNetwork) -> None:
        self._publishers: list[ReliablePublisher[Any]] = [
            declare_reliable_publisher(network.client(), f"fleet/{at}", acknowledgements=1)
            for at in range(SOURCES)
        ]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            for publisher in self._publishers:
                publisher.put(b"%d" % publisher.next_sn)

    def finish(self) -> dict[str, tuple[str, int]]:
        """Return source and count of each key, once A's cache holds all."""
        self._ended.set()
        self._thread.join()
        for publisher in self._publishers:
            publisher.flush(60)
        return {str(one.key_expr): (str(one.source), one.next_sn) for one in self._publishers}

    def close(self) -> None:
        self._ended.set()
        for publisher in self._publishers:
            publisher.close()


def cache_on(network: LocalNetwork, directory: Path) -> ReliabilityCache:
    directory.mkdir()
    return declare_reliability_cache(
        network.router,
        KEPT,
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=directory,
    )


def service_at(port: int, directory: Path) -> ModuleProcess:
    """Return the process that is B's network: a router with a cache."""
    file = directory / "far.json5"
    settings = {
        "mode": "router",
        "listen": {"endpoints": [f"tcp/127.0.0.1:{port}"]},
        "scouting": {"multicast": {"enabled": False}},
        "plugins": {
            "durable_cache": {
                "state_dir": str(directory / "far"),
                "storages": {"fleet": {"key_expr": KEPT}},
            }
        },
    }
    file.write_text(json.dumps(settings))
    return ModuleProcess(
        "durable_cache.service", ["serve", "-c", str(file)], ready="try from another terminal"
    )


def pipe(source: str, target: str, name: str, processed_by: str) -> ModuleProcess:
    ends = ["--from", source, "--to", target, "--key", "fleet/**"]
    named = ["--name", name, "--processed-by", processed_by]
    return ModuleProcess("durable_cache.service", ["pipe", *ends, *named], ready="carrying fleet")


def got(table: Path) -> Iterator[tuple[str, str, int, bytes]]:
    with closing(sqlite3.connect(table, timeout=60)) as database:  # B writes all the time
        yield from database.execute("SELECT key, source, sn, payload FROM got ORDER BY rowid")


def count_at(table: Path) -> int:
    return len(list(got(table)))


def await_all(table: Path, wanted: int, instead: Callable[[], object]) -> None:
    """Wait until so many samples are at B, as long as more of them come."""
    there = 0

    def have_more_come() -> bool:
        return count_at(table) > there

    while there < wanted:
        what = f"more than {there} of {wanted} samples at B"
        wait_until(have_more_come, STILL_SECONDS_MAX, what, instead=instead)
        there = count_at(table)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds", [ROUNDS, pytest.param(ROUNDS_NIGHTLY, marks=pytest.mark.nightly)]
)
def test_whatever_hop_is_killed_each_sample_is_at_the_end_once_and_in_order(
    tmp_path: Path, rounds: int
) -> None:
    chance, port, table = random.Random(14), free_port(), tmp_path / "table.db"
    (tmp_path / "program.py").write_text(B)
    far = f"tcp/127.0.0.1:{port}"
    with ExitStack() as stack:
        networks = [stack.enter_context(LocalNetwork()) for _ in range(3)]
        caches = [
            stack.enter_context(cache_on(network, tmp_path / f"{at}"))
            for at, network in enumerate(networks)
        ]
        service = stack.enter_context(service_at(port, tmp_path))
        proxy = stack.enter_context(TcpProxy(port))
        b = stack.enter_context(
            ModuleProcess("program", [far, str(table)], folder=tmp_path, ready="ready")
        )
        ends = [*(network.endpoint for network in networks), f"tcp/127.0.0.1:{proxy.port}"]
        names = ["first", "second", "third", "bill"]
        pipes = [
            stack.enter_context(pipe(ends[at], ends[at + 1], names[at], names[at + 1]))
            for at in range(3)
        ]
        publishing = Publishing(networks[0])
        stack.callback(publishing.close)
        for _ in range(rounds):
            killed: list[ModuleProcess | None] = [*pipes, service, b, None]
            chance.shuffle(killed)
            for process in killed:
                time.sleep(chance.random())
                if process is None:
                    proxy.cut()
                    time.sleep(CUT_SECONDS)
                    proxy.heal()
                else:
                    process.kill()
                    process.start()
        put = publishing.finish()
        wanted = sum(count for _, count in put.values())
        processes = {"B": b, "service": service, **dict(zip(names, pipes, strict=False))}

        def found() -> dict[str, object]:
            return {
                "at B": count_at(table),
                "stored": [cache.status().appended for cache in caches],
                "said last": {name: one.stderr[-600:] for name, one in processes.items()},
            }

        await_all(table, wanted, found)
        for process in pipes:
            assert process.terminate() == 0, "a hop gave something up, or missed it"
    for key, (source, count) in put.items():
        rows = [row[1:] for row in got(table) if row[0] == key]
        assert rows == [(source, sn, b"%d" % sn) for sn in range(count)]
