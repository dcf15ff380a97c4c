"""What does the stream index say after retention changed, a restart, a purge?"""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, Stream
from durable_cache.protocol.cache.events import Alias
from durable_cache.storage.contract import Floor, Retention
from durable_cache.storage.journaled.index import StreamIndex

SOURCE = SourceId("ab", 1)
ONE, TWO = Stream("a/1", SOURCE, 3), Stream("a/2", SOURCE, 3)
FEW = Retention(samples_max=10)


def batch(stream: Stream, *sns: int) -> SampleBatch:
    return SampleBatch(Sample(*stream, sn, b"x") for sn in sns)


def filled(path: Path | None = None) -> StreamIndex:
    """Two keys of one source in turn; of the first, what was below 60 was trimmed."""
    index = StreamIndex(path)
    index.keep_by(FEW)
    index.record(batch(ONE, *range(0, 100, 2)))
    index.record(batch(TWO, *range(1, 100, 2)))
    index.trimmed([Floor(ONE, 60)])
    return index


@pytest.mark.parametrize(
    "wider", [Retention(samples_max=11), Retention(), Retention(age_seconds_max=1.0)]
)
def test_a_wider_retention_takes_back_what_the_narrower_removed(
    tmp_path: Path, wider: Retention
) -> None:
    filled(tmp_path / "index.db").close()
    index = StreamIndex(tmp_path / "index.db")
    assert index.keep_by(wider) == 1
    assert index.infos([ONE])[ONE].floor == 0
    ((state,), _) = index.load(SOURCE)
    assert state.held == RangeSet.of([*range(1, 60, 2), *range(60, 100)])
    assert state.skipped == RangeSet.of(range(0, 60, 2))
    index.record(batch(ONE, 58))
    assert index.infos([ONE])[ONE].held == RangeSet.of(range(58, 100, 2))
    ((state,), _) = index.load(SOURCE)
    assert 58 in state.held
    assert 58 not in state.skipped
    assert index.keep_by(wider) == 0


def test_retention_widened_while_the_cache_runs_takes_back_at_the_next_start(
    tmp_path: Path,
) -> None:
    running = filled(tmp_path / "index.db")
    assert running.keep_by(Retention(), release=False) == 0
    assert running.infos([ONE])[ONE].floor == 60
    assert running.keep_by(Retention(samples_max=5), release=False) == 0
    assert running.keep_by(Retention(samples_max=20), release=False) == 0
    running.close()
    index = StreamIndex(tmp_path / "index.db")
    assert index.keep_by(Retention(samples_max=20)) == 1
    assert index.infos([ONE])[ONE].floor == 0


@pytest.mark.parametrize("retention", [FEW, Retention(samples_max=9)])
def test_the_same_or_a_narrower_retention_takes_nothing_back(retention: Retention) -> None:
    index = filled()
    assert index.keep_by(retention) == 0
    assert index.infos([ONE])[ONE].floor == 60
    ((state,), _) = index.load(SOURCE)
    assert state.held == RangeSet([(0, 99)])


def test_the_first_retention_takes_nothing_back() -> None:
    index = StreamIndex()
    index.record(batch(ONE, *range(10)))
    index.trimmed([Floor(ONE, 5)])
    assert index.keep_by(Retention()) == 0
    assert index.infos([ONE])[ONE].floor == 5


def test_a_purge_stays_when_retention_is_widened() -> None:
    index = filled()
    index.trimmed([Floor(ONE, 20)], purged=True)
    assert index.keep_by(Retention()) == 1
    assert index.infos([ONE])[ONE][2:4] == (20, 20)
    ((state,), _) = index.load(SOURCE)
    assert state.held.clip(0, 19) == RangeSet([(0, 19)])
    assert state.skipped == RangeSet.of(range(20, 60, 2))


def test_what_was_awaited_stays_awaited_when_retention_is_widened() -> None:
    index = StreamIndex()
    index.keep_by(FEW)
    index.record(batch(ONE, 0, 1, 5, 6, 7), [Skip(SOURCE, 3, 2, 2)])
    index.trimmed([Floor(ONE, 6)])
    assert index.keep_by(Retention()) == 1
    ((state,), _) = index.load(SOURCE)
    assert (state.held, state.skipped) == (RangeSet([(6, 7)]), RangeSet([(0, 2), (5, 5)]))


def test_an_agreement_stands_until_it_is_taken_back(tmp_path: Path) -> None:
    index = StreamIndex(tmp_path / "index.db")
    one, two = Alias(SOURCE, 3, 0, 5), Alias(SOURCE, 4, 0, 5)
    for agreement in (one, two, one):
        index.agree(agreement)
    assert sorted(index.agreements()) == [one, two]
    index.disagree(one)
    index.close()
    index = StreamIndex(tmp_path / "index.db")
    assert index.agreements() == [two]
    index.close()


def test_sources_with_holes_are_those_whose_numbers_are_not_one_run() -> None:
    index = StreamIndex()
    index.record(batch(ONE, 0, 1, 2))
    assert index.sources_with_holes(9) == []
    index.record(batch(TWO, 3, 4))
    assert index.sources_with_holes(9) == [], "the hole of one key is another's number"
    index.record(batch(ONE, 6))
    assert index.sources_with_holes(9) == [SOURCE]
    index.close()


def test_what_is_here_without_an_epoch_beside_a_named_run_is_looked_at_as_holes_are() -> None:
    """A question whether both are one run may have been forgotten (seed 519 of the simulator)."""
    index = StreamIndex()
    nameless = ONE._replace(epoch=0)
    index.record(batch(nameless, 0, 1))
    assert index.sources_with_holes(9) == []
    index.record(batch(ONE, 0, 1, 2))
    assert index.sources_with_holes(9) == [], "no token named a run of it"
    index.declare(SOURCE, ONE.epoch, "0a0a0a0a")
    assert index.sources_with_holes(9) == [SOURCE]
    other = SourceId("ff", 1)
    index.record(batch(ONE._replace(source=other), 0, 2))
    assert index.sources_with_holes(1) == [other], "holes come first"
    assert index.sources_with_holes(9) == [other, SOURCE]
    index.close()
