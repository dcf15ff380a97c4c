"""K25: the memory of samples on their way stays within the bound that is configured for it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.storage.contract import AppendResult, Capabilities, Durability
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork

BOUND = 8 << 20
SAMPLES = 40_000
PUT_AT_ONCE = 500


class Away(MemoryStorage):
    """A durable backend that takes nothing."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        raise StorageUnavailable("the backend is away")


def alone(at: int) -> Sample:
    """A sample of a stream of its own, which shares nothing with another."""
    source = SourceId(f"{at + (1 << 40):x}", at + 1000)
    key, payload = f"a/robot{at:06d}/pose", b"%020d" % at
    return Sample(key, source, 5, at + 1000, payload, ntp64=(1 << 62) + at)


def test_samples_of_streams_of_their_own_stay_within_the_bound(
    network: LocalNetwork, tmp_path: Path
) -> None:
    journal = replace(CacheOptions().journal, tail_bytes_max=BOUND)
    with declare_reliability_cache(
        network.client(),
        "a/**",
        backend=Away(),
        state_dir=tmp_path,
        options=CacheOptions(journal=journal),
    ) as cache:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for first in range(0, SAMPLES, PUT_AT_ONCE):
            batch = SampleBatch(alone(at) for at in range(first, first + PUT_AT_ONCE))
            cache.store.commit(batch)
            del batch
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert cache.status().journal_samples == SAMPLES
    assert held < 1.5 * BOUND + (1 << 20)
