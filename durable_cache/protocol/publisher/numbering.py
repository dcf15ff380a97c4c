"""One run of a publisher's numbers, and what of it waits for acknowledgements."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import SourceId
from durable_cache.protocol.publisher.events import Send, Standing

_SAMPLE_BYTES = 700
"""What a sample that waits takes in memory besides its bytes, with its standing and its places."""


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A sample that fewer caches than wanted acknowledged."""

    send: Send
    standing: Standing
    since_ns: int
    """Monotonic time at which it was put."""
    size: int
    """Bytes of memory, near enough."""


class Numbering:
    """One run of numbers and what is known of its samples that are not acknowledged yet."""

    def __init__(self, source: SourceId, epoch: int, incarnation: str, next_sn: int) -> None:
        self.source = source
        self.epoch = epoch
        self.incarnation = incarnation
        self.next_sn = next_sn
        self.open: dict[int, Waiting] = {}
        """By number, in the order in which they were put."""
        self.seen: OrderedDict[tuple[str, int], RangeSet] = OrderedDict()
        """What each cache acknowledged at which level: only what is new in an ack is looked at."""
        self.refused: dict[str, RangeSet] = {}
        """What each cache will never take."""
        self.unheard: SnRange | None = None
        """The first and the last number that subscribers may not have heard and were not told of:
        sent once more, or put while no cache was in reach."""

    def wait_for(self, standing: Standing, send: Send, since_ns: int) -> int:
        """Await acknowledgements of a sample; returns its size."""
        attachment = send.attachment
        size = _SAMPLE_BYTES + len(send.form.key) + len(send.payload)
        if attachment is not None:
            size += len(attachment)
        self.open[send.sn] = Waiting(send, standing, since_ns, size)
        return size

    def settle(self, sn: int) -> int:
        """Await nothing more of a number that is open; returns its sample's size."""
        return self.open.pop(sn).size

    def oldest(self) -> Waiting | None:
        """Return what waits for longest."""
        return next(iter(self.open.values()), None)

    def may_be_unheard(self, first: int, last: int) -> None:
        """Subscribers may not have heard these numbers."""
        before = self.unheard or SnRange(first, last)
        self.unheard = SnRange(min(first, before.first), max(last, before.last))

    def is_not_held(self, sn: int) -> None:
        """Tell subscribers nothing of the oldest number that waits: no cache may ever hold it."""
        if self.unheard is not None and sn >= self.unheard.first:
            last = self.unheard.last
            self.unheard = SnRange(sn + 1, last) if sn < last else None

    def take_unheard(self) -> SnRange | None:
        """Return what subscribers may not have heard, once, as soon as some cache holds its last.

        A number that was not sent after all is not among it.
        """
        unheard = self.unheard
        waiting = None if unheard is None else self.open.get(unheard.last)
        if unheard is None or (waiting is not None and not waiting.standing.caches):
            return None
        self.unheard = None
        last = min(unheard.last, self.next_sn - 1)
        return SnRange(unheard.first, last) if unheard.first <= last else None

    def has(self, cache_id: str, sn: int) -> bool:
        """Tell whether a number waits no more, or not for that cache."""
        return sn not in self.open or cache_id in self.open[sn].standing.caches

    def refuse(self, cache_id: str, first: int, last: int, reason: int) -> None:
        """Know that a cache will not take these numbers."""
        for sn, waiting in self.open.items():
            if first <= sn <= last:
                standing = waiting.standing
                standing.refused = {**standing.refused, cache_id: reason}
        self.refused.setdefault(cache_id, RangeSet()).add(first, last)

    def lacking(self, cache_id: str, before_ns: int) -> list[Waiting]:
        """Return what waits since before a time and a cache did not acknowledge, oldest first."""
        refused = self.refused.get(cache_id)
        found = []
        for sn, waiting in self.open.items():
            if waiting.since_ns > before_ns:
                break
            if cache_id in waiting.standing.caches or (refused is not None and sn in refused):
                continue
            found.append(waiting)
        return found
