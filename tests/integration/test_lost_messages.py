"""What becomes of acknowledgements, resends' replies and answers that are lost, one by one."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from threading import Event

import pytest
import zenoh

from durable_cache import (
    CacheOptions,
    Miss,
    Receipt,
    ReliablePublisher,
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.model.sample import SourceId
from durable_cache.modes import DeliveryRates
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.bridge import Bridge, Message
from tests.servers.zenoh_sources import await_path

SOON = {"resend_delay_seconds": 0.05, "resend_seconds_max": 0.2, "resend_timeout_seconds": 2.0}


def losing(share: float, seed: int, which: Callable[[Message], bool]) -> Callable[[Message], bool]:
    chance = random.Random(seed)
    return lambda message: which(message) and chance.random() < share


@pytest.mark.parametrize(
    ("count", "at_once", "share"), [(400, 400, 0.7), (60, 1, 0.3), (100, 10, 0.5)]
)
def test_what_is_put_is_stored_once_though_acknowledgements_and_resends_replies_are_lost(
    network: LocalNetwork, farther: LocalNetwork, count: int, at_once: int, share: float
) -> None:
    """Two caches are wanted, one of them behind the bridge, and so is a plain subscriber."""
    loses = losing(share, 1, lambda it: it.is_ack or it.is_resend or it.is_resent_reply)
    seen: list[tuple[int, bytes]] = []
    plain = farther.client()

    def saw(sample: zenoh.Sample) -> None:
        assert sample.source_info is not None
        seen.append((sample.source_info.source_sn, sample.payload.to_bytes()))

    plain.declare_subscriber("a/**", saw)
    session = network.client()
    with (
        Bridge(network, farther, loses) as bridge,
        declare_reliability_cache(network.client(), "a/**") as near_cache,
        declare_reliability_cache(farther.client(), "a/**") as far_cache,
        declare_reliable_publisher(
            session, "a/b", acknowledgements=2, level="memory", cache=False, **SOON
        ) as publisher,
    ):
        await_path(session, plain)
        receipts = []
        for at in range(count):
            receipts.append(publisher.put(b"%d" % at))
            if len(receipts) % at_once == 0:
                publisher.flush(60)
        assert all(receipt.done for receipt in receipts)
        both = {near_cache.cache_id, far_cache.cache_id}
        assert all(receipt.caches.keys() == both for receipt in receipts)
        assert [receipt.sn for receipt in receipts] == [*range(count)]
        put = [(publisher.epoch, at, b"%d" % at) for at in range(count)]
        for cache in (near_cache, far_cache):
            stored = sorted(cache.find("a/**"), key=lambda sample: sample.sn)
            assert [(one.epoch, one.sn, one.payload) for one in stored] == put
            assert (cache.status().appended, cache.status().conflicts) == (count, 0)
        assert bridge.lost
        wait_until(lambda: len(seen) >= count, what="the plain subscriber")
    assert seen == [(at, b"%d" % at) for at in range(count)]


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_what_is_recovered_over_lost_answers_comes_once_and_in_order(
    network: LocalNetwork, farther: LocalNetwork, share: float
) -> None:
    """Questions are lost as often as their answers, and a tenth of the live samples.

    Of six tenths both ways one question in six is answered: ten seconds of asking for history are
    too few, and thirty for a gap.
    """
    chance, count = random.Random(7), 400

    def loses(message: Message) -> bool:
        lost = share if message.is_question or message.is_answer else 0.1 * message.is_sample
        return chance.random() < lost

    taken: list[Sample] = []
    misses: list[Miss] = []
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_publisher(
            network.client(), "a/b", acknowledgements=1, level="memory", cache=False
        ) as publisher,
        Bridge(network, farther, loses) as bridge,
    ):
        for at in range(count):
            publisher.put(b"%d" % at)
        publisher.flush(30)
        with declare_reliable_subscriber(
            farther.client(),
            "a/**",
            taken.append,
            history=True,
            recovery=True,
            gap_timeout_seconds=300,
            history_timeout_seconds=300,
        ) as subscriber:
            subscriber.sample_miss_listener(misses.append)
            for at in range(count, 2 * count):
                publisher.put(b"%d" % at)
                if at % 20 == 0:
                    publisher.flush(30)
            publisher.flush(30)
            wait_until(lambda: len(taken) >= 2 * count, 240, "everything")
        assert bridge.lost["sample"]
    assert [one.sn for one in taken] == [*range(2 * count)]
    assert misses == []


def test_history_of_which_every_answer_was_lost_for_a_while_comes_once_one_arrives(
    network: LocalNetwork, farther: LocalNetwork
) -> None:
    """The cache is in reach all the while: no other one has to appear. What is late is reported."""
    healed = Event()
    taken: list[Sample] = []
    misses: list[Miss] = []

    def put(key: str, count: int) -> ReliablePublisher[Receipt]:
        publisher = declare_reliable_publisher(
            network.client(), key, acknowledgements=1, level="memory", cache=False
        )
        for _ in range(count):
            assert publisher.put(key.encode()).wait(10)
        return publisher

    with (
        declare_reliability_cache(network.client(), "a/**"),
        put("a/b", 3),
        put("a/c", 2) as goes_on,
        Bridge(network, farther, lambda message: message.is_answer and not healed.is_set()),
        declare_reliable_subscriber(
            farther.client(),
            "a/**",
            taken.append,
            history=True,
            gap_timeout_seconds=1,
            history_timeout_seconds=1,
        ) as subscriber,
    ):
        subscriber.sample_miss_listener(misses.append)
        wait_until(lambda: goes_on.put(b"live").wait(10) and taken, 30, "what is live")
        assert not subscriber.history_complete
        healed.set()
        wait_until(lambda: subscriber.history_complete, 30, "history")
        wait_until(lambda: misses, what="a report")
        (missed,) = misses
        assert (missed.source, missed.first) == (taken[0].source, 0)
    assert [one.sn for one in taken if one.key == "a/b"] == [0, 1, 2]
    live = [one.sn for one in taken if one.key == "a/c"]
    assert live == [*range(missed.last + 1, missed.last + 1 + len(live))]


@pytest.mark.parametrize("history", [True, 1], ids=["all", "newest"])
def test_a_reply_that_is_lost_from_the_middle_of_an_answer_is_asked_for_again(
    network: LocalNetwork, farther: LocalNetwork, history: bool | int
) -> None:
    """Each reply has all that there is of one source: of what is lost nothing else tells."""
    lost: list[Message] = []

    def loses(message: Message) -> bool:
        is_lost = message.is_answer and len(message.payload) > 500 and len(lost) < 3
        lost.extend([message] * is_lost)
        return is_lost

    taken: list[Sample] = []
    sources = 12
    with (
        declare_reliability_cache(
            network.client(), "a/**", options=CacheOptions(packed_bytes_max=500)
        ),
        Bridge(network, farther, loses),
    ):
        for at in range(sources):
            with declare_reliable_publisher(
                network.client(), f"a/{at}", acknowledgements=1, level="memory"
            ) as publisher:
                publisher.put(bytes(600))
                publisher.flush(30)
        with declare_reliable_subscriber(
            farther.client(), "a/**", taken.append, history=history
        ) as subscriber:
            wait_until(lambda: subscriber.history_complete, 30, "history")
            wait_until(lambda: len(taken) >= sources, what="every source")
    assert len(lost) == 3
    assert sorted(one.key for one in taken) == sorted(f"a/{at}" for at in range(sources))


def test_resends_make_of_a_route_what_the_model_says_where_confirmations_are_lost_as_often(
    network: LocalNetwork, farther: LocalNetwork
) -> None:
    """Ockam's retries: {0.5, 1} becomes {->1, ->0.5}. What arrives at the cache is counted."""
    lossy, confirmations = DeliveryRates(0.5, 1.0), 0.5
    loses = losing(0.5, 3, lambda it: it.is_sample or it.is_resend or it.is_ack)
    arrived: Counter[tuple[SourceId, int]] = Counter()
    sends = 0

    def watched(message: Message) -> bool:
        nonlocal sends
        lost = loses(message)
        if message.is_sample or message.is_resend:
            (identity,) = message.identities()
            sends += 1
            arrived[identity] += not lost
        return lost

    sources, rounds = 50, 6
    at_once = SOON | {"resend_seconds_max": 0.05}
    with (
        Bridge(network, farther, watched),
        declare_reliability_cache(farther.client(), "a/**") as cache,
        ExitStack() as stack,
    ):
        session = network.client()
        publishers = [
            stack.enter_context(
                declare_reliable_publisher(
                    session, f"a/{at}", acknowledgements=1, level="memory", cache=False, **at_once
                )
            )
            for at in range(sources)
        ]
        await_path(session, farther.router)
        for _ in range(rounds):
            receipts = [publisher.put(b"x") for publisher in publishers]
            for publisher in publishers:
                publisher.flush(60)
            assert all(receipt.done for receipt in receipts)
        count = sources * rounds
        assert len(cache.find("a/**")) == cache.status().appended == count
    assert len(+arrived) == count
    measured = DeliveryRates.measured(count, arrived.total(), count)
    predicted = lossy.retried(math.inf, confirmations)
    assert predicted == (1.0, 0.5)
    assert measured.reliability == predicted.reliability
    # Arrivals until one is confirmed: geometric, with a mean of 2 and a variance of 2.
    assert abs(arrived.total() / count - 1 / predicted.uniqueness) < 5 * math.sqrt(2 / count)
    # Of each send, whether it arrived.
    assert abs(arrived.total() / sends - lossy.reliability) < 5 * 0.5 / math.sqrt(sends)
