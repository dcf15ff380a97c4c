"""Does the backlog hold in memory what its bound says, whatever the samples are like?"""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.storage.journaled.backlog import Backlog
from durable_cache.storage.journaled.journal import Entry

SAMPLES = 20_000
BOUND = 8 << 20


def alone(at: int) -> Sample:
    """A sample that shares nothing with another."""
    zid = f"{at + (1 << 40):x}"
    source = SourceId(zid, at + 1000)
    return Sample(
        f"fleet/robot{at:06d}/pose",
        source,
        200_000_000 + at,
        at + 1000,
        b"%020d" % at,
        ntp64=(1 << 62) + at,
        timestamp_id=f"{at + (1 << 41):x}",
        received_ns=1_790_000_000_000_000_000 + at,
    )


def neighbour(at: int) -> Sample:
    source, stamp = SOURCE
    return Sample(
        KEY,
        source,
        5,
        at + 1000,
        b"%020d" % at,
        ntp64=(1 << 62) + at,
        timestamp_id=stamp,
        received_ns=1_790_000_000_000_000_000 + at,
    )


SOURCE = SourceId("ab12", 7), "ab12"
KEY = "fleet/robot/pose"


@pytest.mark.parametrize("make", [alone, neighbour])
def test_a_bound_in_bytes_counts_what_is_held(make) -> None:  # type: ignore[no-untyped-def]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    backlog = Backlog(BOUND, lambda after, limit: [])
    for first in range(0, SAMPLES, 500):
        batch = SampleBatch(make(at) for at in range(first, first + 500))
        assert len(batch.summaries)  # as the engine and the aligner leave it
        backlog.push(Entry(first + 1, batch, ()))
        del batch
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert BOUND * 0.9 < backlog.bytes <= BOUND
    assert held < 1.5 * BOUND
    assert backlog.spilled
    assert backlog.samples == SAMPLES
