"""What a put waits for, and who never waits: room, and the window of ADR 0275 below it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Timer, current_thread

import pytest

from durable_cache.endpoints.publisher.options import PublisherOptions
from durable_cache.endpoints.publisher.room import Room
from durable_cache.errors import ConfigError, Unacknowledged
from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, SourceId
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import AckReceived, Put, Sent, Started, TokenDeclared
from durable_cache.protocol.wire import Ack

_SOURCE = SourceId("ab12", 7)
_MINUTE = 60.0


class Owner:
    def __init__(self) -> None:
        self.changed = Condition()
        self.closed = False
        self.key_expr = KeyExpression("a/b")


class Puts:
    """A publisher's engine with so many puts at once, of which the first is acknowledged."""

    def __init__(self, options: PublisherOptions, count: int) -> None:
        self.owner = Owner()
        self.engine = PublisherEngine(_SOURCE, "0000000a", options.engine_options())
        jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.room = Room(self.owner, self.engine, jobs, options)
        self.engine.handle(Started(self.now))
        for _ in range(count):
            put = Put("a/b", Kind.PUT, b"x", "zenoh/bytes", None, 1, "ab12", 13, self.now)
            self.engine.handle(put)
            self.engine.handle(Sent())
        self.acknowledge(0)

    @property
    def now(self) -> Moment:
        return Moment(time.monotonic_ns(), time.time_ns())

    def acknowledge(self, last: int, since_seconds: float = -3_600) -> None:
        """Acknowledge; as if an hour from now, so that no slow machine makes a silence of it."""
        heard_ns = time.monotonic_ns() - round(since_seconds * 1e9)
        ack = Ack("c1", 2, _SOURCE, self.engine.epoch, ((0, last),), self.engine.incarnation)
        with self.owner.changed:
            self.engine.handle(AckReceived(ack, heard_ns))
            self.owner.changed.notify_all()

    @property
    def holds_up(self) -> bool:
        return self.room.holds_up()


def test_a_put_at_the_windows_end_waits_for_the_next_acknowledgement() -> None:
    puts = Puts(PublisherOptions(acknowledgements=1), 6_000)
    assert puts.holds_up
    timer = Timer(0.02, puts.acknowledge, (5_000,))
    timer.start()
    assert puts.room.wait(time.monotonic() + _MINUTE)
    timer.join()
    assert not puts.holds_up


def test_a_put_waits_for_the_window_no_longer_than_it_may_and_then_goes_on() -> None:
    puts = Puts(PublisherOptions(acknowledgements=1), 6_000)
    assert not puts.room.wait(time.monotonic() - 1)
    puts.acknowledge(1, since_seconds=0)
    began = time.monotonic()
    puts.room.wait(began + _MINUTE)  # nothing is acknowledged any more
    assert time.monotonic() - began < _MINUTE / 2
    assert not puts.holds_up


@pytest.mark.parametrize(
    "options",
    [
        PublisherOptions(acknowledgements=1, put_timeout_seconds=0),
        PublisherOptions(acknowledgements=1, acknowledgement_delay_seconds=None),
    ],
)
def test_who_chose_to_be_told_at_once_has_the_bound_alone(options: PublisherOptions) -> None:
    assert not Puts(options, 6_000).holds_up


def test_callbacks_and_event_loops_never_wait_for_the_window() -> None:
    puts = Puts(PublisherOptions(acknowledgements=1), 6_000)
    assert puts.holds_up

    async def held_up() -> bool:
        return puts.holds_up

    assert not asyncio.run(held_up())
    puts.room.thread = current_thread()
    assert not puts.holds_up


def test_beyond_the_bound_a_put_raises_when_its_time_is_over() -> None:
    options = PublisherOptions(acknowledgements=1, unacknowledged_max=10)
    puts = Puts(options, 10)
    puts.engine.handle(Put("a/b", Kind.PUT, b"x", "zenoh/bytes", None, 1, "", 13, puts.now))
    with pytest.raises(Unacknowledged, match="10 samples on a/b"):
        puts.room.wait(time.monotonic())


def test_the_delay_is_a_number_or_none() -> None:
    with pytest.raises(ConfigError, match="acknowledgement_delay_seconds"):
        PublisherOptions(acknowledgement_delay_seconds=-1).checked()


def test_an_ordinary_put_beyond_the_window_is_left_to_who_knows_whether_it_may_wait() -> None:
    puts = Puts(PublisherOptions(acknowledgements=1), 6_000)
    puts.engine.handle(TokenDeclared(puts.engine.incarnation))
    put = Put("a/b", Kind.PUT, b"x", "zenoh/bytes", None, 1, "ab12", 13, puts.now)
    assert puts.engine.number(put.form, b"x", None, 1, puts.now) is None
    puts.acknowledge(5_999)
    assert puts.engine.number(put.form, b"x", None, 1, puts.now) is not None
