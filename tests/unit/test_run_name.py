"""Does the id of a timestamp name a run, and nothing that another clock has for one?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.run_name import RunName, by_named_run, run_of_id, runs_of
from durable_cache.model.sample import Sample, SampleBatch, SourceId, is_zid

SOURCE = SourceId("4f2a", 7)
FIRST, SECOND = RunName(209_547_579, "0000000a"), RunName(209_547_580, "ffffffff")
epochs = st.integers(min_value=1, max_value=(1 << 29) - 1)
incarnations = st.integers(min_value=0, max_value=(1 << 32) - 1).map("{:08x}".format)


def sample(sn: int, timestamp_id: str) -> Sample:
    return Sample("k", SOURCE, 0, sn, b"", timestamp_id=timestamp_id)


@given(epochs, incarnations)
def test_an_id_names_the_run_that_it_was_made_of(epoch: int, incarnation: str) -> None:
    run = RunName(epoch, incarnation)
    assert run_of_id(run.timestamp_id) == run
    assert is_zid(run.timestamp_id)
    assert len(run.timestamp_id) == 32


@pytest.mark.parametrize(
    "other",
    [
        *("", "1", SOURCE.zid, "ab12" * 8, FIRST.timestamp_id[:-1]),
        RunName(0, "0000000a").timestamp_id,
        RunName(1 << 29, "0000000a").timestamp_id,
        FIRST.timestamp_id[:-1] + "_",
    ],
)
def test_the_id_of_another_clock_or_of_no_run_names_none(other: str) -> None:
    assert run_of_id(other) is None


def test_samples_are_parted_by_the_run_they_name_in_their_order() -> None:
    one, two = FIRST.timestamp_id, SECOND.timestamp_id
    samples = [sample(0, one), sample(1, two), sample(2, one), sample(3, "ab12")]
    parts = by_named_run(samples)
    assert [(run, [one.sn for one in part]) for run, part in parts] == [
        (FIRST, [0, 2]),
        (SECOND, [1]),
        (None, [3]),
    ]
    assert by_named_run(samples[:1]) == [(FIRST, samples[:1])]
    assert runs_of(SampleBatch(samples)) == {(SOURCE, FIRST), (SOURCE, SECOND)}
