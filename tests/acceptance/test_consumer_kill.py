"""SIGKILL of a durable consumer at random moments: nothing is skipped, little comes again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_cache import (
    ReliabilityCache,
    ReliablePublisher,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.testing.faults import ModuleProcess
from durable_cache.testing.network import LocalNetwork, wait_until

KILLS = 15
SOURCES = 2
PROGRAM = """
import sys, time
from durable_cache import declare_reliable_subscriber
from durable_cache.consumers import ConsumerOptions
from durable_cache.endpoints.session import open_session
from durable_cache.protocol.subscriber.events import DeliveryOptions

endpoint, log = sys.argv[1:3]
retry = {"period_init_ms": 50, "period_max_ms": 200, "period_increase_factor": 1.5}
session = open_session({
    "mode": "client", "connect": {"endpoints": [endpoint], "timeout_ms": 20_000, "retry": retry},
    "scouting": {"multicast": {"enabled": False}}, "timestamping": {"enabled": True},
})
told = open(log, "a", buffering=1)
told.write("begins\\n")
handled = {}

def handle(sample):
    told.write(f"handled {sample.key} {sample.sn}\\n")
    handled[sample.key] = sample.sn

consumer = declare_reliable_subscriber(
    session, "fleet/*", handle, consumer="bill",
    consumer_options=ConsumerOptions(confirm_seconds=0.02),
    options=DeliveryOptions(history_page_samples=100, history_timeout_seconds=600),
)
print("ready", flush=True)
while True:
    before = dict(handled)
    consumer.flush()
    for key, sn in before.items():
        told.write(f"held {key} {sn}\\n")
    time.sleep(0.01)
"""


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


def cache_on(network: LocalNetwork, directory: Path) -> ReliabilityCache:
    return declare_reliability_cache(
        network.router,
        ["fleet/**", "@durable/v1/default/consumers/**"],
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=directory,
    )


class Publishing:
    """Sources that put all the time, until they are told to end."""

    def __init__(self, network: LocalNetwork) -> None:
        self._publishers: list[ReliablePublisher[object]] = [
            declare_reliable_publisher(network.client(), f"fleet/{at}", acknowledgements=1)
            for at in range(SOURCES)
        ]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.005):
            for publisher in self._publishers:
                publisher.put(b"")

    def finish(self) -> dict[str, int]:
        """Return how many samples each source put, once caches hold them."""
        self._ended.set()
        self._thread.join()
        for publisher in self._publishers:
            publisher.flush(60)
        return {str(publisher.key_expr): publisher.next_sn for publisher in self._publishers}

    def close(self) -> None:
        self._ended.set()
        for publisher in self._publishers:
            publisher.close()


def lives(log: Path) -> Iterator[tuple[dict[str, list[int]], dict[str, int]]]:
    """Yield of each life which numbers of each key it handled, and which one was known held."""
    for life in log.read_text().split("begins\n")[1:]:
        handled: dict[str, list[int]] = {}
        held: dict[str, int] = {}
        for line in life.splitlines():
            words = line.split()
            if len(words) == 3 and words[2].isdigit():
                what, key, sn = words[0], words[1], int(words[2])
                if what == "handled":
                    handled.setdefault(key, []).append(sn)
                else:
                    held[key] = sn
        yield handled, held


@pytest.mark.slow
def test_a_killed_consumer_goes_on_behind_what_it_confirmed(
    network: LocalNetwork, tmp_path: Path
) -> None:
    chance = random.Random(14)
    (tmp_path / "program.py").write_text(PROGRAM)
    log = tmp_path / "told"
    cache = cache_on(network, tmp_path)
    publishing = Publishing(network)
    program = ModuleProcess("program", [network.endpoint, str(log)], folder=tmp_path, ready="ready")
    try:
        with program:
            for kill in range(KILLS):
                time.sleep(0.05 + chance.random() * 0.6)
                program.kill()
                if kill % 3 == 2:
                    cache.close()
                    cache = cache_on(network, tmp_path)
                program.start()
            put = publishing.finish()

            def reached() -> dict[str, int]:
                *_, (last, _) = lives(log)
                return {key: sns[-1] + 1 for key, sns in last.items()}

            wait_until(lambda: reached() == put, 60, f"the last of {put}")
    finally:
        publishing.close()
        cache.close()
    check(log, put)


def check(log: Path, put: dict[str, int]) -> None:
    """Each life goes on at the latest where the one before ended, behind all it knew was held."""
    reached, known = dict.fromkeys(put, -1), dict.fromkeys(put, -1)
    for handled, held in lives(log):
        for key, sns in handled.items():
            assert sns == [*range(sns[0], sns[0] + len(sns))], "in order, once, without a hole"
            assert known[key] < sns[0] <= reached[key] + 1, (key, known, reached)
            reached[key] = max(reached[key], sns[-1])
        known.update(held)
    assert reached == {key: count - 1 for key, count in put.items()}
    assert min(known.values()) > 0
