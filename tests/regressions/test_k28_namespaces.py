"""K28: sessions with a namespace have history and recovery, of caches inside and outside of it."""

from __future__ import annotations

import pytest

from durable_cache import declare_reliability_cache, declare_reliable_subscriber
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, Numbered, sns, stored


@pytest.mark.parametrize("key_expr", ["**", "ns/**", "ns/a/**"])
def test_a_cache_outside_gives_history_and_what_was_lost(
    network: LocalNetwork, key_expr: str
) -> None:
    inbox = Inbox()
    outside = network.client()
    with declare_reliability_cache(outside, key_expr) as cache:
        numbered = Numbered(outside, "ns/a/b")
        for sn in range(5):
            numbered.put(sn)
        stored(cache, 5)
        with declare_reliable_subscriber(
            network.client(namespace="ns"), "a/**", inbox, history=True
        ) as subscriber:
            wait_until(lambda: len(inbox.samples) == 5, what="history")
            wait_until(lambda: outside.put(f"ns/{Inbox.PROBE}", b"") or inbox._reached.is_set())
            for sn in range(5, 10):
                numbered.put(sn, lost=sn == 6)
            wait_until(lambda: len(inbox.samples) == 10, 15, "what was lost")
            assert sns(inbox.samples) == list(range(10))
            assert {sample.key for sample in inbox.samples} == {"a/b"}
            assert subscriber.missed == 0
