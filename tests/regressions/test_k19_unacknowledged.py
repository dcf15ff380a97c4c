"""K19: where acknowledgements are wanted, nothing unacknowledged is forgotten silently."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from durable_cache import (
    ReliabilityCache,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.errors import DurableCacheError
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import ready_publisher


def cache_on(network: LocalNetwork, directory: Path) -> ReliabilityCache:
    return declare_reliability_cache(
        network.client(),
        "a/**",
        backend="sql",
        backend_options={"url": f"sqlite:///{directory}/samples.db"},
        state_dir=directory,
    )


def test_more_puts_than_history_while_the_cache_is_away_are_acknowledged_later(
    network: LocalNetwork, tmp_path: Path
) -> None:
    with cache_on(network, tmp_path):
        publisher = ready_publisher(network.client(), "a/b", acknowledgements=1, history=100)
        assert publisher.put(b"first").wait(10)
    with publisher:
        away = [publisher.put(b"%d" % at) for at in range(300)]
        with cache_on(network, tmp_path):
            last = publisher.put(b"last")
            wait_until(lambda: all(receipt.done for receipt in away), 15, "all receipts")
            assert last.wait(10)
        assert len(publisher.kept()) == 100


@pytest.mark.parametrize("seconds", [0, 0.3])
def test_a_put_beyond_the_bound_waits_and_then_raises(
    network: LocalNetwork, seconds: float
) -> None:
    with declare_reliable_publisher(
        network.client(),
        "a/b",
        acknowledgements=1,
        unacknowledged_max=10,
        put_timeout_seconds=seconds,
    ) as publisher:
        for at in range(10):
            publisher.put(b"%d" % at)
        began = time.monotonic()
        with pytest.raises(DurableCacheError, match="unacknowledged_max"):
            publisher.put(b"too many")
        assert time.monotonic() - began >= seconds
        assert [sample.sn for sample in publisher.kept()] == [*range(10)]


def test_a_put_that_waits_goes_on_when_there_is_room(network: LocalNetwork, tmp_path: Path) -> None:
    with (
        cache_on(network, tmp_path),
        ready_publisher(
            network.client(),
            "a/b",
            acknowledgements=1,
            unacknowledged_max=10,
            put_timeout_seconds=20,
        ) as publisher,
    ):
        receipts = [publisher.put(b"%d" % at) for at in range(200)]
        assert all(receipt.wait(10) for receipt in receipts)
        assert [receipt.sn for receipt in receipts] == [*range(200)]
