"""K15: what the user's own code raises never ends delivery; what cannot be called is refused."""

from __future__ import annotations

from typing import Any

import pytest
import zenoh

from durable_cache import Miss, Sample, declare_reliable_subscriber
from durable_cache.errors import ConfigError
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, Numbered, sns


def test_a_callback_that_raises_gets_the_next_sample_all_the_same(network: LocalNetwork) -> None:
    inbox = Inbox()

    def raises(sample: Sample) -> None:
        inbox(sample)
        if sample.key != Inbox.PROBE:
            raise RuntimeError(f"sample {sample.sn} is not to my liking")

    with declare_reliable_subscriber(network.client(), "a/**", raises) as subscriber:
        numbered = Numbered(network.client(), "a/b")
        inbox.await_path_from(numbered.session)
        for sn in range(5):
            numbered.put(sn)
        wait_until(lambda: sns(inbox.samples) == [0, 1, 2, 3, 4])
        wait_until(lambda: subscriber.callback_errors == 5)


def test_a_miss_listener_that_raises_ends_nothing(network: LocalNetwork) -> None:
    inbox, misses = Inbox(), list[Miss]()

    def raises(miss: Miss) -> None:
        raise SystemExit(f"no more after {miss}")

    with declare_reliable_subscriber(
        network.client(), "a/**", inbox, gap_timeout_seconds=0.2
    ) as subscriber:
        subscriber.sample_miss_listener(raises)
        subscriber.sample_miss_listener(misses.append)
        numbered = Numbered(network.client(), "a/b")
        inbox.await_path_from(numbered.session)
        for sn in (0, 2, 4):
            numbered.put(sn)
        wait_until(lambda: sns(inbox.samples) == [0, 2, 4])
        assert [(miss.first, miss.last) for miss in misses] == [(1, 1), (3, 3)]


@pytest.mark.parametrize("kind", ["fifo", "ring", "none", "pair"])
def test_misses_are_received_from_what_zenoh_takes_as_a_handler(
    network: LocalNetwork, kind: str
) -> None:
    inbox, heard, mine = Inbox(), list[Miss](), object()
    handler: Any = {
        "fifo": zenoh.handlers.FifoChannel(8),
        "ring": zenoh.handlers.RingChannel(8),
        "none": None,
        "pair": (heard.append, mine),
    }[kind]
    with declare_reliable_subscriber(
        network.client(), "a/**", inbox, gap_timeout_seconds=0.2
    ) as subscriber:
        listener: Any = subscriber.sample_miss_listener(handler)
        numbered = Numbered(network.client(), "a/b")
        inbox.await_path_from(numbered.session)
        for sn in (0, 2):
            numbered.put(sn)
        if kind == "pair":
            wait_until(lambda: heard)
            assert listener.handler is mine
        else:
            heard.append(listener.recv(10))
        assert [(miss.first, miss.last) for miss in heard] == [(1, 1)]


def test_a_subscriber_takes_a_callback_with_its_handler(network: LocalNetwork) -> None:
    inbox, mine = Inbox(), object()
    with declare_reliable_subscriber(network.client(), "a/**", (inbox, mine)) as subscriber:
        handler: Any = subscriber.handler
        assert handler is mine
        numbered = Numbered(network.client(), "a/b")
        inbox.await_path_from(numbered.session)
        numbered.put(0)
        wait_until(lambda: sns(inbox.samples) == [0])


@pytest.mark.parametrize("wrong", [7, "print", (7, None), ("a", "b", "c")])
def test_what_cannot_be_called_is_refused_at_declaration(network: LocalNetwork, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="give a callable"):
        declare_reliable_subscriber(network.client(), "a/**", wrong)
    with declare_reliable_subscriber(network.client(), "a/**") as subscriber:
        with pytest.raises(ConfigError, match="give a callable"):
            subscriber.sample_miss_listener(wrong)
