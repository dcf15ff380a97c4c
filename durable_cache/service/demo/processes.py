"""How the demonstration's processes are started, listened to, killed and cut off."""

from __future__ import annotations

import json
import os
import random
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

from durable_cache.errors import DurableCacheError

_CHUNK_BYTES = 1 << 16


def free_port() -> int:
    """Return a port nobody listens on, below those the system hands out by itself."""
    for port in random.SystemRandom().sample(range(10_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DurableCacheError("no free port among a hundred")


def wait_until(done: Callable[[], bool], seconds: float, period: float = 0.05) -> bool:
    """Wait until `done`; False when the time is over first."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(period)
    return True


class Process:
    """A child whose lines of JSON are kept by name, the newest value of each."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], directory: Path) -> None:
        self.name = name
        self._said: dict[str, object] = {}
        self._lock = Lock()
        self._log = directory / f"{name}.log"
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        Thread(target=self._listen, name="dc-demo-words", daemon=True).start()

    def _listen(self) -> None:
        stream = self._child.stdout
        if stream is None:
            return
        for line in stream:
            with suppress(ValueError), self._lock:
                self._said.update(json.loads(line))

    def said(self, name: str) -> object:
        """Return the newest value the child gave under `name`, None before the first."""
        with self._lock:
            return self._said.get(name)

    def log(self) -> str:
        """Return what the child wrote to stderr."""
        return self._log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._child.poll() is None

    def wait_for(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait until `done`; DurableCacheError when the child ends or the time is over."""
        if not wait_until(lambda: done() or not self.alive, seconds) or not self.alive:
            last = self.log().strip().splitlines()[-1:] or ["it said nothing"]
            raise DurableCacheError(f"the {self.name} did not come up: {last[0]}")

    def kill(self) -> None:
        """SIGKILL, and nothing less."""
        self._child.kill()
        self._child.wait(10)

    def end(self, seconds: float = 10.0) -> None:
        """Close the child's stdin and wait; kill it when it does not end."""
        if self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._child.stdout is not None:
            self._child.stdout.close()


class Relay:
    """A TCP link that can be cut: while it is, connections are reset and refused."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._cut = Event()
        self._closed = Event()
        self._links: set[socket.socket] = set()
        self._lock = Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        Thread(target=self._accept, name="dc-demo-relay", daemon=True).start()

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._cut.set()
        with self._lock:
            links = list(self._links)
        for link in links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections through again."""
        self._cut.clear()

    def close(self) -> None:
        """Cut for good."""
        self._closed.set()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                link, _ = self._server.accept()
            except OSError:
                return
            if self._cut.is_set():
                link.close()
                continue
            Thread(target=self._carry, args=(link,), name="dc-demo-link", daemon=True).start()

    def _carry(self, link: socket.socket) -> None:
        try:
            other = socket.create_connection(self._target, 5)
        except OSError:
            link.close()
            return
        pair = {link: other, other: link}
        with self._lock:
            self._links |= pair.keys()
        try:
            while not self._cut.is_set():
                ready, _, _ = select.select(list(pair), [], [], 1.0)
                for end in ready:
                    data = end.recv(_CHUNK_BYTES)
                    if not data:
                        return
                    pair[end].sendall(data)
        except OSError:
            return
        finally:
            with self._lock:
                self._links -= pair.keys()
            link.close()
            other.close()
