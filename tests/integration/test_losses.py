"""What a subscriber's program, an operator and another program see of losses, on real sessions."""

from __future__ import annotations

import json
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import zenoh

from durable_cache import Miss, Sample, declare_reliable_subscriber
from durable_cache.endpoints.session import source_of
from durable_cache.model.delivery import DeliveryRates
from durable_cache.protocol.advisories import LossAdvisory, decode_advisory
from durable_cache.protocol.losses import decode_rows
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.relay import Relay, Relayed, choice, rising
from tests.servers.zenoh_sources import Numbered, connected, ready_publisher

ALONE = DeliveryOptions(recovery=False, losses_max=5, loss_keys_max=3)


def test_a_loss_is_on_the_sample_in_the_table_and_advised(network: LocalNetwork) -> None:
    heard: list[bytes] = []
    watching = network.client().declare_subscriber(
        "@durable/v1/*/loss/*", lambda sample: heard.append(sample.payload.to_bytes())
    )
    taken: list[Sample] = []
    session = network.client()
    with declare_reliable_subscriber(session, "a/*", taken.append, options=ALONE) as subscriber:
        listener = subscriber.loss_listener()
        numbered = Numbered(network.client(), "a/b")
        connected(numbered.publisher)
        for sn in (0, 1, 5, 6, 6):
            numbered.put(sn)
        wait_until(lambda: subscriber.duplicates == 1)
        assert [(one.sn, one.missed_before) for one in taken] == [(0, 0), (1, 0), (5, 3), (6, 0)]
        source = source_of(numbered.publisher)
        (row,) = subscriber.losses
        assert (row.source, row.user, row.lost, row.repeats) == (source, str(source), 3, 1)
        assert row.lost_ns > 0
        first = listener.recv(5)
        assert first == LossAdvisory(subscriber.source, 3, 3, (("a/*", 3),))
        wait_until(lambda: heard)
        assert decode_advisory(heard[0]) == first
        assert json.loads(heard[0])["ADV_NAME"] == "DATALOSS.INBOUND.BCAST"
        for sn in (10, 20):
            numbered.put(sn)
        assert listener.recv(5).lost <= 12
        wait_until(lambda: decode_advisory(heard[-1]).total == 15)
        assert sum(decode_advisory(one).lost for one in heard) == 15
    watching.undeclare()  # type: ignore[no-untyped-call]


def test_whoever_asks_a_subscriber_gets_its_table(network: LocalNetwork) -> None:
    with declare_reliable_subscriber(network.client(), "a/*", lambda _: None, options=ALONE) as one:
        with ready_publisher(network.client(), "a/b", name="B.1") as publisher:
            publisher.put(b"x")
            wait_until(lambda: [row.user for row in one.losses] == ["B.1"], what="its name")
        asker = network.client()

        def tables() -> list[zenoh.Reply]:
            return list(asker.get("@durable/v1/default/loss/*", timeout=5.0))

        wait_until(lambda: len(tables()) == 1)
        reply = tables()[0].ok
        assert reply is not None
        table = decode_rows(reply.payload.to_bytes())
        assert (table.name, table.key_expr) == (str(one.source), "a/*")
        assert [(row.user, row.source, row.lost) for row in table.rows] == [
            ("B.1", publisher.source, 0)
        ]
    wait_until(lambda: not tables(), what="nobody to answer for a subscriber that is gone")


def test_an_advisory_names_what_the_publisher_publishes_on(network: LocalNetwork) -> None:
    with declare_reliable_subscriber(network.client(), "a/**", lambda _: None, options=ALONE) as it:
        listener = it.loss_listener()
        session = network.client()
        with ready_publisher(session, "a/b/c") as publisher:
            publisher.put(b"x")
            wait_until(lambda: it.delivered == 1)
            info = zenoh.SourceInfo(publisher._publisher.id, 9)
            session.put("a/b/c", b"y", source_info=info)
            assert listener.recv(5).keys == (("a/b/c", 8),)


