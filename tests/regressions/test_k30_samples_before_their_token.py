"""K30: what came before its publisher's token stands under the declared epoch everywhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import source_of, zid_of
from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import AppendResult, Capabilities, Durability, Skip
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import frame_now, token_of
from tests.servers.zenoh_sources import Numbered, connected


class Kept(MemoryStorage):
    """A durable backend that can be read after the end of its cache."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def close(self) -> None:
        pass


def test_the_backend_calls_them_what_the_cache_does(network: LocalNetwork, tmp_path: Path) -> None:
    storage = MemoryStorage()
    with declare_reliability_cache(
        network.client(), "a/**", backend=storage, state_dir=tmp_path
    ) as cache:
        source = Numbered(network.client(), "a/**")
        connected(source.publisher)
        epoch = frame_now()
        source.put(0, key="a/0")
        wait_until(lambda: cache.status().appended == 1)
        token = token_of(source, epoch)
        for sn in range(1, 17):
            source.put(sn, key=f"a/{sn}")

        def epochs() -> list[int]:
            return [sample.epoch for sample in storage.read(Selection(), 100).samples]

        wait_until(lambda: epochs() == [epoch] * 17, 8, "one epoch in the backend")
        assert {sample.epoch for sample in cache.find("a/**")} == {epoch}
        assert cache.status().streams == 17
        assert cache.status().appended == 17
        token.undeclare()


def test_a_cache_that_closes_right_after_the_token_leaves_one_epoch(
    network: LocalNetwork, tmp_path: Path
) -> None:
    backend = Kept()
    cache = declare_reliability_cache(network.client(), "a/**", backend=backend, state_dir=tmp_path)
    source = Numbered(network.client(), "a/b")
    connected(source.publisher)
    epoch = frame_now()
    for sn in range(20):
        source.put(sn)
    wait_until(lambda: cache.status().appended == 20)
    token = token_of(source, epoch)
    wait_until(lambda: any(sample.epoch for sample in cache.find("a/**")), what="the token")
    cache.close()
    stored = backend.read(Selection(), 100).samples
    assert [(sample.epoch, sample.sn) for sample in stored] == [(epoch, sn) for sn in range(20)]
    token.undeclare()


@pytest.mark.parametrize("parameters", ["", "_order=time", "_max=120", "_sn=100..199"])
def test_each_read_while_they_are_moved_is_exact(
    network: LocalNetwork, tmp_path: Path, parameters: str
) -> None:
    """Some were given twice for a moment, and those behind a page's end were not given."""
    count = 400
    asked = {"_max=120": range(280, 400), "_sn=100..199": range(100, 200)}
    expected = [*asked.get(parameters, range(count))]
    session = network.client()
    asking = Asking(session, zid_of(session), timeout_seconds=10)
    with declare_reliability_cache(
        network.client(),
        "a/**",
        state_dir=tmp_path,
        options=CacheOptions(query_samples_max=150),
        backend="sql",
        backend_options={"url": f"sqlite:///{tmp_path}/samples.db"},
    ) as cache:
        source = Numbered(network.client(), "a/b")
        connected(source.publisher)
        epoch = frame_now()
        for sn in range(count):
            source.put(sn)
        wait_until(lambda: cache.status().appended == count)
        token = token_of(source, epoch)

        def is_moved() -> bool:
            streams = [info.stream.epoch for info in cache.store.index.all_infos()]
            return streams == [epoch]

        last_reads, deadline = 3, time.monotonic() + 60
        while last_reads:
            assert time.monotonic() < deadline, "they are not moved"
            last_reads -= is_moved()
            try:
                found = [s for page in asking.history("a/b", "*", parameters) for s in page]
            except StorageUnavailable:
                continue  # it says that the question is to be asked again
            assert [sample.sn for sample in found] == expected
        assert {sample.epoch for sample in found} == {epoch}
        token.undeclare()


class Stuck(MemoryStorage):
    """A backend that takes nothing a second time while it is `stuck`: what is moved stays."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck, self._seen = True, set[int]()

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        if self.stuck and not self._seen.isdisjoint(sample.sn for sample in batch):
            raise StorageUnavailable("stuck")
        self._seen.update(sample.sn for sample in batch)
        return super().append(batch, skips)


def test_of_a_history_that_is_moved_no_more_than_its_newest_are_given(
    network: LocalNetwork,
) -> None:
    """The newest of each of both names were given: twice as many, for a moment."""
    storage = Stuck()
    with declare_reliability_cache(network.client(), "a/**", backend=storage, history=5) as cache:
        source = Numbered(network.client(), "a/b")
        connected(source.publisher)
        epoch = frame_now()
        for sn in range(20):
            source.put(sn)
        wait_until(lambda: cache.status().appended == 20)
        token = token_of(source, epoch)
        wait_until(lambda: any(sample.epoch for sample in cache.find("a/**")), what="the token")
        for sn in range(20, 23):
            source.put(sn)

        def given() -> list[int]:
            return [sample.sn for sample in cache.find("a/**")]

        wait_until(lambda: 22 in given(), what="the newest", instead=given)
        assert given() == [18, 19, 20, 21, 22]
        asked = Asking(network.router, "ab", timeout_seconds=5)
        source_id = source_of(source.publisher)
        answer = asked.caches("a/**", str(source_id), "_sn=15..20")
        assert [sample.sn for sample in answer.ordered()] == [18, 19, 20]
        absent = [(one.first, one.last) for part in answer.parts.values() for one in part.absent]
        assert absent == [(15, 17)], "what is not given is explained"
        storage.stuck = False
        token.undeclare()
