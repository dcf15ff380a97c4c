"""Where the content of streams differs that two caches know alike, down to one block."""

from __future__ import annotations

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.ranges import RangeSet
from durable_cache.protocol.alignment.knowledge import ranges
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.packing import Entry
from durable_cache.protocol.alignment.pulls import Pulls
from durable_cache.protocol.alignment.wire import BlocksReply

_ITEMS_MAX = 512


class ContentSearch:
    """Ranges of blocks to compare; owned by its comparison."""

    def __init__(self, ledger: Ledger, pulls: Pulls, block: int) -> None:
        self._ledger, self._pulls, self._block = ledger, pulls, block
        self.todo: list[tuple[int, int, int]] = []
        """(place, first block, last block)."""
        self._theirs: dict[int, RangeSet] = {}

    def next(self) -> tuple[tuple[int, int, int], ...]:
        """Take the ranges to ask for now."""
        chosen, self.todo = self.todo[:_ITEMS_MAX], self.todo[_ITEMS_MAX:]
        return tuple(chosen)

    def add(self, entry: Entry) -> None:
        """Compare a stream's blocks that are whole above both floors."""
        record = self._ledger.records.get(entry.place)
        if record is None or entry.first:
            return
        floor = max(entry.floor, record.effective_floor(self._ledger.depth))
        first = max(entry.blocks[0], record.blocks[0], -(-floor // self._block))
        last = min(entry.blocks[1], record.blocks[1])
        if first <= last:
            self.todo.append((entry.place, first, last))
            if not entry.next:
                self._theirs[entry.place] = ranges(entry.runs)

    def take(self, items: tuple[tuple[int, int, int], ...], reply: BlocksReply) -> None:
        """Take sums of parts: go on where they differ, down to one block."""
        allowed = set(items)
        for place, first, last, width, packed in reply.parts:
            record = self._ledger.records.get(place)
            if (place, first, last) not in allowed or record is None:
                raise RemoteProtocolError("blocks that were not asked for")
            if width > 1 and width >= last - first + 1:
                raise RemoteProtocolError("parts that are no parts")
            for at in range(first, last + 1, width):
                end = min(at + width - 1, last)
                place_in = 8 * ((at - first) // width)
                theirs = int.from_bytes(packed[place_in : place_in + 8], "little")
                if theirs == record.block_sum(at, end):
                    continue
                if end > at:
                    self.todo.append((place, at, end))
                else:
                    self._suspect(place, at)

    def _suspect(self, place: int, number: int) -> None:
        """Pull what both retain of a block whose sums differ: the samples show the conflict.

        The sums alone do not. One cache may retain more of the block than the other, and either may
        have moved on since it said what it retains: new samples count, and a block that a floor
        reached is in no sum any more.
        """
        first, last = number * self._block, (number + 1) * self._block - 1
        mine = ranges(self._ledger.records[place].runs).clip(first, last)
        theirs = self._theirs.get(place, mine).clip(first, last)
        both = mine.intersection(theirs)
        if both:
            self._pulls.want(place, both)
