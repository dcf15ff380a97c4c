"""Does each bound of a Delta storage do what its description says?"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deltalake")

import pyarrow.parquet as pq

from durable_cache.errors import StorageFull
from durable_cache.model.sample import Skip
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import SOURCE, batch, run
from durable_cache_delta import DeltaBackend, DeltaOptions
from durable_cache_delta.maintenance import optimize, vacuum
from tests.servers.delta import lake

pytestmark = pytest.mark.delta


def parquet_files(folder: Path) -> list[Path]:
    return sorted((folder / "fleet" / "samples").rglob("*.parquet"))


def written_in_parts(options: DeltaOptions, parts: int) -> None:
    with DeltaBackend().open("fleet", options) as storage:
        for part in range(parts):
            storage.append(batch(run(part * 10, part * 10 + 9)))


def test_row_groups_have_the_rows_asked_for(tmp_path: Path) -> None:
    with DeltaBackend().open("fleet", lake(tmp_path, row_group_rows=1024)) as storage:
        storage.append(batch(run(0, 2999)))
    (file,) = parquet_files(tmp_path)
    assert pq.ParquetFile(file).num_row_groups == 3


@pytest.mark.parametrize(("bytes_max", "left"), [(512 << 20, 1), (1024, 4)])
def test_one_compaction_merges_no_more_bytes_than_allowed(
    tmp_path: Path, bytes_max: int, left: int
) -> None:
    options = lake(tmp_path, compact_bytes_max=bytes_max)
    written_in_parts(options, 4)
    assert optimize(options, "fleet").files_after == left


@pytest.mark.parametrize(("hours", "kept"), [(168.0, True), (0.0, False)])
def test_replaced_files_stay_for_the_hours_allowed(
    tmp_path: Path, hours: float, kept: bool
) -> None:
    options = lake(tmp_path, vacuum_retention_hours=hours)
    written_in_parts(options, 4)
    before = parquet_files(tmp_path)
    optimize(options, "fleet")
    vacuum(options, "fleet")
    assert [file.exists() for file in before] == [kept] * 4


def test_skips_beyond_the_bound_are_refused_by_the_option_s_name(tmp_path: Path) -> None:
    with DeltaBackend().open("fleet", lake(tmp_path, skips_max=2)) as storage:
        skips = [Skip(SOURCE, 1, sn, sn) for sn in (10, 20, 30)]
        storage.append(batch(run(0, 1)), skips[:2])
        with pytest.raises(StorageFull, match="skips_max = 2"):
            storage.append(batch(run(2, 3)), skips[2:])
        assert [(skip.first, skip.last) for skip in storage.skips()] == [(10, 10), (20, 20)]


def test_footers_beyond_the_bound_are_read_again(tmp_path: Path) -> None:
    options = lake(tmp_path, footers_max=1)
    written_in_parts(options, 4)
    with DeltaBackend().open("fleet", options) as storage:
        assert [found.sn for found in read_all(storage)] == list(range(40))
        assert len(storage.scanner._footers) <= 1
