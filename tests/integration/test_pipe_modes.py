"""Pipes in each delivery mode, behind a relay that drops, doubles and reorders whole samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from durable_cache import (
    ReliabilityCache,
    declare_reliability_cache,
    declare_reliable_publisher,
)
from durable_cache.consumers import ConsumerOptions
from durable_cache.endpoints.session import Origins
from durable_cache.errors import ConfigError
from durable_cache.model.delivery import DeliveryMode, DeliveryRates
from durable_cache.pipes import PipeOptions, ReliablePipe, declare_reliable_pipe
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.relay import Relayed, choice, rising
from tests.servers.zenoh_sources import await_path

POSITIONS = "@durable/v1/default/consumers/**"
MODES = ("unreliable", "at-most-once", "at-least-once", "exactly-once")
SENT = 900


def options_of(mode: str, retry_seconds: float = 0.5) -> PipeOptions:
    soon = ConsumerOptions(
        level="memory", confirm_seconds=0.01, predecessor_seconds=0.5, caches_seconds=0.5
    )
    chosen = soon if mode == "exactly-once" else ConsumerOptions()
    return PipeOptions(
        mode, level="memory", mode=mode, consumer_options=chosen, retry_seconds=retry_seconds
    )


def numbers(cache: ReliabilityCache) -> list[int]:
    return sorted(sample.sn for sample in cache.find("a/**"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_each_mode_carries_what_its_name_says_and_the_rates_are_what_was_counted(
    stack: ExitStack,
) -> None:
    """The relay's losses are the route's; the pipes behind it lose and repeat nothing."""
    first, middle = (stack.enter_context(LocalNetwork()) for _ in range(2))
    route = Relayed([first, middle], choice(20261123), stored=True)
    (relay,) = route.relays
    kept = {"allowed_origin": Origins.SESSION_LOCAL}
    stack.enter_context(declare_reliability_cache(relay.session, "a/b", **kept))
    stack.enter_context(declare_reliability_cache(middle.client(), POSITIONS))
    pipes: dict[str, ReliablePipe] = {}
    ends: dict[str, ReliabilityCache] = {}
    for mode in MODES:
        far = stack.enter_context(LocalNetwork())
        ends[mode] = stack.enter_context(declare_reliability_cache(far.client(), "a/**"))
        taken_from = middle.client()
        patient = mode in ("unreliable", "at-most-once")  # what waits longer is lost there
        options = options_of(mode, 60.0 if patient else 0.5)
        pipes[mode] = stack.enter_context(
            declare_reliable_pipe(taken_from, far.client(), "a/*", options=options)
        )
        wait_until(lambda mode=mode: pipes[mode].status().caches == 1)
        await_path(relay.session, taken_from)
    route.publish(SENT)
    everything = list(range(SENT + 1))
    for mode in ("at-least-once", "exactly-once"):
        wait_until(lambda mode=mode: pipes[mode].status().confirmed == SENT + 1, 60, mode)
    wait_until(lambda: relay.taken == SENT + 1, what="the relay's last")
    unique = {"unreliable": sorted(set(relay.sent)), "at-most-once": rising(relay.sent)}
    assert (
        len(unique["at-most-once"])
        < len(unique["unreliable"])
        < len(everything)
        < len(relay.sent) + SENT
    )
    for mode, carried in unique.items():
        pipe, count = pipes[mode], len(carried)
        try:
            wait_until(lambda it=pipe, count=count: it.status().confirmed == count, 60, mode)
        except AssertionError as error:
            raise AssertionError(f"{pipe.status()}, not {count}") from error
        assert pipe.mode is DeliveryMode.named(mode)
        assert pipe.status().rates == (1.0, 1.0), "of the pipe alone"
        counted = DeliveryRates.measured(SENT + 1, len(relay.sent), count)
        assert pipe.status().route == counted, "from the publisher to the cache"
        assert (pipe.status().lost, pipe.status().under_way) == (0, 0)
    for mode in ("at-least-once", "exactly-once"):
        assert pipes[mode].status().route.reliability == 1.0
    assert {mode: numbers(end) for mode, end in ends.items()} == {
        **unique,
        "at-least-once": everything,
        "exactly-once": everything,
    }


@pytest.mark.parametrize("mode", ["unreliable", "at-most-once"])
def test_what_no_cache_takes_is_lost_and_counted_as_the_pipes_own(
    stack: ExitStack, mode: str
) -> None:
    """And no cache is needed where samples come from: nothing is confirmed there."""
    near, far = (stack.enter_context(LocalNetwork()) for _ in range(2))
    publisher = stack.enter_context(declare_reliable_publisher(near.client(), "a/b"))
    pipe = stack.enter_context(
        declare_reliable_pipe(near.client(), far.client(), "a/**", options=options_of(mode))
    )

    def put(count: int) -> None:
        for _ in range(count):
            publisher.put(b"x")

    with declare_reliability_cache(far.client(), "a/**") as cache:
        wait_until(lambda: pipe.status().caches == 1)
        put(10)
        wait_until(lambda: pipe.status().confirmed == 10)
        assert numbers(cache) == [*range(10)]
        pipe.flush(5)
    wait_until(lambda: pipe.status().caches == 0)
    put(5)
    wait_until(lambda: pipe.status().lost == 5)
    pipe.flush(5)
    with declare_reliability_cache(far.client(), "a/**") as cache:
        wait_until(lambda: pipe.status().caches == 1)
        put(5)
        wait_until(lambda: pipe.status().confirmed == 15)
        assert numbers(cache) == [*range(15, 20)]
    status = pipe.status()
    assert status.rates == DeliveryRates.measured(20, 15, 15)
    assert status.route == status.rates, "nothing is lost before the pipe"
    assert (status.taken, status.under_way, status.missed) == (20, 0, 0)


def test_at_least_once_keeps_no_position_and_carries_all_again(stack: ExitStack) -> None:
    near, far = (stack.enter_context(LocalNetwork()) for _ in range(2))
    stack.enter_context(declare_reliability_cache(near.client(), "a/**"))
    cache = stack.enter_context(declare_reliability_cache(far.client(), "a/**"))
    publisher = stack.enter_context(
        declare_reliable_publisher(near.client(), "a/b", acknowledgements=1, level="memory")
    )
    sessions = near.client(), far.client()
    for count in (10, 20):
        for _ in range(10):
            publisher.put(b"x")
        publisher.flush(10)
        with declare_reliable_pipe(*sessions, "a/**", options=options_of("at-least-once")) as pipe:
            wait_until(lambda count=count: pipe.status().confirmed == count, 30, "all, once more")
            assert numbers(cache) == [*range(count)], "known is known"
            wait_until(lambda: pipe.is_caught_up)
    with pytest.raises(ConfigError, match="positions"):
        declare_reliable_pipe(*sessions, "a/**", options=options_of("exactly-once"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "twice"}, "unreliable, at-most-once, at-least-once, exactly-once"),
        (
            {"mode": "at-most-once", "processed_by": "bill"},
            "confirms nothing: leave it out, or choose exactly-once",
        ),
        (
            {"mode": "at-least-once", "consumer_options": ConsumerOptions(acknowledgements=2)},
            "unconfirmed_max alone counts: leave the others out",
        ),
    ],
)
def test_what_contradicts_the_mode_of_a_pipe_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PipeOptions(**given).checked()
