"""The tree over what two or more caches have in common, and its roots of late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from durable_cache.protocol.alignment.fingerprints import PrefixTree
from durable_cache.protocol.alignment.knowledge import StreamKnowledge, count_of
from durable_cache.protocol.alignment.scope import Scope


class View:
    """What two or more caches have in common: a tree, and its roots of late."""

    def __init__(self, scope: Scope, bit: int, ring_max: int) -> None:
        self.scope = scope
        self.name = scope.name
        self.bit = bit
        self.tree: PrefixTree[StreamKnowledge] = PrefixTree()
        self.ring: deque[tuple[int, int, int]] = deque(maxlen=ring_max)
        self.changed = 0
        """The slot in which the tree changed last."""
        self.samples = 0
        self.building: Iterator[int] | None = None
        self.ready = False
        self.touched = False

    def insert(self, record: StreamKnowledge) -> None:
        if not record.views & self.bit and self.scope.holds(record.stream.key):
            record.views |= self.bit
            self.tree.insert(record)
            self.samples += count_of(record.runs)
            self.touched = True

    def remember(self, slot: int) -> None:
        """Note the root as of `slot` if it changed."""
        root = self.tree.root
        if not self.ring or self.ring[-1][1:] != root[:2]:
            self.ring.append((slot, root.knowledge, root.content))
            self.changed = slot

    def root_at(self, slot: int) -> tuple[int, int] | None:
        """Return the sums as of a slot; None when that is too long ago."""
        for at, knowledge, content in reversed(self.ring):
            if at <= slot:
                return knowledge, content
        return None
