"""The sessions of a benchmark's processes, and what a process used."""

from __future__ import annotations

import ctypes
import os
import sys


def settings(endpoint: str, *, listen: bool, mode: str = "peer") -> dict[str, object]:
    """Return Zenoh's settings for who listens at an endpoint, or connects to it alone."""
    ends: dict[str, object] = {"endpoints": [endpoint]}
    return {
        "mode": mode,
        "scouting": {"multicast": {"enabled": False}},
        "timestamping": {"enabled": True},
        "listen": ends if listen else {"endpoints": []},
        "connect": {"endpoints": []} if listen else ends,
    }


def wake_on_time() -> None:
    """Let this thread wake when its sleep is over; Linux takes 50 microseconds more otherwise.

    At 10,000 samples a second that is half of the time between two: they would go in threes.
    """
    timer_slack, nanoseconds = 29, 1  # PR_SET_TIMERSLACK
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(timer_slack, nanoseconds, 0, 0, 0)


def cpu_seconds() -> float:
    """Return the processor time that this process has used."""
    times = os.times()
    return times.user + times.system
