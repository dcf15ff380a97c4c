"""Closes at the end of the process what its program left open.

A thread that is inside Zenoh when the interpreter ends is torn out of foreign code, and the process
aborts ("exception not rethrown"); one that is no daemon keeps the process from ending at all.
Hence every thread of ours is a daemon, Zenoh's own callback threads (no daemons) are not used, and
once the program's last thread has ended, what our threads wait for is closed and their end awaited,
while the interpreter is still whole.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from zenoh import Session

from durable_cache.endpoints.session.opening import close_session

_log = logging.getLogger(__name__)
_JOIN_SECONDS_MAX = 5.0
"""In all, for threads whose session is closed already: whoever is later is not waited for."""
_CLOSE_SECONDS_MAX = 10.0
"""For one session: a Zenoh that does not come back keeps no process from ending."""


class Closable(Protocol):
    """What was declared on a session."""

    def close(self) -> None:
        """Undeclare and end the threads; idempotent."""


_declared: WeakKeyDictionary[Closable, Session] = WeakKeyDictionary()
"""What its owners still hold, or its own threads do: nothing is kept alive by standing here."""


_threads: WeakSet[Thread] = WeakSet()


def start_thread(run: Callable[[], None], name: str) -> Thread:
    """Start a daemon whose end is awaited before the interpreter's."""
    thread = Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


def run_within(step: Callable[[], None], name: str, seconds: float) -> bool:
    """Run a step on a thread of its own; False where it takes longer, and is left behind.

    Raises what the step raised. Where the interpreter starts no threads any more, at its end, the
    step runs on the caller's.
    """
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            step()
        except BaseException as error:
            errors.append(error)

    try:
        thread = start_thread(guarded, name)
    except RuntimeError:
        step()
        return True
    thread.join(seconds)
    is_over = not thread.is_alive()
    if errors:
        raise errors[0]
    return is_over


def close_at_exit(entity: Closable, session: Session) -> None:
    """Close `entity`, then its session, at the end of the process, unless it is gone by then."""
    _declared[entity] = session


def _close_all() -> None:
    left = list(_declared.items())
    for entity, _ in reversed(left):
        _do(entity.close, f"closing a {type(entity).__name__}")
    for _, session in left:
        _do(partial(_close_session, session), "closing a session")
    _do(_await_threads, "awaiting our threads")


def _close_session(session: Session) -> None:
    close = partial(close_session, session)
    if not run_within(close, "dc-close-session", _CLOSE_SECONDS_MAX):
        _log.error("a session did not close in %g s, left behind", _CLOSE_SECONDS_MAX)


def _do(step: Callable[[], None], what: str) -> None:
    """Carry out one step; whatever ends it, an impatient Ctrl-C too, does not end the others."""
    try:
        step()
    except KeyboardInterrupt:
        return
    except BaseException:
        _log.exception("%s at the end of the process", what)


def _await_threads() -> None:
    deadline = time.monotonic() + _JOIN_SECONDS_MAX
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_close_all)
