"""A program that takes its time with a sample: what comes meanwhile keeps its place."""

from __future__ import annotations

import time

import pytest
import zenoh

from durable_cache import declare_reliable_subscriber
from durable_cache.endpoints.session import declare_token, source_of, undeclare
from durable_cache.model.sample import Sample
from durable_cache.model.sequence import frame
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import Event, Output
from durable_cache.protocol.wire import publisher_token
from durable_cache.testing.network import LocalNetwork, wait_until

SLOW_SECONDS = 1.6
"""Longer than a sample waits for its token."""


def test_a_token_that_came_while_the_program_was_slow_is_looked_at_before_time_is_over(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what waits for the token, the first of its run, is taken for a number of the last."""
    handled: list[str] = []
    handle = SubscriberEngine.handle

    def note(engine: SubscriberEngine, event: Event) -> list[Output]:
        handled.append(type(event).__name__)
        return handle(engine, event)

    monkeypatch.setattr(SubscriberEngine, "handle", note)
    slow: list[Sample] = []

    def deliver(sample: Sample) -> None:
        slow.append(sample)
        time.sleep(SLOW_SECONDS)  # the program's own work

    session = network.client()
    publisher = session.declare_publisher("a/b")
    epoch, source = frame(time.time_ns()), source_of(publisher)
    tokens = [
        publisher_token("default", source, epoch + run, f"{run:08x}", "a/b") for run in range(2)
    ]
    with declare_reliable_subscriber(network.client(), "a/**", deliver):
        ended = declare_token(session, tokens[0])
        wait_until(lambda: "Declared" in handled, what="the first run")
        undeclare(ended)
        wait_until(lambda: "TokenGone" in handled, what="its end")
        publisher.put("", source_info=zenoh.SourceInfo(publisher.id, 0))
        session.put("a/slow", "")
        wait_until(lambda: slow != [], what="the slow sample")
        handled.clear()
        begun = declare_token(session, tokens[1])
        wait_until(lambda: "TimePassed" in handled, what="the end of the wait")
        assert handled.index("Declared") < handled.index("TimePassed")
        undeclare(begun)
