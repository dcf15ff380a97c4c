"""C10: what comes in waits for no read of the backend, and a read that fails ends nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from durable_cache import declare_reliability_cache
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import AppendResult, Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected


class Watched(MemoryStorage):
    """Notes the threads it is used in; a read waits, or fails by a mistake of its program."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[str] = set()
        self.appenders: set[str] = set()
        self.mistakes = 0
        self.may_read = threading.Event()
        self.may_read.set()

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        self.readers.add(threading.current_thread().name)
        self.may_read.wait(30)
        if self.mistakes:
            self.mistakes -= 1
            raise ZeroDivisionError("a mistake of the program")
        return super().read(selection, limit, cursor)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        self.appenders.add(threading.current_thread().name)
        return super().append(batch, skips)


@pytest.fixture
def backend() -> Watched:
    return Watched()


def test_a_source_in_doubt_holds_up_no_other(
    network: LocalNetwork, backend: Watched, tmp_path: Path
) -> None:
    with declare_reliability_cache(
        network.client(), "a/**", backend=backend, state_dir=tmp_path
    ) as cache:
        doubtful, other = Numbered(network.client(), "a/b"), Numbered(network.client(), "a/c")
        connected(doubtful.publisher)
        connected(other.publisher)
        for sn in range(5):
            doubtful.put(sn)
        wait_until(lambda: cache.status().appended == 5)
        backend.may_read.clear()
        try:
            doubtful.put(3, b"a repeat, or a new run?")
            wait_until(lambda: backend.readers, what="a look-up")
            other.put(0)
            wait_until(lambda: cache.status().appended >= 6, 5, "the other source's sample")
        finally:
            backend.may_read.set()
        assert not backend.readers & backend.appenders


def test_a_look_up_that_fails_by_a_mistake_is_made_again(
    network: LocalNetwork, backend: Watched
) -> None:
    with declare_reliability_cache(network.client(), "a/**", backend=backend) as cache:
        source = Numbered(network.client(), "a/b")
        connected(source.publisher)
        for sn in range(20):
            source.put(sn, b"first")
        wait_until(lambda: cache.status().appended == 20)
        time.sleep(0.3)  # no publisher restarts faster than its timestamps show
        backend.mistakes = 2
        for sn in range(20):
            source.put(sn, b"second")
        wait_until(lambda: cache.status().appended >= 40, 10, "the second run")
        assert backend.mistakes == 0
        found = cache.find("a/**")
        for run in (b"first", b"second"):
            assert [s.sn for s in found if s.payload == run] == list(range(20))
