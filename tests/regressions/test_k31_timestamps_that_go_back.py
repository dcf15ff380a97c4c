"""K31: caches that were parted become equal whatever timestamps publishers choose.

Each side has a publisher of its own that sets its samples' timestamps, every third four seconds
back.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import zenoh

from durable_cache import CacheOptions, ReliabilityCache, declare_reliability_cache
from durable_cache.endpoints.session import close_session, open_session
from durable_cache.testing.network import free_port, wait_until
from tests.kit.proxy import TcpProxy

EQUAL_SECONDS = 14.0
"""Slots of one second: with timestamps that only rise it takes about four."""


class Publisher:
    """Numbers its samples and chooses their timestamps."""

    def __init__(self, session: zenoh.Session, key: str) -> None:
        self.session, self.key = session, key
        self.publisher = session.declare_publisher(key)
        self.sn = 0

    def put(self) -> None:
        ntp64, _, clock_id = str(self.session.new_timestamp()).partition("/")
        seconds = int(ntp64) / (1 << 32) - (0 if self.sn % 3 else 4)
        self.session.put(
            self.key,
            b"%d" % self.sn,
            source_info=zenoh.SourceInfo(self.publisher.id, self.sn),
            timestamp=zenoh.Timestamp(
                datetime.fromtimestamp(seconds, UTC), bytes.fromhex(clock_id.rjust(32, "0"))[::-1]
            ),
            congestion_control=zenoh.CongestionControl.BLOCK,
        )
        self.sn += 1


@dataclass
class Parted:
    """Two caches, a publisher beside each, and the link between the two sides."""

    caches: list[ReliabilityCache]
    publishers: list[Publisher]
    link: TcpProxy

    def put(self, count: int) -> None:
        for _ in range(count):
            for publisher in self.publishers:
                publisher.put()

    def await_equality(self, samples: int) -> None:
        def equal() -> bool:
            one, two = (identities(cache) for cache in self.caches)
            return one == two and len(one) == samples

        wait_until(equal, EQUAL_SECONDS, "equality")
        assert [cache.status().missed for cache in self.caches] == [0, 0]


def identities(cache: ReliabilityCache) -> list[tuple[str, int, bytes]]:
    return sorted((sample.key, sample.sn, sample.payload) for sample in cache.find("a/**"))


def opened(stack: ExitStack, **settings: object) -> zenoh.Session:
    session = open_session(
        {
            "mode": "peer",
            "timestamping": {"enabled": True},
            "scouting": {"multicast": {"enabled": False}},
            **settings,
        }
    )
    stack.callback(close_session, session)
    return session


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[Parted]:
    port = free_port()
    aligner = replace(CacheOptions().aligner, slot_seconds=1, settle_seconds=0.2)
    with ExitStack() as stack:
        one = opened(stack, listen={"endpoints": [f"tcp/127.0.0.1:{port}"]})
        link = stack.enter_context(TcpProxy(port))
        often = {"period_init_ms": 50, "period_max_ms": 50, "period_increase_factor": 1}
        endpoint = f"tcp/127.0.0.1:{link.port}"
        connect = {"endpoints": [endpoint], "timeout_ms": -1, "exit_on_failure": False}
        listen = {"endpoints": [f"tcp/127.0.0.1:{free_port()}"]}
        two = opened(stack, listen=listen, connect={**connect, "retry": often})
        caches = [
            stack.enter_context(
                declare_reliability_cache(
                    session,
                    "a/**",
                    options=CacheOptions(
                        name=name, align=True, aligner=aligner, state_dir=tmp_path / name
                    ),
                )
            )
            for name, session in (("one", one), ("two", two))
        ]
        publishers = [Publisher(one, "a/one"), Publisher(two, "a/two")]
        for publisher in publishers:
            matching = publisher.publisher
            wait_until(lambda p=matching: p.matching_status.matching, what="a path")
        yield Parted(caches, publishers, link)


def test_caches_that_were_parted_become_equal(parted: Parted) -> None:
    parted.put(12)
    parted.await_equality(24)
    parted.link.cut()
    wait_until(lambda: parted.link.connections == 0, what="the cut")
    parted.put(36)
    parted.link.heal()
    parted.await_equality(96)


def test_caches_on_a_link_that_flaps_become_equal_and_miss_nothing(parted: Parted) -> None:
    parted.put(3)
    parted.await_equality(6)
    chance, over = random.Random(5), threading.Event()
    link = parted.link

    def flap() -> None:
        while not over.is_set():
            link.cut()
            over.wait(chance.uniform(0.1, 0.7))
            link.heal()
            over.wait(chance.uniform(0.1, 0.7))

    flapping = threading.Thread(target=flap)
    flapping.start()
    for _ in range(45):
        parted.put(1)
        over.wait(0.12)
    over.set()
    flapping.join()
    link.heal()
    parted.await_equality(96)
