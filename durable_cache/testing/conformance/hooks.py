"""How does the conformance suite reach the backend under test?"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from durable_cache.model.sample import Sample
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Durability, Floor, Held, Storage

PAGES_MAX = 100_000
EVERYTHING = Selection()


class StorageHooks(ABC):
    """What a backend's subclass of the suite gives it: `open`, and what else it can.

    The methods run in the test's process; `open` also in a child process that is killed, in an
    instance made without arguments, so it may use its arguments and the environment, no fixtures.
    """

    @abstractmethod
    def open(self, tmp_path: Path, name: str = "suite", writer: bool = True) -> Storage:
        """Open the storage `name` of the test whose directory is `tmp_path`.

        The same path and name open the same storage again; another path or name another, empty
        one. A backend behind a server derives a name of its own from `tmp_path`.
        """

    def sabotage(self, tmp_path: Path, name: str, storage: Storage) -> bool:
        """Make the driver of the open `storage` fail from now on; False where there is no way."""
        return False

    def unstorable(self) -> Sample | None:
        """Return a sample that this backend must refuse, or None when it takes every sample."""
        return None

    def writer_command(self, tmp_path: Path, name: str) -> Sequence[str]:
        """Return the command of a child that writes to the storage until it is killed."""
        suite = type(self)
        return [
            sys.executable,
            "-m",
            "durable_cache.testing.conformance.victim",
            inspect.getfile(suite),
            suite.__qualname__,
            str(tmp_path),
            name,
        ]

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        with self.open(tmp_path) as storage:
            yield storage

    def reopened(self, storage: Storage, tmp_path: Path) -> Storage:
        """Close and open again; skips the test where a storage ends with its handle."""
        if storage.capabilities.durability is Durability.MEMORY:
            pytest.skip("declares no durability: a storage ends with its handle")
        storage.close()
        return self.open(tmp_path)


def read_all(
    storage: Storage, selection: Selection = EVERYTHING, limit: int = 1000
) -> list[Sample]:
    """Read page by page, checking what holds of every page."""
    found: list[Sample] = []
    cursor: Cursor | None = None
    for _ in range(PAGES_MAX):
        page = storage.read(selection, limit, cursor)
        assert len(page.samples) <= limit
        for one in page.samples:
            assert not found or selection.place(found[-1]) < selection.place(one), "out of order"
            found.append(one)
        if page.cursor is None:
            return found
        assert page.samples, "an empty page has no cursor"
        assert page.cursor == selection.place(found[-1])
        cursor = page.cursor
    raise AssertionError("the pages do not end")


def runs_of(storage: Storage) -> dict[tuple[str, str, int], list[tuple[int, int]]]:
    """Return what `held` says, by (key, source, epoch), for easy comparison."""
    found: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    held: list[Held] = list(storage.held())
    assert held == sorted(held, key=lambda one: one.stream.order), "held() is out of order"
    for one in held:
        key, source, epoch = one.stream
        found[key, str(source), epoch] = [(run.first, run.last) for run in one.runs]
    assert len(found) == len(held), "held() names a stream twice"
    assert all(found.values()), "held() names a stream that holds nothing"
    return found


def floors_by_stream(floors: Sequence[Floor]) -> dict[tuple[str, str, int], int]:
    """Return floors by (key, source, epoch); each stream is named once."""
    found = {(f.stream.key, str(f.stream.source), f.stream.epoch): f.sn for f in floors}
    assert len(found) == len(floors), "a stream has two floors"
    return found
