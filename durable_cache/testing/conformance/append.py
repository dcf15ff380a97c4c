"""What does `append` store, count and report?"""

from __future__ import annotations

import msgspec
import pytest

from durable_cache.model.sample import Kind, SampleBatch, SourceId, sample_digest
from durable_cache.storage.contract import AppendResult, Storage
from durable_cache.testing.conformance.hooks import StorageHooks, read_all, runs_of
from durable_cache.testing.samples import SOURCE, batch, run, sample


class AppendTests(StorageHooks):
    """Clauses of `Storage.append`."""

    def test_append_returns_the_number_new(self, storage: Storage) -> None:
        assert storage.append(batch(run(0, 9))) == AppendResult(10)
        assert storage.append(batch(run(5, 14))) == AppendResult(5, duplicates=5)
        assert [s.sn for s in read_all(storage)] == list(range(15))

    def test_an_empty_append_does_nothing(self, storage: Storage) -> None:
        assert storage.append(SampleBatch()) == AppendResult(0)
        assert read_all(storage) == []
        assert runs_of(storage) == {}
        assert list(storage.skips()) == []

    def test_twice_is_once(self, storage: Storage) -> None:
        once = batch(run(0, 4), run(0, 4, "suite/b"))
        storage.append(once)
        before = read_all(storage)
        assert storage.append(once) == AppendResult(0, duplicates=10)
        assert read_all(storage) == before
        assert runs_of(storage) == {
            ("suite/a", "4f2a:7", 1): [(0, 4)],
            ("suite/b", "4f2a:7", 1): [(0, 4)],
        }

    def test_a_repeat_within_a_batch_counts_once(self, storage: Storage) -> None:
        first = sample(1, ntp64=100)
        restamped = sample(1, ntp64=200)
        result = storage.append(batch(first, restamped, sample(2)))
        assert result == AppendResult(2, duplicates=1)
        assert read_all(storage) == [first, sample(2)]

    def test_another_payload_within_a_batch_is_a_conflict(self, storage: Storage) -> None:
        first, other = sample(1, payload=b"first"), sample(1, payload=b"other")
        result = storage.append(batch(first, other))
        assert result.new == 1
        assert result.duplicates == 0
        assert [tuple(c) for c in result.conflicts] == [
            (first.identity, sample_digest(first), sample_digest(other))
        ]
        assert read_all(storage) == [first]

    def test_another_payload_than_held_is_a_conflict(self, storage: Storage) -> None:
        held = sample(1, payload=b"held")
        storage.append(batch(held))
        other = sample(1, payload=b"other")
        result = storage.append(batch(sample(0), other, sample(2)))
        assert result.new == 2
        assert [tuple(c) for c in result.conflicts] == [
            (held.identity, sample_digest(held), sample_digest(other))
        ]
        assert read_all(storage) == [sample(0), held, sample(2)]

    @pytest.mark.parametrize(
        "change", [{"kind": Kind.DELETE}, {"encoding": "text/plain"}, {"attachment": b""}], ids=str
    )
    def test_kind_encoding_and_attachment_belong_to_the_payload(
        self, storage: Storage, change: dict[str, object]
    ) -> None:
        held = sample(1)
        storage.append(batch(held))
        offered = msgspec.structs.replace(held, **change)
        assert len(storage.append(batch(offered)).conflicts) == 1
        assert read_all(storage) == [held]

    def test_a_restamped_sample_is_a_duplicate_and_the_first_stamp_stays(
        self, storage: Storage
    ) -> None:
        held = sample(1, ntp64=100)
        storage.append(batch(held))
        again = msgspec.structs.replace(held, ntp64=999, timestamp_id="b", qos=0, received_ns=1)
        assert storage.append(batch(again)) == AppendResult(0, duplicates=1)
        assert read_all(storage) == [held]

    def test_every_sample_given_is_counted_once(self, storage: Storage) -> None:
        storage.append(batch(run(0, 3)))
        given = batch(run(2, 6), sample(0, payload=b"other"), sample(6), sample(5, payload=b"x"))
        result = storage.append(given)
        assert (result.new, result.duplicates) == (3, 3)
        assert len(result.conflicts) == 2
        total = result.new + result.duplicates + len(result.conflicts) + len(result.refused)
        assert total == len(given)

    def test_a_refused_sample_is_returned_and_the_rest_is_stored(self, storage: Storage) -> None:
        refusable = self.unstorable()
        if refusable is None:
            pytest.skip("the backend takes every sample")
        result = storage.append(batch(sample(0), refusable, sample(1)))
        assert result.new == 2
        assert [refused.sample for refused in result.refused] == [refusable]
        assert all(refused.reason for refused in result.refused)
        assert read_all(storage) == [sample(0), sample(1)]

    def test_what_can_be_told_to_be_refused_is_no_more_than_what_is(self, storage: Storage) -> None:
        refusable = self.unstorable()
        assert not storage.check(batch(run(0, 9)))
        if refusable is not None:
            checked = storage.check(batch(sample(0), refusable, sample(1)))
            assert [refused.sample for refused in checked] in ([], [refusable])

    def test_samples_may_come_in_any_order(self, storage: Storage) -> None:
        backwards = run(0, 20)[::-1]
        storage.append(batch(backwards[::2]))
        storage.append(batch(backwards[1::2]))
        assert [s.sn for s in read_all(storage)] == list(range(21))
        assert runs_of(storage) == {("suite/a", "4f2a:7", 1): [(0, 20)]}

    def test_sources_do_not_mix(self, storage: Storage) -> None:
        others = [SourceId("4f2a", 8), SourceId("4f2b", 7), SourceId("4f2a" * 8, 7)]
        made = [sample(1, source=source, payload=str(source).encode()) for source in others]
        assert storage.append(batch(sample(1), made)) == AppendResult(4)
        assert {s.source: s.payload for s in read_all(storage)} == {
            SOURCE: b"payload 1",
            **{source: str(source).encode() for source in others},
        }

    def test_keys_and_epochs_do_not_mix(self, storage: Storage) -> None:
        made = [
            sample(1, key, epoch=epoch) for key in ("a", "b") for epoch in (0, 1, (1 << 29) - 1)
        ]
        assert storage.append(batch(made)) == AppendResult(6)
        assert read_all(storage) == made

    def test_numbers_above_32_bits(self, storage: Storage) -> None:
        sns = [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 35) - 2]
        storage.append(batch(sample(sn, ntp64=sn) for sn in sns))
        assert [s.sn for s in read_all(storage)] == sns
        assert runs_of(storage)["suite/a", "4f2a:7", 1] == [
            (0, 0),
            ((1 << 31) - 1, 1 << 31),
            ((1 << 32) - 1, 1 << 32),
            ((1 << 35) - 2, (1 << 35) - 2),
        ]

    def test_a_large_batch_over_many_streams(self, storage: Storage) -> None:
        keys = [f"suite/{n:03}" for n in range(100)]
        samples = [sample(sn, key) for sn in range(20) for key in keys]
        assert storage.append(batch(samples)) == AppendResult(2000)
        assert storage.append(batch(samples[1000:])) == AppendResult(0, duplicates=1000)
        assert read_all(storage) == sorted(samples, key=lambda s: s.order)
