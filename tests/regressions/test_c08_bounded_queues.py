"""C8: every queue has a bound, and closing waits in none of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import zenoh

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import AppendResult, Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import token_of
from tests.servers.zenoh_sources import Numbered, connected

QUERIES = 1_500
"""More than may wait for an answer."""


class Waiting(MemoryStorage):
    """A backend that can be made to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.used = Event()
        self.may_go_on = Event()
        self.may_go_on.set()

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        self._wait()
        return super().read(selection, limit, cursor)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        self._wait()
        return super().append(batch, skips)

    def _wait(self) -> None:
        self.used.set()
        self.may_go_on.wait(30)


@pytest.fixture
def backend() -> Iterator[Waiting]:
    backend = Waiting()
    yield backend
    backend.may_go_on.set()


def test_a_cache_with_too_many_queries_closes_in_time(
    network: LocalNetwork, backend: Waiting
) -> None:
    cache = declare_reliability_cache(network.client(), "a/**", backend=backend)
    asker = network.client()
    querier = asker.declare_querier("*/a/**")
    connected(querier)
    backend.may_go_on.clear()
    answers: list[zenoh.Reply] = []
    for _ in range(QUERIES):
        asker.get("*/a/**", answers.append, timeout=60)
    assert backend.used.wait(10)
    time.sleep(1)  # until the cache has them all; whether it has changes nothing here
    with ThreadPoolExecutor(1) as closing:
        closed = closing.submit(cache.close, 2)
        try:
            closed.result(10)
        finally:
            backend.may_go_on.set()
    assert all(reply.err for reply in answers)


def test_tokens_that_come_at_once_are_dropped_beyond_their_bound(
    network: LocalNetwork, backend: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    options = CacheOptions(events_max=10)
    with declare_reliability_cache(
        network.client(), "a/**", backend=backend, options=options
    ) as cache:
        session = network.client()
        sources = [Numbered(session, f"a/{at}") for at in range(50)]
        connected(sources[-1].publisher)
        backend.may_go_on.clear()
        sources[0].put(0)
        assert backend.used.wait(10)
        tokens = [token_of(source) for source in sources]
        wait_until(lambda: "too many tokens" in caplog.text)
        backend.may_go_on.set()
        for source in sources:
            source.put(1)
        wait_until(
            lambda: len([s for s in cache.find("a/**") if s.sn == 1]) == len(sources),
            what="every source's sample",
        )
        for token in tokens:
            token.undeclare()
