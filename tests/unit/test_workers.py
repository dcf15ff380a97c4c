"""Threads of ours: what the failure of one means, what waits, and what closing waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event

import pytest

from durable_cache.endpoints.workers import Loops, Pool
from durable_cache.testing.network import wait_until

WAIT_SECONDS = 10.0


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool("test", threads=2)
    yield pool
    assert pool.close(WAIT_SECONDS) == []


def fail() -> None:
    raise ValueError("on purpose")


class Panic(BaseException):
    """As a native driver raises it: no Exception."""


def panic() -> None:
    raise Panic("on purpose")


def kept_busy(events: list[Event]) -> Callable[[], None]:
    """Return a task that runs until its event is set."""
    event = Event()
    events.append(event)
    return lambda: (event.wait(WAIT_SECONDS), None)[1]


def test_a_loop_that_fails_stops_its_owner_once_and_keeps_the_first_error() -> None:
    stopped = threading.Semaphore(0)
    go_on = Event()
    loops = Loops("owner", stopped.release)

    def fail_later() -> None:
        go_on.wait(WAIT_SECONDS)
        raise KeyError("the second")

    loops.spawn("later", fail_later)
    loops.spawn("first", fail)
    assert stopped.acquire(timeout=WAIT_SECONDS)
    go_on.set()
    assert loops.join(WAIT_SECONDS) == []
    assert isinstance(loops.error, ValueError)
    assert not stopped.acquire(blocking=False)


def test_a_loop_in_which_a_driver_panics_stops_its_owner() -> None:
    stopped = Event()
    loops = Loops("owner", stopped.set)
    loops.spawn("panic", panic)
    assert stopped.wait(WAIT_SECONDS)
    assert isinstance(loops.error, Panic)


def test_a_task_in_which_a_driver_panics_leaves_its_thread_to_others(pool: Pool) -> None:
    lane, done = pool.lane("tasks", running_max=2, waiting_max=9), threading.Semaphore(0)
    for _ in range(pool.threads):
        assert lane.submit(panic)
    assert lane.submit(done.release)
    assert done.acquire(timeout=WAIT_SECONDS)
    assert lane.failures == pool.threads


def test_an_error_while_closing_is_not_the_owners() -> None:
    stopped = Event()
    loops = Loops("owner", stopped.set)
    loops.ending()
    loops.spawn("late", fail)
    assert loops.join(WAIT_SECONDS) == []
    assert loops.error is None
    assert not stopped.is_set()


def test_a_loop_that_does_not_end_is_named() -> None:
    end = Event()
    loops = Loops("owner", end.set)
    loops.spawn("stuck", lambda: (end.wait(WAIT_SECONDS), None)[1])
    try:
        assert loops.join(0.01) == ["dc-owner-stuck"]
    finally:
        end.set()
    assert loops.join(WAIT_SECONDS) == []


def test_a_task_that_raises_is_counted_and_costs_the_others_nothing(pool: Pool) -> None:
    lane = pool.lane("queries", running_max=1, waiting_max=100)
    done = Event()
    for _ in range(5):  # more than there are threads
        assert lane.submit(fail)
    assert lane.submit(done.set)
    assert done.wait(WAIT_SECONDS)
    assert lane.failures == 5
    assert lane.last_failure == "queries: ValueError: on purpose"


def test_tasks_beyond_the_bound_are_refused_but_for_next_steps(pool: Pool) -> None:
    lane = pool.lane("queries", running_max=1, waiting_max=2)
    busy: list[Event] = []
    lane.submit(kept_busy(busy))
    wait_until(lambda: lane.running == 1, what="the first task")
    assert lane.submit(lambda: None)
    assert lane.submit(lambda: None)
    assert not lane.submit(lambda: None)
    assert lane.submit(lambda: None, within_bound=False)
    busy[0].set()
    wait_until(lambda: not lane.waiting and not lane.running, what="the others")


def test_a_busy_lane_leaves_threads_to_the_others(pool: Pool) -> None:
    slow = pool.lane("slow", running_max=1, waiting_max=100)
    quick = pool.lane("quick", running_max=1, waiting_max=100)
    busy: list[Event] = []
    for _ in range(3):
        slow.submit(kept_busy(busy))
    wait_until(lambda: slow.running == 1, what="a slow task")
    try:
        for _ in range(20):  # between two of them the other thread looks for something to do
            done = Event()
            quick.submit(done.set)
            assert done.wait(WAIT_SECONDS)
            wait_until(lambda: not quick.running, what="its end")
        assert slow.running == 1
    finally:
        for event in busy:
            event.set()
    wait_until(lambda: not slow.waiting and not slow.running, what="the slow tasks")


def test_lanes_take_turns() -> None:
    pool = Pool("single", threads=1)
    ran: list[str] = []
    lanes = [pool.lane(name, running_max=1, waiting_max=100) for name in ("one", "two", "three")]
    busy: list[Event] = []
    lanes[0].submit(kept_busy(busy))
    wait_until(lambda: lanes[0].running, what="the first task")
    for lane in lanes:
        for _ in range(3):
            lane.submit(partial(ran.append, lane.name))
    busy[0].set()
    wait_until(lambda: len(ran) == 9, what="every task")
    assert [sorted(ran[at : at + 3]) for at in (0, 3, 6)] == [["one", "three", "two"]] * 3
    assert pool.close(WAIT_SECONDS) == []


def test_closing_a_lane_forgets_what_waits_and_waits_for_what_runs(pool: Pool) -> None:
    lane = pool.lane("queries", running_max=1, waiting_max=100)
    busy: list[Event] = []
    never = Event()
    lane.submit(kept_busy(busy))
    wait_until(lambda: lane.running == 1, what="the first task")
    lane.submit(never.set)
    assert not lane.close(0.01), "the first task runs still"
    assert not lane.submit(never.set)
    busy[0].set()
    assert lane.close(WAIT_SECONDS)
    assert not never.is_set()


def test_a_regular_task_runs_again_and_again_until_its_lane_is_closed(pool: Pool) -> None:
    lane = pool.lane("retention", running_max=1, waiting_max=1)
    runs = threading.Semaphore(0)
    lane.every(0.001, runs.release)
    for _ in range(3):
        assert runs.acquire(timeout=WAIT_SECONDS)
    assert lane.close(WAIT_SECONDS)
    while runs.acquire(blocking=False):
        pass
    assert not runs.acquire(timeout=0.05)


def test_a_pool_names_the_threads_that_do_not_end() -> None:
    pool = Pool("stuck", threads=1)
    lane = pool.lane("queries", running_max=1, waiting_max=1)
    busy: list[Event] = []
    lane.submit(kept_busy(busy))
    wait_until(lambda: lane.running == 1, what="the task")
    assert pool.close(0.01) == ["dc-stuck-pool-0"]
    busy[0].set()
    assert pool.close(WAIT_SECONDS) == []


def test_the_time_of_regular_tasks_is_kept_while_one_of_them_takes_long() -> None:
    pool = Pool("regular", threads=3)
    regular = pool.lane("regular", running_max=1, waiting_max=1)
    slow = pool.lane("slow", running_max=1, waiting_max=1)
    runs = threading.Semaphore(0)
    busy: list[Event] = []
    begun: list[float] = []
    keep = kept_busy(busy)

    def take_long() -> None:
        begun.append(time.monotonic())
        keep()

    regular.every(0.02, runs.release)
    slow.every(0.005, take_long)  # the thread that kept the time is busy with it
    wait_until(lambda: slow.running, what="the slow task")
    for _ in range(5):
        assert runs.acquire(timeout=WAIT_SECONDS)
    assert len(begun) == 1, "they ran beside it, not after it"
    busy[0].set()
    assert pool.close(WAIT_SECONDS) == []


def test_a_regular_task_begins_while_every_other_thread_rests() -> None:
    pool = Pool("rested", threads=3)
    lane = pool.lane("tasks", running_max=3, waiting_max=3)
    busy: list[Event] = []
    for _ in range(3):
        lane.submit(kept_busy(busy))
    wait_until(lambda: lane.running == 3, what="all threads at work")
    for event in busy:
        event.set()
    wait_until(lambda: not lane.running, what="their ends")
    runs = threading.Semaphore(0)
    lane.every(0.001, runs.release)
    for _ in range(3):
        assert runs.acquire(timeout=WAIT_SECONDS)
    assert pool.close(WAIT_SECONDS) == []


def test_tasks_from_many_threads_are_all_run() -> None:
    pool = Pool("many", threads=3)
    lanes = [pool.lane(f"lane {at}", running_max=1 + at, waiting_max=10_000) for at in range(3)]
    ran = threading.Semaphore(0)
    lanes[0].every(0.0005, lambda: None)

    def submit() -> None:
        for at in range(900):
            assert lanes[at % 3].submit(ran.release)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3600):
        assert ran.acquire(timeout=WAIT_SECONDS)
    for thread in threads:
        thread.join()
    assert pool.close(WAIT_SECONDS) == []
