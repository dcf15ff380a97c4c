"""K6: a source that waits for something missing is not forgotten for ones that do not."""

from __future__ import annotations

from durable_cache import declare_reliability_cache, declare_reliable_subscriber
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.regressions.subscribing import delivery_options
from tests.servers.zenoh_sources import Inbox, Numbered, sns, stored


def test_more_sources_than_the_bound_cost_a_gap_nothing(network: LocalNetwork) -> None:
    inbox = Inbox()
    session = network.client()
    options = delivery_options(sources_max=4)
    with declare_reliable_subscriber(network.client(), "a/**", inbox, options=options):
        waiting = Numbered(session, "a/waiting")
        inbox.await_path_from(session)
        others = [Numbered(session, f"a/other/{at}") for at in range(8)]
        waiting.put(0)
        turn = session.new_timestamp()
        waiting.put(2)
        waiting.put(3)
        for other in others:
            other.put(0)
        wait_until(lambda: len(inbox.samples) == 9, timeout_seconds=30, what="the others' samples")
        with declare_reliability_cache(session, "a/**") as cache:
            waiting.put(1, lost=True, timestamp=turn)
            stored(cache, 1)
            mine = lambda: [one for one in inbox.samples if one.key == "a/waiting"]  # noqa: E731
            wait_until(lambda: len(mine()) == 4, timeout_seconds=30, what="the gap's end")
            assert sns(mine()) == [0, 1, 2, 3]
