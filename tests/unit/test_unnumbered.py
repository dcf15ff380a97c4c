"""What identifies a sample without a number, and what a cache does with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.unnumbered import identified, is_unnumbered
from durable_cache.protocol.cache.events import EngineOptions, Origin
from durable_cache.protocol.checks import check_samples
from durable_cache.protocol.wire import decode_packed, encode_packed
from durable_cache.runtime.core import CoreOptions
from durable_cache.runtime.effects import Ask
from durable_cache.storage.contract import Floor, Retention
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.samples import SOURCE, run
from tests.unit.driven import BEGAN_NS, DrivenCache

BEGAN = 1_790_000_000 << 32
NOBODY = SourceId("0", 0)


def plain(seconds: float, text: str = "", key: str = "a/b", stamp_id: str = "c10c") -> Sample:
    ntp64 = BEGAN + int(seconds * (1 << 32))
    payload = (text or f"{seconds:g}").encode()
    raw = Sample(
        key, NOBODY, 0, 0, payload, ntp64=ntp64, timestamp_id=stamp_id, received_ns=BEGAN_NS
    )
    named = identified(raw)
    assert named is not None
    return named


def texts(cache: DrivenCache) -> list[str]:
    return [sample.payload.decode() for sample in cache.all()]


@pytest.mark.parametrize(
    ("ntp64", "epoch", "sn"),
    [
        (0, 0, 0),
        (BEGAN + 7, 0, BEGAN + 7),
        ((1 << 63) - 2, 0, (1 << 63) - 2),
        (1 << 63, 1 << 28, 0),
        ((1 << 64) - 2, 1 << 28, (1 << 63) - 2),
    ],
)
def test_the_timestamp_is_the_identity_and_the_packed_sequence(
    ntp64: int, epoch: int, sn: int
) -> None:
    named = identified(Sample("k", NOBODY, 0, 0, b"", ntp64=ntp64, timestamp_id="0aB"))
    assert named is not None
    assert (named.source, named.epoch, named.sn) == (SourceId("ab", 0), epoch, sn)
    assert named.sequence == (epoch << 35) + sn + 1 == ntp64 + 1
    assert is_unnumbered(named.source)
    assert decode_packed(encode_packed(SampleBatch([named]))).samples.samples == (named,)


@pytest.mark.parametrize(
    ("ntp64", "stamp_id"), [(BEGAN, ""), (BEGAN, "0"), ((1 << 63) - 1, "ab"), ((1 << 64) - 1, "ab")]
)
def test_a_timestamp_that_tells_nothing_apart_identifies_nothing(ntp64: int, stamp_id: str) -> None:
    assert identified(Sample("k", NOBODY, 0, 0, b"", ntp64=ntp64, timestamp_id=stamp_id)) is None


@pytest.mark.parametrize(
    "lie",
    [{"sn": BEGAN}, {"epoch": 1 << 28}, {"timestamp_id": "c10d"}, {"ntp64": BEGAN}, {"sn": -1}],
)
def test_an_identity_that_is_not_its_timestamps_costs_no_neighbour(lie: dict[str, int]) -> None:
    forged = msgspec.structs.replace(plain(1), **lie)
    refused: list[str] = []
    assert list(check_samples((plain(0), forged), 9, refused)) == [plain(0)]
    assert "not of its timestamp" in refused[0]
    with pytest.raises(RemoteProtocolError, match="not of its timestamp"):
        check_samples((forged,), 9, None)


def test_they_are_ordered_by_timestamp_and_acknowledged_to_nobody() -> None:
    cache = DrivenCache()
    cache.take([plain(3), *run(0, 3), plain(1)])
    cache.take([plain(2)])
    assert [sample.payload for sample in cache.all() if sample.key == "a/b"] == [b"1", b"2", b"3"]
    assert {ack.source for ack in cache.acks} == {SOURCE}
    assert (cache.core.gaps_open, cache.misses, cache.fetches) == (0, [], [])
    assert cache.store.load(plain(1).source) == ((), ())


def test_a_repeat_is_told_without_reading_the_storage() -> None:
    cache = DrivenCache()
    cache.reads = False
    cache.take([plain(1), plain(1), plain(1, "another")])
    cache.take([plain(1)])
    assert (cache.core.counts.duplicates, cache.core.counts.conflicts) == (2, 1)
    assert not [ask for ask in cache.of(Ask) if isinstance(ask, Ask) and not ask.urgent]
    assert texts(cache) == ["1"]


def test_a_repeat_of_an_older_one_is_compared_with_what_is_stored() -> None:
    options = CoreOptions(EngineOptions(unnumbered_remembered_max=1, doubtful_samples_max=2))
    cache = DrivenCache(options=options)
    cache.take([plain(1), plain(2), plain(3), plain(4)])
    cache.reads = False
    cache.take([plain(1), plain(2, "another"), plain(3)])
    assert cache.core.refused == 1, "beyond doubtful_samples_max"
    assert cache.core.ready, "whatever follows does not wait"
    cache.take([plain(5)])
    cache.answer_all()
    assert (cache.core.counts.duplicates, cache.core.counts.conflicts) == (1, 1)
    cache.take([plain(3)])
    assert cache.core.counts.duplicates == 2
    assert texts(cache) == ["1", "2", "3", "4", "5"]


def test_what_could_not_be_compared_makes_room_for_others() -> None:
    options = CoreOptions(EngineOptions(unnumbered_remembered_max=1, doubtful_samples_max=1))
    cache = DrivenCache(options=options)
    cache.take([plain(1), plain(2)])
    cache.reads = False
    cache.take([plain(1)])
    cache.answer_one(fails=True)
    assert (cache.core.refused, cache.core.counts.duplicates) == (1, 0)
    cache.take([plain(1)])
    cache.answer_all()
    assert cache.core.counts.duplicates == 1


def test_what_did_not_become_durable_may_come_again() -> None:
    cache = DrivenCache()
    cache.appends = False
    cache.take([plain(1)])
    cache.answer_one(fails=True)
    assert texts(cache) == []
    cache.appends = True
    cache.take([plain(1)], Origin.ALIGNED)
    assert texts(cache) == ["1"]


def test_samples_wait_until_the_index_can_be_read() -> None:
    cache = DrivenCache()
    cache.disk_up = False
    cache.take([plain(1)])
    cache.disk_up = True
    cache.wait(1)
    assert texts(cache) == ["1"]


def test_what_was_purged_does_not_come_again() -> None:
    cache = DrivenCache(options=CoreOptions(EngineOptions(unnumbered_remembered_max=1)))
    cache.take([plain(1), plain(2), plain(3)])
    cache.store.purge([Floor(plain(1).stream, plain(3).sn)])
    cache.take([plain(1), plain(0)], Origin.ALIGNED)
    cache.take([plain(2)])
    assert texts(cache) == ["3"]


def test_two_keys_may_bear_one_timestamp() -> None:
    cache = DrivenCache()
    cache.take([plain(1, key="a"), plain(1, key="b"), plain(1, key="a", stamp_id="d")])
    assert len(cache.all()) == 3
    assert cache.core.counts.conflicts == 0


def test_the_index_is_the_same_when_it_is_read_anew() -> None:
    key = "nul\x00/b"
    samples = [plain(number, key=key) for number in range(5)]
    storage = MemoryStorage()
    store = JournaledStorage(storage, None)
    store.commit(SampleBatch(samples))
    stream = samples[0].stream
    before = store.index.infos([stream])[stream]
    assert before.held == RangeSet.of(sample.sn for sample in samples)
    store.index.rebuild(storage)
    assert store.index.infos([stream])[stream] == before
    store.trim(Retention(samples_max=2), BEGAN_NS)
    store.index.disclaim(SampleBatch(samples[4:]))
    left = store.index.infos([stream])[stream]
    assert (left.held, left.floor) == (RangeSet.of([samples[3].sn]), samples[3].sn)
    assert [info.stream for info in store.index.all_infos()] == [stream]
    assert store.index.has_zid("c10c")
    assert not store.index.has_zid("c10d")


def test_the_index_keeps_them_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    index = StreamIndex(path)
    index.record(SampleBatch([plain(1), plain(1 + 2**-32), plain(9)]))
    index.close()
    index = StreamIndex(path)
    stream = Stream("a/b", SourceId("c10c", 0), 0)
    assert index.infos([stream])[stream].held.count == 3
    index.close()
