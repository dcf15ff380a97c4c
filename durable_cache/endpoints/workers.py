"""Every Python thread of ours: who starts it, what it is called, and what its failure means.

Two kinds. A *loop* belongs to one owner and lives as long: its first failure stops the owner and
leaves its `close`. A *task* is short and runs in a pool that several owners may share: one that
raises is logged and counted, and costs nobody else anything. Tasks wait in lanes, each with a bound
of how many wait and how many run at once, so that slow queries leave threads to the others.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from threading import Condition, RLock, Thread, current_thread

from durable_cache.endpoints.session import start_thread

_log = logging.getLogger(__name__)
PREFIX = "dc-"
"""Every thread of ours is called so: tests count them by it."""
Task = Callable[[], None]


class Lane:
    """Tasks of one kind and owner; any thread may submit. Made by `Pool.lane`."""

    def __init__(self, pool: Pool, name: str, running_max: int, waiting_max: int) -> None:
        self._pool = pool
        self.name = name
        self.running_max = running_max
        self.waiting_max = waiting_max
        self.waiting: deque[Task] = deque()
        self.running = 0
        self.closed = False
        self.failures = 0
        """Tasks that raised."""
        self.last_failure = ""

    def submit(self, task: Task, *, within_bound: bool = True) -> bool:
        """Run a task soon; False when `waiting_max` wait already, or the lane is closed.

        `within_bound=False` is for the next step of something that was let in already.
        """
        with self._pool.lock:
            if self.closed or (within_bound and len(self.waiting) >= self.waiting_max):
                return False
            self.waiting.append(task)
            if self.runnable:
                self._pool.wake_one()
        return True

    @property
    def runnable(self) -> bool:
        """Whether a thread may take a task; the caller holds the pool's lock."""
        return bool(self.waiting) and self.running < self.running_max

    def every(self, seconds: float, task: Task) -> None:
        """Run a task again and again, so long after each other, until the lane is closed."""
        self._pool.later(seconds, self, task)

    def run(self, task: Task) -> None:
        """Run one task, whatever it raises: a panic in a native driver is no Exception."""
        try:
            task()
        except BaseException as error:
            self.failures += 1
            self.last_failure = f"{self.name}: {type(error).__name__}: {error}"
            _log.exception("a task failed, the others go on", extra={"lane": self.name})

    def close(self, timeout_seconds: float) -> bool:
        """Forget what waits and wait for what runs; False when that takes longer. Idempotent."""
        with self._pool.lock:
            self.closed = True
            self.waiting.clear()
            ended = self._pool.ended.wait_for(lambda: not self.running, timeout_seconds)
            self._pool.forget(self)
        return ended


