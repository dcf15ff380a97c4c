"""A program that takes its time with a sample: what comes meanwhile keeps its place."""

from __future__ import annotations

import time

import pytest
import zenoh

from durable_cache import declare_reliable_subscriber
from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.session import (
    declare_token,
    source_of,
    take_token_changes,
    undeclare,
    watch_tokens_polled,
)
from durable_cache.endpoints.subscriber.mailbox import Mailbox
from durable_cache.endpoints.subscriber.tokens_in_order import TokensInOrder, Waited
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import frame
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import Event, Output, Received
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


def test_a_token_that_came_behind_samples_waits_behind_them(network: LocalNetwork) -> None:
    """Else a late sample that names no run is taken for one of the run that began behind it."""
    source, there, session = SourceId("ab", 1), network.client(), network.client()
    mailbox: Mailbox[Event | Waited] = Mailbox(1)
    tokens = TokensInOrder(session, "default", KeyExpression("a/**"), mailbox)
    beside = watch_tokens_polled(session, "@durable/**")
    keys = [publisher_token("default", source, 7 + run, f"{run:08x}", "a/b") for run in range(3)]

    def declare(key: str) -> None:
        shown.append(declare_token(there, key))
        wait_until(lambda: (key, True) in take_token_changes(beside), what=key)

    def received(sn: int) -> Received:
        return Received([Sample("a/b", source, 0, sn, b"")], moment_now())

    shown: list[zenoh.LivelinessToken] = []
    declare(keys[0])
    assert tokens.take() == [(keys[0], True)]
    first, dropped, last = received(0), received(1), received(2)
    assert tokens.put(first, 0.0)
    declare(keys[1])
    assert tokens.take() == ()
    assert not tokens.put(dropped, 0.0)
    declare(keys[2])
    assert tokens.take() == ()
    assert tokens.before(mailbox.take()) == ((), first)
    assert tokens.take() == [(keys[1], True)]  # before an answer that came behind what was dropped
    assert not tokens.put(last, 0.0)
    changes, event = tokens.before(mailbox.take())
    assert isinstance(event, Received)
    assert (changes, event.samples) == ([], dropped.samples)
    changes, event = tokens.before(tokens.take_dropped())
    assert isinstance(event, Received)
    assert (changes, event.samples) == ([(keys[2], True)], last.samples)
    assert tokens.take() == tokens.take() == ()
    undeclare(tokens, beside, *shown)
