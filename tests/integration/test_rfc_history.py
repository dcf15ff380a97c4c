"""The Missed Samples Recovery specification, from "Historical data" on, on real sessions."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import zenoh

from durable_cache import (
    CacheOptions,
    Kind,
    Origins,
    Sample,
    SourceId,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.errors import ConfigError
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import (
    Inbox,
    Numbered,
    connected,
    ready_publisher,
    sns,
    stored,
    unreceived,
)

# "Historical data": a query at creation, sorted, prior to live samples


def test_history_comes_first_and_sorted(network: LocalNetwork) -> None:
    received: list[Sample] = []
    session = network.client()
    with declare_reliability_cache(session, "a/**") as cache:
        numbered = Numbered(session, "a/b")
        for sn in range(50):
            numbered.put(sn)
        stored(cache, 50)
        with declare_reliable_subscriber(network.client(), "a/**", received.append, history=True):
            wait_until(lambda: len(received) >= 50)
            connected(numbered.publisher)
            for sn in range(50, 60):
                numbered.put(sn)
            wait_until(lambda: len(received) == 60)
            assert sns(received) == list(range(60))


def test_history_is_complete_once_it_was_delivered(network: LocalNetwork) -> None:
    begun, may_end = Event(), Event()

    def slowly(sample: Sample) -> None:
        begun.set()
        assert may_end.wait(30)

    session = network.client()
    with declare_reliability_cache(session, "a/**") as cache:
        numbered = Numbered(session, "a/b")
        for sn in range(3):
            numbered.put(sn)
        stored(cache, 3)
        with declare_reliable_subscriber(
            network.client(), "a/**", slowly, history=True
        ) as subscriber:
            assert begun.wait(30)
            assert not subscriber.history_complete
            may_end.set()
            wait_until(lambda: subscriber.history_complete)


def test_history_that_came_whole_is_asked_for_once(network: LocalNetwork) -> None:
    asked: list[str] = []

    def note(query: zenoh.Query) -> None:
        with query:
            asked.append(str(query.parameters))

    with declare_reliability_cache(network.client(), "a/**"):
        listening = network.client()
        noting = listening.declare_queryable("*/a/**", note)
        for trial in range(1, 21):
            asker = network.client()
            with declare_reliable_subscriber(asker, "a/**", history=True) as subscriber:
                wait_until(lambda subscriber=subscriber: subscriber.history_complete)  # type: ignore[misc]
            assert len([one for one in asked if "_order=time" in one]) == trial
        noting.undeclare()


def test_history_of_many_pages_is_whole_and_followed_by_what_came_meanwhile(
    network: LocalNetwork,
) -> None:
    received: list[Sample] = []
    session = network.client()
    options = DeliveryOptions(history_page_samples=20, pending_samples_max=5)
    with declare_reliability_cache(session, "a/**") as cache:
        numbered = Numbered(session, "a/b")
        for sn in range(500):
            numbered.put(sn)
        stored(cache, 500)
        with declare_reliable_subscriber(
            network.client(), "a/**", received.append, history=True, options=options
        ) as subscriber:
            for sn in range(500, 600):
                numbered.put(sn)
            wait_until(lambda: len(received) >= 500)
            connected(numbered.publisher)
            numbered.put(600)
            wait_until(lambda: len(received) == 601)
            assert sns(received) == list(range(601))
            wait_until(lambda: subscriber.history_complete)
            assert subscriber.missed == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"history": 0}, "number of samples per key above 0"),
        ({"options": DeliveryOptions(periodic_queries_seconds=-1)}, "number of seconds above 0"),
        ({"periodic_queries": 0.0}, "number of seconds above 0"),
    ],
)
def test_bounds_that_are_none_are_named(
    network: LocalNetwork, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        declare_reliable_subscriber(network.client(), "a/**", **wrong)


def test_history_may_be_limited_per_key(network: LocalNetwork) -> None:
    received: list[Sample] = []
    session = network.client()
    with declare_reliability_cache(session, "a/**") as cache:
        numbered = Numbered(session, "a/b")
        for sn in range(10):
            numbered.put(sn)
        stored(cache, 10)
        with declare_reliable_subscriber(network.client(), "a/**", received.append, history=3):
            wait_until(lambda: sns(received) == [7, 8, 9])


# "the nearest ReliabilityCache even if this cache didn't receive some samples": no more


def test_every_cache_is_asked_and_their_answers_are_united(network: LocalNetwork) -> None:
    received = Inbox()
    first, second = network.client(), network.client()
    with (
        declare_reliability_cache(first, "a/**", allowed_origin=Origins.SESSION_LOCAL) as one,
        declare_reliability_cache(second, "a/**", allowed_origin=Origins.SESSION_LOCAL) as two,
        declare_reliable_subscriber(network.client(), "a/**", received),
    ):
        numbered = Numbered(first, "a/b")
        twin = Numbered(second, "a/b")
        received.await_path_from(numbered.session)
        numbered.put(0)
        wait_until(lambda: sns(received.samples) == [0])
        numbered.put(1, lost=True)
        twin.publisher = numbered.publisher  # the same source, seen by the other cache only
        twin.put(2, lost=True)
        stored(one, 2)
        stored(two, 1)
        numbered.put(3)
        wait_until(lambda: sns(received.samples) == [0, 1, 2, 3], what="the union of two caches")


# deletes are samples, numbered, stored and recovered


def test_a_delete_is_numbered_stored_and_recovered(network: LocalNetwork) -> None:
    received: list[Sample] = []
    with declare_reliability_cache(network.client(), "a/**") as cache:
        with ready_publisher(network.client(), "a/b") as publisher:
            publisher.put(b"x", attachment=b"meta", encoding="application/json;v1")
            publisher.delete(attachment=b"gone")
            found = stored(cache, 2)
            assert [sample.kind for sample in found] == [Kind.PUT, Kind.DELETE]
            assert [sample.attachment for sample in found] == [b"meta", b"gone"]
            assert found[0].encoding == "application/json;v1"
            with declare_reliable_subscriber(
                network.client(), "a/**", received.append, history=True
            ):
                wait_until(lambda: len(received) == 2)
                assert list(map(unreceived, received)) == list(map(unreceived, found))


# "does not require the transmission of any extra control messages in stable situation"


def test_nothing_of_ours_is_sent_while_nothing_is_lost(network: LocalNetwork) -> None:
    heard: list[str] = []
    spy = network.client()
    note: Callable[[zenoh.Sample], None] = lambda sample: heard.append(str(sample.key_expr))  # noqa: E731
    spies = [spy.declare_subscriber("@durable/**", note)]
    asked: list[str] = []

    def overhear(query: zenoh.Query) -> None:
        with query:
            asked.append(str(query.selector))

    received: list[Sample] = []
    with (
        declare_reliability_cache(network.client(), "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", received.append),
        ready_publisher(network.client(), "a/b") as publisher,
    ):
        publisher.put(b"first")
        wait_until(lambda: len(received) == 1)
        spies.append(spy.declare_queryable("**", overhear))  # type: ignore[arg-type]
        heard.clear()
        for _ in range(200):
            publisher.put(b"x")
        stored(cache, 201)
        wait_until(lambda: len(received) == 201)
        acks = [key for key in heard if "/ack/" not in key]
        assert acks == []
        # A publisher that is seen to begin is asked for all that is not there yet, by each asker
        # once or twice; on a busy machine the first samples may be there by then.
        beginning = [query for query in asked if re.search(r"_sn=\d+\.\.;", query)]
        assert [query for query in asked if query not in beginning] == []
        assert len(beginning) <= 4, beginning
    for declared in spies:
        declared.undeclare()


# the publisher learns which caches stored its samples (RFC, "Put replies")


def test_a_receipt_tells_which_caches_hold_the_sample(network: LocalNetwork) -> None:
    with (
        declare_reliability_cache(network.client(), "a/**") as one,
        declare_reliability_cache(network.client(), "a/**") as two,
        ready_publisher(network.client(), "a/b", acknowledgements=2, level="memory") as publisher,
    ):
        receipts = [publisher.put(b"%d" % n) for n in range(20)]
        assert all(receipt.wait(10) for receipt in receipts)
        assert {*receipts[-1].caches} == {one.cache_id, two.cache_id}


def test_no_answer_means_unknown(network: LocalNetwork) -> None:
    watcher = network.client().declare_subscriber("a/b", lambda _: None)
    with ready_publisher(network.client(), "a/b", acknowledgements=1) as publisher:
        receipt = publisher.put(b"x")
        assert receipt is not None
        assert not receipt.wait(0.2)
        assert receipt.caches == {}
    watcher.undeclare()


def test_thousands_of_gaps_are_filled_from_another_cache(network: LocalNetwork) -> None:
    """A cache that missed one sample in ten asks for many at once, not for one after the other."""
    own = CacheOptions(allowed_origin=Origins.SESSION_LOCAL)
    published = [
        Sample("a/b", SourceId("ab12", 7), 0, sn, b"%d" % sn, ntp64=(sn + 1) << 20)
        for sn in range(50_000)
    ]
    with (
        declare_reliability_cache(network.client(), "a/**", options=own) as whole,
        declare_reliability_cache(network.client(), "a/**", options=own) as torn,
    ):
        for cache, every in ((whole, published), (torn, [s for s in published if s.sn % 10 != 5])):
            for at in range(0, len(every), 5_000):
                cache.ingest.offer(every[at : at + 5_000])
        wait_until(lambda: torn.status().appended == 50_000, 60, "the rest")
        wait_until(lambda: torn.status().gaps_open == 0, 10, "the end of the gaps")
        assert torn.find("a/b", 60_000) == published


def test_everything_within_one_namespace_works(network: LocalNetwork) -> None:
    inbox = Inbox()
    session = network.client(namespace="ns")
    with declare_reliability_cache(session, "a/**") as cache:
        numbered = Numbered(session, "a/b")
        for sn in range(5):
            numbered.put(sn)
        stored(cache, 5)
        with declare_reliable_subscriber(
            network.client(namespace="ns"), "a/**", inbox, history=True
        ):
            wait_until(lambda: len(inbox.samples) == 5, what="history")
            assert sns(inbox.samples) == list(range(5))
