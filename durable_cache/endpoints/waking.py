"""How a task of an event loop waits for what happens on other threads, without holding its loop up.

The loop's thread takes a lock for as long as a look takes, and is told by
`call_soon_threadsafe`. A task that is cancelled while it waits has taken nothing yet. A program
without an event loop never imports asyncio.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from threading import Condition
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio

_AT_ONCE_MAX = 64
"""Items taken before other tasks have their turn: a turn costs as much as a few items."""

_KeyT = TypeVar("_KeyT")
_ResultT = TypeVar("_ResultT")


class _Waiter:
    """One task that waits; any thread wakes it."""

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """Let the task go on; nothing where its loop is gone."""
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:
            return  # the loop is closed, and its tasks with it

    def _set(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Waiters(Generic[_KeyT]):
    """Tasks that wait for something to happen to a key; its owner lets one thread in at a time."""

    def __init__(self) -> None:
        self._waiters: dict[_KeyT, set[_Waiter]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, key: _KeyT) -> _Waiter:
        """Wait from now on."""
        waiter = _Waiter()
        self._waiters.setdefault(key, set()).add(waiter)
        return waiter

    def remove(self, key: _KeyT, waiter: _Waiter) -> None:
        """Wait no more; idempotent."""
        waiting = self._waiters.get(key)
        if waiting is not None:
            waiting.discard(waiter)
            if not waiting:
                del self._waiters[key]

    def wake(self, key: _KeyT) -> None:
        """Wake who waits for one key."""
        for waiter in self._waiters.pop(key, ()):
            waiter.wake()

    def wake_all(self) -> None:
        """Wake everybody."""
        for key in list(self._waiters):
            self.wake(key)


async def wait_for(
    take: Callable[[], _ResultT | None], key: _KeyT, waiters: Waiters[_KeyT], changed: Condition
) -> _ResultT:
    """Return what `take()` returns once it is not None; it is called under the lock of `changed`.

    Who changes what `take` looks at wakes `waiters`, under the same lock.
    """
    while True:
        with changed:
            if (taken := take()) is not None:
                return taken
            waiter = waiters.add(key)
        try:
            await waiter.woken
        finally:
            with changed:
                waiters.remove(key, waiter)


def runs_event_loop() -> bool:
    """Tell whether the thread that asks runs an event loop, which must not wait."""
    if "asyncio" not in sys.modules:
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class AsyncItems(AsyncIterator[_ResultT], Generic[_ResultT]):
    """Takes items one by one until there are no more; other tasks have their turns in between.

    `take()` returns None where there is nothing yet and raises StopAsyncIteration at the end.
    """

    def __init__(
        self, take: Callable[[], _ResultT | None], waiters: Waiters[None], changed: Condition
    ) -> None:
        self._take, self._waiters, self._changed = take, waiters, changed
        self._taken = 0

    async def __anext__(self) -> _ResultT:
        import asyncio

        self._taken += 1
        if self._taken % _AT_ONCE_MAX == 0:
            await asyncio.sleep(0)  # nothing is taken yet: who is cancelled here loses nothing
        return await wait_for(self._take, None, self._waiters, self._changed)
