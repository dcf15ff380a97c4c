"""The reference keeps the contract it is the reference of."""

from pathlib import Path

from durable_cache.storage.memory import MemoryBackend, MemoryOptions, MemoryStorage
from durable_cache.testing.suite import StorageTests


class TestMemory(StorageTests):
    def open(self, tmp_path: Path, name: str = "suite", writer: bool = True) -> MemoryStorage:
        return MemoryBackend().open(name, MemoryOptions(), writer=writer)
