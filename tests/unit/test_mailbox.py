"""One thread at a time works, in the order things came, and nobody who waits is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from durable_cache.endpoints.subscriber.mailbox import NEVER_NS, Mailbox
from durable_cache.testing.network import wait_until

WAIT_SECONDS, LONG_SECONDS = 10.0, 60.0


def idle(events_max: int = 100) -> Mailbox[int]:
    """Return a mailbox whose turn nobody has."""
    mailbox: Mailbox[int] = Mailbox(events_max)
    mailbox.end_turn(NEVER_NS)
    return mailbox


class Waiting:
    """A thread that waits for its turn, and how long it took."""

    def __init__(self, mailbox: Mailbox[int]) -> None:
        self._mailbox = mailbox
        self.turn: bool | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: mailbox._waits_ns, what="a thread that waits")

    def _run(self) -> None:
        self.turn = self._mailbox.await_turn(LONG_SECONDS)

    def ends(self) -> bool:
        self._thread.join(WAIT_SECONDS)
        return not self._thread.is_alive()


def test_the_turn_is_its_makers_until_it_is_given_back() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    assert not mailbox.try_turn()
    mailbox.end_turn(NEVER_NS)
    assert mailbox.try_turn()
    assert not mailbox.try_turn()


def test_nobody_overtakes_what_waits() -> None:
    mailbox = idle()
    assert mailbox.put(1, 0.0)
    assert not mailbox.try_turn()
    assert mailbox.await_turn(LONG_SECONDS)
    assert mailbox.take() == 1
    assert mailbox.take() is None
    mailbox.end_turn(NEVER_NS)
    assert mailbox.try_turn()


def test_without_room_nothing_is_put() -> None:
    mailbox = idle(2)
    assert [mailbox.put(number, 0.0) for number in range(3)] == [True, True, False]
    assert mailbox.waiting == (0, 1)


def test_who_waits_for_room_gets_it() -> None:
    mailbox = idle(1)
    mailbox.put(1, 0.0)
    putting = threading.Thread(target=mailbox.put, args=(2, LONG_SECONDS))
    putting.start()
    wait_until(lambda: mailbox._wait_for_room, what="a thread that waits")
    assert mailbox.take() == 1
    putting.join(WAIT_SECONDS)
    assert mailbox.waiting == (2,)


def left_behind(mailbox: Mailbox[int]) -> None:
    assert mailbox.try_turn()
    mailbox.put(1, 0.0)
    mailbox.end_turn(NEVER_NS)


def due_at_once(mailbox: Mailbox[int]) -> None:
    assert mailbox.try_turn()
    mailbox.end_turn(time.monotonic_ns())


@pytest.mark.parametrize("happens", [lambda mailbox: mailbox.put(1, 0.0), left_behind, due_at_once])
def test_who_waits_is_woken_at_once(happens: Callable[[Mailbox[int]], object]) -> None:
    mailbox = idle()
    waiting = Waiting(mailbox)
    happens(mailbox)
    assert waiting.ends(), "forgotten"
    assert waiting.turn


def test_who_waits_too_long_has_no_turn_that_another_has() -> None:
    mailbox = idle()
    assert mailbox.try_turn()
    mailbox.put(1, 0.0)
    assert not mailbox.await_turn(0.01)


def test_time_is_looked_at_when_it_has_come_and_not_without_a_pause() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    began_ns = time.monotonic_ns()
    mailbox.end_turn(began_ns + 20_000_000)
    assert mailbox.await_turn(LONG_SECONDS)
    assert time.monotonic_ns() >= began_ns + 20_000_000
    mailbox.end_turn(began_ns)
    again_ns = time.monotonic_ns()
    assert mailbox.await_turn(LONG_SECONDS)
    assert time.monotonic_ns() > again_ns + 400_000


def test_many_threads_lose_nothing_and_each_keeps_its_order() -> None:
    mailbox: Mailbox[tuple[int, int]] = Mailbox(8)
    handled: list[tuple[int, int]] = []
    working: list[int] = []

    def handle(event: tuple[int, int]) -> None:
        working.append(1)
        assert len(working) == 1, "two threads have the turn"
        handled.append(event)
        working.clear()

    def bring(who: int) -> None:
        for number in range(5_000):
            if mailbox.try_turn():
                handle((who, number))
                mailbox.end_turn(NEVER_NS)
            else:
                assert mailbox.put((who, number), LONG_SECONDS)

    def work() -> None:
        while not over.is_set() and mailbox.await_turn(LONG_SECONDS):
            while (event := mailbox.take()) is not None:
                handle(event)
            mailbox.end_turn(NEVER_NS)

    over = threading.Event()
    mailbox.end_turn(NEVER_NS)
    threads = [threading.Thread(target=bring, args=(who,)) for who in range(3)]
    for thread in (worker := threading.Thread(target=work), *threads):
        thread.start()
    for thread in threads:
        thread.join(LONG_SECONDS)
    wait_until(lambda: len(handled) == 15_000, WAIT_SECONDS, "all, without another word")
    over.set()
    mailbox.put((3, 0), 0.0)
    worker.join(WAIT_SECONDS)
    for who in range(3):
        assert [number for one, number in handled if one == who] == [*range(5_000)]
