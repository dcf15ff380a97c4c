"""K33: a signal's handler runs wherever its thread is, in the middle of a put too."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from durable_cache import (
    Sample,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.consumers import ConsumerOptions
from durable_cache.errors import Closed, LocalProtocolError
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.signals import at_call

EVENTS_MAX = 2_000
"""A put calls far fewer functions."""


def ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("settings", [{}, {"subject_sequences": True}])
def test_wherever_ctrl_c_ends_a_put_the_next_one_is_delivered(
    network: LocalNetwork, settings: dict[str, Any]
) -> None:
    came: list[Sample] = []
    with (
        declare_reliability_cache(network.client(), "a/**"),
        declare_reliable_subscriber(network.client(), "a/**", came.append) as subscriber,
        declare_reliable_publisher(
            network.client(), "a/b", acknowledgements=1, level="memory", **settings
        ) as publisher,
    ):
        misses = subscriber.sample_miss_listener()
        wait_until(lambda: publisher.matched, what="matching")
        publisher.put(b"first")
        interrupted = 0
        for number in range(1, EVENTS_MAX):
            try:
                with at_call(number, ctrl_c):
                    publisher.put(b"interrupted")
            except KeyboardInterrupt:
                interrupted = number
            publisher.put(b"%d" % number)
            if interrupted < number:
                break
        assert 10 < interrupted < EVENTS_MAX - 2
        wanted = [b"%d" % number for number in range(1, interrupted + 2)]
        publisher.flush(20)
        wait_until(lambda: came[-1].payload == wanted[-1], what="the last put")
        assert publisher.unacknowledged == 0
        delivered = [sample.payload for sample in came]
        assert [payload for payload in delivered if payload.isdigit()] == wanted
        assert misses.try_recv() is None


@contextmanager
def on_alarm(act: Callable[[], None], seconds: float = 0.3) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: act())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_time(run: Callable[[], None]) -> None:
    """Fail, rather than wait for ever, where a handler waits for a lock of its own thread."""
    main = threading.main_thread().ident
    assert main is not None
    ended = threading.Event()

    def watch() -> None:
        if not ended.wait(20):
            signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()
    try:
        run()
    except KeyboardInterrupt:
        pytest.fail("a handler waits for what its own thread holds")
    finally:
        ended.set()


@pytest.mark.parametrize("spooled", [False, True])
def test_a_handler_may_close_a_publisher_that_is_putting(
    network: LocalNetwork, tmp_path: Any, spooled: bool
) -> None:
    settings: dict[str, Any] = {"spool_dir": tmp_path / "spool"} if spooled else {}
    if spooled:
        settings["acknowledgements"] = 1
    publisher = declare_reliable_publisher(network.client(), "a/b", **settings)

    def put_on() -> None:
        while True:
            publisher.put(b"x")

    with on_alarm(publisher.close), pytest.raises(Closed, match="a/b is closed"):
        in_time(put_on)
    if spooled:  # its folder is let go
        declare_reliable_publisher(network.client(), "a/b", **settings).close()


def test_a_put_in_a_handler_that_interrupts_a_put_is_refused(network: LocalNetwork) -> None:
    with declare_reliable_publisher(network.client(), "a/b") as publisher:
        refused: list[str] = []

        def say_goodbye() -> None:
            try:
                publisher.put(b"goodbye")
            except LocalProtocolError as error:
                refused.append(str(error))

        def put_on() -> None:
            with on_alarm(say_goodbye):
                begun = time.monotonic()
                while time.monotonic() < begun + 0.6:
                    with at_call(12, say_goodbye):
                        publisher.put(b"x")

        in_time(put_on)
        assert refused
        assert "within another one" in refused[0]
        assert "put afterwards" in refused[0]
        publisher.put(b"y")


def test_a_handler_may_close_a_consumer_that_confirms(network: LocalNetwork) -> None:
    session = network.client()
    with (
        declare_reliability_cache(network.client(), ("a/**", "@durable/v1/default/consumers/*/**")),
        declare_reliable_publisher(network.client(), "a/b") as publisher,
    ):
        wait_until(lambda: publisher.matched, what="matching")
        number, interrupted = 0, True
        while interrupted:
            number += 1
            consumer = declare_reliable_subscriber(
                session,
                "a/**",
                consumer="c",
                confirm="manual",
                consumer_options=ConsumerOptions(level="memory"),
            )
            publisher.put(b"%d" % number)
            sample = consumer.recv(10)
            with at_call(number, partial(consumer.close, 0.1)) as calls, suppress(Closed):
                in_time(partial(consumer.confirm, sample))
            interrupted = calls[0] >= number
            consumer.close()
        assert number > 3
