"""What the aligner is still to hear: bounded, in order, and young samples a little later.

A publisher's token may come a little after its first samples: samples without an epoch wait two
seconds for it, and what happened to their streams meanwhile waits behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.unnumbered import is_unnumbered
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

Stored = Appended | Forgotten | Trimmed | Purged | ContentRead | ContentEnded
"""What happened in the storage. None may be lost: without one the aligner would be wrong about
what is stored, and would have to begin anew."""
_SETTLING_SECONDS = 2.0
_EVENT_BYTES = 250
"""What an event without samples takes, near enough for a bound."""


class Inbox:
    """Two queues; any thread puts in, the aligner's turn takes out.

    What other caches say is bounded in number; the rest in bytes, for the samples' payloads wait
    with them. `wake()` is called, by whoever puts in, when something waits that did not before:
    whoever takes out goes on until nothing is left.
    """

    def __init__(
        self, epochs: Epochs, *, bytes_max: int, events_max: int, wake: Callable[[], object]
    ) -> None:
        self._epochs = epochs
        self._bytes_max, self._events_max = bytes_max, events_max
        self._wake = wake
        self._lock = Lock()
        self._heard: deque[AlignerEvent] = deque()
        self._stored: deque[Stored] = deque()
        self._settling: deque[tuple[float, Stored]] = deque()
        self._bytes = 0
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
        with self._lock:
            if self.overflown:
                return
            idle = self._idle
            if self._bytes + size > self._bytes_max and self._bytes and not _can_wait(event):
                self._overflow()
            else:
                self._bytes += size
                young, other = _part(event)
                if young is not None:
                    self._settling.append((now + _SETTLING_SECONDS, young))
                if other is None:
                    return  # looked for at every tick
                self._stored.append(other)
        if idle or self.overflown:
            self._wake()

    def lost(self) -> None:
        """Something happened in the storage that could not be put in."""
        with self._lock:
            self._overflow()
        self._wake()

    def heard(self, event: AlignerEvent) -> bool:
        """Put in what another cache said; False when there is no room for it."""
        with self._lock:
            if len(self._heard) >= self._events_max:
                self.refused += 1
                return False
            idle = self._idle
            self._heard.append(event)
        if idle:
            self._wake()
        return True

    def answered(self, event: ReplyReceived | RequestFailed) -> None:
        """Put in the answer to a question of the aligner's; it has only a few under way."""
        with self._lock:
            idle = self._idle
            self._heard.append(event)
        if idle:
            self._wake()

    def clear(self) -> None:
        """Begin anew, before what is stored is looked at: nothing that happens later is missed."""
        with self._lock:
            self._forget()
            self._heard.clear()
            self.overflown = False

    def take(self, now: float) -> AlignerEvent | None:
        """Take the next event; None where there is none."""
        with self._lock:
            if self._settling and self._settling[0][0] <= now:
                return self._named(self._settling.popleft()[1])
            if self._stored:
                event = self._stored.popleft()
                self._bytes -= _size(event)
                return event
            return self._heard.popleft() if self._heard else None

    @property
    def _idle(self) -> bool:
        return not (self._stored or self._heard)

    def _named(self, event: Stored) -> Stored:
        self._bytes -= _size(event)
        if isinstance(event, Appended):
            return Appended(self._epochs.canonical_batch(event.batch))
        return event

    def _overflow(self) -> None:
        self.overflown = True
        self._forget()

    def _forget(self) -> None:
        self._stored.clear()
        self._settling.clear()
        self._bytes = 0


def _can_wait(event: Stored) -> bool:
    """Tell whether an event comes only where there is room: its reader looks first."""
    return isinstance(event, ContentRead | ContentEnded)


def _part(event: Stored) -> tuple[Stored | None, Stored | None]:
    """Return what of an event waits for a token, and what does not: an epoch may be used anew."""
    if isinstance(event, Forgotten):
        young = any(stream.epoch == EPOCH_UNKNOWN for stream in event.streams)
        return (event, None) if young else (None, event)
    if not (isinstance(event, Appended) and any(map(_is_young, event.batch))):
        return None, event
    young_samples = [sample for sample in event.batch if _is_young(sample)]
    if len(young_samples) == len(event.batch):
        return event, None
    others = SampleBatch(sample for sample in event.batch if not _is_young(sample))
    return Appended(SampleBatch(young_samples)), Appended(others)


def _is_young(sample: Sample) -> bool:
    return sample.epoch == EPOCH_UNKNOWN and not is_unnumbered(sample.source)


def _size(event: Stored) -> int:
    match event:
        case Appended(batch) | ContentRead(batch):
            return batch.size
        case Forgotten(streams) | Trimmed(streams) | Purged(streams):
            return _EVENT_BYTES * len(streams)
        case ContentEnded():
            return _EVENT_BYTES
