"""Reliable pipes between networks of caches, over real sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from durable_cache import (
    CacheOptions,
    Miss,
    ReliabilityCache,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions
from durable_cache.endpoints.session import Session
from durable_cache.errors import ConfigError, OutcomeUnknown
from durable_cache.model.sequence import frame
from durable_cache.pipes import PipeOptions, ReliablePipe, declare_reliable_pipe
from durable_cache.testing.network import LocalNetwork, wait_until

POSITIONS = "@durable/v1/default/consumers/**"
SOON = ConsumerOptions(
    level="memory", confirm_seconds=0.01, predecessor_seconds=0.5, caches_seconds=0.5
)
PIPE = PipeOptions(level="memory", consumer_options=SOON, retry_seconds=0.3)


@pytest.fixture
def near() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


@pytest.fixture
def far() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


@pytest.fixture
def near_cache(near: LocalNetwork) -> Iterator[ReliabilityCache]:
    with declare_reliability_cache(near.client(), ["a/**", POSITIONS]) as cache:
        yield cache


@pytest.fixture
def far_cache(far: LocalNetwork) -> Iterator[ReliabilityCache]:
    with declare_reliability_cache(far.client(), ["a/**", POSITIONS]) as cache:
        yield cache


def publisher_in(network: LocalNetwork, key_expr: str = "a/b") -> ReliablePublisher[Any]:
    return declare_reliable_publisher(
        network.client(), key_expr, acknowledgements=1, level="memory"
    )


def pipe_between(near: LocalNetwork, far: LocalNetwork, **named: Any) -> ReliablePipe:
    return declare_reliable_pipe(near.client(), far.client(), "a/**", options=PIPE, **named)


def stored(cache: ReliabilityCache) -> list[Sample]:
    return sorted(cache.find("a/**"), key=lambda sample: sample.order)


def as_published(sample: Sample) -> tuple[object, ...]:
    """All of a sample but when the first cache received it."""
    return tuple(
        getattr(sample, name) for name in Sample.__struct_fields__ if name != "received_ns"
    )


def test_what_goes_through_a_pipe_stays_as_it_was_published(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    far_cache: ReliabilityCache,
) -> None:
    with publisher_in(near) as publisher:
        for at in range(20):
            publisher.put(b"%d" % at, attachment=b"with %d" % at, encoding="text/plain;utf-8")
        publisher.flush(10)
        with pipe_between(near, far) as pipe:
            wait_until(lambda: pipe.status().confirmed == 20, what="what was there before")
            publisher.put(b"live")
            publisher.delete(attachment=b"gone")
            publisher.flush(10)
            wait_until(lambda: pipe.status().confirmed == 22, what="what is published")
            status = pipe.status()
    assert len(stored(far_cache)) == 22
    assert [*map(as_published, stored(far_cache))] == [*map(as_published, stored(near_cache))]
    assert (status.taken, status.passed, status.given_up, status.repeated) == (22, 22, 0, 0)
    assert status.rates == status.route == (1.0, 1.0)


def subscribe(
    session: Session, misses: list[Miss] | None = None, **chosen: Any
) -> tuple[list[Sample], Callable[[], None]]:
    got: list[Sample] = []
    subscriber = declare_reliable_subscriber(session, "a/**", got.append, **chosen)
    if misses is not None:
        subscriber.sample_miss_listener(misses.append)
    return got, subscriber.close


def test_a_subscriber_of_the_target_network_gets_what_is_carried_once_and_in_order(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    far_cache: ReliabilityCache,
) -> None:
    """Two runs of two publishers, before the subscriber, and while it listens."""
    assert near_cache.key_exprs
    with ExitStack() as stack:
        first = stack.enter_context(publisher_in(near, "a/1"))
        for _ in range(30):
            first.put(b"")
        stack.enter_context(pipe_between(near, far))
        wait_until(lambda: len(stored(far_cache)) == 30, what="the far cache")
        got, close = subscribe(far.client(), history=True)
        stack.callback(close)
        second = stack.enter_context(publisher_in(near, "a/2"))
        for _ in range(30):
            first.put(b"")
            second.put(b"")
        wait_until(lambda: len(got) >= 90, what="every sample")
        for publisher in (first, second):
            sns = [sample.sn for sample in got if sample.source == publisher.source]
            assert sns == [*range(publisher.next_sn)]


def test_a_source_of_long_before_reaches_a_subscriber_that_has_read_history(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    far_cache: ReliabilityCache,
) -> None:
    assert near_cache.key_exprs
    with publisher_in(near) as publisher:
        for _ in range(10):
            publisher.put(b"")
        publisher.flush(10)
        began = publisher.epoch
        wait_until(lambda: frame(time.time_ns()) > began, 20, "a time after its beginning")
        with declare_reliable_subscriber(far.client(), "a/**", history=True) as subscriber:
            wait_until(lambda: subscriber.history_complete, what="its history")
            assert not stored(far_cache)
            with pipe_between(near, far):
                sns = [subscriber.recv(20).sn for _ in range(10)]
                publisher.put(b"")
                assert [*sns, subscriber.recv(20).sn] == [*range(11)]


def test_numbers_of_keys_that_are_not_carried_are_no_loss(
    near: LocalNetwork, far: LocalNetwork
) -> None:
    with (
        declare_reliability_cache(near.client(), ["**", POSITIONS]),
        declare_reliability_cache(far.client(), "a/**"),
        publisher_in(near, "**") as publisher,
    ):
        misses: list[Miss] = []
        got, close = subscribe(far.client(), misses, history=True)
        with pipe_between(near, far) as pipe:
            for at in range(60):
                publisher.put(b"%d" % at, key="a/b" if at % 3 else "other/b")
            publisher.flush(10)
            wait_until(lambda: pipe.status().confirmed == 40, what="what is carried")
            wait_until(lambda: len(got) == 40, 20, "what is carried, delivered")
            assert [sample.payload for sample in got] == [b"%d" % at for at in range(60) if at % 3]
            assert not misses
        close()


def test_a_pipe_goes_on_where_it_stood(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    far_cache: ReliabilityCache,
) -> None:
    assert near_cache.key_exprs
    with publisher_in(near) as publisher:
        for count in (10, 5, 7):
            for _ in range(count):
                publisher.put(b"")
            publisher.flush(10)
            with pipe_between(near, far) as pipe:
                wait_until(lambda: pipe.status().confirmed > 0, what="carrying")
                wait_until(lambda: not pipe.status().under_way, what="confirming")
                pipe.flush(10)
                assert pipe.status().taken == count
        assert [sample.sn for sample in stored(far_cache)] == [*range(22)]


def test_more_than_is_taken_at_once_goes_over_whole(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    far_cache: ReliabilityCache,
) -> None:
    assert near_cache.key_exprs
    with publisher_in(near) as publisher:
        for _ in range(12_000):
            publisher.put(b"")
        publisher.flush(60)
        with pipe_between(
            near, far, consumer_options=replace(SOON, unconfirmed_max=12_000)
        ) as pipe:
            wait_until(lambda: pipe.status().confirmed == 12_000, 60, "all of it")
        assert far_cache.status().appended == 12_000


def test_nothing_is_confirmed_before_a_cache_of_the_target_network_holds_it(
    near: LocalNetwork, far: LocalNetwork, near_cache: ReliabilityCache
) -> None:
    assert near_cache.key_exprs
    with publisher_in(near) as publisher, pipe_between(near, far) as pipe:
        for _ in range(50):
            publisher.put(b"")
        wait_until(lambda: pipe.status().taken == 50, what="taking")
        with pytest.raises(OutcomeUnknown, match="50 samples are not known to be held by 1 cach"):
            pipe.flush(0.5)
        assert pipe.status().confirmed == 0
        with declare_reliability_cache(far.client(), "a/**") as first:
            wait_until(lambda: pipe.status().confirmed == 50, what="the far cache")
            assert len(stored(first)) == 50
        wait_until(lambda: pipe.status().caches == 0, what="the end of the cache")
        publisher.put(b"")
        with declare_reliability_cache(far.client(), "a/**") as second:
            pipe.flush(20)
            assert [sample.sn for sample in stored(second)] == [50]


def test_two_caches_are_waited_for_where_two_are_wanted(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    far_cache: ReliabilityCache,
) -> None:
    assert near_cache.key_exprs
    with (
        publisher_in(near) as publisher,
        pipe_between(near, far, acknowledgements=2) as pipe,
    ):
        for _ in range(50):
            publisher.put(b"")
        wait_until(lambda: len(stored(far_cache)) == 50, what="the first cache")
        assert pipe.status().passed == 0
        with declare_reliability_cache(far.client(), "a/**") as second:
            pipe.flush(20)
            assert [*map(as_published, stored(second))] == [*map(as_published, stored(far_cache))]


def test_a_pipe_onto_itself_is_refused(near: LocalNetwork, near_cache: ReliabilityCache) -> None:
    assert near_cache.key_exprs
    session = near.client()
    for target in (session, near.client(), near.router):
        with pytest.raises(ConfigError, match="pipe 'pipe': both ends are in one network"):
            declare_reliable_pipe(session, target, "a/**", options=PIPE)


def test_a_ring_of_pipes_brings_nothing_twice_and_comes_to_rest(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    far_cache: ReliabilityCache,
) -> None:
    with (
        publisher_in(near, "a/1") as here,
        publisher_in(far, "a/2") as there,
        pipe_between(near, far) as onwards,
        pipe_between(far, near) as back,
    ):
        got, close = subscribe(near.client(), history=True)
        for _ in range(40):
            here.put(b"")
            there.put(b"")
        wait_until(lambda: onwards.status().confirmed == 80, 20, "all of both, onwards")
        wait_until(lambda: back.status().confirmed == 80, 20, "all of both, back")
        wait_until(lambda: len(got) == 80, what="delivery")
        assert len(stored(near_cache)) == len(stored(far_cache)) == 80
        assert near_cache.status().conflicts == far_cache.status().conflicts == 0
        close()


def test_three_hops_confirm_backwards_only_what_the_application_processed(
    near: LocalNetwork, far: LocalNetwork, near_cache: ReliabilityCache, far_cache: ReliabilityCache
) -> None:
    """`A->P1; P1->P2; P2->P3; P3->B` through four networks, B confirming by hand."""
    assert near_cache.key_exprs
    assert far_cache.key_exprs
    with ExitStack() as stack:
        middle = [stack.enter_context(LocalNetwork()) for _ in range(2)]
        for network in middle:
            stack.enter_context(declare_reliability_cache(network.client(), ["a/**", POSITIONS]))
        publisher = stack.enter_context(publisher_in(near))
        networks = [near, *middle, far]
        names = ["first", "second", "third", "bill"]
        pipes = [
            stack.enter_context(
                declare_reliable_pipe(
                    networks[at].client(),
                    networks[at + 1].client(),
                    "a/**",
                    options=PIPE,
                    name=names[at],
                    processed_by=names[at + 1],
                )
            )
            for at in range(3)
        ]
        consumer = stack.enter_context(
            declare_reliable_subscriber(
                far.client(), "a/**", consumer="bill", confirm="manual", consumer_options=SOON
            )
        )
        for at in range(30):
            publisher.put(b"%d" % at)
        got = [consumer.recv(20) for _ in range(30)]
        assert [sample.payload for sample in got] == [b"%d" % at for at in range(30)]
        assert {sample.source for sample in got} == {publisher.source}
        wait_until(lambda: all(pipe.status().passed == 30 for pipe in pipes), what="three hops")
        assert [pipe.status().confirmed for pipe in pipes] == [0, 0, 0]
        consumer.confirm(*got[:10])
        wait_until(
            lambda: [pipe.status().confirmed for pipe in pipes] == [10, 10, 10], 20, "the cascade"
        )
        consumer.confirm(*got[10:])
        for pipe in pipes:
            pipe.flush(20)


def test_each_network_has_a_domain_of_its_own(near: LocalNetwork, far: LocalNetwork) -> None:
    kept = ["a/**", "@durable/v1/site/consumers/**"]
    with (
        declare_reliability_cache(near.client(), kept, options=CacheOptions(domain="site")),
        declare_reliability_cache(far.client(), "a/**", options=CacheOptions(domain="hub")) as hub,
        declare_reliable_publisher(
            near.client(), "a/b", acknowledgements=1, level="memory", domain="site"
        ) as publisher,
        pipe_between(
            near, far, source_domain="site", target_domain="hub", answer_timeout_seconds=2.0
        ) as pipe,
    ):
        publisher.put(b"over")
        wait_until(lambda: pipe.status().confirmed == 1, what="carrying")
        assert [sample.payload for sample in stored(hub)] == [b"over"]


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"name": "a b"}, "^name: expected a name"),
        ({"processed_by": ""}, "^processed_by: expected a name"),
        ({"acknowledgements": 0}, "acknowledgements"),
        ({"level": "tape"}, "level"),
        ({"frame_samples_max": 20_000}, "frame_samples_max"),
        ({"frame_bytes_max": 1 << 30}, "frame_bytes_max"),
        ({"retry_seconds": -1}, "retry_seconds"),
        ({"target_domain": ""}, "target_domain"),
        ({"consumer_options": ConsumerOptions(attempts_max=3)}, "attempts_max"),
        ({"consumer_options": ConsumerOptions(members_max=2)}, "members_max"),
    ],
)
def test_what_no_pipe_can_work_with_is_named(named: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PipeOptions(**named).checked()


def test_caches_beyond_the_bound_are_told_of_and_served_when_one_goes(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert near_cache.key_exprs
    with (
        declare_reliability_cache(far.client(), ["a/**", "b/**"]) as first,
        publisher_in(near) as publisher,
        pipe_between(near, far, caches_max=1) as pipe,
    ):
        wait_until(lambda: pipe.status().caches == 1, what="the first cache")
        assert pipe.status().caches_left_out == 0
        with declare_reliability_cache(far.client(), "a/**"):
            wait_until(lambda: pipe.status().caches_left_out == 1, what="the second")
        wait_until(lambda: pipe.status().caches_left_out == 0, what="its end")
        with declare_reliability_cache(far.client(), "a/**") as third:
            wait_until(lambda: pipe.status().caches_left_out == 1, what="the third")
            first.close()
            publisher.put(b"")
            wait_until(lambda: len(stored(third)) == 1, 20, "what the third was not sent before")
            assert (pipe.status().caches, pipe.status().caches_left_out) == (1, 0)
    told = [record for record in caplog.records if "raise caches_max" in record.message]
    assert [(record.levelname, record.__dict__["caches_max"]) for record in told] == [
        ("WARNING", 1)
    ]


def test_a_target_network_without_caches_is_told_of_once_and_so_is_its_coming_back(
    near: LocalNetwork,
    far: LocalNetwork,
    near_cache: ReliabilityCache,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    def opened() -> ReliabilityCache:
        return declare_reliability_cache(far.client(), "a/**")

    cache = opened()
    with pipe_between(near, far) as pipe:
        wait_until(lambda: pipe.status().caches == 1, what="the cache of the target network")
        cache.close()
        wait_until(lambda: told("too few caches") == 1, what="a word of it")
        with opened():
            wait_until(lambda: told("in reach again") == 1, what="a word of its coming back")
        assert told("too few caches") == 1
