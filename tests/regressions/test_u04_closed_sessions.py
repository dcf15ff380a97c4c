"""Who receives from a session that is closed comes to an end; who declares on one is told."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from durable_cache import (
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
    ext,
)
from durable_cache.consumers import (
    ConsumerOptions,
    find_consumers,
    read_dead_letters,
    rewind_consumer,
)
from durable_cache.endpoints.session import Session, is_matched
from durable_cache.errors import Closed
from durable_cache.model.selection import Selection
from durable_cache.pipes import declare_reliable_pipe
from durable_cache.storage.memory import MemoryStorage
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.signals import at_call


@pytest.mark.parametrize(
    "settings",
    [{}, {"history": True}, {"mode": "at-most-once"}, {"consumer": "c", "confirm": "manual"}],
)
def test_who_receives_from_a_session_that_is_closed_gets_what_came_and_comes_to_an_end(
    network: LocalNetwork, settings: dict[str, object]
) -> None:
    session, far = network.client(), network.client()
    with (
        declare_reliability_cache(
            network.client(), ("a/**", "@durable/v1/default/consumers/*/**")
        ) as cache,
        declare_reliable_publisher(far, "a/b") as publisher,
    ):
        if "consumer" in settings:
            settings = {**settings, "consumer_options": ConsumerOptions(level="memory")}
        subscriber = declare_reliable_subscriber(session, "a/**", **settings)  # type: ignore[call-overload]
        misses = subscriber.sample_miss_listener()
        await_known(session, far)  # the publisher is matched by the cache, whoever else there is
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


def await_known(session: Session, far: Session) -> None:
    """Wait until another session knows what one has declared so far: it learns that in order."""
    subscriber, publisher = session.declare_subscriber("known"), far.declare_publisher("known")
    wait_until(lambda: is_matched(publisher), what="matching")
    subscriber.undeclare()  # type: ignore[no-untyped-call]
    publisher.undeclare()  # type: ignore[no-untyped-call]


DECLARED: dict[str, Callable[[Session], object]] = {
    "cache": lambda session: declare_reliability_cache(session, "a/**"),
    "publisher": lambda session: declare_reliable_publisher(session, "a/b"),
    "publisher with receipts": lambda session: declare_reliable_publisher(
        session, "a/b", acknowledgements=1
    ),
    "subscriber": lambda session: declare_reliable_subscriber(session, "a/**"),
    "mode": lambda session: declare_reliable_subscriber(session, "a/**", mode="unreliable"),
    "profile": lambda session: declare_reliable_subscriber(
        session, "a/**", profile="eventually-consistent"
    ),
    "consumer": lambda session: declare_reliable_subscriber(session, "a/**", consumer="c"),
    "advanced publisher": lambda session: ext.declare_advanced_publisher(session, "a/b"),
    "advanced subscriber": lambda session: ext.declare_advanced_subscriber(session, "a/b"),
    "dead letters": lambda session: [*read_dead_letters(session, "c")],
    "consumers": find_consumers,
    "rewind": lambda session: rewind_consumer(session, "c"),
}


@pytest.mark.parametrize("declare", DECLARED.values(), ids=DECLARED)
def test_who_declares_on_a_closed_session_is_told_what_to_do(
    network: LocalNetwork, declare: Callable[[Session], object]
) -> None:
    session = network.client()
    session.close()  # type: ignore[no-untyped-call]
    with pytest.raises(Closed, match="the session is closed: open another one"):
        declare(session)


@pytest.mark.parametrize("closed", [0, 1])
def test_a_pipe_on_a_closed_session_is_refused(network: LocalNetwork, closed: int) -> None:
    sessions = network.client(), network.client()
    sessions[closed].close()  # type: ignore[no-untyped-call]
    with pytest.raises(Closed, match="the session is closed: open another one"):
        declare_reliable_pipe(*sessions, "a/**")


def test_a_storage_that_a_cache_on_a_closed_session_was_given_is_closed(
    network: LocalNetwork,
) -> None:
    session, storage = network.client(), MemoryStorage()
    session.close()  # type: ignore[no-untyped-call]
    with pytest.raises(Closed, match="the session is closed"):
        declare_reliability_cache(session, "a/**", backend=storage)
    with pytest.raises(Closed, match="the memory storage is closed"):
        storage.read(Selection(), 1)


ENDS = "the session is closed: open another one"


@pytest.mark.parametrize("name", ["cache", "publisher with receipts", "subscriber", "durable"])
def test_a_session_that_is_closed_while_something_is_declared_on_it_is_named(
    network: LocalNetwork, name: str
) -> None:
    positions = "@durable/v1/default/consumers/*/**"
    declare: dict[str, Callable[[Session], Any]] = {
        **DECLARED,
        "durable": lambda session: declare_reliable_subscriber(
            session, "a/**", lambda _: None, consumer="c"
        ),
    }
    told: list[str] = []
    with declare_reliability_cache(network.client(), ("a/**", positions)):
        number, step, reached = 1, 7, True
        while reached:
            session = network.client()
            with at_call(number, session.close) as calls:
                try:
                    declare[name](session).close()
                except Closed as error:
                    told.append(str(error))
            session.close()  # type: ignore[no-untyped-call]
            reached = calls[0] >= number
            number += step
            step *= 2
    assert told
    assert all(ENDS in reason for reason in told)
