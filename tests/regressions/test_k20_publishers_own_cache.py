"""K20, without any cache: a publisher says which of its numbers are under other keys."""

from __future__ import annotations

from durable_cache import Sample, declare_reliable_publisher, declare_reliable_subscriber
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.servers.zenoh_sources import Inbox


def test_a_subscriber_on_one_key_waits_for_no_other_keys_numbers(network: LocalNetwork) -> None:
    inbox, received = Inbox(), list[Sample]()
    session = network.client()
    with (
        declare_reliable_publisher(session, "a/*") as publisher,
        declare_reliable_subscriber(network.client(), "a/1", received.append) as subscriber,
        declare_reliable_subscriber(network.client(), "a/**", inbox) as everything,
    ):
        inbox.await_path_from(session)
        for sn in range(50):
            publisher.put(b"%d" % sn, key=f"a/{sn % 5}")
        wait_until(lambda: len(inbox.samples) == 50)
        wait_until(lambda: len(received) == 10, 8, "the samples of one key")
        assert [sample.sn for sample in received] == [*range(1, 50, 5)]
        assert (subscriber.missed, everything.missed) == (0, 0)


def test_a_get_of_everything_is_no_question_to_publishers(network: LocalNetwork) -> None:
    """It was answered with an error for each publisher: "'**' is no source_id"."""
    session, asker = network.client(), network.client()
    with declare_reliable_publisher(session, "a/*") as publisher:
        publisher.put(b"1", key="a/1")
        own = f"{publisher.source}/a/1"
        wait_until(lambda: any(True for _ in asker.get(own)), what="the publisher's own cache")
        for selector in ("**", "**/1", f"{publisher.source.zid}$*/a/1"):
            assert list(asker.get(selector)) == [], selector
