"""What caches hold reaches live subscribers though its publisher puts nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.model.sample import Sample
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.integration.test_tails import CONNECT, Behind
from tests.kit.proxy import TcpProxy


@pytest.fixture
def proxy(network: LocalNetwork) -> Iterator[TcpProxy]:
    with TcpProxy(int(network.endpoint.rsplit(":", 1)[1])) as proxy:
        yield proxy


@pytest.mark.parametrize("history", [True, False])
def test_a_publisher_that_was_offline_as_it_put_and_is_silent_since_is_heard(
    network: LocalNetwork, proxy: TcpProxy, history: bool
) -> None:
    endpoint = f"tcp/127.0.0.1:{proxy.port}"
    delivered: list[Sample] = []
    session = network.client(connect={"endpoints": [endpoint], **CONNECT})
    proxy.cut()
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_subscriber(network.client(), "a/**", delivered.append, history=history),
        declare_reliable_publisher(
            session,
            "a/b",
            acknowledgements=1,
            level="memory",
        ) as publisher,
    ):
        receipts = [publisher.put(b"offline") for _ in range(3)]
        proxy.heal()
        assert all(receipt.wait(20) for receipt in receipts)
        wait_until(lambda: len(delivered) == 3, 10, what="what was put offline")
        assert [sample.sn for sample in delivered] == [*range(3)]


@pytest.mark.parametrize("another", [True, False])
@pytest.mark.parametrize("history", [True, False])
def test_a_publisher_that_began_while_a_subscriber_was_cut_off_and_is_silent_since_is_heard(
    network: LocalNetwork, proxy: TcpProxy, history: bool, another: bool
) -> None:
    with declare_reliability_cache(network.client(), "a/**"):
        behind = Behind(network, proxy, history=history)
        with declare_reliable_publisher(network.client(), "a/b") as stays:
            wait_until(lambda: stays.matched, what="a match")
            if another:
                stays.put(b"before")
                wait_until(lambda: len(behind.delivered) == 1, what="what came before the cut")
            proxy.cut()
            with declare_reliable_publisher(
                network.client(), "a/c", acknowledgements=1, level="memory"
            ) as publisher:
                for _ in range(3):
                    assert publisher.put(b"while cut").wait(10)
                proxy.heal()
                wait_until(lambda: len(behind.delivered) == another + 3, 10, what="what it put")
                assert [one.sn for one in behind.delivered if one.key == "a/c"] == [*range(3)]
        assert behind.subscriber.missed == 0
        behind.subscriber.close()


@pytest.mark.parametrize("history", [True, False])
def test_what_a_successor_hands_on_of_a_publisher_that_was_never_linked_is_heard(
    network: LocalNetwork, proxy: TcpProxy, tmp_path: Path, history: bool
) -> None:
    endpoint = f"tcp/127.0.0.1:{proxy.port}"
    first = network.client(connect={"endpoints": [endpoint], **CONNECT})
    proxy.cut()
    delivered: list[Sample] = []
    settings = {"acknowledgements": 1, "level": "memory", "spool_dir": tmp_path / "spool"}
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_subscriber(network.client(), "a/**", delivered.append, history=history),
    ):
        with declare_reliable_publisher(first, "a/b", **settings) as publisher:
            for _ in range(3):
                publisher.put(b"offline")
        first.close()
        with declare_reliable_publisher(network.client(), "a/b", **settings) as publisher:
            publisher.flush(20)
            wait_until(lambda: len(delivered) == 3, 10, what="what was handed on")
            assert [sample.sn for sample in delivered] == [*range(3)]


@pytest.mark.parametrize("history", [True, False])
def test_the_first_that_an_older_publisher_puts_while_a_subscriber_is_cut_off_is_heard(
    network: LocalNetwork, proxy: TcpProxy, history: bool
) -> None:
    """It began before the subscriber, and put nothing until then."""
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_publisher(
            network.client(), "a/b", acknowledgements=1, level="memory"
        ) as publisher,
    ):
        wait_until(lambda: publisher.matched, what="a match")
        behind = Behind(network, proxy, history=history)
        wait_until(lambda: behind.subscriber.history_complete, what="all history")
        proxy.cut()
        for _ in range(3):
            assert publisher.put(b"while cut").wait(10)
        proxy.heal()
        wait_until(lambda: len(behind.delivered) == 3, 10, what="what it put")
        assert behind.sns() == [*range(3)]
        behind.subscriber.close()
