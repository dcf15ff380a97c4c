"""How the equality of a million streams is told by one number: fingerprints and their prefix tree.

A stream's fingerprint goes with what is known of it, hashed under a deployment's secret. The tree
adds fingerprints up along the nibbles of the streams' hashes: sums, not exclusive ors, so that a
double insert shows and nobody can cancel terms out. Both caches name nodes by the same nibbles;
no boundaries travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from struct import pack
from typing import Generic, NamedTuple, Protocol, TypeVar

from durable_cache.model.sample import Stream

ARITY = 16
LEVELS_STORED = 4
"""Below, nodes are computed from the 65,536 buckets: about 15 streams each of a million."""
LEVELS_MAX = 16
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Widens a salt of 64 bits, so that the lowest bit of a sum reaches the highest."""
_MASK64 = (1 << 64) - 1
_MASK128 = (1 << 128) - 1


def stream_hash(seed: bytes, stream: Stream) -> int:
    """Return the 64 bits that place a stream in the tree."""
    source = stream.source
    text = f"{source.zid}:{source.eid}:{stream.epoch}:{stream.key}"
    state = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=seed)
    return int.from_bytes(state.digest(), "little")


def knowledge_fingerprint(seed: bytes, place: int, known: tuple[int, ...], purge: int) -> int:
    """Return 128 bits of what is known of a stream: canonical runs, flat; 0 when that is nothing.

    A hash of runs, not a sum over numbers: raising a floor over a million numbers costs the same.
    """
    if not known and not purge:
        return 0
    text = pack(f"<{2 + len(known)}Q", place, purge, *known)
    return int.from_bytes(blake2b(text, digest_size=16, key=seed).digest(), "little")


def content_term(sn: int, digest: bytes) -> int:
    """Return what one sample adds to its block's content sum, not yet reduced to 64 bits.

    The digest is a cryptographic one, so the factor only has to tell the places apart: without it,
    two payloads that changed places would not show.
    """
    return int.from_bytes(digest[:8], "little") * (2 * sn + 1)


def short_knowledge(value: int, salt: int) -> int:
    """Cut a 128-bit sum to the 16 bits that travel (multiply-shift hashing under `salt`).

    A difference hides with probability 2^-15; the roots stay unequal, and it shows under the next
    salt.
    """
    return (value * (salt * _SPREAD | 1) & _MASK128) >> 112


def short_content(value: int, salt: int) -> int:
    """Cut a 64-bit content sum to 16 bits under `salt`."""
    return (value * (salt | 1) & _MASK64) >> 48


class Leaf(Protocol):
    """What the tree has to know of a stream."""

    place: int
    knowledge: int
    content: int


LeafT = TypeVar("LeafT", bound=Leaf)


class Node(NamedTuple):
    """The sums below one prefix."""

    knowledge: int = 0
    content: int = 0
    streams: int = 0


_EMPTY = Node()


class PrefixTree(Generic[LeafT]):
    """The sums of one view, by nibble prefixes of `Leaf.place`; owned by one thread."""

    __slots__ = ("_buckets", "_levels")

    def __init__(self) -> None:
        self._levels: tuple[dict[int, list[int]], ...] = tuple({} for _ in range(LEVELS_STORED + 1))
        self._buckets: dict[int, list[LeafT]] = {}

    def insert(self, leaf: LeafT) -> None:
        """Take in a stream with the fingerprints it has now; once per stream."""
        self._buckets.setdefault(leaf.place >> 48, []).append(leaf)
        self._add(leaf.place, leaf.knowledge, leaf.content, 1)

    def remove(self, leaf: LeafT) -> None:
        """Take out a stream that was inserted."""
        bucket = leaf.place >> 48
        self._buckets[bucket].remove(leaf)
        if not self._buckets[bucket]:
            del self._buckets[bucket]
        self._add(leaf.place, -leaf.knowledge, -leaf.content, -1)

    def change(self, place: int, knowledge: int, content: int) -> None:
        """Add the differences between a stream's new and old fingerprints."""
        self._add(place, knowledge, content, 0)

    def _add(self, place: int, knowledge: int, content: int, streams: int) -> None:
        shift = 64
        for level in self._levels:
            index = place >> shift
            node = level.get(index)
            if node is None:
                node = level[index] = [0, 0, 0]
            node[0] = node[0] + knowledge & _MASK128
            node[1] = node[1] + content & _MASK64
            node[2] += streams
            if not node[2]:
                del level[index]
            shift -= 4

    @property
    def root(self) -> Node:
        node = self._levels[0].get(0)
        return Node(*node) if node else _EMPTY

    def node(self, level: int, index: int) -> Node:
        """Return the sums below one prefix of `level` nibbles."""
        if level <= LEVELS_STORED:
            found = self._levels[level].get(index)
            return Node(*found) if found else _EMPTY
        return _total(self._below(level, index))

    def children(self, level: int, index: int) -> list[Node]:
        """Return the sums of the 16 children, in order."""
        if level < LEVELS_STORED:
            found = self._levels[level + 1]
            first = index * ARITY
            return [
                Node(*found[at]) if at in found else _EMPTY for at in range(first, first + ARITY)
            ]
        groups: list[list[LeafT]] = [[] for _ in range(ARITY)]
        shift = 60 - 4 * level
        for leaf in self._below(level, index):
            groups[leaf.place >> shift & 15].append(leaf)
        return [_total(group) if group else _EMPTY for group in groups]

    def leaves(self, level: int, index: int) -> Iterator[LeafT]:
        """Yield the streams below a prefix in the order of their places."""
        if level >= LEVELS_STORED:
            yield from sorted(self._below(level, index), key=lambda leaf: leaf.place)
            return
        found = self._levels[level + 1]
        for child in range(index * ARITY, (index + 1) * ARITY):
            if child in found:
                yield from self.leaves(level + 1, child)

    def _below(self, level: int, index: int) -> Iterable[LeafT]:
        bucket = self._buckets.get(index >> 4 * (level - LEVELS_STORED), ())
        if level == LEVELS_STORED:
            return bucket
        shift = 64 - 4 * level
        return [leaf for leaf in bucket if leaf.place >> shift == index]


def _total(leaves: Iterable[Leaf]) -> Node:
    knowledge = content = streams = 0
    for leaf in leaves:
        knowledge += leaf.knowledge
        content += leaf.content
        streams += 1
    return Node(knowledge & _MASK128, content & _MASK64, streams)
