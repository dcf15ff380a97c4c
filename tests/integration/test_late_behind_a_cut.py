"""A subscriber that begins while its side is cut off is given what the other side stored.

The near side has publishers and a cache, the far side a cache and the subscriber. Nothing is
published once the link has healed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from durable_cache import (
    CacheOptions,
    ReliabilityCache,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.endpoints.session import Session, tokens_now
from durable_cache.endpoints.subscriber import ReliableSubscriber, declare_reliable_subscriber
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample
from durable_cache.protocol.alignment import AlignerOptions
from durable_cache.protocol.wire import tokens_about
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.far import FarNetwork
from tests.kit.proxy import TcpProxy

FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)


class Sides:
    """Two routers, a cache at each, and a link between them."""

    def __init__(self, stack: ExitStack) -> None:
        self.near = stack.enter_context(LocalNetwork())
        self.proxy = stack.enter_context(TcpProxy(int(self.near.endpoint.rpartition(":")[2])))
        self.far = stack.enter_context(FarNetwork(self.proxy.port))
        self.caches: list[ReliabilityCache] = [
            stack.enter_context(
                declare_reliability_cache(
                    of.client(), "a/**", options=CacheOptions(align=True, aligner=FAST)
                )
            )
            for of in (self.near, self.far)
        ]

    def stored(self, count: int) -> bool:
        """Tell whether both caches have so many samples."""
        return all(len(cache.find("a/**")) == count for cache in self.caches)

    def await_caches(self, count: int) -> None:
        """Wait until subscribers of the far side see so many caches."""
        pattern = tokens_about("default", "history", KeyExpression("a/**"))
        session = self.far.client()
        wait_until(lambda: len(tokens_now(session, pattern, 1.0)) == count, 30, what="caches")


@pytest.fixture
def sides() -> Iterator[Sides]:
    with ExitStack() as stack:
        yield Sides(stack)


@contextmanager
def put(session: Session, key: str, payloads: list[bytes]) -> Iterator[None]:
    """Publish and see each stored by a cache; the publisher ends with the block."""
    with declare_reliable_publisher(session, key, acknowledgements=1, level="memory") as publisher:
        for payload in payloads:
            assert publisher.put(payload).wait(10)
        yield


def late(sides: Sides, delivered: list[Sample]) -> ReliableSubscriber:
    subscriber: ReliableSubscriber = declare_reliable_subscriber(
        sides.far.client(), "a/**", delivered.append, history=True
    )
    return subscriber


@pytest.mark.parametrize("stays", [True, False])
def test_what_the_other_side_stored_before_and_after_we_began_is_delivered_once(
    sides: Sides, stays: bool
) -> None:
    with put(sides.near.client(), "a/both", [b"1", b"2"]):
        wait_until(lambda: sides.stored(2), 20, what="both caches equal")
    sides.proxy.cut()
    delivered: list[Sample] = []
    with ExitStack() as publishers, put(sides.near.client(), "a/near", [b"3", b"4"]):
        with late(sides, delivered) as subscriber:
            wait_until(lambda: subscriber.history_complete, what="history of this side")
            assert [sample.payload for sample in delivered] == [b"1", b"2"]
            publishers.enter_context(put(sides.near.client(), "a/later", [b"5"]))
            if not stays:
                publishers.close()
            sides.proxy.heal()
            wait_until(lambda: len(delivered) == 5, 30, what="what the other side stored")
            wait_until(lambda: sides.stored(5), 30, what="both caches equal")
            assert [s.payload for s in delivered if s.key != "a/later"] == [b"1", b"2", b"3", b"4"]
            assert subscriber.missed == 0


def test_the_tail_of_a_source_that_both_sides_knew_is_delivered(sides: Sides) -> None:
    session = sides.near.client()
    with declare_reliable_publisher(
        session, "a/b", acknowledgements=1, level="memory"
    ) as publisher:
        assert publisher.put(b"before").wait(10)
        wait_until(lambda: sides.stored(1), 20, what="both caches equal")
        sides.proxy.cut()
        assert publisher.put(b"while cut").wait(10)
        delivered: list[Sample] = []
        with late(sides, delivered) as subscriber:
            wait_until(lambda: subscriber.history_complete, what="history of this side")
            assert [sample.payload for sample in delivered] == [b"before"]
            sides.proxy.heal()
            wait_until(lambda: len(delivered) == 2, 30, what="the tail")
            assert [sample.payload for sample in delivered] == [b"before", b"while cut"]
            assert subscriber.missed == 0


def test_a_new_cache_that_copies_what_we_were_given_brings_nothing_twice(sides: Sides) -> None:
    with put(sides.near.client(), "a/b", [b"1", b"2", b"3"]):
        wait_until(lambda: sides.stored(3), 20, what="both caches equal")
    delivered: list[Sample] = []
    options = CacheOptions(align=True, aligner=FAST)
    with late(sides, delivered) as subscriber:
        wait_until(lambda: subscriber.history_complete, what="history")
        with declare_reliability_cache(sides.far.client(), "a/**", options=options) as third:
            wait_until(lambda: len(third.find("a/**")) == 3, 30, what="a copy of all")
            with put(sides.near.client(), "a/c", [b"4"]):
                wait_until(lambda: len(delivered) == 4, what="what is published then")
        assert [sample.payload for sample in delivered] == [b"1", b"2", b"3", b"4"]
        assert (subscriber.missed, subscriber.duplicates) == (0, 0)


def test_a_publisher_that_came_and_went_behind_a_cut_is_heard_though_a_cache_stayed(
    sides: Sides,
) -> None:
    delivered: list[Sample] = []
    sides.await_caches(2)
    with late(sides, delivered) as subscriber:
        wait_until(lambda: subscriber.history_complete, what="history")
        with put(sides.near.client(), "a/before", [b"1"]):
            wait_until(lambda: len(delivered) == 1, what="a sample before the cut")
        sides.proxy.cut()
        sides.await_caches(1)
        with put(sides.near.client(), "a/gone", [b"2", b"3"]):
            pass
        with put(sides.far.client(), "a/here", [b"4"]):
            wait_until(lambda: len(delivered) == 2, what="a sample of this side")
        sides.proxy.heal()
        wait_until(lambda: len(delivered) == 4, 30, what="what the other side stored")
        wait_until(lambda: sides.stored(4), 30, what="both caches equal")
        with put(sides.near.client(), "a/after", [b"5"]):
            wait_until(lambda: len(delivered) == 5, what="what is published then")
        assert [sample.payload for sample in delivered] == [b"1", b"4", b"2", b"3", b"5"]
        assert (subscriber.missed, subscriber.duplicates) == (0, 0)


def test_a_cache_that_restarts_brings_nothing_twice(sides: Sides, tmp_path: Path) -> None:
    delivered: list[Sample] = []
    options = CacheOptions(align=True, aligner=FAST)
    sides.await_caches(2)

    def live_once(payload: bytes, count: int) -> None:
        cache = declare_reliability_cache(
            sides.far.client(), "a/**", options=options, state_dir=tmp_path
        )
        with cache, put(sides.near.client(), "a/b", [payload]):
            sides.await_caches(3)
            wait_until(lambda: len(delivered) == count, what="a sample")
            wait_until(lambda: len(cache.find("a/**")) == count, 30, what="a copy of all")
        sides.await_caches(2)

    with late(sides, delivered) as subscriber:
        wait_until(lambda: subscriber.history_complete, what="history")
        payloads = [b"1", b"2", b"3"]
        for count, payload in enumerate(payloads, 1):
            live_once(payload, count)
        assert [sample.payload for sample in delivered] == payloads
        assert (subscriber.missed, subscriber.duplicates) == (0, 0)
