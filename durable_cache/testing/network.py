"""Zenoh sessions on the loopback, for tests: a router of our own and clients of it."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from durable_cache.endpoints.session import Session, close_session, open_session

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS_MAX = 8
_PORTS = itertools.cycle(
    random.SystemRandom().sample(range(10_000 + _WORKER % _WORKERS_MAX, 30_000, _WORKERS_MAX), 2500)
)
"""Of its own for each process of a test run, and each of them once in a long time: one that was
given out and is not listened on yet looks free to everybody."""
_HELD_MAX = 64
_HELD: deque[socket.socket] = deque(maxlen=_HELD_MAX)
"""What holds the ports given out last for those of other test runs, who look at both protocols:
UDP's port of the same number. By the time it is let go somebody listens, or never will."""


def free_port() -> int:
    """Return a TCP port of the loopback that nobody listens on; AssertionError when none is found.

    Below those the system hands out by itself: such a one could go to somebody else before it is
    used. Another process that calls this is not given the same one meanwhile.
    """
    for port in itertools.islice(_PORTS, 100):
        held = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe:
            try:
                held.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                held.close()
                continue
        if len(_HELD) == _HELD_MAX:
            _HELD.popleft().close()
        _HELD.append(held)
        return port
    raise AssertionError("no free port among a hundred")


def wait_until(
    condition: Callable[[], object],
    timeout_seconds: float = 10.0,
    what: str = "it",
    *,
    instead: Callable[[], object] | None = None,
) -> None:
    """Wait until `condition()` is true; AssertionError names `what` when it never was.

    And what `instead()` returns then: what there was in its place.
    """
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            found = "" if instead is None else f"; instead: {instead()!r}"
            raise AssertionError(f"{what} did not come about within {timeout_seconds} s{found}")
        time.sleep(0.005)


_CONNECT: dict[str, object] = {
    "timeout_ms": 20_000,
    "retry": {"period_init_ms": 50, "period_max_ms": 500, "period_increase_factor": 2},
}
"""A router refuses an id until it knows that the session before under it is closed."""


class LocalNetwork:
    """One router session on a free port and any number of clients; closes them all."""

    def __init__(self) -> None:
        self.endpoint = f"tcp/127.0.0.1:{free_port()}"
        self._sessions: list[Session] = []
        self.router = self._open({"mode": "router", "listen": {"endpoints": [self.endpoint]}})

    def client(self, **settings: object) -> Session:
        """Open a session that is connected to the router, with a clock of its own."""
        return self._open(
            {
                "mode": "client",
                "connect": {"endpoints": [self.endpoint], **_CONNECT},
                "timestamping": {"enabled": True},
                **settings,
            }
        )

    def _open(self, settings: dict[str, object]) -> Session:
        session = open_session({"scouting": {"multicast": {"enabled": False}}, **settings})
        self._sessions.append(session)
        return session

    def close(self) -> None:
        """Close every session, clients first; idempotent."""
        while self._sessions:
            close_session(self._sessions.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
