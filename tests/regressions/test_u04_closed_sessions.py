"""Whoever receives from a session that is closed comes to an end, as with Zenoh's subscribers."""

from __future__ import annotations

from threading import Thread

import pytest

from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions
from durable_cache.errors import Closed
from durable_cache.testing.network import LocalNetwork, wait_until


@pytest.mark.parametrize(
    "settings",
    [{}, {"history": True}, {"mode": "at-most-once"}, {"consumer": "c", "confirm": "manual"}],
)
def test_who_receives_from_a_session_that_is_closed_gets_what_came_and_comes_to_an_end(
    network: LocalNetwork, settings: dict[str, object]
) -> None:
    session = network.client()
    with (
        declare_reliability_cache(
            network.client(), ("a/**", "@durable/v1/default/consumers/*/**")
        ) as cache,
        declare_reliable_publisher(network.client(), "a/b") as publisher,
    ):
        if "consumer" in settings:
            settings = {**settings, "consumer_options": ConsumerOptions(level="memory")}
        subscriber = declare_reliable_subscriber(session, "a/**", **settings)  # type: ignore[call-overload]
        misses = subscriber.sample_miss_listener()
        wait_until(lambda: publisher.matched, what="matching")
        for at in range(3):
            publisher.put(b"%d" % at)
        wait_until(lambda: subscriber.delivered == 3, what="delivery")
        wait_until(lambda: cache.status().appended >= 3, what="the cache")
        session.close()  # type: ignore[no-untyped-call]
        came: list[bytes] = []
        iterating = Thread(target=lambda: came.extend(s.payload for s in subscriber), daemon=True)
        iterating.start()
        iterating.join(10)
        assert not iterating.is_alive(), "it waits for what cannot come"
        assert came == [b"0", b"1", b"2"]
        with pytest.raises(Closed):
            subscriber.recv()
        assert list(misses) == []
        subscriber.close()
