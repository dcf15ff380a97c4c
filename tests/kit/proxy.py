"""How does a test disturb a TCP link?

A proxy on loopback with faults to switch while the traffic flows: latency, bandwidth, small slices,
pauses, black holes one way, resets. Each connection belongs to one thread, so that no socket is
closed under another's feet; nothing here decides by chance.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Self

_CHUNK_BYTES_MAX = 64 * 1024
_UNDERWAY_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of one direction that may be under way; beyond them the sender's window closes."""
_POLL_SECONDS = 0.01
_CONNECTIONS_MAX = 256
_CONNECT_SECONDS_MAX = 5.0
_JOIN_SECONDS_MAX = 10.0


@dataclass(slots=True)
class Traffic:
    """What a proxy does to the bytes of one direction; change a field at any time."""

    latency_seconds: float = 0.0
    bytes_per_second: float | None = None
    slice_bytes: int = _CHUNK_BYTES_MAX
    """At most so many bytes leave in one piece."""
    paused: bool = False
    """Nothing is taken; the sender sees its window close."""
    black_hole: bool = False
    """Bytes are taken and thrown away, as on a link that is dead one way."""
    reset_after_bytes: int | None = None
    """Reset the connection in which this many more bytes have passed; once, then it is None."""
    bytes_passed: int = 0
    """What was handed on in all connections, without what a black hole swallowed."""


class TcpProxy:
    """A proxy on 127.0.0.1:`port` in front of another port, with faults to switch on and off.

    A context manager. `port` stays the same for the whole block. Takes at most 256 connections at
    a time and holds at most 4 MiB of each direction of each. May be called from any thread.
    """

    def __init__(self, upstream_port: int, upstream_host: str = "127.0.0.1") -> None:
        self._upstream = (upstream_host, upstream_port)
        self.to_server = Traffic()
        self.to_client = Traffic()
        self._lock = threading.Lock()
        self._open: list[_Connection] = []
        self._closing = threading.Event()
        self._refusing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.settimeout(_POLL_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name=f"tcp-proxy-{self.port}")

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._living())

    def reset(self) -> int:
        """Reset every open connection, both ways, and return how many there were."""
        living = self._living()
        for connection in living:
            connection.abort.set()
        for connection in living:
            connection.thread.join(_JOIN_SECONDS_MAX)
        return len(living)

    def cut(self) -> int:
        """Reset what is open, refuse what comes until :meth:`heal`; return how many were open."""
        self._refusing.set()
        return self.reset()

    def heal(self) -> None:
        """Undo every fault; the counters and the open connections stay."""
        for traffic in (self.to_server, self.to_client):
            for field in fields(Traffic):
                if field.name != "bytes_passed":
                    setattr(traffic, field.name, field.default)
        self._refusing.clear()

    def close(self) -> None:
        """End every connection and thread; twice is once."""
        self._closing.set()
        if self._acceptor.is_alive():
            self._acceptor.join(_JOIN_SECONDS_MAX)
        self.reset()
        self._listener.close()

    def _living(self) -> list[_Connection]:
        with self._lock:
            self._open = [one for one in self._open if one.thread.is_alive()]
            return list(self._open)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            if self._refusing.is_set() or self.connections >= _CONNECTIONS_MAX:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._upstream, timeout=_CONNECT_SECONDS_MAX)
            except OSError:
                _reset(client)
                continue
            connection = _Connection(client, server, self.to_server, self.to_client)
            with self._lock:
                self._open.append(connection)
            connection.thread.start()


class _Connection:
    """Two sockets and the thread that owns them until both have ended."""

    def __init__(
        self, client: socket.socket, server: socket.socket, up: Traffic, down: Traffic
    ) -> None:
        self.abort = threading.Event()
        self._ends = (client, server)
        self._ways = (_Way(client, server, up), _Way(server, client, down))
        self.thread = threading.Thread(target=self._run, name="tcp-proxy-connection", daemon=True)

    def _run(self) -> None:
        for end in self._ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while not self.abort.is_set() and not all(way.ended for way in self._ways):
                wanted = [way.source for way in self._ways if way.wants_bytes()]
                waiting = [way.target for way in self._ways if way.has_due(time.monotonic())]
                ready, _, _ = select.select(wanted, waiting, [], _POLL_SECONDS)
                now = time.monotonic()
                for way in self._ways:
                    if way.source in ready:
                        way.take(now)
                    way.pass_on(now)
        except OSError:
            self.abort.set()
        finally:
            for end in self._ends:
                if self.abort.is_set():
                    _reset(end)
                end.close()


class _Way:
    """One direction of a connection: bytes with the times at which they are due."""

    def __init__(self, source: socket.socket, target: socket.socket, traffic: Traffic) -> None:
        self.source = source
        self.target = target
        self.ended = False
        self._traffic = traffic
        self._underway: deque[tuple[float, bytes]] = deque()
        self._underway_bytes = 0
        self._last_due = 0.0
        self._at_end = False

    def wants_bytes(self) -> bool:
        room = self._underway_bytes < _UNDERWAY_BYTES_MAX
        return not self._at_end and room and not self._traffic.paused

    def has_due(self, now: float) -> bool:
        return bool(self._underway) and self._underway[0][0] <= now

    def take(self, now: float) -> None:
        traffic = self._traffic
        try:
            chunk = self.source.recv(min(_CHUNK_BYTES_MAX, max(1, traffic.slice_bytes)))
        except BlockingIOError:
            return
        if not chunk:
            self._at_end = True
            return
        if traffic.black_hole:
            return
        due = now + traffic.latency_seconds
        if traffic.bytes_per_second is not None:
            due = max(due, self._last_due) + len(chunk) / traffic.bytes_per_second
        self._last_due = max(due, self._last_due)
        self._underway.append((self._last_due, chunk))
        self._underway_bytes += len(chunk)

    def pass_on(self, now: float) -> None:
        traffic = self._traffic
        while self.has_due(now):
            due, chunk = self._underway.popleft()
            limit = traffic.reset_after_bytes
            first = chunk if limit is None else chunk[:limit]
            try:
                sent = self.target.send(first) if first else 0
            except BlockingIOError:
                sent = 0
            traffic.bytes_passed += sent
            self._underway_bytes -= sent
            if limit is not None:
                traffic.reset_after_bytes = limit - sent
                if sent == limit:
                    traffic.reset_after_bytes = None
                    raise ConnectionResetError
            if sent < len(chunk):
                self._underway.appendleft((due, chunk[sent:]))
                break
        if self._at_end and not self._underway and not self.ended:
            self.ended = True
            with suppress(OSError):
                self.target.shutdown(socket.SHUT_WR)


def _reset(end: socket.socket) -> None:
    """Close with RST instead of FIN: a linger of zero seconds."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
