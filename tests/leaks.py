"""Which threads may a test not leave behind? Ours, and those that keep the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from types import MethodType

OURS = "dc-"
"""How the name of every thread of ours begins."""
SHARED = "test-server-"
"""How the name of a thread begins that serves the whole run of the suite, not one test."""
PACKAGES = ("durable_cache",)  # with what begins so: durable_cache_sql, ...


def left_since(before: Collection[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that run now, did not before, and should have ended."""
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before
        and thread.is_alive()
        and not thread.name.startswith(SHARED)
        and (not thread.daemon or is_ours(thread))
    ]


def is_ours(thread: threading.Thread) -> bool:
    """Whether the name, the class or the target of a thread shows that our code started it."""
    target: Callable[..., object] | None = getattr(thread, "_target", None)
    places = [type(thread).__module__, getattr(target, "__module__", "") or ""]
    if isinstance(target, MethodType):
        places.append(type(target.__self__).__module__)
    return thread.name.startswith(OURS) or any(place.startswith(PACKAGES) for place in places)
