"""The Delta backend keeps the contract, on a folder of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deltalake")

from durable_cache.model.sample import Sample
from durable_cache.storage.contract import Storage
from durable_cache.testing.samples import sample
from durable_cache.testing.suite import StorageTests
from durable_cache_delta import DeltaBackend, DeltaOptions


@pytest.mark.delta
class TestDelta(StorageTests):
    def open(self, tmp_path: Path, name: str = "suite", writer: bool = True) -> Storage:
        options = DeltaOptions(path=str(tmp_path / "lake"), maintenance_interval_seconds=0)
        return DeltaBackend().open(name, options, writer=writer)

    def sabotage(self, tmp_path: Path, name: str, storage: Storage) -> bool:
        (tmp_path / "lake" / name / "samples").rename(tmp_path / "taken away")
        return True

    def unstorable(self) -> Sample | None:
        return sample(1, "suite/\ud800")
