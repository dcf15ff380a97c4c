"""K5, K3: caches that come after the question, and publishers that come back within a frame."""

from __future__ import annotations

from typing import Any

from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import close_session, open_session
from durable_cache.model.sample import SampleBatch
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, free_port, wait_until
from tests.regressions.subscribing import old_sample
from tests.servers.zenoh_sources import Inbox, connected, sns, stored


def filled(samples: int) -> MemoryStorage:
    storage = MemoryStorage()
    storage.append(SampleBatch(old_sample(sn, sn) for sn in range(samples)))
    return storage


def test_a_subscriber_whose_link_comes_up_late_gets_history() -> None:
    inbox = Inbox()
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    off: dict[str, object] = {"multicast": {"enabled": False}}
    alone = open_session({"mode": "peer", "listen": {"endpoints": [endpoint]}, "scouting": off})
    try:
        with declare_reliable_subscriber(alone, "a/**", inbox, history=True) as subscriber:
            other = open_session(
                {"mode": "peer", "connect": {"endpoints": [endpoint]}, "scouting": off}
            )
            try:
                with declare_reliability_cache(other, "a/**", backend=filled(30)):
                    wait_until(lambda: len(inbox.samples) == 30, 15)
                    assert sns(inbox.samples) == list(range(30))
                    assert subscriber.missed == 0
            finally:
                close_session(other)
    finally:
        close_session(alone)


def test_a_cache_that_appears_when_nobody_is_waited_for_any_more_is_asked(
    network: LocalNetwork,
) -> None:
    inbox = Inbox()
    arguments: dict[str, Any] = {"history_timeout_seconds": 0.3}
    with declare_reliable_subscriber(
        network.client(), "a/**", inbox, history=True, **arguments
    ) as subscriber:
        session = network.client()
        inbox.await_path_from(session)  # live samples go through: history was given up for now
        with declare_reliability_cache(network.client(), "a/**", backend=filled(30)):
            wait_until(lambda: len(inbox.samples) == 30, 15)
            assert sns(inbox.samples) == list(range(30))
            wait_until(lambda: subscriber.history_complete)
            assert subscriber.missed == 0


def test_a_publisher_that_comes_back_within_a_frame_is_another_run(network: LocalNetwork) -> None:
    inbox = Inbox()
    with (
        declare_reliability_cache(network.client(), "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", inbox) as subscriber,
    ):
        for run in range(3):
            session = network.client(id="abcdef0123")
            with declare_reliable_publisher(session, "a/b") as publisher:
                connected(publisher._publisher)
                for number in range(10):
                    publisher.put(b"%d/%d" % (run, number))
                stored(cache, 10 * run + 10)
                wait_until(lambda at=run: len(inbox.samples) >= 10 * at + 10, what=f"run {run}")
            close_session(session)
        assert sns(inbox.samples) == [*range(10)] * 3
        assert subscriber.missed == 0
