"""What a publisher put while its link to a subscriber alone was cut, and ended (ADR 0350).

Three peers: both of the others hear the cache, and nobody carries anything for anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from durable_cache import declare_reliability_cache, declare_reliable_publisher
from durable_cache.endpoints.session import Session, open_session
from durable_cache.endpoints.subscriber import ReliableSubscriber, declare_reliable_subscriber
from durable_cache.model.sample import Sample
from durable_cache.testing.network import free_port, wait_until
from tests.kit.proxy import TcpProxy

CONNECT = {
    "timeout_ms": -1,
    "exit_on_failure": False,
    "retry": {"period_init_ms": 50, "period_max_ms": 200, "period_increase_factor": 1.5},
}


class Peers:
    """A cache, a publisher and a subscriber, each a peer; the last two meet through a proxy."""

    def __init__(self, stack: ExitStack) -> None:
        cache_port, publisher_port = free_port(), free_port()
        self._stack = stack
        self.proxy = stack.enter_context(TcpProxy(publisher_port))
        self.cache = self._peer(cache_port)
        self.publisher = self._peer(publisher_port, cache_port)
        self.subscriber = self._peer(None, cache_port, self.proxy.port)

    def _peer(self, listens: int | None, *connects: int) -> Session:
        config: dict[str, object] = {
            "mode": "peer",
            "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
            "listen": {"endpoints": [] if listens is None else [f"tcp/127.0.0.1:{listens}"]},
            "connect": {"endpoints": [f"tcp/127.0.0.1:{port}" for port in connects], **CONNECT},
        }
        session = open_session(config)
        self._stack.callback(session.close)
        return session


@pytest.fixture
def peers() -> Iterator[Peers]:
    with ExitStack() as stack:
        yield Peers(stack)


def test_what_a_publisher_put_behind_a_cut_before_it_ended_is_delivered_when_it_ends(
    peers: Peers,
) -> None:
    delivered: list[Sample] = []
    with declare_reliability_cache(peers.cache, "a/**") as cache:
        subscriber: ReliableSubscriber = declare_reliable_subscriber(
            peers.subscriber, "a/*", delivered.append
        )
        publisher = declare_reliable_publisher(
            peers.publisher, "a/b", acknowledgements=1, level="memory"
        )
        wait_until(lambda: publisher.matched, what="a match")
        assert publisher.put(b"before").wait(10)
        wait_until(lambda: len(delivered) == 1, what="what came before the cut")
        asked = cache.queries_ok
        peers.proxy.cut()
        wait_until(lambda: cache.queries_ok > asked, what="the question for what follows")
        assert publisher.put(b"while cut").wait(10)
        assert publisher.put(b"last").wait(10)
        publisher.close()
        wait_until(lambda: len(delivered) == 3, 10, what="what the cache has of it")
        assert [sample.payload for sample in delivered] == [b"before", b"while cut", b"last"]
        assert subscriber.missed == 0
        subscriber.close()
