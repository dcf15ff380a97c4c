"""K7: a run that begins while the backend cannot be read loses nothing and mixes nothing."""

from __future__ import annotations

import time

from durable_cache import declare_reliability_cache
from durable_cache.errors import StorageUnavailable
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected


class Unreadable(MemoryStorage):
    """A backend that at times takes samples and cannot be read."""

    away = False

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if self.away:
            raise StorageUnavailable("the backend is away")
        return super().read(selection, limit, cursor)


def test_the_new_run_waits_until_it_is_known_to_be_one(network: LocalNetwork) -> None:
    storage = Unreadable()
    with declare_reliability_cache(network.client(), "a/**", backend=storage) as cache:
        source = Numbered(network.client(), "a/b")
        connected(source.publisher)
        for sn in range(30):
            source.put(sn, b"first")
        wait_until(lambda: cache.status().appended == 30)
        time.sleep(0.3)  # no publisher restarts faster than its timestamps show
        storage.away = True
        for sn in range(20):
            source.put(sn, b"second")
        wait_until(lambda: cache.status().received == 50)
        wait_until(lambda: cache.status().last_error)
        storage.away = False
        for sn in range(20, 50):
            source.put(sn, b"second")
        wait_until(lambda: cache.status().appended >= 80, 8, "both runs")
        found = cache.find("a/**")
        for run, count in ((b"first", 30), (b"second", 50)):
            stored = [sample for sample in found if sample.payload == run]
            assert sorted(sample.sn for sample in stored) == list(range(count))
            assert len({sample.epoch for sample in stored}) == 1
        assert len({sample.epoch for sample in found}) == 2
