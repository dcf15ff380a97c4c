"""C2: `close` raises the error that stopped the cache, once everything is closed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from durable_cache import declare_reliability_cache
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.storage.contract import AppendResult
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected


class Faulty(MemoryStorage):
    """A backend with a mistake in its program."""

    closed = 0

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        raise ZeroDivisionError("a mistake of the program")

    def close(self) -> None:
        self.closed += 1
        super().close()


def test_the_error_of_a_thread_leaves_close_and_everything_is_closed(
    network: LocalNetwork,
) -> None:
    storage = Faulty()
    cache = declare_reliability_cache(network.client(), "a/**", backend=storage)
    source = Numbered(network.client(), "a/b")
    connected(source.publisher)
    source.put(0)
    wait_until(lambda: "mistake" in cache.status().last_error)
    with pytest.raises(ZeroDivisionError, match="mistake"):
        cache.close(timeout_seconds=3)
    assert storage.closed
    cache.close()