class Pool:
    """A few threads that run the tasks of all lanes, fairly.

    A task wakes one thread. Of those that wait, one keeps the time of regular tasks: it is woken
    last, and wakes another to keep it when it leaves for a task.
    """

    def __init__(self, name: str, *, threads: int) -> None:
        self.lock = RLock()  # what a task held may be let go under it, and submit in turn
        self.ended = Condition(self.lock)
        """A task of a closed lane ended."""
        self._rest = Condition(self.lock)
        self._resting = 0
        """Threads that wait at `_rest` and that nobody has woken."""
        self._clock = Condition(self.lock)
        self._time_kept = False
        self._lanes: deque[Lane] = deque()
        self._later: list[tuple[float, int, float, Lane, Task]] = []
        self._ids = count()
        self._stopped = False
        self._threads = [
            start_thread(self._run, f"{PREFIX}{name}-pool-{at}") for at in range(threads)
        ]

    @property
    def threads(self) -> int:
        """How many tasks run at once."""
        return len(self._threads)

    def lane(self, name: str, *, running_max: int, waiting_max: int) -> Lane:
        """Open a lane; `running_max` 1 makes its tasks run one after the other."""
        lane = Lane(self, name, running_max, waiting_max)
        with self.lock:
            self._lanes.append(lane)
        return lane

    def later(self, seconds: float, lane: Lane, task: Task) -> None:
        """Submit a task every so often."""
        with self.lock:
            due = time.monotonic() + seconds
            heapq.heappush(self._later, (due, next(self._ids), seconds, lane, task))
            if self._time_kept:
                self._clock.notify()
            else:
                self.wake_one()

    def wake_one(self) -> None:
        """Have a thread look for what is to do, if one waits; the caller holds `lock`."""
        if self._resting:
            self._resting -= 1
            self._rest.notify()
        else:
            self._clock.notify()

    def forget(self, lane: Lane) -> None:
        """Drop a closed lane; the caller holds `lock`."""
        if lane in self._lanes:
            self._lanes.remove(lane)
        self._later = [waiting for waiting in self._later if waiting[3] is not lane]
        heapq.heapify(self._later)

    def close(self, timeout_seconds: float) -> list[str]:
        """End all threads; returns the names of those that did not end in time. Idempotent."""
        deadline = time.monotonic() + timeout_seconds
        with self.lock:
            self._stopped = True
            self._resting = 0
            self._rest.notify_all()
            self._clock.notify_all()
        return _join(self._threads, deadline)

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            lane, task = taken
            try:
                lane.run(task)
            finally:
                with self.lock:
                    lane.running -= 1
                    if lane.closed:
                        self.ended.notify_all()
            del lane, task, taken  # a query kept by a reference here would keep its asker waiting

    def _next(self) -> tuple[Lane, Task] | None:
        with self.lock:
            while not self._stopped:
                self._submit_due()
                taken = self._take()
                if taken is not None:
                    unkept = bool(self._later) and not self._time_kept
                    if unkept or any(lane.runnable for lane in self._lanes):
                        self.wake_one()
                    return taken
                self._wait()
        return None

    def _take(self) -> tuple[Lane, Task] | None:
        for _ in range(len(self._lanes)):
            lane = self._lanes[0]
            self._lanes.rotate(-1)
            if lane.runnable:
                lane.running += 1
                return lane, lane.waiting.popleft()
        return None

    def _wait(self) -> None:
        if self._time_kept:
            self._resting += 1
            self._rest.wait()
            return
        self._time_kept = True
        self._clock.wait(self._pause())
        self._time_kept = False

    def _submit_due(self) -> None:
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            _, at, seconds, lane, task = heapq.heappop(self._later)
            if task not in lane.waiting:
                lane.waiting.append(task)
            heapq.heappush(self._later, (now + seconds, at, seconds, lane, task))

    def _pause(self) -> float | None:
        return max(0.0, self._later[0][0] - time.monotonic()) if self._later else None


class Loops:
    """The threads that live as long as their owner.

    `failed()` is called once, in the thread that failed first; its error is kept for `close`.
    """

    def __init__(self, name: str, failed: Callable[[], None]) -> None:
        self._name = name
        self._failed = failed
        self._threads: list[Thread] = []
        self._ending = False
        self.error: BaseException | None = None
        """The first error that ended a loop while it should have gone on."""

    def spawn(self, name: str, run: Callable[[], None]) -> None:
        """Start a loop."""

        def guarded() -> None:
            try:
                run()
            except BaseException as error:  # a panic in a native driver is no Exception
                if self._ending or self.error is not None:
                    _log.warning("ended with an error", extra={"loop": name}, exc_info=True)
                    return
                self.error = error
                _log.exception("stopped by an error", extra={"loop": name, "owner": self._name})
                self._failed()

        self._threads.append(start_thread(guarded, f"{PREFIX}{self._name}-{name}"))

    def ending(self) -> None:
        """Errors from now on are those of closing."""
        self._ending = True

    def join(self, timeout_seconds: float) -> list[str]:
        """Wait for the loops; returns the names of those that did not end in time."""
        return _join(self._threads, time.monotonic() + timeout_seconds)


def _join(threads: list[Thread], deadline: float) -> list[str]:
    for thread in threads:
        if thread is not current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
