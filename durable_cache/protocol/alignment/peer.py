"""What a cache remembers of another: who it is, what it announced, and what cannot be settled."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from durable_cache.protocol.alignment.events import AlignerOptions
from durable_cache.protocol.alignment.fingerprints import ARITY
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.wire import Hello, Lane, Root

_WAITED_SLOTS = 2
"""A peer whose slots are further ahead has changed again when ours are there."""


class Tried(NamedTuple):
    """How often samples of a stream were pulled while both fingerprints stayed as they were."""

    theirs: int
    mine: int
    pulls: int
    waited: bool = False
    """It was left alone since the last pull."""


class _Difference(NamedTuple):
    theirs: int
    mine: int
    expires_ns: int
    """0 is never."""


class _Announced(NamedTuple):
    """What a peer says of a view, and since when."""

    root: Root
    since_ns: int
    since_slot: int
    """The first slot that it said so of: a repetition tells of a later one."""


class KnownDifferences:
    """Differences that were looked into and cannot be settled, in one lane with one peer.

    Sums can be added and taken off: what the peer is expected to announce is our sum plus these
    differences, so a known difference hides no new one. A difference ends when either side changes.
    """

    __slots__ = ("_known", "_max", "offset")

    def __init__(self, known_max: int) -> None:
        self._known: OrderedDict[int, _Difference] = OrderedDict()
        self._max = known_max
        self.offset = 0
        """The sum of theirs minus ours."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, place: int) -> bool:
        return place in self._known

    def add(self, place: int, theirs: int, mine: int, expires_ns: int = 0) -> None:
        """Remember a difference; beyond the bound the oldest is looked into again."""
        self.end(place)
        if theirs == mine:
            return
        self._known[place] = _Difference(theirs, mine, expires_ns)
        self.offset += theirs - mine
        if len(self._known) > self._max:
            self.end(next(iter(self._known)))

    def end(self, place: int) -> bool:
        """Forget a difference; tells whether there was one."""
        known = self._known.pop(place, None)
        if known is not None:
            self.offset -= known.theirs - known.mine
        return known is not None

    def prune(self, level: int, found: dict[int, set[int]]) -> set[int]:
        """Forget streams below nodes that the peer has not any more; returns those nodes."""
        shift = 64 - 4 * level
        if not found or not self._known:
            return set()
        gone = [
            place
            for place, known in self._known.items()
            if known.theirs and place not in found.get(place >> shift, (place,))
        ]
        for place in gone:
            self.end(place)
        return {place >> shift for place in gone}

    def changed(self, place: int, mine: int) -> None:
        """Forget a difference when our side of it is not what it was."""
        known = self._known.get(place)
        if known is not None and known.mine != mine:
            self.end(place)

    def holds(self, place: int, theirs: int, mine: int) -> bool:
        known = self._known.get(place)
        return known is not None and known.theirs == theirs and known.mine == mine

    def expire(self, now_ns: int) -> None:
        """Forget what is to be tried again by now."""
        for place in [at for at, known in self._known.items() if 0 < known.expires_ns <= now_ns]:
            self.end(place)

    def offsets(self, level: int, indexes: Iterable[int]) -> dict[int, dict[int, int]]:
        """Return, for nodes of a level, what to add to each of their children's sums."""
        if not self._known:
            return {}
        asked = set(indexes)
        found: dict[int, dict[int, int]] = {}
        shift = 60 - 4 * level
        for place, known in self._known.items():
            child = place >> shift
            index = child // ARITY
            if index in asked:
                sums = found.setdefault(index, {})
                sums[child % ARITY] = sums.get(child % ARITY, 0) + known.theirs - known.mine
        return found


