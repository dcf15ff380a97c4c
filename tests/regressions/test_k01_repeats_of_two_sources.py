"""K1: repeated numbers of several sources, each before a new one, end no cache."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import pytest
import zenoh

from durable_cache import declare_reliability_cache
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.storage.contract import AppendResult
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import connected


class Slow(MemoryStorage):
    """A backend that can be made to wait, so that samples come together."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = Event()
        self.may_go_on.set()

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        self.may_go_on.wait(10)
        return super().append(batch, skips)


class Source:
    """A classic publisher that sends a number again as it was."""

    def __init__(self, session: zenoh.Session) -> None:
        self.session = session
        self.publisher = session.declare_publisher("a/b")
        self.sent: dict[int, zenoh.Timestamp] = {}

    def put(self, sn: int) -> None:
        self.session.put(
            "a/b",
            b"%d" % sn,
            source_info=zenoh.SourceInfo(self.publisher.id, sn),
            timestamp=self.sent.setdefault(sn, self.session.new_timestamp()),
        )


@pytest.mark.parametrize("count", [2, 3])
def test_repeats_and_new_numbers_of_several_sources_in_one_batch(
    network: LocalNetwork, count: int
) -> None:
    storage = Slow()
    with declare_reliability_cache(network.client(), "a/**", backend=storage) as cache:
        sources = [Source(network.client()) for _ in range(count)]
        for source in sources:
            connected(source.publisher)
            for sn in range(3):
                source.put(sn)
        wait_until(lambda: cache.status().appended == 3 * count)
        storage.may_go_on.clear()
        sources[0].put(3)
        wait_until(lambda: cache.status().received == 3 * count + 1)
        for source in sources:
            for sn in (2, 3, 4):
                source.put(sn)
        wait_until(lambda: cache.status().received == 6 * count + 1)
        storage.may_go_on.set()
        wait_until(lambda: len(cache.find("a/**")) == 5 * count, 5, "every number")
        sources[0].put(5)
        wait_until(lambda: len(cache.find("a/**")) == 5 * count + 1, 5, "what comes afterwards")
