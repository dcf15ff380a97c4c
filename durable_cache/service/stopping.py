"""How a process in the foreground is told to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType

from durable_cache.service.nudging import nudged, without_nudges

_FORCED = 128
_IMPORTING = "<frozen importlib._bootstrap"
_PUT_OFF_SECONDS = 0.01
"""Shorter than a person notices, longer than it takes to start the thread that waits for it."""


class Stop:
    """The first SIGINT or SIGTERM asks for a graceful stop, a second one ends the process at once.

    Python runs a signal's handler on the main thread between any two steps of what that thread
    does, also in the middle of a wait. An `Event` may not be set there: its lock may be held by the
    very wait that was interrupted, and the process hangs for ever. `SimpleQueue.put` is made for
    this. Whoever has a `Stop` waits with `wait`, a moment at a time, and needs no nudges.
    """

    def __init__(self) -> None:
        without_nudges()
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


_DEFAULTS: Mapping[signal.Signals, tuple[object, ...]] = {
    signal.SIGINT: (signal.SIG_DFL, signal.default_int_handler),
    signal.SIGTERM: (signal.SIG_DFL,),
}
"""What stands for a signal that nobody handles."""


_UNBROKEN: list[None] = []
"""One for each block under way that is not unwound in its middle."""


@contextmanager
def unbroken() -> Iterator[None]:
    """Put off a signal that would unwind the main thread until this block has ended.

    A child that was started is noted by then, and ended with the others.
    """
    _UNBROKEN.append(None)
    try:
        yield
    finally:
        _UNBROKEN.pop()


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt` and SIGTERM `Terminated` in the main thread, so that
    what was begun is taken back; one that comes during an import is put off to its end, and so is
    one in a block that is `unbroken`.

    By themselves they end a process at once: half a file, a hidden cursor and the processes of a
    demonstration stay behind. A second SIGTERM does that. A handler of somebody else stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    put_off: list[int] = []

    def unwind(number: int, frame: FrameType | None) -> None:
        # Compiled modules that call Python while they are set up do not bear an exception there:
        # msgspec goes on with what it has not got, and dies of a segmentation fault later.
        if _UNBROKEN or _is_importing(frame):
            put_off.append(number)
            later = threading.Timer(_PUT_OFF_SECONDS, os.kill, (os.getpid(), number))
            later.daemon = True
            later.start()
            return
        put_off.clear()
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            raise Terminated
        raise KeyboardInterrupt

    taken = [number for number, kept in _DEFAULTS.items() if signal.getsignal(number) in kept]
    before = {number: signal.signal(number, unwind) for number in taken}
    try:
        with nudged(_DEFAULTS):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if put_off:  # whatever the verb has come to meanwhile
            raise Terminated if signal.SIGTERM in put_off else KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            return True
        frame = frame.f_back
    return False
