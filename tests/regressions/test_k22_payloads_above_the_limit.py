"""K22: a payload above a subscriber's limit is not delivered through recovery; it is reported."""

from __future__ import annotations

from durable_cache import (
    Miss,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, Numbered, sns, stored


def test_a_payload_above_the_limit_is_a_reported_miss_at_once(network: LocalNetwork) -> None:
    inbox, misses = Inbox(), list[Miss]()
    session = network.client()
    with (
        declare_reliability_cache(session, "a/**") as cache,
        declare_reliable_subscriber(
            network.client(), "a/**", inbox, payload_bytes_max=10_000
        ) as subscriber,
    ):
        subscriber.sample_miss_listener(misses.append)
        numbered = Numbered(session, "a/b")
        inbox.await_path_from(session)
        numbered.put(0)
        numbered.put(1, bytes(50_000))
        stored(cache, 2)
        numbered.put(2)
        wait_until(lambda: 2 in sns(inbox.samples), 8, "what follows")
        assert sns(inbox.samples) == [0, 2]
        assert [(miss.first, miss.last) for miss in misses] == [(1, 1)]
        numbered.put(3, bytes(50_000))
        wait_until(lambda: len(misses) == 2, 8, "the last sample, which nothing follows")
        assert (misses[1].first, misses[1].last) == (3, 3)