def test_what_comes_when_the_subscriber_is_closed_is_not_subscribed(network: LocalNetwork) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Sample) -> None:
        begun.set()
        go_on.wait(10)

    numbered = Numbered(network.client(), "a/b")
    subscriber = declare_reliable_subscriber(network.client(), "a/b", slow, options=ALONE)
    connected(numbered.publisher)
    numbered.put(0)
    assert begun.wait(10)
    for sn in range(1, 4):
        numbered.put(sn)
    wait_until(lambda: sum(len(one.received.samples) for one in subscriber._mailbox.waiting) == 3)
    closing = threading.Thread(target=subscriber.close, args=(10.0,))
    closing.start()
    wait_until(subscriber._stopped.is_set)
    go_on.set()
    closing.join(10)
    (row,) = subscriber.losses
    assert (row.unsubscribed, row.lost) == (3, 0)
    assert row.unsubscribed_ns > 0


def test_a_listener_that_raises_is_counted_and_others_are_told(network: LocalNetwork) -> None:
    def bad(_: LossAdvisory) -> None:
        raise RuntimeError("a listener's own fault")

    misses: list[Miss] = []
    numbered = Numbered(network.client(), "a/b")
    with declare_reliable_subscriber(network.client(), "a/b", lambda _: None, options=ALONE) as it:
        it.loss_listener(bad)
        kept = it.loss_listener()
        gone = it.loss_listener()
        gone.undeclare()
        it.sample_miss_listener(misses.append)
        connected(numbered.publisher)
        for sn in (0, 4):
            numbered.put(sn)
        assert kept.recv(5).lost == 3
        wait_until(lambda: it.callback_errors == 1)
        assert misses[0].nb == 3
        assert gone.try_recv() is None


SENT = 3000


def carried(
    networks: list[LocalNetwork], *choices: Callable[[], tuple[int, int]]
) -> tuple[list[Relay], list[Sample], DeliveryRates, int]:
    """Publish through relays from network to network.

    Returns the relays, what came, the rates, and how many numbers were reported as lost.
    """
    taken: list[Sample] = []
    route = Relayed(networks, *choices)
    with declare_reliable_subscriber(
        networks[-1].client(), "a/b", taken.append, options=DeliveryOptions(recovery=False)
    ) as it:
        for relay in route.relays:
            connected(relay.publisher)
        route.publish(SENT)
        wait_until(lambda: taken and taken[-1].sn == SENT, 60, "the last sample")
        (row,) = it.losses
        assert row.rates is not None
        return route.relays, taken, row.rates, row.lost


@pytest.fixture
def networks() -> Iterator[list[LocalNetwork]]:
    with LocalNetwork() as first, LocalNetwork() as second, LocalNetwork() as third:
        yield [first, second, third]


def test_rates_equal_what_a_relay_counted_that_drops_doubles_and_reorders(
    networks: list[LocalNetwork],
) -> None:
    (relay,), taken, rates, lost = carried(networks[:2], choice(20221122))
    kept = rising(relay.sent)
    assert [one.sn for one in taken] == kept
    assert rates == DeliveryRates.measured(SENT + 1, len(relay.sent), len(kept))
    assert lost == SENT + 1 - len(kept)
    assert sum(one.missed_before or 0 for one in taken) == lost
    assert 0.5 < rates.reliability < 1
    assert 0.5 < rates.uniqueness < 1


def test_a_pipeline_of_relays_delivers_what_the_model_predicts(
    networks: list[LocalNetwork],
) -> None:
    chance, dropped, doubled = random.Random(7), 0.2, 0.25
    _, taken, rates, lost = carried(
        networks,
        lambda: (int(chance.random() >= dropped), 0),
        lambda: (1 + (chance.random() < doubled), 0),
    )
    predicted = DeliveryRates.over(
        [DeliveryRates(1 - dropped, 1.0), DeliveryRates(1.0, 1 / (1 + doubled))]
    )
    spread = math.sqrt(dropped * (1 - dropped) / SENT)
    assert abs(rates.reliability - predicted.reliability) < 5 * spread
    spread = math.sqrt(doubled * (1 - doubled) / len(taken)) / (1 + doubled) ** 2
    assert abs(rates.uniqueness - predicted.uniqueness) < 5 * spread
    assert lost + len(taken) == SENT + 1
    assert Counter(one.sn for one in taken).most_common(1)[0][1] == 1
