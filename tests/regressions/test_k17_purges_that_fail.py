"""K17: what was purged stays away, whatever failed meanwhile and whichever file is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from durable_cache import CacheOptions, Origins, ReliabilityCache, declare_reliability_cache
from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.storage.contract import AppendResult, Capabilities, Durability, Floor
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected, make_known


class Flaky(MemoryStorage):
    """A durable backend that can be away."""

    away = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        if self.away:
            raise StorageUnavailable("the backend is away")
        return super().append(batch, skips)

    def purge(self, floors: Iterable[Floor]) -> int:
        if self.away:
            raise StorageUnavailable("the backend is away")
        return super().purge(floors)


def publish(cache: ReliabilityCache, source: Numbered, first: int, last: int) -> None:
    before = cache.status().appended
    connected(source.publisher)
    for sn in range(first, last + 1):
        source.put(sn)
    wait_until(lambda: cache.status().appended > before + last - first)


def test_a_purge_while_the_backend_is_away_is_carried_out_when_it_is_back(
    network: LocalNetwork, tmp_path: Path
) -> None:
    backend = Flaky()
    with declare_reliability_cache(
        network.client(), "a/**", backend=backend, state_dir=tmp_path, options=CacheOptions()
    ) as cache:
        source = Numbered(network.client(), "a/b")
        publish(cache, source, 0, 49)
        assert cache.wait_drained(10)
        backend.away = True
        publish(cache, source, 50, 119)
        (stream,) = {sample.stream for sample in cache.find("a/**")}
        with suppress(StorageUnavailable):
            cache.purge([Floor(stream, 100)])
        backend.away = False
        assert cache.wait_drained(20)
        wait_until(lambda: len(cache.find("a/**")) <= 20, what="the purge")
        assert [sample.sn for sample in cache.find("a/**")] == [*range(100, 120)]


def test_a_purge_outlives_the_stream_index(network: LocalNetwork, tmp_path: Path) -> None:
    def opened(name: str, *, aligned: bool) -> ReliabilityCache:
        session = network.client()
        cache = declare_reliability_cache(
            session,
            "a/**",
            backend="sql",
            backend_options={"url": f"sqlite:///{tmp_path}/{name}.db"},
            state_dir=tmp_path,
            options=CacheOptions(
                name=name,
                align=aligned,
                allowed_origin=Origins.SESSION_LOCAL if aligned else Origins.ANY,
            ),
        )
        make_known(session)
        return cache

    source = Numbered(network.client(), "a/b")
    with opened("mine", aligned=False) as mine, opened("theirs", aligned=False) as theirs:
        publish(mine, source, 0, 59)
        wait_until(lambda: theirs.status().appended >= 60)
        assert mine.wait_drained(10)
        assert theirs.wait_drained(10)
        (stream,) = {sample.stream for sample in mine.find("a/**")}
        assert mine.purge([Floor(stream, 40)]) == 40
    for path in (tmp_path / "mine").glob("index.db*"):
        path.unlink()
    with opened("theirs", aligned=False) as theirs:
        publish(theirs, source, 60, 69)
    with opened("mine", aligned=True) as mine, opened("theirs", aligned=True):
        wait_until(lambda: len(mine.find("a/**")) >= 30, 15, "what the peer has")
        wait_until(lambda: mine.find("a/**")[-1].sn == 69, 15, "what the peer has")
        assert [sample.sn for sample in mine.find("a/**")] == [*range(40, 70)]
