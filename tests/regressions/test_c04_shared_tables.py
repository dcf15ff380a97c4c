"""C4: tables that several threads use are read while others change them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from durable_cache import ReliabilityCache, SourceId, declare_reliability_cache
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import frame_now, token_of
from tests.servers.zenoh_sources import Numbered, connected

SOURCES = 300
READERS = 2
SOURCE = SourceId("ab12", 7)


def read_until(cache: ReliabilityCache, over: Event) -> int:
    """Read as for queries and for peers, again and again; returns how often."""
    count = 0
    while not over.is_set():
        cache.find("a/0")
        for _ in range(1000):
            cache.ingest.epochs.stored_epochs(SOURCE, 5)
        count += 1
    return count


@pytest.mark.usefixtures("hurried_threads")
def test_a_cache_is_read_while_it_learns_the_epochs_of_sources(network: LocalNetwork) -> None:
    over = Event()
    with (
        declare_reliability_cache(network.client(), "a/**") as cache,
        ThreadPoolExecutor(READERS) as readers,
    ):
        session = network.client()
        sources = [Numbered(session, f"a/{at}") for at in range(SOURCES)]
        connected(sources[-1].publisher)
        epoch = frame_now()
        for source in sources:
            source.put(0)
        wait_until(lambda: cache.status().appended == SOURCES)
        reads = [readers.submit(read_until, cache, over) for _ in range(READERS)]
        try:
            tokens = [token_of(source, epoch) for source in sources]
            wait_until(
                lambda: all(sample.epoch for sample in cache.find("a/**")), 20, "every epoch"
            )
        finally:
            over.set()
        assert all(read.result() for read in reads)
        wait_until(lambda: len(cache.find("a/**")) == SOURCES, what="each sample moved")
        assert cache.status().last_error == ""
        for token in tokens:
            token.undeclare()
