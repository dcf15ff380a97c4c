"""A subscriber whose program is slow: how long it holds up Zenoh, and what becomes of the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from threading import Event

import pytest

from durable_cache.endpoints.cache import ReliabilityCache, declare_reliability_cache
from durable_cache.endpoints.session import Session, close_session, open_session
from durable_cache.endpoints.subscriber.subscriber import ReliableSubscriber, SubscriberOptions
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample
from durable_cache.testing.network import wait_until
from tests.servers.zenoh_sources import Numbered

WAIT_SECONDS = 10.0


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    alone = {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    session = open_session({**alone, "timestamping": {"enabled": True}})
    yield session
    close_session(session)


@pytest.fixture
def cache(session: Session) -> Iterator[ReliabilityCache]:
    with declare_reliability_cache(session, "a/**") as cache:
        yield cache


class Slow:
    """A program that takes its first sample, and the others when it is let go."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.go_on = Event()

    def __call__(self, sample: Sample) -> None:
        self.taken.append(sample.sn)
        self.go_on.wait(WAIT_SECONDS)


def test_a_slow_program_holds_up_zenoh_for_so_long_and_gets_everything_later(
    session: Session, cache: ReliabilityCache
) -> None:
    slow, numbered = Slow(), Numbered(session, "a/b")
    options = SubscriberOptions(channel_samples=2, events_max=1, overrun_seconds=0.02)
    with ReliableSubscriber(session, KeyExpression("a/b"), slow, options) as subscriber:
        numbered.put(0)
        wait_until(lambda: slow.taken, what="the first sample")
        numbered.put(1)
        wait_until(lambda: subscriber._mailbox.waiting, what="the second, which waits")

        def put_more() -> None:
            for sn in range(2, 60):
                numbered.put(sn)

        putting = threading.Thread(target=put_more)
        putting.start()
        putting.join(WAIT_SECONDS)
        assert not putting.is_alive(), "Zenoh is held up for ever"
        wait_until(lambda: subscriber.overrun == 58, what="what there was no time for")
        wait_until(lambda: cache.status().appended == 60, what="all in the cache")
        slow.go_on.set()
        wait_until(lambda: len(slow.taken) >= 60, what="every sample")
        assert slow.taken == [*range(60)]
        assert subscriber.missed == 0
