"""K27, C9: history comes in order of time whatever the sources are called, a page at a time."""

from __future__ import annotations

from durable_cache import (
    Sample,
    SourceId,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import SOURCE, old_sample


def test_a_late_joiner_ends_on_the_newest_value(network: LocalNetwork) -> None:
    received: list[Sample] = []
    storage = MemoryStorage()
    old, new = SourceId("ff01", 1), SourceId("aa01", 1)
    storage.append(SampleBatch(old_sample(sn, sn, old) for sn in range(10)))
    storage.append(SampleBatch(old_sample(sn, 100 + sn, new) for sn in range(10)))
    with (
        declare_reliability_cache(network.client(), "a/**", backend=storage),
        declare_reliable_subscriber(network.client(), "a/**", received.append, history=True),
    ):
        wait_until(lambda: len(received) == 20)
        assert [sample.ntp64 for sample in received] == sorted(s.ntp64 for s in received)
        assert received[-1].source == new


class Counting(MemoryStorage):
    """Counts the samples that were read."""

    given = 0

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        page = super().read(selection, limit, cursor)
        self.given += len(page.samples)
        return page


def test_long_history_is_not_held_before_it_is_delivered(network: LocalNetwork) -> None:
    # Many pages: a few may be read before a thread of a busy machine passes the first one on.
    total = 150_000
    storage = Counting()
    storage.append(SampleBatch(old_sample(sn, sn / 1000, SOURCE) for sn in range(total)))
    given_at_first: list[int] = []
    received: list[int] = []

    def note(sample: Sample) -> None:
        if not received:
            given_at_first.append(storage.given)
        received.append(sample.sn)

    with (
        declare_reliability_cache(network.client(), "a/**", backend=storage),
        declare_reliable_subscriber(network.client(), "a/**", note, history=True) as subscriber,
    ):
        wait_until(lambda: len(received) == total, 60)
        assert received == list(range(total))
        assert given_at_first[0] <= total // 2
        assert subscriber.missed == 0
