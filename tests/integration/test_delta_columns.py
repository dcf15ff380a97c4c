"""Does a batch become the same rows whatever it is cut into, and come back as it was?"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deltalake")

import msgspec
import pyarrow.parquet as pq

from durable_cache.model.sample import Sample, SourceId
from durable_cache.testing.conformance.hooks import read_all
from durable_cache.testing.samples import SOURCE, START_NS, batch, sample
from durable_cache_delta import DeltaBackend
from durable_cache_delta.schema import SAMPLES_IN_FILES
from tests.servers.delta import lake, opened, write

pytestmark = pytest.mark.delta
OTHER_SOURCE = SourceId("10", 7)
DAY_NS = 86_400 * 10**9


def mixed() -> list[Sample]:
    """Samples of two keys and sources over three days, in no order, fields changing within."""
    return [
        msgspec.structs.replace(
            sample(sn, key, source, payload=bytes([sn]) * (sn * 40), ntp64=(1 << 64) - 1 - sn),
            attachment=None if sn % 3 else bytes([sn]),
            encoding=("zenoh/bytes", "text/plain;utf-8")[sn % 2],
            stamped=sn % 4 == 0,
            received_ns=START_NS + sn % 3 * DAY_NS,
        )
        for sn in range(29, -1, -1)
        for key, source in (("b", SOURCE), ("a", OTHER_SOURCE), ("b", OTHER_SOURCE))
    ]


@pytest.mark.parametrize("bounds", [{}, {"file_rows_max": 1024}, {"file_bytes_target": 1024}])
def test_a_batch_over_days_and_files_comes_back_as_it_was(
    tmp_path: Path, bounds: dict[str, int]
) -> None:
    made = mixed()
    with DeltaBackend().open("fleet", lake(tmp_path, **bounds)) as storage:
        assert storage.append(batch(made)).new == len(made)
        assert read_all(storage) == sorted(made, key=lambda s: s.order)
        days = {file.day for file in storage.files()}
        assert len(days) == 3
        assert (len(storage.files()) > 3) == ("file_bytes_target" in bounds)
    with opened(tmp_path) as again:
        assert again.append(batch(made)).duplicates == len(made)


def test_files_say_what_the_schema_says(tmp_path: Path) -> None:
    write(tmp_path, mixed())
    for file in (tmp_path / "fleet" / "samples").glob("day=*/*.parquet"):
        assert pq.read_schema(file).remove_metadata() == SAMPLES_IN_FILES.remove_metadata()
