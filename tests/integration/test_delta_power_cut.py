"""Is what was acknowledged still there after the power of the disk was cut?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
from deltalake import DeltaTable

from durable_cache.model.sample import Skip
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import SOURCE, batch, run
from durable_cache_delta import failpoints
from tests.kit.powercut import PowerCutDisk, reason_unavailable
from tests.servers.delta import opened

pytestmark = [
    pytest.mark.delta,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(reason_unavailable() is not None, reason=str(reason_unavailable())),
]
SECONDS = 120

WRITER = """
import sys
from durable_cache.model.sample import Skip
from durable_cache.testing.samples import SOURCE, batch, run
from durable_cache_delta import failpoints
from tests.servers.delta import opened

path, stop_at, before = sys.argv[1], sys.argv[2], int(sys.argv[3])

def wait():
    print("here", flush=True)
    sys.stdin.readline()

def hook(point):
    if point == stop_at:
        wait()

storage = opened(path)
for number in range(before):
    skip = Skip(SOURCE, 1, 1000 + number, 1000 + number)
    storage.append(batch(run(number * 10, number * 10 + 9)), [skip])
failpoints.hook = hook
if stop_at != "idle":
    storage.append(batch(run(before * 10, before * 10 + 9)))
wait()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerCutDisk]:
    with PowerCutDisk(tmp_path, size_mib=64) as mounted:
        yield mounted


def cut_at(disk: PowerCutDisk, point: str, before: int) -> None:
    """Run a writer until it reaches `point` of its next commit, cut the power, end the writer."""
    path = os.pathsep.join([str(Path.cwd()), *(part for part in sys.path if part)])
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(disk.path / "lake"), point, str(before)],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "here\n"
        disk.cut()
        writer.kill()
        writer.wait(SECONDS)
    disk.remount()


@pytest.mark.parametrize("point", ["idle", *failpoints.POINTS])
@pytest.mark.parametrize("before", [0, 3])
def test_acknowledged_samples_survive_and_the_rest_is_whole_or_absent(
    disk: PowerCutDisk, point: str, before: int
) -> None:
    cut_at(disk, point, before)
    acknowledged, offered = run(0, before * 10 - 1), run(before * 10, before * 10 + 9)
    with opened(disk.path / "lake") as storage:
        assert read_all(storage) in (acknowledged, acknowledged + offered)
        expected = [Skip(SOURCE, 1, 1000, 999 + before)] if before else []
        assert list(storage.skips()) == expected
        storage.append(batch(offered))
        assert read_all(storage) == acknowledged + offered
    table = DeltaTable(str(disk.path / "lake" / "fleet" / "samples"))
    assert pa.table(table.to_pyarrow_table(columns=["sn"])).num_rows == before * 10 + 10
