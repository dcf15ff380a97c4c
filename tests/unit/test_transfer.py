"""Is a copied history whole, also when the copy was cut off, and is what lacks named?"""

from __future__ import annotations

import pytest

from durable_cache.errors import StorageUnavailable
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Selection
from durable_cache.storage.contract import Floor
from durable_cache.storage.memory import MemoryStorage
from durable_cache.storage.transfer import copy_history, missing_streams

EVERY = KeyExpression("**")
SOURCES = [SourceId("a1", 1), SourceId("f0", 2)]


def history(keys: int = 3, sns: int = 20) -> list[Sample]:
    return [
        Sample(f"k/{key}", source, 5, sn, b"%d" % sn)
        for key in range(keys)
        for source in SOURCES
        for sn in range(sns)
        if sn % 7
    ]


def everything(storage: MemoryStorage) -> SampleBatch:
    return storage.read(Selection(), 100_000).samples


def test_a_copy_is_whole_and_a_second_one_does_nothing() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    source.append(SampleBatch(history()), [Skip(SOURCES[0], 5, 7, 7)])
    seen: list[int] = []
    result = copy_history(source, destination, EVERY, seen.append, page_samples=7)
    assert result.new == sum(seen) == len(history())
    assert result.missing == 0
    assert everything(destination) == everything(source)
    assert list(destination.skips()) == list(source.skips())
    again = copy_history(source, destination, EVERY, seen.append)
    assert (again.samples, again.new, again.missing) == (0, 0, 0)


class _CutOff(MemoryStorage):
    """A destination that goes away after some appends."""

    appends = 3

    def append(self, batch: SampleBatch, skips=()):  # type: ignore[no-untyped-def]
        if self.appends == 0:
            raise StorageUnavailable
        self.appends -= 1
        return super().append(batch, skips)


def test_a_copy_that_was_cut_off_goes_on_where_it_stopped() -> None:
    source, destination = MemoryStorage(), _CutOff()
    source.append(SampleBatch(history()))
    with pytest.raises(StorageUnavailable):
        copy_history(source, destination, EVERY, lambda _: None, page_samples=10)
    destination.appends = 1000
    left = sum(item.samples for item in missing_streams(source, destination, EVERY))
    result = copy_history(source, destination, EVERY, lambda _: None, page_samples=10)
    assert left == result.samples == len(history()) - 30
    assert result.missing == 0
    assert everything(destination) == everything(source)


def test_only_what_the_key_expression_names_is_copied() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    source.append(SampleBatch(history()))
    result = copy_history(source, destination, KeyExpression("k/1"), lambda _: None)
    assert result.missing == 0
    assert {sample.key for sample in everything(destination)} == {"k/1"}


def test_a_sample_of_another_payload_is_counted_and_kept() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    source.append(SampleBatch([Sample("k", SOURCES[0], 1, sn, b"new") for sn in range(3)]))
    destination.append(SampleBatch([Sample("k", SOURCES[0], 1, 1, b"old")]))
    result = copy_history(source, destination, EVERY, lambda _: None)
    assert (result.new, result.conflicts, result.missing) == (2, 1, 0)
    assert [sample.payload for sample in everything(destination)] == [b"new", b"old", b"new"]


def test_a_destination_that_does_not_keep_what_it_takes_is_noticed() -> None:
    class Leaky(MemoryStorage):
        def append(self, batch: SampleBatch, skips=()):  # type: ignore[no-untyped-def]
            result = super().append(batch, skips)
            self.purge(Floor(stream, 5) for stream in batch.by_stream)
            return result

    source = MemoryStorage()
    source.append(SampleBatch(history(keys=1)))
    result = copy_history(source, Leaky(), EVERY, lambda _: None)
    assert result.missing == 2 * 4
