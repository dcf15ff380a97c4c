"""Where a reliable subscriber puts what it delivers: a callback or a bounded channel of ours.

Zenoh's own channels cannot be filled from Python, so these have the same manners.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Condition
from typing import Protocol

from durable_cache.endpoints.session import is_zenoh_channel
from durable_cache.errors import Closed, ConfigError
from durable_cache.model.sample import Sample

__all__ = ["Channel", "FifoChannel", "Handler", "RingChannel", "Sink", "sink_of"]


class Sink(Protocol):
    """What takes delivered samples."""

    def deliver(self, samples: Sequence[Sample]) -> None:
        """Take samples in this order; may wait."""

    def close(self) -> None:
        """Nothing more will come."""


class Channel:
    """A bounded queue of samples; the base of the two kinds. Any thread."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError("a channel holds at least one sample")
        self._capacity = capacity
        self._samples: deque[Sample] = deque()
        self._changed = Condition()
        self._closed = False

    def recv(self, timeout_seconds: float | None = None) -> Sample:
        """Wait for the next sample; Closed when none will come, TimeoutError when time is over."""
        with self._changed:
            ready = self._changed.wait_for(lambda: self._samples or self._closed, timeout_seconds)
            if not ready:
                raise TimeoutError("no sample came in time")
            if not self._samples:
                raise Closed("the subscriber is closed")
            sample = self._samples.popleft()
            self._changed.notify_all()
            return sample

    def try_recv(self) -> Sample | None:
        """Return the next sample if there is one."""
        with self._changed:
            if not self._samples:
                return None
            sample = self._samples.popleft()
            self._changed.notify_all()
            return sample

    def __iter__(self) -> Iterator[Sample]:
        while True:
            try:
                yield self.recv()
            except Closed:
                return

    def close(self) -> None:
        """Nothing more will come; what is here can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class FifoChannel(Channel):
    """Keeps every sample; a full channel makes delivery wait, and samples are recovered later."""

    def __init__(self, capacity: int = 1024) -> None:
        super().__init__(capacity)

    def deliver(self, samples: Sequence[Sample]) -> None:
        begin = 0
        while begin < len(samples):
            with self._changed:
                self._changed.wait_for(lambda: len(self._samples) < self._capacity or self._closed)
                room = max(1, self._capacity - len(self._samples))
                self._samples.extend(samples[begin : begin + room])
                self._changed.notify_all()
            begin += room


class RingChannel(Channel):
    """Keeps the newest samples; a full channel drops its oldest, by the user's choice."""

    def __init__(self, capacity: int = 1) -> None:
        super().__init__(capacity)
        self.dropped = 0

    def deliver(self, samples: Sequence[Sample]) -> None:
        with self._changed:
            self._samples.extend(samples)
            while len(self._samples) > self._capacity:
                self._samples.popleft()
                self.dropped += 1
            self._changed.notify_all()


class _Callback:
    def __init__(self, callback: Callable[[Sample], object]) -> None:
        self._callback = callback

    def deliver(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._callback(sample)

    def close(self) -> None:
        return


Handler = Callable[[Sample], object] | Channel | None


def sink_of(handler: object) -> tuple[Sink, Channel | None]:
    """Return where to deliver, and the channel to receive from, if it is one.

    None is a FIFO of 1,024. One of zenoh's own channel types stands for ours of the same kind.
    """
    if handler is None:
        channel: Channel = FifoChannel()
    elif isinstance(handler, Channel):
        channel = handler
    elif (kind := is_zenoh_channel(handler)) is not None:
        channel = RingChannel() if kind == "ring" else FifoChannel()
    elif callable(handler):
        return _Callback(handler), None
    else:
        raise ConfigError(f"{handler!r} is no handler: give a callable or a channel")
    if not isinstance(channel, (FifoChannel, RingChannel)):
        raise ConfigError("use FifoChannel or RingChannel")
    return channel, channel
