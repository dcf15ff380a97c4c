"""The Missed Samples Recovery specification, one test per sentence, on real sessions."""

from __future__ import annotations

import pytest
import zenoh

from durable_cache import (
    Miss,
    Origins,
    Sample,
    declare_reliability_cache,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import source_of
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import (
    Inbox,
    Numbered,
    ask,
    connected,
    ready_publisher,
    sns,
    stored,
)

# "SourceInfo": source_id identifies the source, source_sn is incremented for each sample


def test_the_publisher_attaches_source_info_to_each_sample(network: LocalNetwork) -> None:
    session = network.client()
    received: list[zenoh.Sample] = []
    subscriber = network.client().declare_subscriber("a/b", received.append)
    with ready_publisher(session, "a/b") as publisher:
        for _ in range(3):
            publisher.put(b"x")
        publisher.delete()
        wait_until(lambda: len(received) == 4)
        infos = [sample.source_info for sample in received]
        assert [info.source_sn for info in infos if info] == [0, 1, 2, 3]
        assert {str(info.source_id.zid) for info in infos if info} == {str(session.zid())}
        assert {info.source_id.eid for info in infos if info} == {publisher.source.eid}
    subscriber.undeclare()


# "It is compatible with classic Zenoh pub/sub", both ways


def test_a_classic_subscriber_receives_a_reliable_publishers_samples(
    network: LocalNetwork,
) -> None:
    received: list[tuple[str, bytes]] = []
    classic = network.client().declare_subscriber(
        "a/**", lambda sample: received.append((str(sample.key_expr), sample.payload.to_bytes()))
    )
    with ready_publisher(network.client(), "a/b") as publisher:
        publisher.put(b"one")
        wait_until(lambda: received == [("a/b", b"one")])
    classic.undeclare()


def test_a_reliable_subscriber_receives_a_classic_publishers_samples(
    network: LocalNetwork,
) -> None:
    received: list[Sample] = []
    with declare_reliable_subscriber(network.client(), "a/**", received.append):
        classic = network.client().declare_publisher("a/b")
        connected(classic)
        classic.put(b"no source")
        wait_until(lambda: [sample.payload for sample in received] == [b"no source"])


# "creates by default a ReliabilityCache with the same key expression. But it can be disabled"


@pytest.mark.parametrize("cached", [True, False])
def test_the_publishers_own_cache_is_there_by_default_and_can_be_left_out(
    network: LocalNetwork, cached: bool
) -> None:
    asker = network.client()
    watcher = asker.declare_subscriber("a/b", lambda _: None)
    with ready_publisher(network.client(), "a/b", cache=cached) as publisher:
        publisher.put(b"x")
        if cached:
            wait_until(lambda: sns(ask(asker, "*/a/b")) == [0])
            assert sns(ask(asker, f"{publisher.source}/a/b")) == [0]
        else:
            assert ask(asker, "*/a/b") == []
    watcher.undeclare()


def test_the_depth_of_the_publishers_history_is_configured(network: LocalNetwork) -> None:
    asker = network.client()
    watcher = asker.declare_subscriber("a/b", lambda _: None)
    with ready_publisher(network.client(), "a/b", history=3) as publisher:
        for _ in range(10):
            publisher.put(b"x")
        wait_until(lambda: sns(ask(asker, "*/a/b")) == [7, 8, 9])
    watcher.undeclare()


# "The allowed origin location of the Subscriber is configurable"


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (Origins.ANY, {b"local", b"remote"}),
        (Origins.SESSION_LOCAL, {b"local"}),
        (Origins.REMOTE, {b"remote"}),
    ],
)
def test_a_cache_takes_samples_of_the_allowed_origin_only(
    network: LocalNetwork, origin: Origins, expected: set[bytes]
) -> None:
    own = network.client()
    with declare_reliability_cache(own, "a/**", allowed_origin=origin) as cache:
        # A second cache that takes all shows when everything has arrived.
        with declare_reliability_cache(own, "a/**") as all_of_it:
            far = Numbered(network.client(), "a/far")
            connected(far.publisher)
            far.put(0, b"remote")
            Numbered(own, "a/near").put(0, b"local")
            stored(all_of_it, 2)
        found = stored(cache, len(expected))
        assert {sample.payload for sample in found} == expected


# "The ReliabilityCache ignores any received sample with no SourceInfo"


def test_a_cache_ignores_and_counts_samples_without_source_info(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "a/**") as cache:
        session = network.client()
        numbered = Numbered(session, "a/b")
        connected(numbered.publisher)
        session.put("a/b", b"anonymous")
        numbered.put(0)
        assert sns(stored(cache, 1)) == [0]
        assert cache.status().ignored == 1


# "it creates a queue for the key expression/source_id pair with a configurable length …
#  When the queue is full, oldest samples are removed"


