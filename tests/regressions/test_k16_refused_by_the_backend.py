"""K16: an acknowledged sample that the backend can never take is a durable skip, and it is said."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.storage.contract import AppendResult, Capabilities, Durability, Refusal
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected


class Picky(MemoryStorage):
    """A durable backend that never takes one payload."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        bad = [sample for sample in batch if sample.payload == b"bad"]
        kept = SampleBatch(sample for sample in batch if sample.payload != b"bad")
        result = super().append(kept, skips)
        refused = tuple(Refusal(sample, "it is bad") for sample in bad)
        return AppendResult(result.new, result.duplicates, result.conflicts, refused)


def test_nobody_waits_for_what_the_backend_refused(
    network: LocalNetwork, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Picky()
    with (
        caplog.at_level(logging.WARNING),
        declare_reliability_cache(
            network.client(),
            "a/**",
            backend=backend,
            state_dir=tmp_path,
            options=CacheOptions(),
        ) as cache,
    ):
        source = Numbered(network.client(), "a/b")
        connected(source.publisher)
        for sn in range(5):
            source.put(sn, b"bad" if sn == 3 else b"good")
        wait_until(lambda: cache.status().appended >= 5)
        assert cache.wait_drained(10)
        assert [sample.sn for sample in cache.find("a/**")] == [0, 1, 2, 4]
        assert [(skip.first, skip.last) for skip in backend.skips()] == [(3, 3)]
        assert cache.status().dead_letters == 1
    assert any("it is bad" in record.message for record in caplog.records)
