"""K26: a cache closes within ten seconds, whatever waits for a backend however slow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.storage.contract import AppendResult, Capabilities, Durability
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork

SECONDS_EACH = 0.0007
"""20,000 samples take such a backend 14 s."""
SAMPLES = 60_000


class Slow(MemoryStorage):
    """A durable backend that takes its time for every sample."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        time.sleep(SECONDS_EACH * len(batch))
        return AppendResult(len(batch))


def test_a_backlog_does_not_hold_up_the_end(network: LocalNetwork, tmp_path: Path) -> None:
    cache = declare_reliability_cache(
        network.client(), "a/**", backend=Slow(), state_dir=tmp_path, options=CacheOptions()
    )
    source = SourceId("ab12", 7)
    for first in range(0, SAMPLES, 1000):
        numbers = range(first, first + 1000)
        cache.store.commit(SampleBatch(Sample(f"a/{at}", source, 5, at, b"x") for at in numbers))
    begun = time.monotonic()
    cache.close()
    assert time.monotonic() - begun < 12  # ten, and the last step of a busy machine