def test_each_key_and_source_has_a_queue_whose_oldest_go_first(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "a/**", history=2) as cache:
        session = network.client()
        one, two = Numbered(session, "a/1"), Numbered(session, "a/2")
        connected(one.publisher)
        connected(two.publisher)
        for sn in range(5):
            one.put(sn)
        two.put(0)
        stored(cache, 6)
        kept = {(sample.key, sample.sn) for sample in cache.find("a/**")}
        assert kept == {("a/1", 3), ("a/1", 4), ("a/2", 0)}


# "creates a Queryable on the given key expression with a configurable prefix"; `_sn` ranges


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("", [0, 1, 2, 3, 4, 5]),
        ("?_sn=2..4", [2, 3, 4]),
        ("?_sn=4..", [4, 5]),
        ("?_sn=..1", [0, 1]),
        ("?_sn=3", [3]),
        ("?_sn=9..12", []),
    ],
)
def test_a_query_names_a_source_and_a_range(
    network: LocalNetwork, parameter: str, expected: list[int]
) -> None:
    with declare_reliability_cache(network.client(), "a/**") as cache:
        session = network.client()
        mine, other = Numbered(session, "a/b"), Numbered(session, "a/b")
        connected(mine.publisher)
        for sn in range(6):
            mine.put(sn)
        other.put(0)
        stored(cache, 7)
        assert sns(ask(session, f"{mine.prefix}/a/b{parameter}")) == expected
        zid_only = mine.prefix.partition(":")[0]
        from_zid = ask(session, f"{zid_only}/a/b{parameter}")
        assert [s.sn for s in from_zid if str(s.source) == mine.prefix] == expected
        everyone = ask(session, f"*/a/b{parameter}")
        assert [s.sn for s in everyone if str(s.source) == mine.prefix] == expected


def test_a_source_that_does_not_exist_has_no_samples(network: LocalNetwork) -> None:
    with declare_reliability_cache(network.client(), "a/**"):
        assert ask(network.client(), f"{'ab' * 16}:7/a/b") == []


# "The first sample received with a given source_id is also passed to the user"


def test_the_first_sample_of_a_source_is_passed_whatever_its_number(
    network: LocalNetwork,
) -> None:
    received: list[Sample] = []
    with declare_reliable_subscriber(network.client(), "a/**", received.append):
        numbered = Numbered(network.client(), "a/b")
        connected(numbered.publisher)
        numbered.put(4711)
        wait_until(lambda: sns(received) == [4711])


# "if not, the sample is stored in a pending queue and a query is issued … sorted and passed …
#  Then pending samples are passed"


def test_missed_samples_are_recovered_in_order_before_the_pending_ones(
    network: LocalNetwork,
) -> None:
    received = Inbox()
    session = network.client()
    with (
        declare_reliability_cache(session, "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", received) as subscriber,
    ):
        numbered = Numbered(session, "a/b")
        received.await_path_from(numbered.session)
        numbered.put(0)
        wait_until(lambda: sns(received.samples) == [0], what="the first sample")
        for sn in (1, 2, 3):
            numbered.put(sn, lost=True)
        stored(cache, 4)
        numbered.put(4)
        numbered.put(5)
        wait_until(lambda: len(received.samples) == 6, what="recovery")
        assert sns(received.samples) == [0, 1, 2, 3, 4, 5]
        assert [sample.payload for sample in received.samples] == [b"%d" % sn for sn in range(6)]
        assert subscriber.missed == 0


# "If any samples are still missing, an error message is logged" (and reported)


def test_what_nobody_has_is_reported_before_what_follows(
    network: LocalNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    story: list[object] = []
    with declare_reliable_subscriber(
        network.client(), "a/**", lambda s: story.append(s.sn), gap_timeout_seconds=0.5
    ) as subscriber:
        subscriber.sample_miss_listener(story.append)
        numbered = Numbered(network.client(), "a/b")
        connected(numbered.publisher)
        numbered.put(0)
        numbered.put(3)
        wait_until(lambda: len(story) == 3)
        source = source_of(numbered.publisher)
        assert story == [0, Miss(source, 0, 1, 2), 3]
        assert subscriber.missed == 2
    assert "samples missed" in caplog.text


# "Periodic queries": a lost tail is found without a later sample


def test_periodic_queries_find_a_lost_tail(network: LocalNetwork) -> None:
    received = Inbox()
    session = network.client()
    with (
        declare_reliability_cache(session, "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", received, periodic_queries=0.2),
    ):
        numbered = Numbered(session, "a/b")
        received.await_path_from(numbered.session)
        numbered.put(0)
        wait_until(lambda: sns(received.samples) == [0])
        numbered.put(1, lost=True)
        stored(cache, 2)
        wait_until(lambda: sns(received.samples) == [0, 1], what="the lost tail")
