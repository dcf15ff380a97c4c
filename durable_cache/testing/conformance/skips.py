"""What do `held` and `skips` say of numbers that came and of numbers given up?"""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_cache.model.sample import SampleBatch, Skip, SourceId
from durable_cache.storage.contract import Floor, Storage
from durable_cache.testing.conformance.hooks import StorageHooks, read_all, runs_of
from durable_cache.testing.samples import SOURCE, batch, run, sample

NOTHING = SampleBatch()


def skip(first: int, last: int, source: SourceId = SOURCE, epoch: int = 1) -> Skip:
    return Skip(source, epoch, first, last)


class SkipTests(StorageHooks):
    """Clauses of `held`, `skips`, and of skips in `append`."""

    def test_unbroken_runs_are_named_once(self, storage: Storage) -> None:
        storage.append(batch(run(0, 4), run(6, 6), run(8, 9)))
        storage.append(batch(run(10, 12)))
        key = ("suite/a", "4f2a:7", 1)
        assert runs_of(storage) == {key: [(0, 4), (6, 6), (8, 12)]}
        storage.append(batch(sample(5), sample(7)))
        assert runs_of(storage) == {key: [(0, 12)]}

    def test_held_is_ordered_as_reads_are(self, storage: Storage) -> None:
        sources = [SourceId("f", 2), SourceId("f", 10), SourceId("10", 1)]
        keys = ["Z", "a", "\uff5e", "\U0001f980"]
        samples = [
            sample(1, key, source, epoch)
            for key in keys
            for source in sources
            for epoch in (0, 2, 10)
        ]
        storage.append(batch(reversed(samples)))
        assert [held.stream for held in storage.held()] == [s.stream for s in samples]

    def test_held_names_the_newest_times(self, storage: Storage) -> None:
        storage.append(
            batch(
                sample(1, ntp64=(1 << 64) - 1, received_ns=5),
                sample(2, ntp64=7, received_ns=(1 << 63) - 1),
                sample(3, "other", ntp64=3, received_ns=4),
            )
        )
        assert [(h.newest_ntp64, h.newest_received_ns) for h in storage.held()] == [
            (3, 4),
            ((1 << 64) - 1, (1 << 63) - 1),
        ]

    def test_runs_belong_to_the_caller(self, storage: Storage) -> None:
        storage.append(batch(run(0, 4)))
        for held in storage.held():
            held.runs.remove(0, 2)
        assert runs_of(storage) == {("suite/a", "4f2a:7", 1): [(0, 4)]}

    def test_a_skip_is_kept(self, storage: Storage) -> None:
        storage.append(batch(sample(0), sample(5)), [skip(1, 4)])
        assert list(storage.skips()) == [skip(1, 4)]
        assert runs_of(storage) == {("suite/a", "4f2a:7", 1): [(0, 0), (5, 5)]}
        assert [s.sn for s in read_all(storage)] == [0, 5]

    def test_skips_alone_may_be_appended_and_twice_is_once(self, storage: Storage) -> None:
        for _ in range(2):
            assert storage.append(NOTHING, [skip(1, 4)]).new == 0
        assert list(storage.skips()) == [skip(1, 4)]

    @pytest.mark.parametrize(
        "given",
        [[(1, 4), (5, 9)], [(5, 9), (1, 4)], [(1, 7), (3, 9)], [(1, 9), (4, 5)], [(4, 5), (1, 9)]],
        ids=str,
    )
    def test_skips_are_disjoint_and_maximal(
        self, storage: Storage, given: list[tuple[int, int]]
    ) -> None:
        storage.append(NOTHING, [skip(*run) for run in given])
        storage.append(NOTHING, [skip(20, 20)])
        for ends in given:
            storage.append(NOTHING, [skip(*ends)])
        assert list(storage.skips()) == [skip(1, 9), skip(20, 20)]

    def test_skips_are_ordered(self, storage: Storage) -> None:
        expected = [
            skip(first, first, SourceId(zid, eid), epoch)
            for zid in ("f", "10")
            for eid in (2, 10)
            for epoch in (0, 2, 10)
            for first in (9, 11, 1 << 33)
        ]
        storage.append(NOTHING, expected[::-1])
        assert list(storage.skips()) == expected

    def test_skips_of_sources_and_epochs_do_not_mix(self, storage: Storage) -> None:
        given = [skip(1, 4, SourceId("a", 1)), skip(5, 9, SourceId("a", 2))]
        given.append(skip(10, 12, SourceId("a", 2), epoch=2))
        storage.append(NOTHING, given)
        storage.append(batch(run(0, 20, source=SourceId("b", 1))))
        assert list(storage.skips()) == given

    def test_a_sample_found_later_replaces_its_skip(self, storage: Storage) -> None:
        storage.append(NOTHING, [skip(1, 9)])
        assert storage.append(batch(sample(4))).new == 1
        assert list(storage.skips()) == [skip(1, 3), skip(5, 9)]
        assert [s.sn for s in read_all(storage)] == [4]
        storage.append(batch(run(1, 3), sample(9)))
        assert list(storage.skips()) == [skip(5, 8)]
        storage.append(batch(run(0, 12)))
        assert list(storage.skips()) == []

    def test_a_sample_under_any_key_replaces_the_skip(self, storage: Storage) -> None:
        storage.append(NOTHING, [skip(1, 3)])
        storage.append(batch(sample(2, "one/key"), sample(3, "another/key")))
        assert list(storage.skips()) == [skip(1, 1)]

    def test_a_skip_never_hides_a_held_sample(self, storage: Storage) -> None:
        storage.append(batch(run(3, 4), sample(6, "other")))
        storage.append(NOTHING, [skip(1, 9)])
        assert list(storage.skips()) == [skip(1, 2), skip(5, 5), skip(7, 9)]
        assert {s.sn for s in read_all(storage)} == {3, 4, 6}

    def test_a_sample_in_the_same_append_wins_over_the_skip(self, storage: Storage) -> None:
        result = storage.append(batch(run(3, 4)), [skip(1, 9)])
        assert result.new == 2
        assert list(storage.skips()) == [skip(1, 2), skip(5, 9)]

    def test_a_replaced_skip_does_not_come_back(self, storage: Storage) -> None:
        storage.append(NOTHING, [skip(0, 5)])
        storage.append(batch(run(1, 2)))
        storage.append(NOTHING, [skip(2, 2)])
        storage.purge([Floor(sample().stream, 10)])
        assert read_all(storage) == []
        assert list(storage.skips()) == [skip(0, 0), skip(3, 5)]

    def test_a_trimmed_number_may_be_skipped(self, storage: Storage) -> None:
        storage.append(batch(run(0, 9)))
        storage.purge([Floor(sample().stream, 5)])
        storage.append(NOTHING, [skip(3, 7)])
        assert list(storage.skips()) == [skip(3, 4)]

    def test_wide_skips_cost_nothing(self, storage: Storage) -> None:
        top = (1 << 35) - 2
        storage.append(NOTHING, [skip(0, top)])
        storage.append(batch(sample(1 << 34, ntp64=1)))
        assert list(storage.skips()) == [skip(0, (1 << 34) - 1), skip((1 << 34) + 1, top)]

    def test_skips_are_durable(self, storage: Storage, tmp_path: Path) -> None:
        storage.append(batch(sample(0), sample(5)), [skip(1, 4)])
        storage.append(batch(sample(2)))
        with self.reopened(storage, tmp_path) as again:
            assert list(again.skips()) == [skip(1, 1), skip(3, 4)]
