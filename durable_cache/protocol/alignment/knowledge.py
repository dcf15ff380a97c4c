"""What a cache knows of each stream: what it retains, what is below a floor, what nobody has.

Theory of operation (ADR 0040). Of a stream, a cache *retains* R, the numbers in its storage.
Everything below its *floor* is out: retention or a purge removed it, or the depth is full above it.
*Unrecoverable* is what a peer knows of and nobody reachable retains. What a cache *knows* is their
union, K = [0, floor) + R + unrecoverable. Two caches with different retention retain different
numbers and still know the same, for trimming moves numbers from R below the floor and leaves K as
it is. So K is what caches compare; what a cache lacks of another's K it pulls, or calls
unrecoverable when nobody has it.

Runs are kept as flat tuples (first, last, first, last, …): a stream with one run costs no lists.
What arrives waits in the slot of its timestamp and is applied when that slot is closed, so that a
cache which got a sample a little later than another compares equal all the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Stream
from durable_cache.protocol.alignment.fingerprints import content_term, knowledge_fingerprint

FlatRuns = tuple[int, ...]
_MASK64 = (1 << 64) - 1


def ranges(runs: FlatRuns) -> RangeSet:
    """Return flat runs as a set of their own."""
    return RangeSet.of_runs(runs)


def flat(runs: RangeSet) -> FlatRuns:
    """Return a set's runs as a flat tuple."""
    return runs.flat()


def count_of(runs: FlatRuns) -> int:
    """Return how many numbers flat runs hold."""
    return sum(runs[1::2]) - sum(runs[::2]) + len(runs) // 2


def newest_first(runs: FlatRuns) -> Iterator[tuple[int, int]]:
    """Yield the runs from the highest down."""
    for at in range(len(runs) - 2, -1, -2):
        yield runs[at], runs[at + 1]


def floor_of_depth(runs: FlatRuns, depth: int | None) -> int:
    """Return the lowest of the `depth` highest numbers; 0 when there are fewer."""
    if depth is None:
        return 0
    left = depth
    for first, last in newest_first(runs):
        if last - first + 1 >= left:
            return last - left + 1
        left -= last - first + 1
    return 0


def known_of(runs: FlatRuns, floor: int, unrecoverable: FlatRuns) -> FlatRuns:
    """Return K as canonical flat runs."""
    if not unrecoverable and len(runs) == 2:
        first, last = runs
        if not floor:
            return runs
        return (0, max(last, floor - 1)) if floor >= first else (0, floor - 1, first, last)
    if not unrecoverable and not floor:
        return runs
    known = ranges(runs)
    known.update(ranges(unrecoverable))
    known.add(0, floor - 1)
    return flat(known)


