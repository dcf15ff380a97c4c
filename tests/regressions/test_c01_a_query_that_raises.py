"""C1: an unexpected error in a query costs its asker an answer and nobody else anything."""

from __future__ import annotations

from durable_cache import declare_reliability_cache
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import Page
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected


class Faulty(MemoryStorage):
    """A backend with a mistake in its program, which one key shows."""

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        if str(selection.key_expr) == "a/bad":
            raise ZeroDivisionError("a mistake of the program")
        return super().read(selection, limit, cursor)


def test_what_is_published_is_stored_and_answered_all_the_same(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "a/**", backend=Faulty()) as cache:
        source = Numbered(network.client(), "a/b")
        connected(source.publisher)
        source.put(0)
        wait_until(lambda: cache.status().appended == 1)
        asker = network.client()
        querier = asker.declare_querier("*/a/bad")
        connected(querier)
        for _ in range(10):
            for reply in asker.get("*/a/bad", timeout=2):
                assert reply.ok is None
        source.put(1)
        wait_until(lambda: cache.status().appended == 2, 5, "what came after the query")
        replies = [reply.ok for reply in asker.get("a/b", timeout=5)]
        assert [reply.payload.to_bytes() for reply in replies if reply] == [b"1"]
