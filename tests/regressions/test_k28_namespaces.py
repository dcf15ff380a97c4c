"""K28: sessions with a namespace have history and recovery, of caches inside and outside of it."""

from __future__ import annotations

import pytest

from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.publisher import lacking
from durable_cache.errors import OutcomeUnknown
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


def test_a_publisher_is_told_why_a_cache_outside_acknowledges_nothing(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cache of its own namespace does. The log says so before anybody asks."""
    monkeypatch.setattr(lacking, "_SILENT_NS", 100_000_000)
    with (
        declare_reliability_cache(network.client(), "**") as outside,
        declare_reliable_publisher(
            network.client(namespace="ns"), "a/b", acknowledgements=1, level="memory"
        ) as publisher,
    ):
        receipt = publisher.put(b"1")
        stored(outside, 1)
        with pytest.raises(OutcomeUnknown, match="none is in reach; a session with a namespace"):
            publisher.flush(0.5)
        wait_until(lambda: "samples on a/b wait for 1 cache to acknowledge them" in caplog.text)
        with declare_reliability_cache(network.client(namespace="ns"), "a/**") as inside:
            publisher.flush(30)
            wait_until(lambda: "acknowledge a/b are in reach again" in caplog.text)
        assert [*receipt.caches] == [inside.cache_id]
