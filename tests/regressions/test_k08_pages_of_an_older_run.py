"""K8: samples of an older run that there is no room for open no gaps in the run that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Event

from durable_cache import CacheOptions, Sample, declare_reliability_cache
from durable_cache.endpoints.session import source_of
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import AppendResult, Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import old_sample, token_of
from tests.servers.zenoh_sources import Numbered, connected

OLD_RUN = range(100_000, 100_990)
OLD_EPOCH = 5


class Waiting(MemoryStorage):
    """A backend whose answers to caches and whose appending a test can hold up."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked, self.was_appended = Event(), Event()
        self.may_answer, self.may_append = Event(), Event()

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if selection.epoch is None and selection.sns.first == 0:  # of every run: a cache asks
            self.was_asked.set()
            assert self.may_answer.wait(30)
        return super().read(selection, limit, cursor)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        self.was_appended.set()
        assert self.may_append.wait(30)
        return super().append(batch, skips)


def test_only_what_is_really_lost_is_missed(network: LocalNetwork) -> None:
    numbered = Numbered(network.client(), "a/b")
    mine, theirs = Waiting(), Waiting()
    old = old_run(numbered)
    theirs.may_append.set()
    MemoryStorage.append(theirs, SampleBatch(old))
    mine.may_answer.set()
    engine = replace(CacheOptions().engine, gap_timeout_seconds=1)
    options = CacheOptions(queue_bytes_max=10_000, engine=engine)
    with (
        declare_reliability_cache(network.client(), "a/**", backend=theirs),
        declare_reliability_cache(network.client(), "a/**", backend=mine, options=options) as cache,
    ):
        connected(numbered.publisher)
        token = token_of(numbered)
        assert theirs.was_asked.wait(10), "the other cache is asked for what came before"
        numbered.put(0)
        assert mine.was_appended.wait(10), "one sample is being stored, the others wait"
        for sn in range(1, 10):
            numbered.put(sn)
        wait_until(lambda: cache.status().received >= 10)
        theirs.may_answer.set()
        wait_until(lambda: cache.status().received >= 10 + len(old), what="the older run")
        mine.may_append.set()
        wait_until(lambda: cache.status().appended >= 10)
        numbered.put(12)
        wait_until(lambda: cache.status().missed, 20, "the loss of 10 and 11")
        assert cache.status().missed == 2
        token.undeclare()


def old_run(numbered: Numbered) -> list[Sample]:
    """Return what the publisher sent under the same identity before it restarted."""
    source = source_of(numbered.publisher)
    made = [old_sample(sn, sn / 1000, source) for sn in OLD_RUN]
    return [
        Sample(s.key, s.source, OLD_EPOCH, s.sn, s.payload, s.kind, ntp64=s.ntp64) for s in made
    ]
