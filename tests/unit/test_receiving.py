"""Is everything taken that came before a subscription ended; may threads end one together?"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier, Thread
from typing import Any

import pytest

from durable_cache.endpoints.session import (
    Origins,
    Session,
    close_session,
    declare_subscriber,
    declare_token,
    open_session,
    receive_now,
    undeclare,
)


@pytest.fixture
def session() -> Iterator[Session]:
    session = open_session(
        {"listen": {"endpoints": []}, "scouting": {"multicast": {"enabled": False}}}
    )
    yield session
    close_session(session)


def test_what_came_is_taken_up_to_the_bound_and_then_the_rest(session: Session) -> None:
    subscriber = declare_subscriber(session, "a", Origins.ANY, 100)
    for number in range(5):
        session.put("a", str(number))
    taken = [receive_now(subscriber, samples_max) for samples_max in (2, 9, 9)]
    assert [[one.payload.to_string() for one in part] for part in taken] == [
        ["0", "1"],
        ["2", "3", "4"],
        [],
    ]


class Ending:
    """A subscription that ends while it is read, which nothing real can be made to do in time."""

    def __init__(self, *came: str) -> None:
        self._came = iter(came)
        self.handler = self

    def try_recv(self) -> str:
        for one in self._came:
            return one
        raise RuntimeError("the channel is gone")


def test_what_came_before_the_end_is_taken() -> None:
    ending: Any = Ending("0", "1", "2")
    taken: list[list[Any]] = [[*receive_now(ending, 9)] for _ in range(2)]
    assert taken == [["0", "1", "2"], []]


def test_threads_that_undeclare_the_same_wait_for_each_other(session: Session) -> None:
    errors: list[BaseException] = []
    for number in range(50):
        token, together = declare_token(session, f"a/{number}"), Barrier(4)

        def end(token: Any = token, together: Barrier = together) -> None:
            together.wait()
            try:
                undeclare(token)
            except BaseException as error:  # whatever it is, it is a failure
                errors.append(error)

        threads = [Thread(target=end) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
