"""Does a frame of ten million rows stay within 500 MB, whatever the backend?"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from benchmarks.frame import GROWN_MIB_MAX, VOLUMES, fill, measured
from durable_cache.storage.plugins import open_storage

ROWS = 10_000_000


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["sqlite", pytest.param("delta", marks=pytest.mark.delta)])
def test_ten_million_rows_pass_in_bounded_memory(name: str, tmp_path: Path) -> None:
    volume = VOLUMES[name](str(tmp_path))
    with open_storage(volume.backend, "bench", volume.options) as storage:
        fill(storage, ROWS)
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        found = pool.submit(measured, "frame", volume).result()
    assert found.rows == ROWS
    assert found.grown_mib < GROWN_MIB_MAX
