"""Does the fixture that looks for threads see ours, also where they are daemons?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from durable_cache.storage.memory import MemoryStorage
from tests.leaks import is_ours, left_since


@pytest.fixture
def end() -> Iterator[Event]:
    """Give what threads wait for; it is set when the test is over."""
    end = Event()
    yield end
    end.set()


def started(end: Event, name: str, *, daemon: bool = True) -> Thread:
    thread = Thread(target=end.wait, name=name, daemon=daemon)
    thread.start()
    return thread


def test_a_daemon_thread_with_a_name_of_ours_is_left(end: Event) -> None:
    before = set(threading.enumerate())
    thread = started(end, "dc-drain")
    assert left_since(before) == [thread]


def test_a_foreign_daemon_thread_and_a_shared_server_are_not(end: Event) -> None:
    before = set(threading.enumerate())
    started(end, "of-a-driver")
    started(end, "test-server-proxy", daemon=False)
    assert left_since(before) == []


def test_a_thread_that_would_keep_the_process_alive_is_left(end: Event) -> None:
    before = set(threading.enumerate())
    thread = started(end, "anybody", daemon=False)
    assert left_since(before) == [thread]


def test_what_a_thread_runs_shows_whose_it_is() -> None:
    assert is_ours(Thread(target=MemoryStorage().close))
    assert not is_ours(Thread(target=print))
