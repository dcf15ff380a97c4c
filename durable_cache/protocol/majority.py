"""What an exclusive consumer counts on: more than half of the caches, and stamps in fences' order.

Theory of operation (ADR 0196). A member that gains a source *claims* it: it writes a fence above
all that it read, and waits until a majority of the caches holds the claim; then it reads where the
source stands, from a majority. Each cache refuses what an earlier fence wrote than the one that is
claimed there. Any two majorities have a cache in common. So what the owner before was told to be
held is read by the next one, and nothing more of the earlier one's comes to be held.

The owner before may not know of it. So a member hands out a sample of a source only where a
majority took something of its in that source a *lease* ago at most: a claim, written once more, or
a position. And who claimed a source waits for a lease before it reads.

A member on the side without the majority may still write to the caches there. When the network
heals, that comes to all caches by alignment, and must hide nothing of the next owner's from who
asks for the newest position of a run. Clocks do not see to that. So positions are not stamped with
the time at which they are written, but with that of the claim, a few nanoseconds more for each; and
a cache takes a claim only where its stamp is far enough behind the one of the claim before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from durable_cache.model.sample import SourceId

CLAIM_MARGIN_NTP64 = (1 << 32) // 100
"""10 ms: so much later is a claim stamped than the one of the owner before."""
LEASE_NS = 2_000_000_000
"""How long a majority's word counts: caches acknowledge within a quarter of a second."""
LEASE_SECONDS = 1.1 * LEASE_NS / 1e9
"""How long who claimed a source waits before it is read: clocks do not run alike."""
_STEP_NTP64 = 16
"""A few nanoseconds: Zenoh's Python rounds stamps to whole ones."""
_STEPS_MAX = CLAIM_MARGIN_NTP64 // _STEP_NTP64 // 2
_AGE_NTP64 = 3600 << 32
"""An hour: retention that goes by age finds positions no older than that."""


def majority_of(caches: int) -> int:
    """Return how many of some caches are more than half of them."""
    return caches // 2 + 1


class _Claim(NamedTuple):
    fence: int
    ntp64: int
    step: int
    """How many batches of positions were stamped before."""
    proven_ns: int
    """When that was sent which a majority took last."""


class Claims:
    """The claims of one member that a majority holds, and the stamps that follow from them.

    Owned by whoever holds its lock; times are monotonic. A source without a claim has no stamp.
    """

    def __init__(self) -> None:
        self._held: dict[SourceId, _Claim] = {}
        self._step = self._newest_ntp64 = 0

    def __contains__(self, source: SourceId) -> bool:
        return source in self._held

    def next_ntp64(self, now_ntp64: int, read_ntp64: int) -> int:
        """Return what a claim is stamped with, given the latest stamp of all that was read."""
        after = max(self._newest_ntp64, read_ntp64 + CLAIM_MARGIN_NTP64) + CLAIM_MARGIN_NTP64
        self._newest_ntp64 = max(now_ntp64, after)
        return self._newest_ntp64

    def is_newest(self, ntp64: int) -> bool:
        """Tell whether that is how the last claims were stamped: routers replace what is ahead."""
        return abs(ntp64 - self._newest_ntp64) <= _STEP_NTP64

    def held(self, sources: Iterable[SourceId], fence: int, ntp64: int, sent_ns: int) -> None:
        """A majority holds the claims to some sources, all of one fence and stamped alike."""
        claim = _Claim(fence, ntp64, self._step, sent_ns)
        self._held.update(dict.fromkeys(sources, claim))

    def proven(self, sources: Iterable[SourceId], sent_ns: int) -> None:
        """A majority took positions in some sources."""
        for source in sources:
            claim = self._held.get(source)
            if claim is not None and claim.proven_ns < sent_ns:
                self._held[source] = claim._replace(proven_ns=sent_ns)

    def has(self, source: SourceId, now_ns: int) -> bool:
        """Tell whether samples of a source may be handed out now."""
        claim = self._held.get(source)
        return claim is not None and now_ns - claim.proven_ns < LEASE_NS

    def forget(self, sources: Iterable[SourceId] | None = None) -> None:
        """Forget the claims to some sources, or to all."""
        for source in list(self._held) if sources is None else sources:
            self._held.pop(source, None)

    def due(self, sources: Iterable[SourceId], now_ntp64: int) -> set[SourceId]:
        """Return which of some sources are to be claimed, or claimed anew, before a position."""
        return {source for source in sources if self._is_due(source, now_ntp64)}

    def by_fence(self, sources: Iterable[SourceId], fence: int) -> dict[int, set[SourceId]]:
        """Return under which fences to claim some sources: a new one under the one that is given.

        One that is claimed keeps its fence, whatever was gained since: under a later one this
        member would overtake, unread, who claimed the source meanwhile.
        """
        found: dict[int, set[SourceId]] = {}
        for source in sources:
            claim = self._held.get(source)
            found.setdefault(fence if claim is None else claim.fence, set()).add(source)
        return found

    def fence_of(self, source: SourceId) -> int:
        """Return under which fence a source is claimed that has a claim."""
        return self._held[source].fence

    def _is_due(self, source: SourceId, now_ntp64: int) -> bool:
        claim = self._held.get(source)
        if claim is None or self._step - claim.step >= _STEPS_MAX:
            return True
        return now_ntp64 - claim.ntp64 > _AGE_NTP64

    def advance(self) -> None:
        """Begin a further batch of positions."""
        self._step += 1

    def stamp(self, source: SourceId) -> int:
        """Return what a position of this batch is stamped with."""
        claim = self._held[source]
        return claim.ntp64 + (self._step - claim.step) * _STEP_NTP64
