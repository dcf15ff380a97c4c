"""What a cache does so that it and the others come to hold the same samples.

Theory of operation (ADR 0040). Each cache sums up what it knows of its streams in a tree of
fingerprints (`fingerprints`, `knowledge`), slot by slot (`ledger`), and announces the root when it
changes. A cache that hears a root other than its own begins a *comparison* (`comparison`): it walks
down the tree along what differs (`walk`), learns what the other knows of each differing stream,
pulls what it lacks and would keep (`pulls`), asks the remaining caches for what the other knows and
does not retain, and calls *unrecoverable* what nobody has. A difference that cannot be settled is
remembered as *known* (`peer`). So every comparison brings the roots closer or makes a difference
known, and then there is silence.

Only the cache that lacks something acts, by its own floors and scope: a sample that was trimmed
cannot come back. What is pulled is offered at the door of live samples and counts when it is
durable. A cache keeps nothing for another between two messages, and nothing of a comparison
survives a crash: equal subtrees are skipped when it begins again.

`handle` is total: it has no clock, thread or connection, and never raises for what a peer sends.
`docs/alignment.md` says how an endpoint drives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import assert_never

from durable_cache.errors import RemoteProtocolError
from durable_cache.model.sample import Stream
from durable_cache.protocol.alignment.agreed import agrees
from durable_cache.protocol.alignment.announcements import Announcements, PeerStatus, status_of
from durable_cache.protocol.alignment.answers import answer
from durable_cache.protocol.alignment.choice import Choice
from durable_cache.protocol.alignment.comparison import Comparison
from durable_cache.protocol.alignment.events import (
    AlignerEvent,
    AlignerOptions,
    AlignerOutput,
    Appended,
    CacheProfile,
    ContentEnded,
    ContentRead,
    Forgotten,
    LeftAsTheyAre,
    Loaded,
    LoadEnded,
    Offer,
    PeerGone,
    PeerSeen,
    Purged,
    RaisePurge,
    ReplyReceived,
    ReportRefusal,
    RequestFailed,
    RequestReceived,
    RootReceived,
    SendReply,
    SendRequest,
    Tick,
    Trimmed,
)
from durable_cache.protocol.alignment.greeting import mismatch, own_hello, same_class
from durable_cache.protocol.alignment.ledger import Ledger, Refusal
from durable_cache.protocol.alignment.peer import Peer, Peers
from durable_cache.protocol.alignment.scope import Scope, common_scope
from durable_cache.protocol.alignment.view import View
from durable_cache.protocol.alignment.wire import (
    Blocks,
    BlocksReply,
    Diff,
    DiffReply,
    Entries,
    EntriesReply,
    Hello,
    Pull,
    PullReply,
    Refused,
    Reply,
    Request,
    WrongSlot,
    decode_reply,
    decode_request,
    decode_root,
    encode_reply,
    encode_request,
)
from durable_cache.protocol.wire import with_own_names

_SECOND_NS = 1_000_000_000
_PeerEvent = PeerSeen | PeerGone | RootReceived | RequestReceived | ReplyReceived | RequestFailed


class Aligner:
    """The pure state machine of alignment; owned by one thread.

    Feed it every event in the order in which things happened; carry out every output.
    """

    def __init__(
        self, options: AlignerOptions, profile: CacheProfile, refusal: Refusal | None = None
    ) -> None:
        """`refusal(sample)` tells why this cache does not take what others have."""
        self.options = options
        self.profile = profile
        self.ledger = Ledger(options, profile, refusal)
        self.comparison: Comparison | None = None
        self._peers = Peers(options, profile.cache_id)
        self._announcements = Announcements(self.ledger, options, profile)
        self._requests: dict[int, tuple[Peer, Comparison | None]] = {}
        self._request_id = 0
        self._random = Random(options.random_seed)  # noqa: S311  spreads load, guards nothing
        self._now_ns = self._unix_ns = 0
        self._busy = False
        self._credit = options.rate_bytes_per_second
        self._hold_slot = 0
        """What was pulled shows in the tree when this slot is applied; comparisons wait for it."""
        self._loaded = False
        self._hello = own_hello(options, profile)
        self._choice = Choice(self.ledger, options, profile, self._random)
        self._rebuilt_ns: dict[int, int] = {}

    def handle(self, event: AlignerEvent) -> list[AlignerOutput]:
        """Take one event; returns what to do about it, in order."""
        outputs: list[AlignerOutput] = []
        match event:
            case Tick(now, busy):
                self._tick(now.monotonic_ns, now.unix_ns, busy, outputs)
            case Appended(batch):
                self.ledger.append(batch)
            case Trimmed(floors):
                self.ledger.raise_floors(floors)
            case Purged(floors, purged_ntp64):
                self.ledger.raise_floors(floors, purge=True)
                self.ledger.note_purged(purged_ntp64)
            case Forgotten(streams):
                self.ledger.drop(streams)
            case Loaded(streams):
                self.ledger.load(streams)
            case LoadEnded():
                self._loaded = True
            case ContentRead(batch):
                self.ledger.count(batch)
            case ContentEnded():
                self.ledger.count_ended()
            case LeftAsTheyAre(peers):
                self._choice.left_before_ns = dict(peers)
            case _:
                self._heard(event, outputs)
        return outputs

    def _heard(self, event: _PeerEvent, outputs: list[AlignerOutput]) -> None:
        match event:
            case PeerSeen(cache_id, incarnation):
                peer = self._peers.seen(cache_id, incarnation)
                if peer is not None and peer.view is not None:
                    self._announcements.renew(peer.view)
            case PeerGone(cache_id, incarnation):
                self._peer_gone(cache_id, incarnation, outputs)
            case RootReceived(payload):
                self._root_received(payload, outputs)
            case RequestReceived(handle, payload):
                self._request_received(handle, payload, outputs)
            case ReplyReceived(request_id, payload):
                self._reply_received(request_id, payload, outputs)
            case RequestFailed(request_id, reason):
                self._request_failed(request_id, reason, outputs)
            case _:
                assert_never(event)

    @property
    def active(self) -> bool:
        """Whether ticks matter now: twice a second is right then, once a slot otherwise."""
        return self.comparison is not None or bool(self._requests) or self.ledger.pending

    @property
    def left_out(self) -> int:
        """How often something came of a stream beyond `streams_max`; such are not aligned."""
        return self.ledger.left_out

    def status(self) -> tuple[PeerStatus, ...]:
        """Return how this cache stands with each peer it knows."""
        return status_of(self._peers, self.ledger.slot)

    def lacking(self, cache_ids: Iterable[str], streams: Sequence[Stream]) -> list[str]:
        """Return which of some caches are not known to know of streams what this one knows."""
        return [
            cache_id
            for cache_id in cache_ids
            if cache_id != self.profile.cache_id
            and not agrees(self.ledger, self._peers.get(cache_id), streams)
        ]

    def _peer_gone(self, cache_id: str, incarnation: str, outputs: list[AlignerOutput]) -> None:
        peer = self._peers.get(cache_id)
        if peer is None or peer.incarnation != incarnation or not peer.live:
            return
        peer.live = False
        if not peer.reask:
            peer.unrecoverable_asked = self.ledger.unrecoverable_serial
        if self.comparison is not None:
            if self.comparison.peer is peer:
                self._end(self.comparison, "the peer is gone", outputs)
            else:
                self.comparison.pulls.drop_peer(cache_id)

    def _root_received(self, payload: bytes, outputs: list[AlignerOutput]) -> None:
        try:
            root = decode_root(payload)
        except RemoteProtocolError as error:
            outputs.append(ReportRefusal("", str(error)))
            return
        peer = self._peers.get(root.cache_id)
        if peer is not None and peer.incarnation == root.incarnation:
            peer.announced(root, self._now_ns, self.options)

    def _request_received(self, handle: int, payload: bytes, outputs: list[AlignerOutput]) -> None:
        try:
            request = decode_request(payload)
            if isinstance(request, Hello):
                reply = self._answer_hello(request, outputs)
            elif not self._loaded or request.incarnation != self.profile.incarnation:
                reply = Refused("not ready, or another incarnation was meant", retry=True)
            else:
                outputs.append(answer(self.ledger, request, handle, self.options))
                return
        except RemoteProtocolError as error:
            outputs.append(ReportRefusal("", str(error)))
            reply = Refused(str(error)[:512], retry=False)
        outputs.append(SendReply(handle, encode_reply(reply)))

    def _answer_hello(self, hello: Hello, outputs: list[AlignerOutput]) -> Reply:
        reason = mismatch(hello.parameters, self._hello.parameters)
        if reason:
            outputs.append(ReportRefusal(hello.cache_id, reason))
            return Refused(reason, retry=False)
        peer = self._peers.get(hello.cache_id)
        if peer is not None and peer.incarnation == hello.incarnation:
            self._meet(peer, hello)
        return self._hello

    def _meet(self, peer: Peer, hello: Hello) -> None:
        """Take in who a peer is and agree with it on a view."""
        fresh = peer.hello is None
        peer.hello, peer.refused = hello, ""
        peer.same_class = same_class(hello, self._hello)
        scope = common_scope(self.ledger.scope, Scope.of(hello.include, hello.exclude))
        if scope is None:
            peer.view = None
            return
        peer.view = self.ledger.open_view(scope)
        if peer.view is None:
            peer.refused = f"more than {self.options.views_max} different common scopes"
        elif fresh:
            self._announcements.renew(peer.view)

    def _send(
        self,
        peer: Peer,
        request: Request,
        comparison: Comparison | None,
        outputs: list[AlignerOutput],
    ) -> None:
        self._request_id += 1
        payload = encode_request(request)
        self._requests[self._request_id] = (peer, comparison)
        if comparison is not None:
            comparison.requests += 1
            comparison.bytes_sent += len(payload)
        timeout_seconds = self.options.request_timeout_seconds
        outputs.append(SendRequest(peer.cache_id, self._request_id, payload, timeout_seconds))

    def _reply_received(
        self, request_id: int, payload: bytes, outputs: list[AlignerOutput]
    ) -> None:
        found = self._requests.pop(request_id, None)
        if found is None:
            return
        peer, comparison = found
        self._credit -= len(payload)
        try:
            reply = decode_reply(payload)
            if comparison is None:
                self._on_hello(peer, reply, outputs)
                return
            if comparison is not self.comparison:
                return
            comparison.bytes_received += len(payload)
            self._on_reply(comparison, peer, reply, outputs)
        except RemoteProtocolError as error:
            outputs.append(ReportRefusal(peer.cache_id, str(error)))
            self._failed(peer, comparison, str(error), outputs)
            if comparison is None:
                peer.asking_hello, peer.refused = False, str(error)
                return
        comparison.asked = None
        self._step(outputs)

    def _on_hello(self, peer: Peer, reply: Reply, outputs: list[AlignerOutput]) -> None:
        peer.asking_hello = False
        match reply:
            case Hello() if reply.incarnation == peer.incarnation:
                reason = mismatch(reply.parameters, self._hello.parameters)
                if not reason:
                    peer.failures = 0
                    self._meet(peer, reply)
                    return
                peer.refused = reason
                outputs.append(ReportRefusal(peer.cache_id, reason))
            case Refused() if not reply.retry:
                peer.refused = reply.reason
                outputs.append(ReportRefusal(peer.cache_id, reply.reason))
            case _:
                self._failed(peer, None, "no greeting came back", outputs)

    def _on_reply(
        self, comparison: Comparison, peer: Peer, reply: Reply, outputs: list[AlignerOutput]
    ) -> None:
        asked = comparison.asked
        match reply:
            case DiffReply() if isinstance(asked, Diff):
                comparison.on_diff(reply)
            case EntriesReply() if isinstance(asked, Entries):
                comparison.on_entries(reply)
            case PullReply() if isinstance(asked, Pull):
                batch = comparison.on_pull(reply)
                if len(batch):
                    new, held = comparison.pulls.split(batch)
                    given = {sample.source for sample in batch}
                    told = with_own_names(reply.incarnations, batch)
                    names = tuple(name for name in told if name.source in given)
                    outputs.append(Offer(peer.cache_id, new, held, names))
            case BlocksReply() if isinstance(asked, Blocks):
                comparison.on_blocks(reply)
            case WrongSlot():
                comparison.on_wrong_slot(reply.slot)
            case Refused():
                self._failed(peer, comparison, reply.reason, outputs)
                if reply.retry:  # it answers: it is not to be left alone for long
                    peer.failures = min(peer.failures, 2)
            case _:
                raise RemoteProtocolError("a reply of another kind than the request")
        if comparison.purges:
            floors = tuple((stream, floor) for stream, floor, _ in comparison.purges)
            until = tuple((stream, ntp64) for stream, _, ntp64 in comparison.purges if ntp64)
            outputs.append(RaisePurge(comparison.peer.cache_id, floors, until))
            comparison.purges = []

    def _request_failed(self, request_id: int, reason: str, outputs: list[AlignerOutput]) -> None:
        found = self._requests.pop(request_id, None)
        if found is None:
            return
        peer, comparison = found
        if comparison is None:
            peer.asking_hello = False
            self._failed(peer, None, reason, outputs)
        elif comparison is self.comparison:
            self._failed(peer, comparison, reason, outputs)
            comparison.asked = None
            self._step(outputs)

    def _failed(
        self, peer: Peer, comparison: Comparison | None, reason: str, outputs: list[AlignerOutput]
    ) -> None:
        """Leave a peer alone for a while; another takes its place if there is one."""
        peer.failures += 1
        peer.hold_until_ns = self._now_ns + self._pause(peer.failures)
        if comparison is not None and comparison is self.comparison and comparison.on_failed():
            self._end(comparison, reason, outputs)

    def _pause(self, times: int) -> int:
        seconds = min(self.options.slot_seconds << min(times, 20), self.options.retry_seconds_max)
        return round(seconds * _SECOND_NS * (0.75 + self._random.random() / 2))

    def _step(self, outputs: list[AlignerOutput]) -> None:
        """Ask the comparison's next question, or end it."""
        comparison = self.comparison
        if comparison is None or comparison.asked is not None or self.ledger.applying:
            return
        if comparison.ended:
            comparison.finish(self._now_ns)
            self._end(comparison, "", outputs)
            return
        if 0 < comparison.wait_slot - self.ledger.slot < self.options.ring_max:
            return
        found = comparison.next(pull=not self._busy and self._credit > 0)
        if found is not None:
            self._send(self._peers.named(found[0]), found[1], comparison, outputs)

    def _end(self, comparison: Comparison, error: str, outputs: list[AlignerOutput]) -> None:
        peer = comparison.peer
        self.comparison = None
        peer.due_ns = None
        if comparison.effect:
            self._hold_slot = self._unix_ns // (self.options.slot_seconds * _SECOND_NS)
            peer.fruitless = 0
        if error and comparison.unrecoverable_asked is not None:
            peer.reask, peer.unrecoverable_asked = True, comparison.unrecoverable_asked
        if not error:
            peer.failures = 0
            if not comparison.effect:
                peer.fruitless += 1
                peer.hold_until_ns = self._now_ns + self._pause(peer.fruitless)
            if comparison.suspect and not comparison.effect:
                self._rebuild(comparison.view)
        outputs.append(comparison.report(error))

    def _rebuild(self, view: View) -> None:
        last = self._rebuilt_ns.get(view.name)
        if last is None or self._now_ns - last > 3600 * _SECOND_NS:
            self._rebuilt_ns[view.name] = self._now_ns
            self.ledger.rebuild(view)

    def _tick(self, now_ns: int, unix_ns: int, busy: bool, outputs: list[AlignerOutput]) -> None:
        rate = self.options.rate_bytes_per_second
        earned = rate * max(0, now_ns - self._now_ns) // _SECOND_NS
        self._credit = min(self._credit + earned, rate)
        self._now_ns, self._unix_ns, self._busy = now_ns, unix_ns, busy
        self.ledger.advance(unix_ns)
        changed, self.ledger.changed = self.ledger.changed, []
        self._peers.streams_changed(changed, self.ledger, now_ns)
        if not self._loaded or self.ledger.applying:
            return
        self.ledger.forget()
        for peer in self._peers:
            unmet = peer.live and peer.hello is None and not peer.refused
            if unmet and not peer.asking_hello and now_ns >= peer.hold_until_ns:
                peer.asking_hello = True
                self._send(peer, self._hello, None, outputs)
        outputs.extend(self._announcements.due(self._peers.views(), now_ns))
        held = 0 < self._hold_slot - self.ledger.slot < self.options.ring_max
        if self.comparison is None and not held:
            self.comparison = self._choice.choose(self._peers, now_ns, unix_ns)
        self._step(outputs)
