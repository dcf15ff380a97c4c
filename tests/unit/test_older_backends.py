"""Does a cache notice that its backend is an older copy, whatever that lacks? (ADR 0330)"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from durable_cache.model.key_expression import EVERY_KEY
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Capabilities, Durability, Floor
from durable_cache.storage.journaled import index_blocks
from durable_cache.storage.journaled.index_rows import set_meta
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage

SOURCE = SourceId("ab", 1)
KEYS = ("a/1", "a/2")
Step = Sequence[tuple[str, int]]
"""Samples that are stored at once: their keys and numbers."""


class Backend(MemoryStorage):
    """A backend that outlives its handles."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False, append_samples=64)

    def close(self) -> None:
        """It goes on without us."""


def opened(folder: Path, backend: Backend) -> closing[JournaledStorage]:
    return closing(JournaledStorage(backend, folder))


def copy_of(backend: Backend) -> Backend:
    copy = Backend()
    copy.append(SampleBatch(backend.read(Selection(EVERY_KEY), 10_000).samples))
    return copy


def store_all(folder: Path, backend: Backend, *steps: Step) -> None:
    """Store in several batches, and leave the journal empty."""
    with opened(folder, backend) as store:
        for step in steps:
            samples = [Sample(key, SOURCE, 3, sn, b"x", ntp64=sn + 1) for key, sn in step]
            store.commit(SampleBatch(samples))
            assert store.drain_all(5)


def filled(folder: Path, *steps: Step) -> Backend:
    backend = Backend()
    store_all(folder, backend, *steps)
    return backend


def findings(folder: Path, backend: Backend) -> list[str]:
    with opened(folder, backend) as store:
        return [*store.findings]


def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the index put runs in blocks as it does those of many thousand samples."""
    monkeypatch.setattr(index_blocks, "BLOCK_RUNS", 2)
    monkeypatch.setattr(index_blocks, "TAIL_RUNS_MAX", 4)


def both(first: int, last: int) -> Step:
    return [(KEYS[sn % 2], sn) for sn in range(first, last + 1)]


@pytest.mark.parametrize(
    "last",
    [
        pytest.param([("a/1", 40)], id="its end"),
        pytest.param([("a/1", 20)], id="a number below the newest"),
        pytest.param([*both(19, 21), *both(30, 39)], id="one among repeats"),
        pytest.param([("a/**", 20)], id="a wildcard update below a later one"),
    ],
)
def test_a_backend_that_lacks_what_was_stored_last_is_an_older_copy(
    tmp_path: Path, last: Step
) -> None:
    backend = filled(tmp_path, both(0, 19), [("a/**", 50)], both(21, 39))
    copy = copy_of(backend)
    store_all(tmp_path, backend, last)
    assert not findings(tmp_path, backend)
    (finding,) = findings(tmp_path, copy)
    assert "older copy" in finding
    assert not findings(tmp_path, copy)


def test_what_is_stored_once_more_does_not_hide_what_came_before_it(tmp_path: Path) -> None:
    backend = filled(tmp_path, both(0, 19), both(21, 39))
    copy = copy_of(backend)
    store_all(tmp_path, backend, [("a/1", 20)], both(30, 39))
    (finding,) = findings(tmp_path, copy)
    assert "number 20 " in finding


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([[("a/1", 4)]], id="stored last"),
        pytest.param([[("a/1", 4)], [("a/1", 8)]], id="before a repeat"),
    ],
)
def test_a_late_number_of_a_publisher_with_many_keys_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Sequence[Step]
) -> None:
    """Its runs stand in blocks: the number is below those that are at hand."""
    short_blocks(monkeypatch)
    runs = [[(KEYS[sn % 2], sn) for sn in range(at, at + 20) if sn != 4] for at in (0, 20, 40)]
    backend = filled(tmp_path, *runs)
    copy = copy_of(backend)
    store_all(tmp_path, backend, *steps)
    (finding,) = findings(tmp_path, copy)
    assert "number 4 " in finding


@pytest.mark.parametrize("more", [pytest.param(0, id="before the first"), 4, 8])
def test_a_backend_with_numbers_that_the_index_lacks_is_another_one(
    tmp_path: Path, more: int
) -> None:
    """It was lost and peers gave most of it anew; then it is put back (seed 97111)."""
    lacking = [("a/1", sn) for sn in (1, 2, 3, 5, 7, 9) if sn != more]
    backend = filled(tmp_path, lacking)
    assert not findings(tmp_path, backend)
    backend.append(SampleBatch([Sample("a/1", SOURCE, 3, more, b"x", ntp64=more + 1)]))
    (finding,) = findings(tmp_path, backend)
    assert f"holds number {more} " in finding
    assert not findings(tmp_path, backend)


def test_what_retention_left_below_its_floor_is_no_finding(tmp_path: Path) -> None:
    backend = filled(tmp_path, [("a/1", sn) for sn in range(9)])
    with opened(tmp_path, backend) as store:
        assert store.purge([Floor(Stream("a/1", SOURCE, 3), 4)]) == 4
    backend.append(SampleBatch([Sample("a/1", SOURCE, 3, 3, b"x", ntp64=4)]))
    assert not findings(tmp_path, backend)


def test_a_wildcard_update_below_what_its_keys_have_is_no_finding(tmp_path: Path) -> None:
    """It is stored last, and is older than what is held of the keys that it is about."""
    backend = filled(tmp_path, both(0, 19), both(21, 39), [("a/**", 20)])
    assert not findings(tmp_path, backend)


def test_what_was_removed_since_is_not_looked_for(tmp_path: Path) -> None:
    backend = filled(tmp_path, both(0, 19), [("a/1", 30)])
    with opened(tmp_path, backend) as store:
        assert store.purge([Floor(Stream("a/1", SOURCE, 3), 31)]) == 11
    assert not findings(tmp_path, backend)


def test_marks_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    backend = filled(tmp_path, both(0, 19))
    with opened(tmp_path, backend) as store, store.index.transaction() as database:
        set_meta(database, "marks", '[["a/1",["ab",1],3,18],["a/2",["ab",1],3,19]]')
    assert not findings(tmp_path, backend)
