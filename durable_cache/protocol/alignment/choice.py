"""Which comparison a cache begins next, with whom, and when."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from durable_cache.model.ranges import RangeSet
from durable_cache.protocol.alignment.again import Again
from durable_cache.protocol.alignment.comparison import Comparison
from durable_cache.protocol.alignment.events import AlignerOptions, CacheProfile
from durable_cache.protocol.alignment.knowledge import ranges
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.peer import Peer
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.wire import Lane

_SECOND_NS = 1_000_000_000


class Choice:
    """The rules of who asks whom; the cache that has less begins, the others wait three slots."""

    def __init__(
        self, ledger: Ledger, options: AlignerOptions, profile: CacheProfile, random: Random
    ) -> None:
        self._ledger, self._options, self._profile = ledger, options, profile
        self._random = random
        self._again = Again(ledger)
        self._now_ns = self._unix_ns = 0
        self.left_before_ns: dict[str, int] = {}
        """What a peer first received before is left with it: both sides of a partition stay."""

    def choose(self, peers: Iterable[Peer], now_ns: int, unix_ns: int) -> Comparison | None:
        """Return the comparison to begin now, if any.

        First the unrecoverable numbers, with a peer that came back, or some time later; then what
        differs, with the peer that has most samples; then content.
        """
        self._now_ns, self._unix_ns = now_ns, unix_ns
        known = list(peers)
        if self._again.is_due(now_ns):
            for peer in known:
                peer.reask = True
        ready = [peer for peer in known if peer.usable and now_ns >= peer.hold_until_ns]
        for peer in ready:
            if peer.reask and peer.view is not None and peer.view.ready:
                comparison = self._reask(peer, peer.view)
                if comparison is not None:
                    return comparison
        ready.sort(key=lambda peer: (peer.failures, -(peer.root.samples if peer.root else 0)))
        for lane in Lane:
            for peer in ready:
                if lane is Lane.CONTENT and peer.due_ns is not None:
                    continue
                if peer.view is not None and self._due(peer, peer.view, lane):
                    return self._session(peer, peer.view, lane, known)
        return None

    def _reask(self, peer: Peer, view: View) -> Comparison | None:
        """Ask a peer that came back for what was called unrecoverable without it."""
        peer.reask = False
        asked, peer.unrecoverable_asked = (
            peer.unrecoverable_asked,
            self._ledger.unrecoverable_serial,
        )
        items: dict[int, RangeSet] = {}
        for place, serial in self._ledger.unrecoverable_since.items():
            record = self._ledger.records.get(place)
            if (
                serial > asked
                and record is not None
                and record.views & view.bit
                and record.unrecoverable
            ):
                items[place] = ranges(record.unrecoverable).difference(ranges(record.refused))
        items = {place: runs for place, runs in items.items() if runs}
        if not items or not self._options.pull:
            return None
        comparison = Comparison.about_unrecoverable(self._ledger, peer, view, self._options, items)
        comparison.unrecoverable_asked = asked
        comparison.received_after_ns = self._received_after_ns(peer)
        return comparison

    def _due(self, peer: Peer, view: View, lane: Lane) -> bool:
        if not peer.unequal(lane, self._ledger.slot):
            if lane is Lane.KNOWLEDGE:
                peer.due_ns, peer.fruitless = None, 0
            if not len(peer.known_differences[lane]):
                peer.tried[lane].clear()
            return False
        if lane is Lane.CONTENT:
            return self._content_due(peer)
        root = peer.root
        if root is None:
            return False
        if root.samples > view.samples or root.streams > view.tree.root.streams:
            delay = self._options.start_delay_seconds * self._random.random()
            first = self._now_ns + round(delay * _SECOND_NS)
        else:
            first = peer.root_at_ns + 3 * self._options.slot_seconds * _SECOND_NS
        if peer.due_ns is None:
            peer.due_ns = first
        return self._now_ns >= peer.due_ns

    def _content_due(self, peer: Peer) -> bool:
        root = peer.root
        if root is None or not root.counted or not self._ledger.counted or not self._options.pull:
            return False
        options = self._options
        if peer.content_due_ns is None:
            first = 3 * options.slot_seconds if peer.same_class else options.content_seconds
            peer.content_due_ns = self._now_ns + round(first * _SECOND_NS)
        if self._now_ns < peer.content_due_ns:
            return False
        pause = options.content_seconds if peer.same_class else options.audit_seconds
        peer.content_due_ns = self._now_ns + round(pause * _SECOND_NS)
        return True

    def _session(self, peer: Peer, view: View, lane: Lane, known: list[Peer]) -> Comparison:
        others = [other for other in known if other.live and other is not peer]
        # A cache that is not met yet may have what the peer has not; one without common keys or
        # refused cannot be asked, ever.
        conclusive = all(
            other.refused or (other.hello is not None and (other.view is None or other.view.ready))
            for other in others
        )
        comparison = Comparison(
            self._ledger,
            peer,
            view,
            lane,
            self._options,
            salt=self._random.getrandbits(64),
            exact=not peer.is_ahead(self._ledger.slot),
            others=[other for other in others if self._tells(other)] if conclusive else None,
        )
        comparison.received_after_ns = self._received_after_ns(peer)
        return comparison

    def _tells(self, other: Peer) -> bool:
        """Tell whether what a third cache does not retain is asked of this one."""
        return other.usable and other.cache_id not in self.left_before_ns

    def _received_after_ns(self, peer: Peer) -> int:
        age, left = self._profile.age_seconds_max, self.left_before_ns.get(peer.cache_id, 0)
        return left if age is None else max(left, self._unix_ns - round(age * _SECOND_NS))
