"""The sessions of a benchmark's processes, and what a process used."""

from __future__ import annotations

import os


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


def cpu_seconds() -> float:
    """Return the processor time that this process has used."""
    times = os.times()
    return times.user + times.system
