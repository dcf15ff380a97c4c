"""A third party's plug-in is found through its entry point and keeps the contract."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_cache.storage.contract import Storage
from durable_cache.storage.plugins import installed_backends, open_storage
from durable_cache.testing.distributions import installed, write_distribution
from durable_cache.testing.suite import StorageTests

SOURCE = Path(__file__).parent / "toy" / "durable_cache_toy.py"


@pytest.fixture(scope="class", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = write_distribution(
        tmp_path_factory.mktemp("site") / "packages",
        "durable-cache-toy",
        {"toy": "durable_cache_toy:ToyBackend"},
        {"durable_cache_toy": SOURCE.read_text()},
    )
    with installed(directory):
        yield


class TestToyPlugin(StorageTests):
    def open(self, tmp_path: Path, name: str = "suite", writer: bool = True) -> Storage:
        return open_storage("toy", name, {"path": str(tmp_path)}, writer=writer)

    def sabotage(self, tmp_path: Path, name: str, storage: Storage) -> bool:
        descriptor: int = storage.descriptor  # type: ignore[attr-defined]
        directory = os.open(tmp_path, os.O_RDONLY)
        os.dup2(directory, descriptor)
        os.close(directory)
        return True


def test_the_plug_in_comes_from_its_own_distribution() -> None:
    entry = installed_backends()["toy"]
    assert entry.dist is not None
    assert entry.dist.name == "durable-cache-toy"
