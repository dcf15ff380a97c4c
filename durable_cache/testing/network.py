"""Zenoh sessions on the loopback, for tests: a router of our own and clients of it."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from durable_cache.endpoints.session import Session, close_session, open_session

__all__ = ["LocalNetwork", "free_port", "wait_until"]


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS_MAX = 8
_PORTS = itertools.cycle(
    random.SystemRandom().sample(range(10_000 + _WORKER % _WORKERS_MAX, 30_000, _WORKERS_MAX), 2500)
)
"""Of its own for each process of a test run, and each of them once in a long time: one that was
given out and is not listened on yet looks free to everybody."""


def free_port() -> int:
    """Return a port of the loopback that nobody listens on; AssertionError when none is found.

    Below those the system hands out by itself: such a one could go to somebody else before it is
    used.
    """
    for port in itertools.islice(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port among a hundred")


def wait_until(
    condition: Callable[[], object], timeout_seconds: float = 10.0, what: str = "it"
) -> None:
    """Wait until `condition()` is true; AssertionError names `what` when it never was."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {timeout_seconds} s")
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
