"""Where a reliable subscriber puts what it delivers: a callback or a bounded channel of ours.

Zenoh's own channels cannot be filled from Python, so these have the same manners. A callback that
raises is logged and counted, and the next item comes all the same.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Condition
from typing import Any, Generic, Protocol, TypeVar

from durable_cache.endpoints.session import Session, is_fifo, read_callback, ring_capacity
from durable_cache.endpoints.waking import AsyncItems, Waiters
from durable_cache.errors import Closed, ConfigError
from durable_cache.model.arguments import check_number, read_timeout, refused

_log = logging.getLogger(__name__)
_ItemT = TypeVar("_ItemT")
_ItemT_contra = TypeVar("_ItemT_contra", contravariant=True)


class Delivery(Protocol[_ItemT_contra]):
    """What a subscriber delivers to."""

    def deliver(self, items: Sequence[_ItemT_contra]) -> None:
        """Take items in this order; may wait."""

    def close(self) -> None:
        """Nothing more will come."""


class Channel(Generic[_ItemT]):
    """A bounded queue; the base of the two kinds. Any thread."""

    def __init__(self, capacity: int) -> None:
        check_number("capacity", capacity, 1, whole=True)
        self._capacity = capacity
        self._items: deque[_ItemT] = deque()
        self._changed = Condition()
        self._waiters: Waiters[None] = Waiters()
        self._closed = False

    def recv(self, timeout_seconds: float | None = None) -> _ItemT:
        """Wait for the next item; Closed when none will come, TimeoutError when time is over."""
        if timeout_seconds is not None:  # most calls: nothing to look at
            timeout_seconds = read_timeout(timeout_seconds)
        with self._changed:
            ready = self._changed.wait_for(lambda: self._items or self._closed, timeout_seconds)
            if not ready:
                raise TimeoutError("nothing came in time")
            if not self._items:
                raise Closed("the subscriber is closed")
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def try_recv(self) -> _ItemT | None:
        """Return the next item if there is one."""
        with self._changed:
            if not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def __iter__(self) -> Iterator[_ItemT]:
        while True:
            try:
                yield self.recv()
            except Closed:
                return

    def __aiter__(self) -> AsyncItems[_ItemT]:
        return AsyncItems(self._take, self._waiters, self._changed)

    def _take(self) -> _ItemT | None:
        if self._items:
            self._changed.notify_all()
            return self._items.popleft()
        if self._closed:
            raise StopAsyncIteration
        return None

    def _notify(self) -> None:
        """Tell threads and tasks that something came; under the lock."""
        self._changed.notify_all()
        self._waiters.wake(None)

    def close(self) -> None:
        """Nothing more will come; what is here can still be taken."""
        with self._changed:
            self._closed = True
            self._notify()


class FifoChannel(Channel[_ItemT]):
    """Keeps every item; a full channel makes delivery wait, and samples are recovered later."""

    def __init__(self, capacity: int = 1024) -> None:
        super().__init__(capacity)
        self._discards = 0

    def discard(self) -> None:
        """Drop what is here, and what is being delivered now."""
        with self._changed:
            self._items.clear()
            self._discards += 1
            self._changed.notify_all()

    def withdraw(self, concerns: Callable[[_ItemT], bool]) -> int:
        """Drop some of what is here; return how many. Whoever delivers calls it."""
        with self._changed:
            kept = [item for item in self._items if not concerns(item)]
            dropped = len(self._items) - len(kept)
            if dropped:
                self._items.clear()
                self._items.extend(kept)
                self._changed.notify_all()
            return dropped

    def deliver(self, items: Sequence[_ItemT]) -> None:
        """Put items in this order; waits while the channel is full and open."""
        begin, discards = 0, self._discards

        def may_go_on() -> bool:
            full = len(self._items) >= self._capacity
            return not full or self._closed or self._discards != discards

        while begin < len(items):
            with self._changed:
                self._changed.wait_for(may_go_on)
                if self._closed or self._discards != discards:
                    return
                room = self._capacity - len(self._items)
                self._items.extend(items[begin : begin + room])
                self._notify()
            begin += room


class RingChannel(Channel[_ItemT]):
    """Keeps the newest items; a full channel drops its oldest, by the user's choice."""

    def __init__(self, capacity: int = 1) -> None:
        super().__init__(capacity)
        self.dropped = 0

    def deliver(self, items: Sequence[_ItemT]) -> None:
        """Put items in this order; never waits."""
        with self._changed:
            self._items.extend(items)
            while len(self._items) > self._capacity:
                self._items.popleft()
                self.dropped += 1
            self._notify()


