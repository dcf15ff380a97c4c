"""When is an epoch that lost moved to the one that stands, and what is left of it?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.cache.events import Alias
from durable_cache.storage.contract import Capabilities, Durability
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage

SOURCE = SourceId("ab", 1)
LOSER, WINNER = 3, 5
MOVE = Alias(SOURCE, LOSER, 0, WINNER)


class Backend(MemoryStorage):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, durability=Durability.DISK)


def run_of(first: int, last: int) -> SampleBatch:
    return SampleBatch(Sample("a/b", SOURCE, LOSER, sn, b"x") for sn in range(first, last + 1))


def renamed(batch: SampleBatch) -> SampleBatch:
    return SampleBatch(msgspec.structs.replace(sample, epoch=WINNER) for sample in batch)


def test_an_epoch_has_moved_when_the_backend_has_all_of_it_under_the_other(tmp_path: Path) -> None:
    store = JournaledStorage(Backend(), tmp_path)
    store.commit(run_of(0, 9))
    assert store.drain_all(10)
    assert not store.moved(MOVE), "nothing of it is there"
    store.commit(renamed(run_of(0, 8)))
    assert store.drain_all(10)
    assert not store.moved(MOVE), "one number is missing"
    store.commit(renamed(run_of(9, 9)))
    assert not store.moved(MOVE), "it is in the journal only"
    assert store.drain_all(10)
    assert store.moved(MOVE)
    store.commit(run_of(9, 9))
    assert not store.moved(MOVE), "something of the old one is on its way"
    assert store.drain_all(10)
    assert store.moved(MOVE)
    store.close()


def test_an_epoch_that_is_forgotten_is_gone_from_backend_and_index(tmp_path: Path) -> None:
    backend = Backend()
    store = JournaledStorage(backend, tmp_path)
    store.commit(run_of(0, 9))
    store.commit(renamed(run_of(0, 9)))
    assert store.drain_all(10)
    assert [stream.epoch for stream in store.forget(SOURCE, LOSER)] == [LOSER]
    assert [held.stream.epoch for held in backend.held()] == [WINNER]
    assert [info.stream.epoch for info in store.index.all_infos()] == [WINNER]
    states, _ = store.load(SOURCE)
    assert [state.epoch for state in states] == [WINNER]
    store.close()
