"""How one cache finds out what it lacks of another: compare, ask for names, pull, ask around.

A comparison has at most one request under way and keeps everything it needs; the peers keep
nothing. It acts for its own side only: what the peer lacks, the peer finds out itself.

Theory of operation (ADR 0040, 0041, 0043, 0099). The walk down the trees yields *entries*, what the
peer knows of one stream. `examine` compares an entry's fingerprint with ours: equal says that the
difference is settled; known to be different says that it was looked into; a stream without a name
here is asked for by name first. `_act` then asks the ledger what is lacking, in this order:

1. a purge that is higher there is raised here;
2. what is retained there and wanted here is pulled, unless that was tried of late: then the stream
   is left alone for a pause that grows;
3. what is known there and retained not is sought from the other peers;
4. where content is compared and nothing of this applies, the blocks' sums are compared.

Where nothing can be done, the difference is *settled*: known from then on, until either side
changes. Conclusions are drawn only by `finish`, after everything asked was answered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from durable_cache.errors import LocalProtocolError, RemoteProtocolError
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch, Stream
from durable_cache.protocol.alignment.content import ContentSearch
from durable_cache.protocol.alignment.events import AlignerOptions, ComparisonEnded
from durable_cache.protocol.alignment.fingerprints import knowledge_fingerprint
from durable_cache.protocol.alignment.knowledge import known_of
from durable_cache.protocol.alignment.ledger import Ledger
from durable_cache.protocol.alignment.packing import (
    Entry,
    decode_entries,
)
from durable_cache.protocol.alignment.peer import Peer, Tried
from durable_cache.protocol.alignment.pulls import Items, Pulls
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.walk import Walk
from durable_cache.protocol.alignment.wire import (
    Blocks,
    BlocksReply,
    Diff,
    DiffReply,
    Entries,
    EntriesReply,
    Lane,
    Pull,
    PullReply,
    Request,
)

_EXACT_TRIES = 3
_PULLS_AT_ONCE = 2
"""So often the same is pulled in comparisons that follow each other; then with growing pauses."""


class Comparison:
    """One comparison with one peer; the aligner carries its requests and their replies."""

    def __init__(
        self,
        ledger: Ledger,
        peer: Peer,
        view: View,
        lane: Lane,
        options: AlignerOptions,
        *,
        salt: int,
        exact: bool,
        others: Iterable[Peer] | None = None,
    ) -> None:
        self.ledger, self.peer, self.view, self.lane = ledger, peer, view, lane
        self.options, self.salt, self.exact = options, salt, exact
        self.others = {other.cache_id: other for other in others or ()}
        self.conclusive = others is not None
        """Every other live cache can be asked, so that nobody's having it can be known."""
        self.walk = Walk(view, peer.known_differences[lane], lane, salt, options)
        self.pulls = Pulls(ledger, peer.cache_id, options)
        self.nameless: OrderedDict[int, Entry] = OrderedDict()
        self.cuts: OrderedDict[int, int] = OrderedDict()
        self.settled: dict[int, tuple[int, int]] = {}
        """Streams looked into without effect: (theirs, mine)."""
        self.tried: dict[int, Tried] = {}
        """Streams something was pulled of, or is to be pulled of after a pause."""
        self.content = ContentSearch(ledger, self.pulls, options.block)
        self.purges: list[tuple[Stream, int, int]] = []
        """A stream, the number below which it was purged, and until when that was published."""
        self.asked: Request | None = None
        self.asked_peer = ""
        self.suspect = False
        """Sums differed above streams that are all equal: a tree is wrong."""
        self.unrecoverable_asked: int | None = None
        """For a comparison about unrecoverable numbers: the serial the peer was asked up to."""
        self.received_after_ns = 0
        """Older samples are not wanted."""
        self.wait_slot = 0
        """Nothing is asked before this slot is applied."""
        self.wrong_slots = 0
        self.requests = self.bytes_sent = self.bytes_received = 0
        self.different = self.missing = self.raised = 0

    @classmethod
    def about_unrecoverable(
        cls,
        ledger: Ledger,
        peer: Peer,
        view: View,
        options: AlignerOptions,
        items: dict[int, RangeSet],
    ) -> Comparison:
        """Return a comparison that only asks a peer which came back for what nobody had."""
        comparison = cls(ledger, peer, view, Lane.KNOWLEDGE, options, salt=1, exact=False)
        comparison.walk.todo.clear()
        for place, runs in items.items():
            comparison.pulls.want(place, runs)
        return comparison

    @property
    def effect(self) -> bool:
        """Whether anything changed here, or will when the storage has it."""
        return bool(self.pulls.offered or self.pulls.unrecoverable or self.raised)

    def next(self, *, pull: bool) -> tuple[str, Request] | None:
        """Return the next request and whom to ask; None when it must wait or has ended.

        With `pull` False no samples may be asked for now.
        """
        peer = self.peer.cache_id
        request: Request | None
        if self.nameless or self.cuts:
            request = self._ask_entries()
        elif self.pulls.latest and pull:
            request = self._pull(self.pulls.next_latest(), peer)
        elif self.walk.todo and not self.pulls.full:
            request = self._ask_diff()
        elif self.content.todo:
            request = Blocks(self.view.name, self.peer.incarnation, self.content.next())
        else:
            page = self.pulls.next_page() if pull else None
            if page is None:
                return None
            peer, request = page[0], self._pull(page[1], page[0])
        self.asked, self.asked_peer = request, peer
        return peer, request

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to ask."""
        return not (
            self.nameless or self.cuts or self.walk.todo or self.content.todo or self.pulls.left
        )

    def _ask_entries(self) -> Entries:
        limit = self.options.entries_per_reply_max
        items = [(place, entry.first) for place, entry in islice(self.nameless.items(), limit)]
        cuts = list(islice(self.cuts, limit - len(items)))
        items += [(place, self.cuts.pop(place)) for place in cuts]
        return Entries(self.view.name, self.peer.incarnation, self.lane, tuple(items))

    def _ask_diff(self) -> Diff:
        level, nodes = self.walk.next()
        return Diff(
            self.view.name,
            self.peer.incarnation,
            self.ledger.slot,
            self.view.changed,
            self.exact,
            self.lane,
            self.salt,
            level,
            nodes,
        )

    def on_wrong_slot(self, slot: int) -> None:
        """Put back the comparison that was refused for its slot; it is exact for three times."""
        if not isinstance(self.asked, Diff):
            raise RemoteProtocolError("a wrong slot where none was named")
        self.walk.put_back(self.asked)
        self.wrong_slots += 1
        self.exact = self.wrong_slots < _EXACT_TRIES
        self.wait_slot = max(self.ledger.slot + 1, min(slot, self.ledger.slot + 2))

    def _pull(self, items: Items, peer: str) -> Pull:
        asked: Peer = self.others.get(peer, self.peer)
        view = asked.view or self.view
        return Pull(
            view.name,
            asked.incarnation,
            items,
            self.received_after_ns,
            self.options.page_bytes_max,
            self.options.page_samples_max,
        )

    def on_diff(self, reply: DiffReply) -> None:
        """Take the peer's answer to a comparison."""
        asked = self.asked
        if not isinstance(asked, Diff):
            raise LocalProtocolError("a comparison was answered that was not asked for")
        level = asked.level + 1
        self._name(reply.names)
        only_mine = self.walk.take(asked, reply)
        for at, path in only_mine:
            self._only_mine(at, path, set())
        self.peer.known_differences[self.lane].prune(
            level + 1, {path: set() for _, path in only_mine}
        )
        entries = _entries_of(reply)
        leaves = set(reply.leaves)
        shift = 64 - 4 * level
        found: dict[int, set[int]] = {leaf: set() for leaf in leaves}
        differing = set()
        for entry in entries:
            leaf = entry.place >> shift
            if leaf not in found:
                raise RemoteProtocolError("a stream where none was asked for")
            found[leaf].add(entry.place)
            if self.examine(entry):
                differing.add(leaf)
        pruned = self.peer.known_differences[self.lane].prune(level, found)
        for leaf in leaves:
            known = self._only_mine(level, leaf, found[leaf]) or leaf in differing | pruned
            if not known and asked.changed == self.view.changed and self.exact:
                self.suspect = True

    def _only_mine(self, level: int, index: int, theirs: set[int]) -> bool:
        """Note streams that the peer does not know: it will find them; tell if there are any."""
        known_differences = self.peer.known_differences[self.lane]
        some = False
        for record in self.view.tree.leaves(level, index):
            mine = record.knowledge if self.lane is Lane.KNOWLEDGE else record.content
            if record.place in theirs or not mine:
                continue
            some = True
            if len(self.settled) >= self.options.known_differences_max:
                return True  # the peer has next to nothing: it is for the peer to catch up
            if known_differences.holds(record.place, 0, mine):
                continue
            self.different += 1
            self.settled[record.place] = (0, mine)
        return some

    def on_entries(self, reply: EntriesReply) -> None:
        """Take streams that were asked for by name, or from a number on."""
        asked = self.asked
        if not isinstance(asked, Entries):
            raise LocalProtocolError("streams were named that were not asked for")
        allowed = {place for place, _ in asked.items}
        self._name(reply.names)
        entries = _entries_of(reply)
        for place in allowed:
            self.nameless.pop(place, None)
        for entry in entries:
            if entry.place not in allowed:
                raise RemoteProtocolError("a stream that was not asked for")
            if entry.place not in self.pulls.names:
                raise RemoteProtocolError("a stream without its name")
            if entry.next and entry.next <= entry.first:
                raise RemoteProtocolError("a stream that never ends")
            self.examine(entry)

    def _name(self, names: Iterable[Stream]) -> None:
        for stream in names:
            if self.view.scope.holds(stream.key):
                self.pulls.name(self.ledger.place(stream), stream)

    def examine(self, entry: Entry) -> bool:
        """Compare one stream and note what to do; tells whether it differs."""
        place = entry.place
        record = self.ledger.records.get(place)
        mine = 0
        if record is not None:
            mine = record.knowledge if self.lane is Lane.KNOWLEDGE else record.content
        theirs = self._fingerprint(entry)
        if theirs == mine:
            return self.peer.known_differences[self.lane].end(place)
        if self.peer.known_differences[self.lane].holds(place, theirs, mine):
            return True
        self.different += not entry.first
        if entry.next:
            self.cuts[place] = entry.next
        stream = self.pulls.stream(place)
        if stream is None:
            if not entry.runs and not entry.purge:
                self.settled[place] = (theirs, mine)
            else:
                self.nameless[place] = entry
            return True
        self._act(entry, stream, theirs, mine)
        return True

    def _fingerprint(self, entry: Entry) -> int:
        if self.lane is Lane.CONTENT:
            return entry.content
        if entry.first or entry.next:
            return -1
        known = known_of(entry.runs, entry.floor, entry.unrecoverable)
        return knowledge_fingerprint(self.options.secret, entry.place, known, entry.purge)

    def _act(self, entry: Entry, stream: Stream, theirs: int, mine: int) -> None:
        place = entry.place
        record = self.ledger.records.get(place)
        lacking = self.ledger.lacking(entry, self.lane)
        self.missing += lacking.want.count
        if not self.options.pull:
            return
        acted = False
        purged = entry.purge > (record.purge if record is not None else 0)
        if lacking.want or purged:
            before = self.peer.tried[self.lane].get(place)
            if before is None or before[:2] != (theirs, mine):
                before = Tried(theirs, mine, 0)
            if before.pulls >= _PULLS_AT_ONCE and not before.waited:
                self.tried[place] = before._replace(waited=True)
                return
            self.tried[place] = Tried(theirs, mine, before.pulls + 1)
            acted = True
        if purged:
            self.purges.append((stream, entry.purge, entry.purged_ntp64))
            self.raised += 1
        if lacking.want:
            fresh = record is None or not record.runs
            self.pulls.want(place, lacking.want, fresh=fresh)
        if lacking.absent and self.conclusive:
            self.pulls.seek(place, lacking.absent, self._holders(stream))
            acted = True
        if self.lane is Lane.CONTENT and not acted:
            self.content.add(entry)
        unsettled = lacking.absent and not self.conclusive
        if (not acted or self.lane is Lane.CONTENT) and theirs >= 0 and not unsettled:
            self.settled[place] = (theirs, mine)

    def _holders(self, stream: Stream) -> set[str]:
        """Return the other peers that may have a stream."""
        return {
            other.cache_id
            for other in self.others.values()
            if other.view is not None and other.view.scope.holds(stream.key)
        }

    def on_pull(self, reply: PullReply) -> SampleBatch:
        """Take samples; returns those that were asked for."""
        asked = self.asked
        if not isinstance(asked, Pull):
            raise LocalProtocolError("samples came that were not asked for")
        return self.pulls.take(self.asked_peer, asked.items, reply)

    def on_failed(self) -> bool:
        """Give up what the peer just asked was to answer; True when the comparison is over."""
        if self.asked_peer == self.peer.cache_id:
            return True
        self.pulls.drop_peer(self.asked_peer)
        return False

    def on_blocks(self, reply: BlocksReply) -> None:
        """Take the content sums of parts of streams."""
        asked = self.asked
        if not isinstance(asked, Blocks):
            raise LocalProtocolError("sums came that were not asked for")
        self.content.take(asked.items, reply)

    def finish(self, now_ns: int) -> None:
        """Draw the conclusions of a comparison that went through."""
        self.pulls.conclude()
        known_differences = self.peer.known_differences[self.lane]
        for place, (theirs, mine) in self.settled.items():
            known_differences.add(place, theirs, mine)
        for place, tried in self.tried.items():
            if tried.waited and tried.theirs >= 0:
                expires_ns = now_ns + round(self._pause_seconds(tried.pulls) * 1e9)
                known_differences.add(place, tried.theirs, tried.mine, expires_ns)
        self.peer.pulled(self.lane, self.tried)
        self.peer.complete = not self.missing

    def _pause_seconds(self, pulls: int) -> float:
        """Return how long a stream is left alone after so many pulls that changed nothing.

        The storage may be away for a moment, or the door waits for the name of an epoch (ADR 0099).
        """
        seconds = self.options.slot_seconds << min(pulls - _PULLS_AT_ONCE + 1, 20)
        return min(seconds, self.options.tried_seconds)

    def report(self, error: str) -> ComparisonEnded:
        """Return what the comparison did, for people and metrics."""
        return ComparisonEnded(
            self.peer.cache_id,
            self.lane,
            error,
            self.requests,
            self.bytes_sent,
            self.bytes_received,
            self.different,
            self.missing,
            self.pulls.offered,
            self.pulls.unrecoverable,
            self.pulls.refused,
            self.pulls.refusal,
        )


def _entries_of(reply: DiffReply | EntriesReply) -> list[Entry]:
    entries, times = decode_entries(reply.entries), dict(reply.purged_ntp64)
    for entry in entries:
        entry.purged_ntp64 = times.get(entry.place, 0)
    return entries
