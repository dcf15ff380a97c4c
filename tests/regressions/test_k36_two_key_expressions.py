"""K36: a storage with two key expressions files each sample under its own key.

Each expression has a thread that receives, and what both remembered of the sample before was one.
"""

from __future__ import annotations

from threading import Thread

import pytest

from durable_cache import declare_reliability_cache, declare_reliable_publisher
from durable_cache.model.selection import Selection
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until

KEYS, PUTS = 4, 4_000
PARTS = ("fleet", "plant")


@pytest.mark.usefixtures("hurried_threads")
def test_samples_that_come_at_once_keep_their_keys(network: LocalNetwork) -> None:
    backend = MemoryStorage()
    key_exprs = [f"{part}/**" for part in PARTS]
    with declare_reliability_cache(network.router, key_exprs, backend=backend) as cache:
        threads = [Thread(target=put_all, args=(network, part)) for part in PARTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: cache.status().appended == len(PARTS) * PUTS, 30)
        stored = backend.read(Selection(), 10 * PUTS).samples
        assert [one for one in stored if one.payload != one.key.encode()] == []


def put_all(network: LocalNetwork, part: str) -> None:
    """Put samples that say on which key they are, by turns on several."""
    session = network.client()
    with declare_reliable_publisher(session, f"{part}/**") as publisher:
        for at in range(PUTS):
            key = f"{part}/{at % KEYS}"
            publisher.put(key.encode(), key=key)
