"""K12: acknowledged samples are read wherever they wait for a backend that is away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.storage.contract import AppendResult, Capabilities, Durability
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, ask, connected, sns

SAMPLES = 200


class Away(MemoryStorage):
    """A durable backend that takes nothing now."""

    away = True

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        if self.away:
            raise StorageUnavailable("the backend is away")
        return super().append(batch, skips)


def test_what_is_acknowledged_answers_queries_and_recovery(
    network: LocalNetwork, tmp_path: Path
) -> None:
    backend, asker = Away(), network.client()
    journal = replace(CacheOptions().journal, tail_bytes_max=20_000, retry_seconds_max=0.2)
    with declare_reliability_cache(
        network.client(),
        "a/**",
        backend=backend,
        state_dir=tmp_path,
        options=CacheOptions(journal=journal),
    ) as cache:
        source = Numbered(network.client(), "a/b")
        connected(source.publisher)
        for sn in range(SAMPLES):
            source.put(sn, b"x" * 200, key=f"a/{sn % 10}")
            wait_until(lambda sn=sn: cache.status().appended > sn)
        assert len(cache.find("a/**")) == SAMPLES
        assert len(cache.find("a/3")) == SAMPLES // 10
        assert sns(ask(asker, f"{source.prefix}/a/**?_sn=90..119")) == [*range(90, 120)]
        assert sns(ask(asker, f"{source.prefix}/a/**?_sn=90..119;_pack=1")) == [*range(90, 120)]
        newest = {sample.key: sample.sn for sample in cache.find("a/7")[-1:]}
        assert newest == {"a/7": SAMPLES - 3}
        backend.away = False
        assert cache.wait_drained(10)
        assert len(cache.find("a/**")) == SAMPLES
