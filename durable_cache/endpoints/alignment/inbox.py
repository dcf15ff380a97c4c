"""What the aligner is still to hear: bounded, in order, and young samples a little later.

A publisher's token may come a little after its first samples: samples without an epoch wait two
seconds for it, and what happened to their streams meanwhile waits behind them.
"""

from __future__ import annotations

from collections import deque
from threading import Condition

from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.alignment import (
    AlignerEvent,
    Appended,
    ContentEnded,
    ContentRead,
    Forgotten,
    Purged,
    ReplyReceived,
    RequestFailed,
    Trimmed,
)
from durable_cache.protocol.cache.epochs import Epochs

__all__ = ["Inbox", "Stored"]

Stored = Appended | Forgotten | Trimmed | Purged | ContentRead | ContentEnded
"""What happened in the storage. None may be lost: without one the aligner would be wrong about
what is stored, and would have to begin anew."""
_SETTLING_SECONDS = 2.0
_EVENT_BYTES = 250
"""What an event without samples takes, near enough for a bound."""


class Inbox:
    """Two queues; any thread puts in, the aligner's takes out.

    What other caches say is bounded in number; the rest in bytes, for the samples' payloads wait
    with them.
    """

    def __init__(self, epochs: Epochs, *, bytes_max: int, events_max: int) -> None:
        self._epochs = epochs
        self._bytes_max, self._events_max = bytes_max, events_max
        self._changed = Condition()
        self._heard: deque[AlignerEvent] = deque()
        self._stored: deque[Stored] = deque()
        self._settling: deque[tuple[float, Stored]] = deque()
        self._bytes = 0
        self._woken = False
        self.refused = 0
        """Events of other caches there was no room for."""
        self.overflown = False
        """Something that happened in the storage was not kept: begin anew from what is stored."""

    @property
    def crowded(self) -> bool:
        """Whether half of the room is taken: read no more of the storage for now."""
        return self._bytes > self._bytes_max // 2

    def stored(self, event: Stored, now: float) -> None:
        """Put in what happened in the storage, at `now` of a monotonic clock in seconds."""
        size = _size(event)
        with self._changed:
            if self.overflown:
                return
            if self._bytes + size > self._bytes_max and self._bytes and not _can_wait(event):
                self.overflown = True
                self._forget()
            else:
                self._bytes += size
                if isinstance(event, Forgotten) or _is_young(event):
                    self._settling.append((now + _SETTLING_SECONDS, event))
                else:
                    self._stored.append(event)
            self._changed.notify()

    def lost(self) -> None:
        """Something happened in the storage that could not be put in."""
        with self._changed:
            self.overflown = True
            self._forget()
            self._changed.notify()

    def heard(self, event: AlignerEvent) -> bool:
        """Put in what another cache said; False when there is no room for it."""
        with self._changed:
            if len(self._heard) >= self._events_max:
                self.refused += 1
                return False
            self._heard.append(event)
            self._changed.notify()
        return True

    def answered(self, event: ReplyReceived | RequestFailed) -> None:
        """Put in the answer to a question of the aligner's; it has only a few under way."""
        with self._changed:
            self._heard.append(event)
            self._changed.notify()

    def wake(self) -> None:
        """Let `take` return at once."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def clear(self) -> None:
        """Begin anew, before what is stored is looked at: nothing that happens later is missed."""
        with self._changed:
            self._forget()
            self._heard.clear()
            self.overflown = False

    def take(self, now: float, timeout_seconds: float) -> AlignerEvent | None:
        """Take the next event; None when there was none in time, or `overflown`, or by `wake`."""
        with self._changed:
            if self._settling and self._settling[0][0] <= now:
                return self._named(self._settling.popleft()[1])
            if not (self._stored or self._heard or self._woken or self.overflown):
                self._changed.wait(timeout_seconds)
            self._woken = False
            if self._stored:
                event = self._stored.popleft()
                self._bytes -= _size(event)
                return event
            return self._heard.popleft() if self._heard else None

    def _named(self, event: Stored) -> Stored:
        self._bytes -= _size(event)
        if isinstance(event, Appended):
            return Appended(self._epochs.canonical_batch(event.batch))
        return event

    def _forget(self) -> None:
        self._stored.clear()
        self._settling.clear()
        self._bytes = 0


def _can_wait(event: Stored) -> bool:
    """Tell whether an event comes only where there is room: its reader looks first."""
    return isinstance(event, ContentRead | ContentEnded)


def _is_young(event: Stored) -> bool:
    return isinstance(event, Appended) and any(s.epoch == EPOCH_UNKNOWN for s in event.batch)


def _size(event: Stored) -> int:
    match event:
        case Appended(batch) | ContentRead(batch):
            return batch.size
        case Forgotten(streams) | Trimmed(streams) | Purged(streams):
            return _EVENT_BYTES * len(streams)
        case ContentEnded():
            return _EVENT_BYTES
