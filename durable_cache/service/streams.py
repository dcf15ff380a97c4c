"""What is published now, over HTTP: server-sent events, as zenohd's REST plugin sends them.

Zenoh's threads only put samples into the queue of each stream. One thread writes to all readers and
waits for none: who reads more slowly than is published is told so and cut off.
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread

from durable_cache.endpoints.session import PlainReply, Session, hear_plain, start_thread, undeclare
from durable_cache.service.logs import CHANGES

_changes_log = logging.getLogger(CHANGES)
_LOOK_SECONDS = 0.2
_QUIET_SECONDS_MAX = 15.0
"""After so long a comment is sent, so that the connection of a reader that is gone breaks."""
_LAST_WORDS_SECONDS = 10.0
"""How long a slow reader may take to read why it is cut off."""
_SENT_BYTES_MAX = 1 << 16
"""Events are made of samples up to so many bytes at a time."""
_COMMENT = b":\n\n"
"""Says nothing to a reader; the first tells it that it is heard from now on."""
Event = tuple[str, PlainReply]
"""``PUT`` or ``DELETE``, and the sample."""
Values = Callable[[PlainReply], dict[str, object]]


class StreamsFull(Exception):
    """As many streams are open as may be."""


class Stream:
    """What one reader follows; the lock of `Streams` protects what waits."""

    def __init__(self, key_expr: str) -> None:
        self.key_expr = key_expr
        self.waiting: deque[Event] = deque()
        self.waiting_bytes = 0
        self.is_slow = False
        """More has come than may wait; nothing is added any more."""
        self.subscriber: object = None
        self.connection: socket.socket | None = None
        """None until the head of the answer is sent."""
        self.unsent = _COMMENT
        self.ends_at = 0.0
        """When a slow reader is cut off, whatever it has read; 0 for one that keeps up."""
        self.sent_at = time.monotonic()

    def add(self, event: Event, bytes_max: int) -> None:
        """Let an event wait, unless too much waits already."""
        if self.is_slow:
            return
        if self.waiting and self.waiting_bytes + _bytes_of(event) > bytes_max:
            self.is_slow = True
            self.waiting.clear()
        else:
            self.waiting.append(event)
            self.waiting_bytes += _bytes_of(event)


class Streams:
    """All streams of a service: at most `streams_max`, each with at most `bytes_max` that wait.

    One sample that is larger waits all the same. `values` gives a sample's fields their names.
    """

    def __init__(self, session: Session, values: Values, streams_max: int, bytes_max: int) -> None:
        self._session = session
        self._values = values
        self._streams_max = streams_max
        self._bytes_max = bytes_max
        self._streams: list[Stream] = []
        self._lock = Lock()
        self._is_closed = False
        self._thread: Thread | None = None
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def open(self, key_expr: str) -> Stream:
        """Subscribe; what is published from now on is for the reader that `give` names.

        Raises StreamsFull, and ZError for a key expression that Zenoh refuses.
        """
        stream = Stream(key_expr)
        with self._lock:
            if self._is_closed:
                raise StreamsFull("the service is stopping")
            if len(self._streams) >= self._streams_max:
                raise StreamsFull(
                    f"{self._streams_max} streams are open already; rest.streams_max bounds them"
                )
            self._streams.append(stream)
            if self._thread is None:
                self._thread = start_thread(self._run, "dc-rest-streams")

        def heard(kind: str, sample: PlainReply) -> None:
            with self._lock:
                is_first = not stream.waiting
                stream.add((kind, sample), self._bytes_max)
            if is_first:
                self._wake()

        try:
            stream.subscriber = hear_plain(self._session, key_expr, heard)
        except BaseException:
            self.forget(stream)
            raise
        return stream

    def give(self, stream: Stream, connection: socket.socket) -> None:
        """Send a stream to a reader from now on; the connection is closed here."""
        connection.setblocking(False)
        with self._lock:
            is_open = not self._is_closed and stream in self._streams
            if is_open:
                stream.connection = connection
        if not is_open:
            connection.close()
        self._wake()

    def forget(self, stream: Stream) -> None:
        """End a stream; idempotent."""
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)
            stream.waiting.clear()
            connection, stream.connection = stream.connection, None
        if stream.subscriber is not None:
            undeclare(stream.subscriber)
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        """End all streams; idempotent."""
        with self._lock:
            self._is_closed = True
            thread, streams = self._thread, list(self._streams)
        self._wake()
        if thread is not None:
            thread.join(5)
        for stream in streams:
            self.forget(stream)
        self._woken.close()
        self._waker.close()

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake already where the pipe is full
            self._waker.send(b"\0")

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
                given = [stream for stream in self._streams if stream.connection is not None]
            self._wait(given)
            for stream in given:
                try:
                    goes_on = self._write(stream)
                except OSError:
                    goes_on = False  # the reader is gone
                if not goes_on:
                    self.forget(stream)

    def _wait(self, given: list[Stream]) -> None:
        """Wait until a sample has come, a reader can read on or is gone, or a moment has passed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for stream in given:
                if (connection := stream.connection) is not None:
                    writes = selectors.EVENT_WRITE if stream.unsent else 0
                    selector.register(connection, selectors.EVENT_READ | writes)
            selector.select(_LOOK_SECONDS)
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _write(self, stream: Stream) -> bool:
        """Send what can be sent at once; False where the stream is at its end."""
        connection = stream.connection
        if connection is None:
            return False
        with suppress(BlockingIOError):
            if not connection.recv(4096):  # whatever else a reader says is not for us
                return False
        now = time.monotonic()
        if stream.is_slow and not stream.ends_at:
            stream.ends_at = now + _LAST_WORDS_SECONDS
            stream.unsent += self._last_words(stream)
        with suppress(BlockingIOError):
            while stream.unsent or self._take(stream, now):
                stream.unsent = stream.unsent[connection.send(stream.unsent) :]
                stream.sent_at = now
        return not stream.ends_at or bool(stream.unsent and now < stream.ends_at)

    def _take(self, stream: Stream, now: float) -> bool:
        """Make events of what waits, as much as is sent at once; False where nothing does."""
        taken: list[Event] = []
        taken_bytes = 0
        with self._lock:
            while stream.waiting and taken_bytes < _SENT_BYTES_MAX:
                taken.append(stream.waiting.popleft())
                taken_bytes += _bytes_of(taken[-1])
            stream.waiting_bytes -= taken_bytes
        stream.unsent = b"".join(self._said(kind, sample) for kind, sample in taken)
        if not taken and not stream.ends_at and now - stream.sent_at > _QUIET_SECONDS_MAX:
            stream.unsent = _COMMENT
        return bool(stream.unsent)

    def _last_words(self, stream: Stream) -> bytes:
        about = {"key": stream.key_expr, "bytes_max": self._bytes_max}
        _changes_log.warning("a REST stream is cut off, its reader is too slow", extra=about)
        reason = (
            f"cut off: more than {self._bytes_max} bytes wait for this reader; "
            "rest.stream_bytes_max bounds them"
        )
        return self._said("ERROR", PlainReply("ERROR", reason.encode(), "text/plain", None))

    def _said(self, kind: str, sample: PlainReply) -> bytes:
        values = json.dumps(self._values(sample), ensure_ascii=False)
        return f"event: {kind}\ndata: {values}\n\n".encode()


def _bytes_of(event: Event) -> int:
    return len(event[1].key) + len(event[1].payload)
