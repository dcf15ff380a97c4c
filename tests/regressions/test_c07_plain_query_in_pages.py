"""C7: a plain query for the newest of each key reads no more of the backend than it answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Capabilities, Durability, Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import old_sample
from tests.servers.zenoh_sources import Numbered, connected

KEYS = 2_000
ANSWERED = 100


class Counting(MemoryStorage):
    """Remembers how many samples each read gave."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.DISK, ordered_reads=False)

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        page = super().read(selection, limit, cursor)
        self.given.append(len(page.samples))
        return page


def test_the_backend_is_read_a_page_at_a_time_beside_what_waits_for_it(
    network: LocalNetwork, tmp_path: Path
) -> None:
    backend = Counting()
    backend.append(SampleBatch(old_sample(at, at / 100, key=f"a/{at}") for at in range(KEYS)))
    journal = replace(CacheOptions().journal, drain_linger_seconds=60)
    options = CacheOptions(query_samples_max=ANSWERED, journal=journal)
    with declare_reliability_cache(
        network.client(), "a/**", backend=backend, state_dir=tmp_path, options=options
    ) as cache:
        source = Numbered(network.client(), "a/b")
        connected(source.publisher)
        source.put(0)
        wait_until(lambda: cache.status().appended == 1)
        asker = network.client()
        querier = asker.declare_querier("a/**")
        connected(querier)
        backend.given.clear()
        replies = [reply.ok for reply in asker.get("a/**?_max=1", timeout=10)]
        assert len([reply for reply in replies if reply]) == ANSWERED
        assert sum(backend.given) <= 2 * ANSWERED
