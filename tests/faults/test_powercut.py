"""Does the simulated power cut lose exactly what was never flushed?"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.powercut import PowerCutDisk

pytestmark = pytest.mark.root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerCutDisk]:
    reason = PowerCutDisk.available()
    if reason is not None:
        pytest.skip(reason)
    with PowerCutDisk(tmp_path, size_mib=16) as disk:
        yield disk


def _write(path: Path, content: bytes, *, flush: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, content)
    if flush:
        os.fsync(descriptor)
    os.close(descriptor)
    if flush:
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def test_what_was_flushed_survives_and_what_was_not_is_gone(disk: PowerCutDisk) -> None:
    _write(disk.path / "flushed", b"kept" * 1000, flush=True)
    _write(disk.path / "unflushed", b"lost" * 1000, flush=False)
    assert (disk.path / "unflushed").read_bytes() == b"lost" * 1000

    disk.cut()
    found = disk.remount()

    assert (found / "flushed").read_bytes() == b"kept" * 1000
    assert not (found / "unflushed").exists()


def test_an_unflushed_change_of_a_flushed_file_is_undone(disk: PowerCutDisk) -> None:
    _write(disk.path / "file", b"before", flush=True)
    _write(disk.path / "file", b"after.", flush=False)

    disk.cut()

    assert (disk.remount() / "file").read_bytes() == b"before"


def test_every_write_after_the_cut_fails(disk: PowerCutDisk) -> None:
    descriptor = os.open(disk.path / "file", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        disk.cut()
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(descriptor)
        with pytest.raises(OSError, match="not running"):
            disk.cut()
    finally:
        os.close(descriptor)


def test_sqlite_keeps_what_it_committed_with_full_synchronisation(disk: PowerCutDisk) -> None:
    for cycle in range(3):
        connection = sqlite3.connect(disk.path / "samples.db", isolation_level=None)
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("create table if not exists sample(sn integer primary key)")
        connection.execute("insert into sample values (?)", (cycle,))
        connection.execute("begin")
        connection.execute("insert into sample values (?)", (1000 + cycle,))
        disk.cut()
        connection.close()
        disk.remount()
        connection = sqlite3.connect(disk.path / "samples.db")
        stored = [sn for (sn,) in connection.execute("select sn from sample order by sn")]
        connection.close()
        assert stored == list(range(cycle + 1))


def test_nothing_is_left_mounted(tmp_path: Path) -> None:
    reason = PowerCutDisk.available()
    if reason is not None:
        pytest.skip(reason)
    with PowerCutDisk(tmp_path, size_mib=16) as disk:
        disk.cut()
        still_open = os.open(disk.path, os.O_RDONLY)
        os.close(still_open)
    assert str(disk.path) not in Path("/proc/mounts").read_text()
    assert not disk.image.exists()
