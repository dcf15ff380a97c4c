"""Does a storage keep samples whose number is their timestamp (ADR 0160)?"""

from __future__ import annotations

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Order, Selection, SnBounds
from durable_cache.model.sequence import UNNUMBERED_SN_MAX
from durable_cache.model.unnumbered import identified
from durable_cache.storage.contract import AppendResult, Floor, Retention, Storage
from durable_cache.testing.conformance.hooks import StorageHooks, read_all
from durable_cache.testing.samples import START_NS, batch, sample

_BEGAN = 1_790_000_000 << 32
_SECOND = 1 << 32


def plain(ntp64: int, payload: bytes = b"", key: str = "suite/a") -> Sample:
    """Return what a cache makes of a sample that came without a number."""
    made = identified(
        Sample(
            key,
            SourceId("0", 0),
            0,
            0,
            payload,
            ntp64=ntp64,
            timestamp_id="c10c",
            received_ns=START_NS,
        )
    )
    assert made is not None
    return made


class UnnumberedTests(StorageHooks):
    """Clauses of the storage contract, for numbers of 63 bits of the entity 0."""

    def test_timestamps_as_numbers(self, storage: Storage) -> None:
        ends = [plain(0), plain(_BEGAN), plain(UNNUMBERED_SN_MAX), plain(1 << 63)]
        assert storage.append(batch(ends)) == AppendResult(4)
        assert read_all(storage) == ends
        assert [s.sequence for s in read_all(storage)] == [s.ntp64 + 1 for s in ends]
        held = {held.stream.epoch: list(held.runs) for held in storage.held()}
        sns = [(s.sn, s.sn) for s in ends]
        assert held == {0: sns[:3], 1 << 28: sns[3:]}

    def test_neighbours_within_a_nanosecond_and_late_ones(self, storage: Storage) -> None:
        made = [plain(_BEGAN + at) for at in range(8)]
        assert storage.append(batch(made[4:])).new == 4
        assert storage.append(batch(made[:6])) == AppendResult(4, duplicates=2)
        late = plain(_BEGAN - 3600 * _SECOND)
        assert storage.append(batch(late)).new == 1
        assert read_all(storage) == [late, *made]
        by_time = storage.read(Selection(order=Order.TIME), 100).samples
        assert list(by_time) == [late, *made]
        newest = storage.read(Selection(newest=2), 100).samples
        assert list(newest) == made[-2:]
        part = Selection(zid="c10c", eid=0, epoch=0, sns=SnBounds(made[2].sn, made[3].sn))
        assert list(storage.read(part, 100).samples) == made[2:4]

    def test_another_payload_under_a_timestamp_is_a_conflict(self, storage: Storage) -> None:
        first, other = plain(_BEGAN, b"first"), plain(_BEGAN, b"other")
        storage.append(batch(first))
        assert len(storage.append(batch(other)).conflicts) == 1
        assert read_all(storage) == [first]

    def test_depth_and_purges_go_by_timestamp(self, storage: Storage) -> None:
        made = [plain(_BEGAN + at * _SECOND) for at in range(5)]
        storage.append(batch(made[3:], made[:3], sample(1)))
        floors = storage.trim(Retention(samples_max=3), START_NS)
        assert list(floors) == [Floor(made[0].stream, made[2].sn)]
        assert read_all(storage) == [sample(1), *made[2:]]
        assert storage.purge([Floor(made[0].stream, made[4].sn)]) == 2
        assert read_all(storage) == [sample(1), made[4]]