class StreamKnowledge:
    """One stream as a cache knows it, as of the slot applied last; owned by its aligner.

    `runs` is R. `knowledge` and `content` are the fingerprints that are in the trees.
    """

    __slots__ = (
        "_blocks",
        "_total",
        "content",
        "floor",
        "knowledge",
        "named",
        "place",
        "purge",
        "purged_ntp64",
        "refused",
        "runs",
        "slot",
        "stream",
        "uncounted",
        "unrecoverable",
        "views",
    )

    def __init__(self, stream: Stream, place: int) -> None:
        self.stream = stream
        self.place = place
        self.runs: FlatRuns = ()
        self.floor = 0
        """Retention removed what was below."""
        self.purge = 0
        """An operator removed what was below, for good and everywhere."""
        self.purged_ntp64 = 0
        """Without an epoch: when the newest of the purged run was published; 0 is unknown."""
        self.unrecoverable: FlatRuns = ()
        self.refused: FlatRuns = ()
        """What of it others have, and this cache does not take: it is not asked for again."""
        self.named = False
        """Whether a sample that is here says of which run it is (ADR 0366)."""
        self.knowledge = 0
        self.content = 0
        self.slot = 0
        """When the stream changed last."""
        self.views = 0
        """One bit for each view the stream is in the tree of."""
        self.uncounted: RangeSet | None = None
        """What of R came without digests and is missing in the content sums."""
        self._blocks: array[int] = _NO_BLOCKS
        self._total = 0

    def effective_floor(self, depth: int | None) -> int:
        """Return the number below which nothing is wanted."""
        return max(self.floor, self.purge, floor_of_depth(self.runs, depth))

    @property
    def dead(self) -> bool:
        """Whether nothing is retained and no purge has to be remembered."""
        return not self.runs and not self.purge

    def load(self, runs: RangeSet) -> None:
        """Take R from the storage at start; the content is counted later."""
        self.runs = flat(runs)
        self.uncounted = runs.copy()

    def insert(self, sns: list[int], terms: list[int], block: int) -> int:
        """Retain numbers with their content terms; returns how many are new. Repeats are ignored.

        What is below a floor is out already and is not taken.
        """
        if not sns:
            return 0
        runs = self.runs
        first, last, count = sns[0], sns[-1], len(sns)
        floor = max(self.floor, self.purge)
        ascending = last - first + 1 == count and (count == 1 or sns == [*range(first, last + 1)])
        if ascending and first >= floor and (not runs or first > runs[-1]):
            if runs and first == runs[-1] + 1:
                self.runs = (*runs[:-1], last)
            else:
                self.runs = (*runs, first, last)
        else:
            held = ranges(runs)
            fresh = {
                sn: term
                for sn, term in zip(reversed(sns), reversed(terms), strict=True)
                if sn >= floor and sn not in held
            }
            held.update(RangeSet.of(fresh))
            self.runs = flat(held)
            sns, terms, count = list(fresh), list(fresh.values()), len(fresh)
        if self.unrecoverable:
            self._end_unrecoverable(sns)
        self.count(sns, terms, block)
        return count

    def _end_unrecoverable(self, sns: list[int]) -> None:
        unrecoverable = ranges(self.unrecoverable)
        for first, last in RangeSet.of(sns):
            unrecoverable.remove(first, last)
        self.unrecoverable = flat(unrecoverable)

    def count(self, sns: list[int], terms: list[int], block: int) -> None:
        """Add content terms of numbers that are retained and were not counted."""
        if not sns:
            return
        if sns[0] // block == sns[-1] // block and len(sns) <= block:
            low, high = min(sns), max(sns)
            if low // block == high // block:
                self._count_block(low // block, sum(terms))
                return
        for sn, term in zip(sns, terms, strict=True):
            self._count_block(sn // block, term)

    def _count_block(self, number: int, term: int) -> None:
        if self._blocks is _NO_BLOCKS:
            self._blocks = array("Q")
        blocks = self._blocks
        self._total = self._total + term & _MASK64
        if blocks and blocks[-2] == number:
            blocks[-1] = blocks[-1] + term & _MASK64
        elif not blocks or blocks[-2] < number:
            blocks.append(number)
            blocks.append(term & _MASK64)
        else:
            at = 2 * bisect_left(range(len(blocks) // 2), number, key=lambda i: blocks[2 * i])
            if blocks[at] == number:
                blocks[at + 1] = blocks[at + 1] + term & _MASK64
            else:
                blocks[at:at] = array("Q", (number, term & _MASK64))

    def count_loaded(self, pairs: Iterable[tuple[int, bytes]], block: int) -> None:
        """Count digests read back from the storage; what was counted before is left out."""
        missing = self.uncounted
        if missing is None:
            return
        fresh = {sn: content_term(sn, digest) for sn, digest in pairs if sn in missing}
        for first, last in RangeSet.of(fresh):
            missing.remove(first, last)
        self.count(list(fresh), list(fresh.values()), block)
        if not missing:
            self.uncounted = None

    def raise_floor(self, floor: int, *, purge: bool = False) -> int:
        """Let go of everything below; returns how many numbers that were."""
        if purge:
            self.purge = max(self.purge, floor)
        else:
            self.floor = max(self.floor, floor)
        if not self.runs or floor <= self.runs[0]:
            return 0
        before = count_of(self.runs)
        self.runs = flat(ranges(self.runs).clip(floor, self.runs[-1]))
        if self.uncounted is not None:
            self.uncounted.remove(0, floor - 1)
            if not self.uncounted:
                self.uncounted = None
        return before - count_of(self.runs)

    def add_unrecoverable(self, runs: RangeSet, depth: int | None) -> bool:
        """Note that nobody has `runs`; False when that says nothing new."""
        floor = self.effective_floor(depth)
        unrecoverable = ranges(self.unrecoverable)
        unrecoverable.update(runs.difference(ranges(self.runs)))
        unrecoverable.remove(0, floor - 1)
        before, self.unrecoverable = self.unrecoverable, flat(unrecoverable)
        return self.unrecoverable != before

    def refresh(self, seed: bytes, depth: int | None, block: int) -> tuple[int, int]:
        """Compute both fingerprints anew; returns what each changed by."""
        floor = self.effective_floor(depth)
        if self.unrecoverable and self.unrecoverable[0] < floor:
            self.unrecoverable = flat(
                ranges(self.unrecoverable).clip(floor, max(self.unrecoverable[-1], floor))
            )
            self.refused = flat(ranges(self.refused).intersection(ranges(self.unrecoverable)))
        knowledge = knowledge_fingerprint(
            seed, self.place, known_of(self.runs, floor, self.unrecoverable), self.purge
        )
        self._drop_blocks(-(-floor // block))
        content = self._total * (self.place | 1) & _MASK64
        changed = knowledge - self.knowledge, content - self.content
        self.knowledge, self.content = knowledge, content
        return changed

    def _drop_blocks(self, first: int) -> None:
        """Forget the sums of blocks that are not wholly above the floor: a part cannot be taken
        off them.
        """
        blocks = self._blocks
        if not blocks or blocks[0] >= first:
            return
        at = 2 * bisect_left(range(len(blocks) // 2), first, key=lambda i: blocks[2 * i])
        self._total = self._total - sum(blocks[1:at:2]) & _MASK64
        del blocks[:at]

    @property
    def blocks(self) -> tuple[int, int]:
        """The first and the last block in the content sums; (0, -1) when there is none."""
        return (self._blocks[0], self._blocks[-2]) if self._blocks else (0, -1)

    def block_sum(self, first: int, last: int) -> int:
        """Return the content sum of the blocks `first..last`."""
        blocks = self._blocks
        count = len(blocks) // 2
        low = 2 * bisect_left(range(count), first, key=lambda i: blocks[2 * i])
        high = 2 * bisect_left(range(count), last + 1, key=lambda i: blocks[2 * i])
        return sum(blocks[low + 1 : high : 2]) & _MASK64


_NO_BLOCKS: array[int] = array("Q")
