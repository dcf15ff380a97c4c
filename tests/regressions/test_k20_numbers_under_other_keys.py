"""K20: numbers under other keys, or removed before one came, are no losses and hold nothing up."""

from __future__ import annotations

from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox, connected


def test_a_subscriber_on_one_key_of_a_wildcard_publisher_waits_for_no_other(
    network: LocalNetwork,
) -> None:
    inbox = Inbox()
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_subscriber(network.client(), "a/mine", inbox) as subscriber,
        declare_reliable_publisher(network.client(), "a/*") as publisher,
    ):
        connected(publisher._publisher)
        for number in range(100):
            publisher.put(b"%d" % number, key="a/mine" if number % 2 else "a/other")
        wait_until(lambda: len(inbox.samples) == 50, 15, "every sample of one key")
        assert [int(sample.payload) for sample in inbox.samples] == list(range(1, 100, 2))
        assert subscriber.missed == 0


def test_what_retention_removed_before_one_joined_is_no_loss(network: LocalNetwork) -> None:
    inbox = Inbox()
    with (
        declare_reliability_cache(network.client(), "a/**", history=5) as cache,
        declare_reliable_publisher(network.client(), "a/*", cache=False) as publisher,
    ):
        connected(publisher._publisher)
        for number in range(200):
            publisher.put(b"%d" % number, key="a/rare" if number % 40 == 0 else "a/often")
        wait_until(lambda: cache.status().appended == 200)
        with declare_reliable_subscriber(
            network.client(), "a/**", inbox, history=True
        ) as subscriber:

            def came() -> list[int]:
                return [int(sample.payload) for sample in inbox.samples]

            wait_until(lambda: len(came()) >= 10, 15, "the newest of each key", instead=came)
            assert came() == [0, 40, 80, 120, 160, 195, 196, 197, 198, 199]
            assert subscriber.missed == 0
