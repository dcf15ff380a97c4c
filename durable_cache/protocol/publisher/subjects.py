"""The publisher's window: the last sequence of each key (RaiMS, "Publish sequence window").

A key that is new, or that left the window, begins a new time frame at count 1. Its frame is above
every earlier one of the key, though the window remembers none of them: who leaves was not
written for ten seconds, longer than a frame lasts, and the highest frame that ever left is kept,
for the case that the clock was set back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from durable_cache.model.clock import Moment
from durable_cache.model.rotating import RotatingMap, held_size
from durable_cache.model.sample import Sample
from durable_cache.model.sequence import (
    SN_MAX,
    frame,
    next_epoch,
    pack_sequence,
    unpack_sequence,
)
from durable_cache.protocol.publisher.events import EngineOptions
from durable_cache.protocol.subjects import detach

PUB_WINDOW_SECONDS_MIN = 10.0
"""Longer than a frame, 8.6 s: only so is the frame of a key that comes back a later one."""
_FRAME_MAX = (1 << 29) - 1
_SEQUENCE_BYTES = held_size(1 << 62)


class _Next(NamedTuple):
    """What is being sent."""

    key: str
    sequence: int
    sn: int
    now_ns: int


class PublisherWindow:
    """Key by key, what was put last; owned by its publisher's engine."""

    def __init__(self, bytes_max: int, kept_ns: int) -> None:
        self._sequences: RotatingMap[str, int] = RotatingMap(bytes_max, kept_ns, _size_of)
        self._under_way: _Next | None = None
        self._since_newer = self._since = 0
        """From which numbers of the publisher on the window's halves, and the window, know all."""
        self._floor = 0
        """No frame up to this one is begun any more."""
        self.rotated = 0
        """Keys that left the window."""

    @property
    def bytes(self) -> int:
        """Bytes of memory that the window takes."""
        return self._sequences.bytes

    def __len__(self) -> int:
        return len(self._sequences)

    def begin_above(self, frame_before: int) -> None:
        """Begin no frame up to this one: any key may have used it."""
        self._floor = max(self._floor, min(frame_before, _FRAME_MAX - 1))

    def go_on_after(self, samples: Sequence[Sample]) -> None:
        """Begin no frame that an earlier process may have used, which put these last."""
        if not samples:
            return
        last = samples[-1]
        self._since_newer = self._since = last.sn + 1
        self.begin_above(frame(last.received_ns))
        borne = detach(last)
        if borne is not None:
            self.begin_above(unpack_sequence(borne.sequence)[0])

    def following(self, key: str, sn: int, now: Moment) -> tuple[int, int]:
        """Return the sequence of the sample `sn` that is put, and since when it is the only one.

        Only `sent` uses the sequence up. From the second number on, nothing was put under a key
        that is not in the window.
        """
        if sn < self._since_newer:  # the numbers wrapped
            self._since_newer = self._since = 0
        last = self._sequences.get(key)
        sequence = self._start(now, self._floor) if last is None else self._after(last, now)
        self._under_way = _Next(key, sequence, sn, now.monotonic_ns)
        return sequence, self._since if last is None else sn

    def sent(self) -> None:
        """Know that the sample of the last `following` left."""
        if self._under_way is None:
            return
        key, sequence, sn, now_ns = self._under_way
        turns = self._sequences.turns
        forgotten = self._sequences.put(key, sequence, now_ns)
        if self._sequences.turns != turns:
            self._since, self._since_newer = self._since_newer, sn
        if forgotten:
            self.rotated += len(forgotten)
            self.begin_above(max(unpack_sequence(last)[0] for last in forgotten.values()))
        self._under_way = None  # at the end, for who is ended by Ctrl-C before does it once more

    def _after(self, last: int, now: Moment) -> int:
        before, sn = unpack_sequence(last)
        if sn < SN_MAX:
            return last + 1
        return self._start(now, max(before, self._floor))  # the 35 bits are used up

    def _start(self, now: Moment, before: int) -> int:
        return pack_sequence(min(next_epoch(now.unix_ns, before), _FRAME_MAX), 0)


def open_window(options: EngineOptions) -> PublisherWindow | None:
    """Return a publisher's window; None where its samples bear no subject sequences."""
    if options.pub_window_bytes is None:
        return None
    return PublisherWindow(options.pub_window_bytes, options.pub_window_ns)


def _size_of(key: str, _: int) -> int:
    return held_size(key) + _SEQUENCE_BYTES
