"""What waits for a subscriber's engine, and which of its threads drives the engine (ADR 0210).

Theory of operation. One thread at a time has the *turn*: it may call the engine and the program.
A thread that received samples takes the turn and handles them itself where nothing else waits and
nobody has it: to hand one sample to another thread costs more than all that is done for it. Else
it puts them behind what waits, and who waits for work takes the turn next. So everything is handled
in the order it came.

The turn is a lock that is only tried, never waited for. It is taken and given back for each sample,
so nothing else is locked for that. Nobody is forgotten: who puts an event looks at the turn
afterwards, who gives the turn back looks at the events afterwards, so one of the two sees the
other. It is the same with the time at which there is something to do: who waits says until when and
then reads that time, who sets it then reads until when somebody waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from threading import Condition, Lock
from typing import Generic, TypeVar

_EventT = TypeVar("_EventT")
NEVER_NS = 1 << 63
_PAUSE_NS_MIN = 500_000
"""Between two looks at the clock, where something stays due."""


class Mailbox(Generic[_EventT]):
    """A bounded queue of events, and the turn, which is taken when it is made; any thread."""

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._events: deque[_EventT] = deque()
        self._turn = Lock()
        self._turn.acquire()
        self._wake_ns = NEVER_NS
        """When there is something to do though nothing comes."""
        lock = Lock()
        self._changed = Condition(lock)
        """There is work for who waits for it."""
        self._room = Condition(lock)
        self._waits_ns = 0
        """Until when who waits for work does; 0 while nobody does."""
        self._wait_for_room = 0
        """How many threads wait for room."""

    @property
    def is_taken(self) -> bool:
        """Whether somebody has the turn."""
        return self._turn.locked()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._events

    @property
    def waiting(self) -> Sequence[_EventT]:
        """What waits, in the order it came."""
        return tuple(self._events)

    def try_turn(self) -> bool:
        """Take the turn, for an event that is not here, if nothing waits and nobody has it."""
        if self._events or not self._turn.acquire(blocking=False):
            return False
        if not self._events:
            return True
        self.end_turn(self._wake_ns)  # something was put meanwhile
        return False

    def await_turn(self, seconds_max: float) -> bool:
        """Wait for something to do, so long at most; False where somebody else has the turn."""
        with self._changed:
            now_ns = time.monotonic_ns()
            until_ns, soonest_ns = now_ns + round(seconds_max * 1e9), now_ns + _PAUSE_NS_MIN
            while True:
                self._waits_ns = until_ns
                taken = self._turn.locked()
                if not taken:
                    self._waits_ns = min(until_ns, max(self._wake_ns, soonest_ns))
                if (self._events and not taken) or self._waits_ns <= now_ns:
                    break
                self._changed.wait((self._waits_ns - now_ns) / 1e9)
                now_ns = time.monotonic_ns()
            self._waits_ns = 0
            return self._turn.acquire(blocking=False)

    def end_turn(self, wake_ns: int) -> None:
        """Give the turn back; at the monotonic time `wake_ns` there is something to do."""
        self._wake_ns = wake_ns
        self._turn.release()
        if self._events or wake_ns < self._waits_ns:
            with self._changed:
                self._changed.notify()

    def put(self, event: _EventT, timeout_seconds: float) -> bool:
        """Put an event behind what waits; False where there was no room in time."""
        with self._room:
            if not self._has_room() and not self._await_room(timeout_seconds):
                return False
            self._events.append(event)
            if not self._turn.locked():
                self._changed.notify()
            return True

    def take(self) -> _EventT | None:
        """Take what waits for longest; None where nothing does. For who has the turn."""
        if not self._events:
            return None
        event = self._events.popleft()
        if self._wait_for_room:
            with self._room:
                self._room.notify()
        return event

    def _await_room(self, timeout_seconds: float) -> bool:
        self._wait_for_room += 1
        try:
            return self._room.wait_for(self._has_room, timeout_seconds)
        finally:
            self._wait_for_room -= 1

    def _has_room(self) -> bool:
        return len(self._events) < self._events_max
