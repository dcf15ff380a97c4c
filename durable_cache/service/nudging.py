"""A signal ends what the main thread waits for, whichever thread the system gave it to.

The system hands a signal to any thread that takes it: to the main thread as a rule, and to another
one where that is being woken, as right after SIGCONT. Python notes it there, and runs its handler
on the main thread: which sleeps on in a lock, or in a read of standard input, and hears of it when
something else wakes it, or never. So a thread of ours is told of each signal and sends the main
thread one that does nothing but break off its sleep.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager

_NUDGE = signal.SIGURG
"""Ignored where nobody handles it, so that one too many does no harm."""
_PAUSES_SECONDS = (0.0, 0.05, 0.2)
"""More than once: the first may come just before the main thread goes to sleep."""


class _Nudges:
    """The thread that hears of signals, and the pipe it hears of them by."""

    def __init__(self, numbers: Container[int]) -> None:
        self._numbers = numbers
        self._main = threading.get_ident()
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        self._handler = signal.signal(_NUDGE, _do_nothing)
        self._before = signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        self._ended = False
        threading.Thread(target=self._run, name="dc-signals", daemon=True).start()

    def _run(self) -> None:
        while told := os.read(self._told, 64):
            if any(number in self._numbers for number in told):
                for pause in _PAUSES_SECONDS:
                    time.sleep(pause)
                    signal.pthread_kill(self._main, _NUDGE)
        os.close(self._told)

    def end(self) -> None:
        """Send no more; idempotent, main thread."""
        if self._ended:
            return
        self._ended = True
        current = signal.set_wakeup_fd(self._before)
        if current != self._tell:  # an event loop's, which is told of signals itself
            signal.set_wakeup_fd(current)
        signal.signal(_NUDGE, self._handler or signal.SIG_DFL)
        os.close(self._tell)


_UNDER_WAY: list[_Nudges] = []


@contextmanager
def nudged(numbers: Container[int]) -> Iterator[None]:
    """Break off what the main thread waits for when one of these signals comes. Main thread."""
    nudges = _Nudges(numbers)
    _UNDER_WAY.append(nudges)
    try:
        yield
    finally:
        _UNDER_WAY.remove(nudges)
        nudges.end()


def without_nudges() -> None:
    """End the nudges under way: from here the main thread waits a moment at a time."""
    for nudges in _UNDER_WAY:
        nudges.end()


def _do_nothing(*_: object) -> None:
    """Handle what is sent for its effect on a sleep."""