class Peer:
    """One other cache; owned by the aligner."""

    def __init__(self, cache_id: str, known_differences_max: int) -> None:
        self.cache_id = cache_id
        self._known_differences_max = known_differences_max
        self.incarnation = ""
        self.live = False
        self.reset("")

    def reset(self, incarnation: str) -> None:
        """Begin anew: the peer is another process, or has another store."""
        self.incarnation = incarnation
        self.hello: Hello | None = None
        self.asking_hello = False
        self.view: View | None = None
        self.same_class = False
        self.refused = ""
        self.roots: dict[int, deque[_Announced]] = {}
        """What it announced of each view, the newest last."""
        self.due_ns: int | None = None
        """When to start the comparison that an unequal root calls for."""
        self.content_due_ns: int | None = None
        self.hold_until_ns = 0
        self.failures = 0
        self.fruitless = 0
        self.tried: dict[Lane, OrderedDict[int, Tried]] = {lane: OrderedDict() for lane in Lane}
        """The streams something was pulled of since the two were equal last."""
        self.unrecoverable_asked = 0
        """The serial of the unrecoverable numbers this peer was asked about."""
        self.reask = True
        self.complete = False
        """A comparison with it ended with nothing left to pull."""
        self.known_differences = {
            lane: KnownDifferences(self._known_differences_max) for lane in Lane
        }

    def pulled(self, lane: Lane, tried: dict[int, Tried]) -> None:
        """Remember what a comparison pulled; beyond the bound the oldest counts as new."""
        known = self.tried[lane]
        for place, found in tried.items():
            known[place] = found
            known.move_to_end(place)
        while len(known) > self._known_differences_max:
            known.popitem(last=False)

    def announced(self, root: Root, now_ns: int, options: AlignerOptions) -> None:
        """Take an announcement; one that was overtaken on the way counts for nothing."""
        said = self.roots.get(root.view)
        if said is None:
            if len(self.roots) >= options.views_max:
                self.roots.pop(next(iter(self.roots)))
            said = self.roots[root.view] = deque(maxlen=options.ring_max + 1)
        since_ns, since_slot = now_ns, root.slot
        if said:
            before = said[-1]
            if before.root.slot - root.slot > options.ring_max:
                said.clear()  # its clock was set back, and its ledger began to count anew
            elif before.root.slot > root.slot:
                return
        if said:
            before = said[-1]
            if before.root.knowledge == root.knowledge:
                since_ns = before.since_ns
                if before.root.content == root.content:
                    since_slot = before.since_slot
            if before.since_slot == since_slot:
                said.pop()
        said.append(_Announced(root, since_ns, since_slot))

    @property
    def root(self) -> Root | None:
        """What it announced last of the view in common."""
        return None if self._announced is None else self._announced.root

    @property
    def root_at_ns(self) -> int:
        """When that changed."""
        return 0 if self._announced is None else self._announced.since_ns

    @property
    def _announced(self) -> _Announced | None:
        said = None if self.view is None else self.roots.get(self.view.name)
        return said[-1] if said else None

    def is_ahead(self, slot: int) -> bool:
        """Tell whether it changed in a slot that is not to be waited for here."""
        announced = self._announced
        return announced is not None and announced.since_slot > slot + _WAITED_SLOTS

    @property
    def usable(self) -> bool:
        """Whether it can be asked about streams."""
        return self.live and self.hello is not None and self.view is not None and not self.refused

    def equal_since(self, view: View, slot: int) -> bool:
        """Tell whether what it announced last is a root that a view's tree had since a slot."""
        root = self.root
        if root is None:
            return False
        sums = [view.tree.root.knowledge]
        then = view.root_at(root.slot) if root.slot >= slot else None
        if then is not None:
            sums.append(then[0])
        offset = self.known_differences[Lane.KNOWLEDGE].offset
        theirs = int.from_bytes(root.knowledge, "little")
        mask = (1 << 128) - 1
        return any(theirs in (mine & mask, mine + offset & mask) for mine in sums)

    def unequal(self, lane: Lane, slot: int) -> bool:
        """Tell whether its roots say that the trees differ, as far as our slots can tell."""
        view = self.view
        if view is None or not view.ready:
            return False
        told = self._told(view, slot)
        return bool(told) and not any(self._is_equal(lane, view, root) for root in told)

    def _told(self, view: View, slot: int) -> list[Root]:
        """Return the root that its tree had in our slot, and what it announced since.

        Where its clock is ahead, our own slot of the newest is still to come. One that changes all
        the time announces another by then, so that the newest alone would never be compared.
        """
        told: list[Root] = []
        ahead = view.ring.maxlen or 0
        for announced in reversed(self.roots.get(view.name, ())):
            told.append(announced.root)
            if not slot < announced.since_slot <= slot + ahead:
                return told
        return []

    def _is_equal(self, lane: Lane, view: View, root: Root) -> bool:
        """Tell whether a root is one of ours, but for the differences that are known."""
        node = view.tree.root
        mine = [(node.knowledge, node.content)]
        then = view.root_at(root.slot)
        if then is not None:
            mine.append(then)
        offset = self.known_differences[lane].offset
        if lane is Lane.KNOWLEDGE:
            theirs = int.from_bytes(root.knowledge, "little")
            mask = (1 << 128) - 1
            return any(
                theirs in (knowledge & mask, knowledge + offset & mask) for knowledge, _ in mine
            )
        mask = (1 << 64) - 1
        return any(root.content in (content, content + offset & mask) for _, content in mine)


class Peers:
    """The caches that were seen, a bounded number; owned by the aligner."""

    def __init__(self, options: AlignerOptions, own_id: str) -> None:
        self._options, self._own_id = options, own_id
        self._known: dict[str, Peer] = {}

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._known.values())

    def get(self, cache_id: str) -> Peer | None:
        return self._known.get(cache_id)

    def named(self, cache_id: str) -> Peer:
        return self._known[cache_id]

    def seen(self, cache_id: str, incarnation: str) -> Peer | None:
        """Note that a cache is in reach; None when it is this one, or one too many."""
        if cache_id == self._own_id:
            return None
        peer = self._known.get(cache_id) or self._admit(cache_id)
        if peer is None:
            return None
        if peer.incarnation != incarnation:
            peer.reset(incarnation)
        peer.live = peer.reask = True
        peer.refused = ""
        peer.hold_until_ns = 0
        peer.due_ns = None
        return peer

    def _admit(self, cache_id: str) -> Peer | None:
        if len(self._known) >= self._options.peers_max:
            gone = next((known for known, peer in self._known.items() if not peer.live), None)
            if gone is None:
                return None
            del self._known[gone]
        peer = self._known[cache_id] = Peer(cache_id, self._options.known_differences_max)
        return peer

    def views(self) -> list[View]:
        """Return every view that is shared with somebody in reach, once."""
        views = {peer.view.name: peer.view for peer in self if peer.usable and peer.view}
        return list(views.values())

    def streams_changed(self, places: list[int], ledger: Ledger, now_ns: int) -> None:
        """Forget the known differences of streams that are not what they were."""
        for peer in self:
            knowledge, content = (
                peer.known_differences[Lane.KNOWLEDGE],
                peer.known_differences[Lane.CONTENT],
            )
            if not len(knowledge) and not len(content):
                continue
            knowledge.expire(now_ns)
            for place in places:
                record = ledger.records.get(place)
                knowledge.changed(place, 0 if record is None else record.knowledge)
                content.changed(place, 0 if record is None else record.content)
