"""The last samples of a source, published while a link was cut, reach its subscribers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from durable_cache import declare_reliability_cache, declare_reliable_publisher
from durable_cache.endpoints.subscriber import ReliableSubscriber, declare_reliable_subscriber
from durable_cache.model.sample import Sample
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.proxy import TcpProxy

CUT_SECONDS = 60.0
CONNECT = {
    "timeout_ms": -1,
    "exit_on_failure": False,
    "retry": {"period_init_ms": 50, "period_max_ms": 200, "period_increase_factor": 1.5},
}


class Behind:
    """A subscriber whose link to the router can be cut."""

    def __init__(self, network: LocalNetwork, proxy: TcpProxy, **settings: object) -> None:
        endpoint = f"tcp/127.0.0.1:{proxy.port}"
        self.session = network.client(connect={"endpoints": [endpoint], **CONNECT})
        self.delivered: list[Sample] = []
        self.subscriber: ReliableSubscriber = declare_reliable_subscriber(  # type: ignore[call-overload]
            self.session, "a/**", self.delivered.append, **settings
        )

    def sns(self) -> list[int]:
        return [sample.sn for sample in self.delivered]


@pytest.fixture
def proxy(network: LocalNetwork) -> Iterator[TcpProxy]:
    with TcpProxy(int(network.endpoint.rsplit(":", 1)[1])) as proxy:
        yield proxy


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("publisher_stays", [True, False])
def test_what_was_published_while_a_subscriber_was_cut_off_is_delivered_when_it_is_back(
    network: LocalNetwork, proxy: TcpProxy, history: bool, publisher_stays: bool
) -> None:
    with declare_reliability_cache(network.client(), "a/**"):
        behind = Behind(network, proxy, history=history)
        publisher = declare_reliable_publisher(
            network.client(), "a/b", acknowledgements=1, level="memory"
        )
        wait_until(lambda: publisher.matched, what="a match")
        for _ in range(5):
            assert publisher.put(b"before").wait(10)
        wait_until(lambda: len(behind.delivered) == 5, what="what came before the cut")
        proxy.cut()
        for _ in range(5):
            assert publisher.put(b"while cut").wait(10)
        if not publisher_stays:
            publisher.close()
        proxy.heal()
        wait_until(lambda: len(behind.delivered) == 10, 20, what="the rest")
        assert behind.sns() == [*range(10)]
        assert behind.subscriber.missed == 0
        behind.subscriber.close()
        publisher.close()


@pytest.mark.slow
def test_over_a_cut_of_a_minute_each_sample_is_delivered_once_and_in_order(
    network: LocalNetwork, proxy: TcpProxy
) -> None:
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_publisher(
            network.client(), "a/b", acknowledgements=1, level="memory"
        ) as publisher,
    ):
        behind = Behind(network, proxy, mode="exactly-once")
        wait_until(lambda: publisher.matched, what="a match")

        def publish(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                publisher.put(b"")
                time.sleep(0.01)

        publish(1.0)
        wait_until(lambda: len(behind.delivered) > 0, what="what came before the cut")
        proxy.cut()
        publish(CUT_SECONDS)
        proxy.heal()
        publish(1.0)
        publisher.flush(20)
        last = publisher.put(b"").sn
        wait_until(lambda: last in behind.sns(), 30, what="the last sample")
        assert behind.sns() == [*range(last + 1)]
        assert behind.subscriber.missed == 0
        behind.subscriber.close()


def test_what_only_a_resend_brought_to_a_cache_reaches_live_subscribers(
    network: LocalNetwork, proxy: TcpProxy
) -> None:
    endpoint = f"tcp/127.0.0.1:{proxy.port}"
    session = network.client(connect={"endpoints": [endpoint], **CONNECT})
    delivered: list[Sample] = []
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_subscriber(network.client(), "a/**", delivered.append),
        declare_reliable_publisher(
            session,
            "a/b",
            acknowledgements=1,
            level="memory",
            cache=False,
            resend_delay_seconds=0.2,
        ) as publisher,
    ):
        wait_until(lambda: publisher.matched, what="a match")
        assert publisher.put(b"before").wait(10)
        wait_until(lambda: len(delivered) == 1, what="the first")
        proxy.cut()
        receipts = [publisher.put(b"while cut") for _ in range(3)]
        proxy.heal()
        assert all(receipt.wait(20) for receipt in receipts)
        wait_until(lambda: len(delivered) == 4, 20, what="the rest")
        assert [sample.sn for sample in delivered] == [*range(4)]


@pytest.mark.parametrize("history", [True, False])
def test_a_publisher_that_came_and_went_while_a_subscriber_was_cut_off_is_heard_afterwards(
    network: LocalNetwork, proxy: TcpProxy, history: bool
) -> None:
    with declare_reliability_cache(network.client(), "a/**"):
        behind = Behind(network, proxy, history=history)
        with declare_reliable_publisher(network.client(), "a/b") as stays:
            wait_until(lambda: stays.matched, what="a match")
            stays.put(b"before")
            wait_until(lambda: len(behind.delivered) == 1, what="what came before the cut")
            proxy.cut()
            session = network.client()
            with declare_reliable_publisher(
                session, "a/c", acknowledgements=1, level="memory"
            ) as short:
                assert short.put(b"while cut").wait(10)
                assert short.delete().wait(10)
            session.close()
            proxy.heal()
            wait_until(lambda: len(behind.delivered) == 3, 20, what="what it put")
            assert [(sample.key, sample.sn) for sample in behind.delivered[1:]] == [
                ("a/c", 0),
                ("a/c", 1),
            ]
        assert behind.subscriber.missed == 0
        behind.subscriber.close()
