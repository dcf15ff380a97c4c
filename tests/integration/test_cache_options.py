"""Does each bound of a cache do what its description says, on real sessions?"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import zenoh

from durable_cache import (
    CacheOptions,
    Kind,
    ReliabilityCache,
    Sample,
    SourceId,
    declare_reliability_cache,
)
from durable_cache.endpoints.session import Session
from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.wire import decode_packed
from durable_cache.storage.contract import Page, Storage
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Numbered, connected, ready_publisher, sns, stored

SOURCE = SourceId("ab12", 7)


def holding(count: int, size: int = 1, storage: Storage | None = None) -> Storage:
    storage = storage or MemoryStorage()
    storage.append(
        SampleBatch(
            Sample("a/b", SOURCE, 1, sn, bytes(size), Kind.PUT, ntp64=(sn + 1) << 30)
            for sn in range(count)
        )
    )
    return storage


def cache_of(network: LocalNetwork, storage: Storage, **bounds: object) -> ReliabilityCache:
    options = CacheOptions(**bounds)  # type: ignore[arg-type]
    return declare_reliability_cache(network.client(), "a/**", backend=storage, options=options)


def replies(session: Session, selector: str) -> tuple[list[bytes], list[str]]:
    """Return the payloads of the replies, and the errors."""
    good, errors = [], []
    every = zenoh.ConsolidationMode.NONE
    for reply in session.get(selector, consolidation=every, timeout=10.0):
        if reply.ok is not None:
            good.append(reply.ok.payload.to_bytes())
        elif reply.err is not None:
            errors.append(reply.err.payload.to_string())
    return good, errors


def asker(network: LocalNetwork) -> Session:
    """Return a session that reaches the cache's queryables."""
    session = network.client()
    querier = session.declare_querier("*/a/b")
    connected(querier)
    querier.undeclare()
    return session


def test_streams_beyond_the_limit_are_refused_and_counted(network: LocalNetwork) -> None:
    session = network.client()
    with declare_reliability_cache(session, "a/**", resources_limit=4) as cache:
        numbered = Numbered(session, "a/b")
        for sn in range(12):
            numbered.put(sn, key=f"a/{sn}")
        wait_until(lambda: cache.status().refused >= 8, what="refusals")
        assert cache.status().streams <= 4
        assert all(sample.sn < 4 for sample in cache.find("a/**"))


def test_plain_gets_are_answered_unless_that_is_switched_off(network: LocalNetwork) -> None:
    with cache_of(network, holding(3), answer_plain=False):
        session = asker(network)
        assert len(replies(session, "*/a/b")[0]) == 3
        assert replies(session, "a/b") == ([], [])
    with cache_of(network, holding(3)):
        assert len(replies(asker(network), "a/b")[0]) == 1


def test_a_payload_above_the_bound_is_refused_and_counted(network: LocalNetwork) -> None:
    session = network.client()
    options = CacheOptions(payload_bytes_max=100)
    with declare_reliability_cache(session, "a/**", options=options) as cache:
        numbered = Numbered(session, "a/b")
        numbered.put(0, b"x" * 100)
        numbered.put(1, b"x" * 101)
        numbered.put(2, b"x")
        assert sns(stored(cache, 2)) == [0, 2]
        wait_until(lambda: cache.status().refused == 1, what="the refusal")


def test_what_finds_the_queue_full_is_refused_and_recovered(
    network: LocalNetwork, tmp_path: Path
) -> None:
    options = CacheOptions(
        queue_bytes_max=1, channel_samples=1000, batch_samples_max=1, stall_seconds_max=0.0
    )
    with declare_reliability_cache(
        network.client(), "a/**", options=options, backend="memory", state_dir=tmp_path
    ) as cache:
        with ready_publisher(network.client(), "a/b", history=1000) as publisher:
            for _ in range(300):
                publisher.put(b"x" * 1000)
            found = stored(cache, 300)
            assert sns(found) == list(range(300))
            assert cache.status().refused > 0
            assert cache.status().missed == 0


def test_a_channel_of_one_sample_loses_none(network: LocalNetwork) -> None:
    options = CacheOptions(channel_samples=1, batch_samples_max=1)
    with declare_reliability_cache(network.client(), "a/**", options=options) as cache:
        with ready_publisher(network.client(), "a/b") as publisher:
            for _ in range(200):
                publisher.put(b"x")
            assert sns(stored(cache, 200)) == list(range(200))


def test_an_answer_ends_at_its_bytes_and_says_so(network: LocalNetwork) -> None:
    with cache_of(network, holding(5000, 1000), query_bytes_max=10_000):
        good, errors = replies(asker(network), "*/a/b")
        assert 10 <= len(good) < 5000
        assert len(errors) == 1
        assert "cut after" in errors[0]


class Slow(MemoryStorage):
    """A backend that takes a while for every page."""

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        time.sleep(0.2)
        return super().read(selection, limit, cursor)


def test_an_answer_ends_when_its_time_is_over_and_says_so(network: LocalNetwork) -> None:
    slow = holding(9000, storage=Slow())
    with cache_of(network, slow, query_seconds_max=0.1):
        good, errors = replies(asker(network), "*/a/b")
        assert 0 < len(good) < 9000
        assert "cut after" in errors[0]


def test_packed_replies_have_the_bytes_allowed(network: LocalNetwork) -> None:
    with cache_of(network, holding(50, 1000), packed_bytes_max=5000):
        good, errors = replies(asker(network), "*/a/b?_pack=1")
        assert errors == []
        parts = [decode_packed(frame)[0] for frame in good]
        assert max(map(len, parts)) <= 5
        assert sum(map(len, parts)) == 50
    with cache_of(network, holding(1, 9000), packed_bytes_max=5000):  # a larger one goes alone
        good, _ = replies(asker(network), "*/a/b?_pack=1")
        assert sum(len(decode_packed(frame)[0]) for frame in good) == 1


def test_a_cache_that_never_answers_holds_up_recovery_for_no_longer_than_allowed(
    network: LocalNetwork,
) -> None:
    held_back: list[zenoh.Query] = []
    silent = network.client().declare_queryable("*/a/b", held_back.append)
    publisher = Numbered(network.client(), "a/b")
    options = CacheOptions(fetch_timeout_seconds=0.5)
    with declare_reliability_cache(network.client(), "a/**", options=options) as cache:
        connected(publisher.publisher)
        with declare_reliability_cache(publisher.session, "a/**") as near:
            for sn in range(10):
                publisher.put(sn, lost=sn in (3, 6))
            assert sns(stored(near, 10)) == list(range(10))
            assert sns(stored(cache, 10)) == list(range(10))
        assert held_back
        for query in held_back:
            query.drop()
    silent.undeclare()


def test_a_cache_has_as_many_threads_for_tasks_as_allowed(network: LocalNetwork) -> None:
    before = set(threading.enumerate())
    with cache_of(network, holding(3), pool_threads=1, name="single") as cache:
        begun = {thread.name for thread in threading.enumerate() if thread not in before}
        assert [name for name in begun if "pool" in name] == ["dc-single-pool-0"]
        assert sns(cache.find("a/b")) == [0, 1, 2]
        assert len(replies(asker(network), "*/a/b")[0]) == 3
