"""History that is cut short is told from history that is at its end."""

from __future__ import annotations

import pytest
import zenoh

from durable_cache import CacheOptions, declare_reliability_cache
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.session import zid_of
from durable_cache.errors import StorageUnavailable
from durable_cache.service.client import Pages, history_pages
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import ready_publisher, stored


def test_a_cache_that_goes_between_two_pages_is_an_error() -> None:
    with LocalNetwork() as network:
        asker = network.client()
        asking = Asking(asker, zid_of(asker), timeout_seconds=5)
        cache = declare_reliability_cache(
            network.client(), "a/**", options=CacheOptions(query_samples_max=10)
        )
        publisher = ready_publisher(network.client(), "a/b", acknowledgements=1, level="memory")
        with cache:
            with publisher as out:  # whose own cache would answer, too
                receipts = [out.put(b"%d" % number) for number in range(30)]
                wait_until(lambda: all(receipt.done for receipt in receipts), 20, "storing")
            whole = [sample.sn for page in asking.history("a/**", "*") for sample in page]
            assert whole == [*range(30)]
            history, pages = asking.history("a/**", "*"), Pages()
            shown = history_pages(asking, "a/**", "*", "", pages)
            assert [len(next(history)), len(next(shown))] == [10, 10]
        with pytest.raises(StorageUnavailable, match="the rest; ask again"):
            next(history)
        assert not [sample for page in shown for sample in page]
        assert pages.errors == [
            "a cache could not answer: no cache answered the question for the rest"
        ]


def test_a_cache_that_gives_the_same_page_again_is_an_error() -> None:
    with LocalNetwork() as network:
        asker = network.client()
        asking = Asking(asker, zid_of(asker), timeout_seconds=5)
        with declare_reliability_cache(
            network.client(), "a/**", options=CacheOptions(query_samples_max=10)
        ) as cache:
            with ready_publisher(network.client(), "a/b", acknowledgements=1) as out:
                for number in range(30):
                    out.put(b"%d" % number)
                stored(cache, 30)
            wait_until(lambda: asking.caches("a/**", "*").cut_after is not None)
            (first,) = asker.get("*/a/**?_pack=1", timeout=5)
        assert first.ok is not None
        page = first.ok

        def answer(query: zenoh.Query) -> None:
            with query:
                query.reply(page.key_expr, page.payload)

        stuck = network.client()
        repeating = stuck.declare_queryable("*/a/**", answer)
        wait_until(lambda: asking.caches("a/**", "*").answers)
        with pytest.raises(StorageUnavailable, match="no further than the one before; ask again"):
            list(asking.history("a/**", "*"))
        pages = Pages()
        assert sum(map(len, history_pages(asking, "a/**", "*", "", pages))) == 10
        assert pages.errors == [
            "a cache could not answer: an answer came no further than the one before"
        ]
        repeating.undeclare()