class Callback(Generic[_ItemT]):
    """Calls the user's function for each item, on the subscriber's own thread."""

    def __init__(
        self, callback: Callable[[_ItemT], object], drop: Callable[[], object] | None = None
    ) -> None:
        self._callback, self._drop = callback, drop
        self.errors = 0
        """How often the function raised."""
        self.last_error = ""
        """What it raised the last time, in words."""

    def deliver(self, items: Sequence[_ItemT]) -> None:
        """Call the function once for each item, in this order, whatever it raises."""
        callback = self._callback
        for item in items:
            try:
                callback(item)
            except BaseException as error:  # sys.exit() in a callback may not end delivery either
                self._raised(error)

    def each(self, items: Iterable[_ItemT]) -> Iterator[tuple[_ItemT, bool]]:
        """Call the function for the next item; yield that, and whether the function returned."""
        callback = self._callback
        for item in items:
            returned = True
            try:
                callback(item)
            except BaseException as error:  # as in `deliver`
                self._raised(error)
                returned = False
            yield item, returned

    def _raised(self, error: BaseException) -> None:
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"
        if self.errors & (self.errors - 1) == 0:  # the 1st, 2nd, 4th, 8th ... time
            _log.exception("a callback raised (%d times so far)", self.errors)

    def close(self) -> None:
        """Nothing more will come: say so once to who wanted to know."""
        drop, self._drop = self._drop, None
        if drop is None:
            return
        try:
            drop()
        except BaseException:
            self.errors += 1
            _log.exception("a callback's drop raised")


Sink = FifoChannel[_ItemT] | RingChannel[_ItemT] | Callback[_ItemT]
"""What takes what is delivered."""


class Receiving(Generic[_ItemT]):
    """What items are received from, where they are delivered to a channel."""

    _sink: Delivery[_ItemT]
    _handler: object

    @property
    def handler(self) -> Any:
        """What items are received from, or the handler of ``(callback, handler)``."""
        return self._handler

    def recv(self, timeout_seconds: float | None = None) -> _ItemT:
        """Wait for the next; raises Closed, or TimeoutError when time is over."""
        return self._channel().recv(timeout_seconds)

    def try_recv(self) -> _ItemT | None:
        """Return the next if there is one."""
        return self._channel().try_recv()

    def __iter__(self) -> Iterator[_ItemT]:
        return iter(self._channel())

    def __aiter__(self) -> AsyncItems[_ItemT]:
        return aiter(self._channel())

    def _channel(self) -> Channel[_ItemT]:
        if not isinstance(self._sink, Channel):
            raise ConfigError("what comes here is delivered elsewhere: nothing is received from it")
        return self._sink


class Listener(Receiving[_ItemT]):
    """Where items of one kind are received from, until `undeclare`."""

    def __init__(
        self, sink: Sink[_ItemT], handler: object, forget: Callable[[Sink[_ItemT]], None]
    ) -> None:
        self._sink: Sink[_ItemT] = sink
        self._handler, self._forget = handler, forget

    def undeclare(self) -> None:
        """Be told of nothing further; idempotent."""
        with suppress(ValueError):
            self._forget(self._sink)
        self._sink.close()


def sink_of(
    handler: object,
    item_type: type[_ItemT],  # noqa: ARG001  # what is delivered, for who reads and type checkers
    session: Session,
) -> tuple[Sink[_ItemT], object]:
    """Return where to deliver items of a type, and what the user receives them from.

    Takes what zenoh-python takes: None (a FIFO of 1,024), a channel of ours, a channel of zenoh's
    (ours of the same kind stands for it, a ring of the same capacity), a callable, a
    ``zenoh.handlers.Callback``, or ``(callback, handler)``, whose handler is handed out again.
    Raises ConfigError for anything else.
    """
    channel: FifoChannel[_ItemT] | RingChannel[_ItemT]
    if handler is None or is_fifo(handler):
        channel = FifoChannel()
    elif isinstance(handler, (FifoChannel, RingChannel)):
        channel = handler
    elif (capacity := ring_capacity(session, handler)) is not None:
        channel = RingChannel(capacity)
    else:
        called, given = handler, None
        if isinstance(handler, tuple) and len(handler) == 2:
            called, given = handler
        callback: Callback[_ItemT] | None = _callback_of(called)
        if callback is None:
            raise refused("handler", called, _ACCEPTED)
        return callback, given
    return channel, channel


_ACCEPTED = (
    "something that takes samples or misses: give a callable, a FifoChannel or RingChannel of "
    "durable_cache's or zenoh.handlers', or (callable, handler)"
)


def _callback_of(handler: object) -> Callback[_ItemT] | None:
    given = read_callback(handler)
    if given is not None:
        return Callback(*given)
    # A class is callable too: who hands in zenoh.handlers.FifoChannel itself forgot to make one.
    return Callback(handler) if callable(handler) and not isinstance(handler, type) else None


def confirmed_by(sink: Delivery[_ItemT], *, by_itself: bool) -> Callback[_ItemT] | None:
    """Return what is called for each sample that confirms `by_itself`; None where the program does.

    Raises ConfigError where samples that nobody confirmed would be lost, or nothing would confirm.
    """
    if isinstance(sink, RingChannel):
        raise ConfigError(
            "a ring drops samples that nobody confirmed: give a callable or a FifoChannel"
        )
    if not by_itself:
        return None
    if not isinstance(sink, Callback):
        raise ConfigError(
            'confirm="auto" confirms what a handler returned from: give a callable, or choose '
            'confirm="manual" and call confirm(sample)'
        )
    return sink
