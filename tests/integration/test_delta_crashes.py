"""Is every sample stored exactly once, wherever in a commit the process dies?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
from deltalake import DeltaTable

from durable_cache.errors import StorageCorrupt
from durable_cache.model.sample import Sample, SampleBatch, Skip
from durable_cache.storage.contract import Floor
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import SOURCE, batch, run, sample
from durable_cache_delta import failpoints
from durable_cache_delta.maintenance import optimize
from tests.servers.delta import Crash, crashing_at, lake, opened

pytestmark = pytest.mark.delta

VICTIM = """
import os, signal, sys
from pathlib import Path
from durable_cache.model.sample import Skip
from durable_cache.testing.samples import SOURCE, batch, run
from durable_cache_delta import failpoints
from tests.servers.delta import opened

def die(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

storage = opened(sys.argv[1])
storage.append(batch(run(0, 9)))
failpoints.hook = die
storage.append(batch(run(10, 19), run(10, 19, "suite/b")), [Skip(SOURCE, 1, 20, 29)])
"""
WHOLE = [*run(0, 19), *run(10, 19, "suite/b")]


def rows_of(path: Path) -> list[tuple[str, int]]:
    """Return (key, sn) of every row as another engine sees the table."""
    table = DeltaTable(str(path / "fleet" / "samples"))
    columns = pa.table(table.to_pyarrow_table(columns=["key_expr", "sn"])).to_pydict()
    return sorted(zip(columns["key_expr"], columns["sn"], strict=True))


def append_again(path: Path) -> None:
    with opened(path) as storage:
        before = read_all(storage)
        assert before in (run(0, 9), WHOLE), "part of a commit is visible"
        storage.append(batch(run(0, 9)))
        result = storage.append(
            batch(run(10, 19), run(10, 19, "suite/b")), [Skip(SOURCE, 1, 20, 29)]
        )
        assert result.new == len(WHOLE) - len(before)
        assert read_all(storage) == WHOLE
        assert list(storage.skips()) == [Skip(SOURCE, 1, 20, 29)]
    assert rows_of(path) == sorted((s.key, s.sn) for s in WHOLE)


@pytest.mark.slow
@pytest.mark.parametrize("point", failpoints.POINTS)
def test_a_kill_within_a_commit(tmp_path: Path, point: str) -> None:
    path = os.pathsep.join([str(Path.cwd()), *(part for part in sys.path if part)])
    died = subprocess.run(
        [sys.executable, "-c", VICTIM, str(tmp_path), point],
        env=os.environ | {"PYTHONPATH": path},
        timeout=120,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    append_again(tmp_path)


@pytest.mark.parametrize("point", failpoints.POINTS)
@pytest.mark.parametrize("table", [0, 1], ids=["samples", "skips"])
def test_a_crash_within_a_commit(tmp_path: Path, point: str, table: int) -> None:
    if table and point.startswith("parquet"):
        pytest.skip("the small table's file is not announced")
    storage = opened(tmp_path)
    storage.append(batch(run(0, 9)))
    with crashing_at(point, after=table), pytest.raises(Crash):
        storage.append(batch(run(10, 19), run(10, 19, "suite/b")), [Skip(SOURCE, 1, 20, 29)])
    storage.close()
    append_again(tmp_path)


@pytest.mark.parametrize("point", failpoints.POINTS)
def test_the_same_handle_goes_on_after_an_error(tmp_path: Path, point: str) -> None:
    with opened(tmp_path) as storage:
        storage.append(batch(run(0, 9)))
        with crashing_at(point), pytest.raises(Crash):
            storage.append(batch(run(10, 19)))
        storage.append(batch(run(10, 19)))
        assert read_all(storage) == run(0, 19)
    with opened(tmp_path) as again:
        assert read_all(again) == run(0, 19)


@pytest.mark.parametrize("point", failpoints.POINTS)
def test_a_crash_within_a_removal(tmp_path: Path, point: str) -> None:
    storage = opened(tmp_path)
    storage.append(batch(run(0, 9)))
    with crashing_at(point), pytest.raises(Crash):
        storage.purge([Floor(sample().stream, 5)])
    storage.close()
    with opened(tmp_path) as again:
        assert read_all(again) in (run(0, 9), run(5, 9))
        again.purge([Floor(sample().stream, 5)])
        assert read_all(again) == run(5, 9)


@pytest.mark.parametrize("point", failpoints.POINTS)
def test_a_crash_within_a_compaction_loses_and_repeats_nothing(tmp_path: Path, point: str) -> None:
    with opened(tmp_path) as storage:
        for first in range(0, 30, 10):
            storage.append(batch(run(first, first + 9)))
    with crashing_at(point), pytest.raises(Crash):
        optimize(lake(tmp_path), "fleet")
    with opened(tmp_path) as again:
        assert read_all(again) == run(0, 29)
    assert len(rows_of(tmp_path)) == 30


def log_file(path: Path, version: int) -> Path:
    return path / "fleet" / "samples" / "_delta_log" / f"{version:020}.json"


def torn(path: Path, *, acknowledged: bool) -> None:
    """Leave a storage with two commits of ten samples; the second with its ack or without."""
    storage = opened(path)
    storage.append(batch(run(0, 9)))
    if acknowledged:
        storage.append(batch(run(10, 19)))
    else:
        with crashing_at("commit synced"), pytest.raises(Crash):
            storage.append(batch(run(10, 19)))
    storage.close()
    (path / "fleet" / "index.cache").unlink(missing_ok=True)


def damage_commit(path: Path, how: str) -> None:
    file = log_file(path, 2)
    data = file.read_bytes()
    file.write_bytes({"empty": b"", "half": data[: len(data) // 2], "NULs": bytes(len(data))}[how])


@pytest.mark.parametrize("how", ["empty", "half", "NULs"])
def test_a_torn_commit_that_nobody_was_told_of_is_taken_back(tmp_path: Path, how: str) -> None:
    torn(tmp_path, acknowledged=False)
    damage_commit(tmp_path, how)
    with opened(tmp_path) as storage:
        assert read_all(storage) == run(0, 9)
        assert storage.append(batch(run(10, 19))).new == 10
    assert len(rows_of(tmp_path)) == 20


@pytest.mark.parametrize("how", ["empty", "half", "NULs"])
def test_a_torn_commit_that_was_acknowledged_is_corruption(tmp_path: Path, how: str) -> None:
    torn(tmp_path, acknowledged=True)
    damage_commit(tmp_path, how)
    before = log_file(tmp_path, 2).read_bytes()
    with pytest.raises(StorageCorrupt, match="version 2"):
        opened(tmp_path)
    assert log_file(tmp_path, 2).read_bytes() == before, "evidence was destroyed"


def damage_newest_data(path: Path, how: str) -> None:
    files = sorted((path / "fleet" / "samples").glob("day=*/*.parquet"), key=os.path.getmtime)
    data = files[-1].read_bytes()
    flipped = bytearray(data)
    flipped[40] ^= 0x55
    files[-1].write_bytes(
        {"empty": b"", "short": data[:-100], "zeros": bytes(len(data)), "bit": bytes(flipped)}[how]
    )


@pytest.mark.parametrize("how", ["empty", "short", "zeros", "bit"])
def test_a_torn_file_that_nobody_was_told_of_is_taken_back(tmp_path: Path, how: str) -> None:
    torn(tmp_path, acknowledged=False)
    damage_newest_data(tmp_path, how)
    with opened(tmp_path) as storage:
        assert read_all(storage) == run(0, 9)
        assert storage.append(batch(run(10, 19))).new == 10
        assert read_all(storage) == run(0, 19)


@pytest.mark.parametrize("how", ["empty", "short", "zeros", "bit"])
def test_a_damaged_file_that_was_acknowledged_is_named(tmp_path: Path, how: str) -> None:
    torn(tmp_path, acknowledged=True)
    damage_newest_data(tmp_path, how)
    with pytest.raises(StorageCorrupt, match=r"part-\w+\.parquet"), opened(tmp_path) as storage:
        read_all(storage)


def test_a_log_cut_short_is_corruption(tmp_path: Path) -> None:
    torn(tmp_path, acknowledged=True)
    log_file(tmp_path, 2).unlink()
    with pytest.raises(StorageCorrupt, match="version 2 was acknowledged"):
        opened(tmp_path)


def test_a_torn_checkpoint_is_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.append(batch(run(0, 9)))
    optimize(lake(tmp_path), "fleet")
    log = tmp_path / "fleet" / "samples" / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"")
    with opened(tmp_path) as storage:
        assert read_all(storage) == run(0, 9)
    assert not checkpoint.exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("commits", [150, pytest.param(500, marks=pytest.mark.nightly)])
def test_exactly_once_over_hundreds_of_commits(tmp_path: Path, commits: int, seed: int) -> None:
    """Each is tried until it is acknowledged; crashes anywhere."""
    random = Random(seed)
    storage = opened(tmp_path)
    expected: list[Sample] = []
    crashes = 0
    for number in range(commits):
        samples = run(number * 5, number * 5 + 4, f"suite/{number % 7}")
        expected.extend(samples)
        while True:
            point = random.choice(failpoints.POINTS)
            after = random.choice([0, *[999] * 9])
            try:
                with crashing_at(point, after):
                    storage.append(SampleBatch(samples))
                break
            except Crash:
                crashes += 1
                storage.close()
                storage = opened(tmp_path)
        if number % 60 == 59:
            storage.close()
            optimize(lake(tmp_path), "fleet")
            storage = opened(tmp_path)
    with storage:
        assert read_all(storage) == sorted(expected, key=lambda s: s.order)
    assert rows_of(tmp_path) == sorted((s.key, s.sn) for s in expected)
    assert crashes > commits // 25
