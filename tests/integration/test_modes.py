"""Each delivery mode on real sessions, over a relay that drops, doubles and reorders."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import Counter
from typing import Any

import pytest

from durable_cache import (
    FifoChannel,
    Miss,
    Origins,
    ReliableSubscriber,
    RingChannel,
    Sample,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.errors import ConfigError
from durable_cache.model.delivery import DeliveryMode, DeliveryRates
from durable_cache.modes import ModeOptions, RetryingSubscriber
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.relay import DOUBLED, DROPPED, SINGLE, Relayed, choice, rising
from tests.servers.zenoh_sources import Inbox, Numbered, connected

SENT = 3000
BY_ID = ModeOptions(deduplication="id")


def rates_of(subscriber: ReliableSubscriber) -> DeliveryRates:
    (row,) = subscriber.losses
    assert row.rates is not None
    return row.rates


def received(subscriber: ReliableSubscriber) -> int:
    return sum(row.delivered + row.repeats for row in subscriber.losses)


def test_each_mode_delivers_what_a_relay_counted_and_the_model_predicts(
    network: LocalNetwork, farther: LocalNetwork
) -> None:
    route = Relayed([network, farther], choice(20221122), stored=True)
    (relay,) = route.relays
    behind = farther.client()
    modes: dict[str, tuple[Inbox, ReliableSubscriber]] = {}

    def declare(name: str, mode: str, options: ModeOptions | None = None) -> None:
        inbox = Inbox()
        subscriber = declare_reliable_subscriber(
            behind, "a/*", inbox, mode=mode, mode_options=options
        )
        modes[name] = inbox, subscriber

    with declare_reliability_cache(relay.session, "a/b", allowed_origin=Origins.SESSION_LOCAL):
        declare("any", "unreliable")
        declare("id", "at-most-once", BY_ID)
        declare("index", "at-most-once")
        declare("next", "at-most-once", ModeOptions(next_only=True))
        declare("once", "exactly-once")
        declare("least", "at-least-once")
        for inbox, _ in modes.values():
            inbox.await_path_from(relay.session)
        route.publish(SENT)
        for name in ("once", "least"):
            inbox, _ = modes[name]
            wait_until(lambda inbox=inbox: len(inbox.samples) > SENT, 60, name)
        for name in ("any", "id", "index", "next"):
            subscriber = modes[name][1]
            wait_until(lambda it=subscriber: received(it) == len(relay.sent), 60, name)

        came = {name: [one.sn for one in inbox.samples] for name, (inbox, _) in modes.items()}
        rates = {name: rates_of(subscriber) for name, (_, subscriber) in modes.items()}
        first = list(dict.fromkeys(relay.sent))
        following: list[int] = []
        for sn in relay.sent:
            if not following or sn == following[-1] + 1:
                following.append(sn)
        unique = {"any": first, "id": first, "index": rising(relay.sent), "next": following}
        assert came == {
            **unique,
            "any": relay.sent,
            "once": list(range(SENT + 1)),
            "least": list(range(SENT + 1)),
        }
        for name, passed in unique.items():
            counted = DeliveryRates.measured(SENT + 1, len(relay.sent), len(passed))
            assert rates[name] == counted, name
            assert modes[name][1].mode is DeliveryMode.named(
                "unreliable" if name == "any" else "at-most-once"
            )
        for name in ("once", "least"):
            assert rates[name].reliability == 1
            assert rates[name].uniqueness < 1  # of what came; the program gets each once
        for _, subscriber in modes.values():
            subscriber.close()

    route = DeliveryRates.over(
        [
            DeliveryRates(1 - DROPPED, 1.0),
            DeliveryRates(1.0, (SINGLE + DOUBLED) / (SINGLE + 2 * DOUBLED)),
        ]
    )
    arrives = 1 - DROPPED
    sends = SINGLE + 2 * DOUBLED
    spread = math.sqrt(arrives * (1 - arrives) / SENT)
    assert abs(rates["id"].reliability - route.reliability) < 5 * spread
    # Of a ratio of sums: the deviation of (unique - UR * received) of one sample, over their sum.
    of_times = ((0, DROPPED), (1, SINGLE), (2, DOUBLED))
    variance = sum(p * (min(n, 1) - route.uniqueness * n) ** 2 for n, p in of_times)
    spread = math.sqrt(variance / SENT) / sends
    assert abs(rates["any"].uniqueness - route.uniqueness) < 5 * spread


@pytest.mark.parametrize("dropped", [0.001, 0.01, 0.5])
def test_from_one_in_a_thousand_to_every_second_sample_what_is_dropped_comes_from_caches(
    network: LocalNetwork, farther: LocalNetwork, dropped: float
) -> None:
    """As many are doubled, and as many come late: exactly-once gives each once and in order."""
    chance = random.Random(f"relay {dropped}")

    def choose() -> tuple[int, int]:
        times = 0 if chance.random() < dropped else 1 + (chance.random() < dropped)
        return times, chance.randint(1, 4) if chance.random() < dropped else 0

    route = Relayed([network, farther], choose, stored=True)
    (relay,) = route.relays
    behind, once, by_id = farther.client(), Inbox(), Inbox()
    with (
        declare_reliability_cache(relay.session, "a/b", allowed_origin=Origins.SESSION_LOCAL),
        declare_reliable_subscriber(behind, "a/*", once, mode="exactly-once"),
        declare_reliable_subscriber(
            behind, "a/*", by_id, mode="at-most-once", mode_options=BY_ID
        ) as counting,
    ):
        for inbox in (once, by_id):
            inbox.await_path_from(relay.session)
        route.publish(SENT)
        wait_until(lambda: len(once.samples) > SENT, 60, "the last sample")
        wait_until(lambda: received(counting) == len(relay.sent), 60, "all that was sent")
        assert [one.sn for one in once.samples] == [*range(SENT + 1)]
        unique = [*dict.fromkeys(relay.sent)]
        assert [one.sn for one in by_id.samples] == unique
        counted = DeliveryRates.measured(SENT + 1, len(relay.sent), len(unique))
        assert rates_of(counting) == counted
        spread = math.sqrt(dropped * (1 - dropped) / SENT)
        assert abs(counted.reliability - (1 - dropped)) < 5 * spread
        assert abs(counted.uniqueness - 1 / (1 + dropped)) < 5 * spread


def test_a_handler_that_fails_is_called_again_and_what_always_fails_is_reported(
    network: LocalNetwork,
) -> None:
    """Half of the calls fail, three at most are made: R is 0.875 and UR 0.5, as the text has it."""
    chance, count, retries = random.Random(5), 1000, 2
    calls: Counter[int] = Counter()
    handled: set[int] = set()
    missed: list[Miss] = []

    def handle(sample: Sample) -> None:
        calls[sample.sn] += 1
        if chance.random() < 0.5:
            raise RuntimeError("the handler's own fault")
        handled.add(sample.sn)

    options = ModeOptions(retries=retries, confirm_timeout_seconds=0.2)
    source = Numbered(network.client(), "a/b")
    logging.getLogger("durable_cache").setLevel(logging.CRITICAL)
    try:
        with declare_reliable_subscriber(
            network.client(), "a/b", handle, mode="at-least-once", mode_options=options
        ) as subscriber:
            assert isinstance(subscriber, RetryingSubscriber)
            subscriber.sample_miss_listener(missed.append)
            connected(source.publisher)
            for sn in range(count):
                source.put(sn)
            wait_until(lambda: len(handled) + len(missed) == count, 60, "the end of all")
            assert subscriber.unconfirmed == 0
            assert subscriber.missed == len(missed)
            rates = rates_of(subscriber)
    finally:
        logging.getLogger("durable_cache").setLevel(logging.NOTSET)
    assert {miss.first for miss in missed} == set(range(count)) - handled
    assert {calls[miss.first] for miss in missed} == {retries + 1}
    assert rates == DeliveryRates.measured(count, calls.total(), len(handled))
    predicted = DeliveryRates(0.5, 1.0).retried(retries)
    assert abs(rates.reliability - predicted.reliability) < 5 * math.sqrt(0.875 * 0.125 / count)
    assert abs(rates.uniqueness - 0.5) < 5 * 0.5 / math.sqrt(count)


def test_a_program_confirms_and_is_handed_again_what_it_does_not(network: LocalNetwork) -> None:
    options = ModeOptions(retries=50, confirm_timeout_seconds=0.2, unconfirmed_max=2)
    channel: FifoChannel[Sample] = FifoChannel()
    source = Numbered(network.client(), "a/b")
    with declare_reliable_subscriber(
        network.client(),
        "a/b",
        channel,
        mode="at-least-once",
        mode_options=options,
        confirm="manual",
    ) as subscriber:
        connected(source.publisher)
        for sn in range(4):
            source.put(sn)
        first = [subscriber.recv(10), subscriber.recv(10)]
        assert [one.sn for one in first] == [0, 1]
        subscriber.confirm(first[1])
        seen = {subscriber.recv(10).sn, subscriber.recv(10).sn, subscriber.recv(10).sn}
        assert 0 in seen  # it came again, and what waited for room came
        assert 1 not in seen
        subscriber.confirm(*first)
        confirmed: set[int] = set()
        while confirmed != {2, 3}:
            sample = subscriber.recv(10)
            subscriber.confirm(sample, sample)
            confirmed.add(sample.sn)
        wait_until(lambda: subscriber.unconfirmed == 0)
        assert rates_of(subscriber).reliability == 1


def test_closing_ends_who_waits_for_confirmations(network: LocalNetwork) -> None:
    options = ModeOptions(unconfirmed_max=1)
    source = Numbered(network.client(), "a/b")
    subscriber = declare_reliable_subscriber(
        network.client(), "a/b", mode="at-least-once", mode_options=options, confirm="manual"
    )
    connected(source.publisher)
    for sn in range(3):
        source.put(sn)
    assert subscriber.recv(10).sn == 0
    subscriber.close()
    assert not [one.name for one in threading.enumerate() if one.name == "dc-subscriber-deliver"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mode": "twice"}, "unreliable, at-most-once, at-least-once, exactly-once"),
        ({"mode_options": BY_ID}, "mode_options: name the mode they are of"),
        ({"mode": "at-most-once", "mode_options": 3}, "mode_options: expected a ModeOptions"),
        ({"mode": "unreliable", "history": True}, "leave history out, or choose"),
        ({"mode": "at-most-once", "history": 5}, "asks nobody"),
        ({"mode": "unreliable", "recovery": True}, "leave recovery out, or choose another"),
        ({"mode": "exactly-once", "recovery": False}, "leave recovery=False out"),
        (
            {"mode": "at-least-once", "options": DeliveryOptions(recovery=False)},
            "leave recovery=False out",
        ),
        ({"mode": "unreliable", "periodic_queries": 1.0}, "leave periodic_queries out"),
        ({"mode": "unreliable", "consumer": "billing"}, "leave mode and mode_options out"),
        ({"mode": "at-least-once", "consumer": "billing"}, "delivers until it is confirmed"),
        ({"mode": "exactly-once", "profile": "dds-default"}, "a profile as its reliability says"),
        ({"mode": "unreliable", "confirm": "manual"}, 'confirm in mode="at-least-once"'),
        ({"mode": "at-least-once"}, 'choose confirm="manual" and call'),
        ({"mode": "at-least-once", "handler": RingChannel(3)}, "a ring drops samples"),
        ({"mode": "at-least-once", "confirm": "never"}, '"auto" or "manual"'),
    ],
)
def test_what_contradicts_a_mode_is_refused_with_the_remedy(
    network: LocalNetwork, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        declare_reliable_subscriber(network.client(), "a/b", **arguments)
    assert says in str(error.value)
    assert not [one for one in threading.enumerate() if one.name.startswith("dc-subscriber")]


def test_a_subscriber_says_its_mode(network: LocalNetwork) -> None:
    session = network.client()
    for arguments, mode in (
        ({}, DeliveryMode.EXACTLY_ONCE),
        ({"recovery": False}, DeliveryMode.AT_MOST_ONCE),
        ({"mode": DeliveryMode.UNRELIABLE, "recovery": False}, DeliveryMode.UNRELIABLE),
    ):
        with declare_reliable_subscriber(session, "a/b", **arguments) as subscriber:  # type: ignore[call-overload]
            assert subscriber.mode is mode
