"""How a process in the foreground is told to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType

_FORCED = 128


class Stop:
    """The first SIGINT or SIGTERM asks for a graceful stop, a second one ends the process at once.

    Python runs a signal's handler on the main thread between any two steps of what that thread
    does, also in the middle of a wait. An `Event` may not be set there: its lock may be held by the
    very wait that was interrupted, and the process hangs for ever. `SimpleQueue.put` is made for
    this.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._asked: SimpleQueue[None] = SimpleQueue()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.ask)

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Take the signal `number`, as a handler does."""
        if self.is_asked:
            os._exit(_FORCED + number)
        self.is_asked = True
        self._asked.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until a stop is asked for, at most `seconds`; tell whether it is. Main thread."""
        if not self.is_asked:
            with suppress(Empty):
                self._asked.get(timeout=seconds)
        return self.is_asked


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C ends, it ends in the same way."""


@contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in the main thread, so that what was begun is taken back.

    By itself it ends a process at once: half a file, a hidden cursor and the processes of a
    demonstration stay behind. A second one does that. A handler of somebody else stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
