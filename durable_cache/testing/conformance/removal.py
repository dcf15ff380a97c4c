"""What do `trim` and `purge` remove, and what do they leave alone?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from durable_cache.model.sample import Skip, SourceId
from durable_cache.storage.contract import AppendResult, Floor, Retention, Storage
from durable_cache.testing.conformance.hooks import (
    StorageHooks,
    floors_by_stream,
    read_all,
    runs_of,
)
from durable_cache.testing.samples import SOURCE, START_NS, batch, run, sample

A = ("suite/a", "4f2a:7", 1)
B = ("suite/b", "4f2a:7", 1)
SECOND_NS = 1_000_000_000


class RemovalTests(StorageHooks):
    """Clauses of `Storage.trim`, `Storage.purge` and `Retention`."""

    def test_no_limit_removes_nothing(self, storage: Storage) -> None:
        storage.append(batch(run(0, 9)))
        assert list(storage.trim(Retention(), START_NS + 10**18)) == []
        assert len(read_all(storage)) == 10

    def test_samples_max_keeps_the_highest_numbers_of_each_stream(self, storage: Storage) -> None:
        samples = [sample(sn, received_ns=START_NS - sn) for sn in (*range(5), 20, 21)]
        storage.append(batch(samples, run(0, 2, "suite/b")))
        floors = storage.trim(Retention(samples_max=3), START_NS)
        assert floors_by_stream(floors) == {A: 4}
        assert runs_of(storage) == {A: [(4, 4), (20, 21)], B: [(0, 2)]}

    def test_samples_max_counts_sources_and_epochs_apart(self, storage: Storage) -> None:
        streams = [(SourceId(z, 1), epoch) for z in ("a", "b") for epoch in (1, 2)]
        storage.append(batch(sample(n, "k", s, e) for s, e in streams for n in range(4)))
        floors = storage.trim(Retention(samples_max=1), START_NS)
        assert floors_by_stream(floors) == {("k", str(s), e): 3 for s, e in streams}
        assert [s.sn for s in read_all(storage)] == [3, 3, 3, 3]

    def test_a_limit_of_none_is_not_a_limit_of_zero(self, storage: Storage) -> None:
        storage.append(batch(run(3, 9)))
        floors = storage.trim(Retention(samples_max=0), START_NS)
        assert floors_by_stream(floors) == {A: 10}
        assert read_all(storage) == []
        assert runs_of(storage) == {}

    def test_age_removes_what_is_too_old_and_no_more(self, storage: Storage) -> None:
        storage.append(
            batch(sample(n, received_ns=START_NS + n * SECOND_NS, ntp64=0) for n in range(10))
        )
        now = START_NS + 10 * SECOND_NS
        floors = floors_by_stream(storage.trim(Retention(age_seconds_max=4), now))
        left = [s.sn for s in read_all(storage)]
        if storage.capabilities.exact_age:
            assert floors == {A: 6}
            assert left == [6, 7, 8, 9]
        else:
            assert left == list(range(10))[floors.get(A, 0) :]
            assert floors.get(A, 0) <= 6

    def test_age_goes_by_the_time_received_and_stops_at_the_first_young_sample(
        self, storage: Storage
    ) -> None:
        received = [0, 0, 100, 0, 0]
        storage.append(
            batch(
                sample(n, received_ns=START_NS + at * SECOND_NS, ntp64=(1 << 64) - 1 - n)
                for n, at in enumerate(received)
            )
        )
        floors = storage.trim(Retention(age_seconds_max=10), START_NS + 100 * SECOND_NS)
        left = [s.sn for s in read_all(storage)]
        if storage.capabilities.exact_age:
            assert floors_by_stream(floors) == {A: 2}
            assert left == [2, 3, 4]
        assert left[-3:] == [2, 3, 4]

    def test_bytes_max_lets_the_oldest_received_go_first(self, storage: Storage) -> None:
        first = [sample(n, "suite/a", payload=b"x" * 10, received_ns=10 * n) for n in range(5)]
        other = [sample(n, "suite/b", payload=b"x" * 10, received_ns=10 * n + 5) for n in range(5)]
        storage.append(batch(first, other))
        floors = storage.trim(Retention(bytes_max=50), START_NS)
        assert floors_by_stream(floors) == {A: 3, B: 2}
        assert runs_of(storage) == {A: [(3, 4)], B: [(2, 4)]}

    def test_bytes_max_counts_payload_and_attachment_and_keeps_what_just_fits(
        self, storage: Storage
    ) -> None:
        made = [sample(n, payload=b"x" * 6, received_ns=n) for n in range(3)]
        attached = [msgspec.structs.replace(s, attachment=b"yyyy") for s in made]
        storage.append(batch(attached))
        assert list(storage.trim(Retention(bytes_max=30), START_NS)) == []
        assert floors_by_stream(storage.trim(Retention(bytes_max=29), START_NS)) == {A: 1}
        assert floors_by_stream(storage.trim(Retention(bytes_max=0), START_NS)) == {A: 3}

    def test_bytes_max_removes_only_prefixes(self, storage: Storage) -> None:
        received = [50, 1, 2, 60]
        samples = [sample(n, payload=b"x", received_ns=at) for n, at in enumerate(received)]
        other = [sample(n, "suite/b", payload=b"x", received_ns=40 + n) for n in range(4)]
        storage.append(batch(samples, other))
        floors = storage.trim(Retention(bytes_max=3), START_NS)
        assert floors_by_stream(floors) == {A: 1, B: 4}
        assert runs_of(storage) == {A: [(1, 3)]}

    def test_all_limits_together(self, storage: Storage) -> None:
        samples = [sample(n, payload=b"x" * 10, received_ns=START_NS + n) for n in range(20)]
        storage.append(batch(samples))
        retention = Retention(age_seconds_max=1, samples_max=15, bytes_max=40)
        assert floors_by_stream(storage.trim(retention, START_NS)) == {A: 16}
        assert runs_of(storage) == {A: [(16, 19)]}

    @pytest.mark.parametrize(
        "retention", [Retention(samples_max=4), Retention(bytes_max=40), Retention(bytes_max=0)]
    )
    def test_trim_is_idempotent(self, storage: Storage, retention: Retention) -> None:
        storage.append(batch(run(0, 9), run(0, 9, "suite/b")))
        assert storage.trim(retention, START_NS)
        before = read_all(storage)
        assert list(storage.trim(retention, START_NS)) == []
        assert read_all(storage) == before

    def test_a_floor_lies_above_what_went_and_not_above_what_stays(self, storage: Storage) -> None:
        storage.append(batch(run(0, 3), run(10, 13)))
        (floor,) = storage.trim(Retention(samples_max=4), START_NS)
        assert floor == Floor(sample().stream, 10)

    def test_held_after_trim(self, storage: Storage) -> None:
        storage.append(
            batch(
                sample(1, ntp64=900, received_ns=900),
                sample(2, ntp64=20, received_ns=30),
                sample(4, ntp64=30, received_ns=20),
            )
        )
        storage.trim(Retention(samples_max=2), START_NS)
        (held,) = storage.held()
        assert [tuple(run) for run in held.runs] == [(2, 2), (4, 4)]
        assert (held.newest_ntp64, held.newest_received_ns) == (30, 30)

    def test_trim_leaves_skips_alone(self, storage: Storage) -> None:
        storage.append(batch(run(0, 2), run(6, 9)), [skip := Skip(SOURCE, 1, 3, 5)])
        storage.trim(Retention(samples_max=1), START_NS)
        assert list(storage.skips()) == [skip]

    def test_purge_removes_everything_below_its_floors(self, storage: Storage) -> None:
        storage.append(batch(run(0, 9), run(0, 9, "suite/b"), run(0, 9, "suite/c")))
        floors = [Floor(sample().stream, 4), Floor(sample(key="suite/b").stream, 1 << 34)]
        floors.append(Floor(sample(key="never/seen").stream, 9))
        assert storage.purge(floors) == 14
        assert runs_of(storage) == {A: [(4, 9)], ("suite/c", "4f2a:7", 1): [(0, 9)]}
        assert storage.purge(iter(floors)) == 0
        assert len(read_all(storage)) == 16

    def test_purge_of_nothing(self, storage: Storage) -> None:
        assert storage.purge([]) == 0
        assert storage.purge([Floor(sample().stream, 0)]) == 0

    def test_what_was_purged_may_be_appended_again(self, storage: Storage) -> None:
        storage.append(batch(run(0, 3)))
        assert storage.purge([Floor(sample().stream, 4)]) == 4
        assert storage.append(batch(sample(1, payload=b"anew"))) == AppendResult(1)
        assert [s.payload for s in read_all(storage)] == [b"anew"]

    def test_removal_is_durable(self, storage: Storage, tmp_path: Path) -> None:
        storage.append(batch(run(0, 9), run(0, 9, "suite/b")))
        storage.trim(Retention(samples_max=5), START_NS)
        storage.purge([Floor(sample(key="suite/b").stream, 8)])
        with self.reopened(storage, tmp_path) as again:
            assert runs_of(again) == {A: [(5, 9)], B: [(8, 9)]}
            assert len(read_all(again)) == 7
