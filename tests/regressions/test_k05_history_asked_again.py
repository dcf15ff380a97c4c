"""K5: history that errs, is cut off half-way or that nobody answers is asked for again."""

from __future__ import annotations

import pytest

from durable_cache import (
    CacheOptions,
    Kind,
    Sample,
    SourceId,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.errors import StorageUnavailable
from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, sns

SOURCE = SourceId("ab12", 7)


class Failing(MemoryStorage):
    """A backend some of whose reads fail, as on a link that is cut for a moment."""

    def __init__(self, samples: int, failing: frozenset[int]) -> None:
        super().__init__()
        self.failing, self.reads = failing, 0
        self.append(
            SampleBatch(
                Sample("a/b", SOURCE, 0, sn, b"%d" % sn, Kind.PUT, ntp64=(sn + 1) << 30)
                for sn in range(samples)
            )
        )

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        self.reads += 1
        if self.reads in self.failing:
            raise StorageUnavailable("away for a moment")
        return super().read(selection, limit, cursor)


@pytest.mark.parametrize(
    ("failing", "what"),
    [(frozenset({1, 2}), "the first question"), (frozenset({3}), "the third page")],
)
def test_history_is_asked_again_where_the_cache_errs(
    network: LocalNetwork, failing: frozenset[int], what: str
) -> None:
    received: list[Sample] = []
    storage = Failing(1000, failing)
    with (
        declare_reliability_cache(
            network.client(), "a/**", backend=storage, options=CacheOptions(query_samples_max=200)
        ),
        declare_reliable_subscriber(
            network.client(), "a/**", received.append, history=True
        ) as subscriber,
    ):
        wait_until(lambda: len(received) >= 1000, 15, what)
        assert sns(received) == list(range(1000))
        assert subscriber.missed == 0


def test_history_of_a_cache_that_comes_after_the_subscriber_is_delivered(
    network: LocalNetwork,
) -> None:
    inbox = Inbox()
    with declare_reliable_subscriber(network.client(), "a/**", inbox, history=True) as subscriber:
        with declare_reliability_cache(network.client(), "a/**", backend=Failing(100, frozenset())):
            wait_until(lambda: len(inbox.samples) >= 100, 15)
            assert sns(inbox.samples) == list(range(100))
            assert subscriber.missed == 0
