"""K28: a publisher with a namespace is told why a cache outside of it acknowledges nothing."""

from __future__ import annotations

import pytest

from durable_cache import declare_reliability_cache, declare_reliable_publisher
from durable_cache.endpoints.publisher import lacking
from durable_cache.errors import OutcomeUnknown
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import stored


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
