"""K4, K14: the last samples before a restart, and the first of a publisher that begins."""

from __future__ import annotations

import time

from durable_cache import declare_reliability_cache, declare_reliable_subscriber
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import token_of
from tests.servers.zenoh_sources import Inbox, Numbered, sns, stored


def test_the_last_samples_before_a_restart_come_first(network: LocalNetwork) -> None:
    inbox = Inbox()
    session = network.client()
    with (
        declare_reliability_cache(session, "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", inbox) as subscriber,
    ):
        numbered = Numbered(session, "a/b")
        inbox.await_path_from(session)
        for sn in range(10):
            numbered.put(sn, lost=sn >= 5)
        stored(cache, 10)
        wait_until(lambda: len(inbox.samples) == 5)
        time.sleep(0.3)  # a publisher's clock is ahead when it begins anew
        for sn in range(3):
            numbered.put(sn, b"again")
        wait_until(lambda: len(inbox.samples) >= 13, what="the tail and the new run")
        assert sns(inbox.samples) == [*range(10), 0, 1, 2]
        assert subscriber.missed == 0


def test_the_first_samples_of_a_publisher_that_begins_in_sight_are_recovered(
    network: LocalNetwork,
) -> None:
    inbox = Inbox()
    session = network.client()
    with (
        declare_reliability_cache(session, "a/**") as cache,
        declare_reliable_subscriber(network.client(), "a/**", inbox) as subscriber,
    ):
        numbered = Numbered(session, "a/b")
        inbox.await_path_from(session)
        token = token_of(numbered)
        for sn in range(15):
            numbered.put(sn, lost=sn < 10)
        stored(cache, 15)
        wait_until(lambda: len(inbox.samples) >= 15, what="what was lost at the beginning")
        assert sns(inbox.samples) == list(range(15))
        assert subscriber.missed == 0
        token.undeclare()
