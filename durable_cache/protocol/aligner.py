"""What a cache does so that it and the others come to hold the same samples.

Theory of operation. Each cache sums up what it knows of its streams in a tree of fingerprints
(`digest`, `knowledge`), slot by slot (`aligner_ledger`), and announces the root when it changed.
Whoever hears a root that is not its own starts a *session* (`aligner_session`): it walks down the
tree along what differs, learns of each differing stream what the other knows, pulls what it lacks
and would keep, asks the remaining caches for what the other knows and has not, and calls void what
nobody has. What cannot be settled is remembered as quiet. So every session brings the roots closer
or makes a difference quiet, and then there is silence.

Only the one that lacks acts, by its own floors and scope: a sample that was trimmed cannot come
back. What is pulled is offered at the door of live samples and counts when it is durable. Nobody
keeps anything for another between two messages, and nothing of a session survives a crash: equal
subtrees are skipped when it begins again.

`handle` is total: it has no clock, thread or connection, and never raises for what a peer sends.
`docs/alignment.md` says how an endpoint drives it.
"""

from __future__ import annotations

from random import Random
from typing import assert_never

from durable_cache.errors import RemoteProtocolError
from durable_cache.protocol.aligner_announcing import Announcements, PeerStatus, status_of
from durable_cache.protocol.aligner_answer import answer
from durable_cache.protocol.aligner_choosing import Choice
from durable_cache.protocol.aligner_events import (
    AlignerEvent,
    AlignerOptions,
    AlignerOutput,
    Appended,
    CacheProfile,
    ContentEnded,
    ContentRead,
    Forgotten,
    Loaded,
    LoadEnded,
    Offer,
    PeerGone,
    PeerSeen,
    Purged,
    RaisePurge,
    ReplyReceived,
    ReportConflict,
    ReportRefusal,
    RequestFailed,
    RequestReceived,
    RootReceived,
    SendReply,
    SendRequest,
    Tick,
    Trimmed,
)
from durable_cache.protocol.aligner_greeting import mismatch, own_hello, same_class
from durable_cache.protocol.aligner_ledger import Ledger
from durable_cache.protocol.aligner_peer import Peer, Peers
from durable_cache.protocol.aligner_scope import Scope, common_scope
from durable_cache.protocol.aligner_session import Session
from durable_cache.protocol.aligner_view import View
from durable_cache.protocol.aligner_wire import (
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

__all__ = ["Aligner"]

_SECOND_NS = 1_000_000_000
_PeerEvent = PeerSeen | PeerGone | RootReceived | RequestReceived | ReplyReceived | RequestFailed


class Aligner:
    """The pure state machine of alignment; owned by one thread.

    Feed it every event in the order in which things happened; carry out every output.
    """

    def __init__(self, options: AlignerOptions, profile: CacheProfile) -> None:
        self.options = options
        self.profile = profile
        self.ledger = Ledger(options, profile)
        self.session: Session | None = None
        self._peers = Peers(options, profile.cache_id)
        self._announcements = Announcements(self.ledger, options, profile)
        self._requests: dict[int, tuple[Peer, Session | None]] = {}
        self._request_id = 0
        self._random = Random(options.random_seed)  # noqa: S311  spreads load, guards nothing
        self._now_ns = self._unix_ns = 0
        self._busy = False
        self._credit = options.rate_bytes_per_second
        self._hold_slot = 0
        """What was pulled shows in the tree when this slot is applied; sessions wait for it."""
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
            case Trimmed(floors) | Purged(floors):
                self.ledger.raise_floors(floors, purge=isinstance(event, Purged))
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
        return self.session is not None or bool(self._requests) or self.ledger.pending

    def status(self) -> tuple[PeerStatus, ...]:
        """Return how this cache stands with each peer it knows."""
        return status_of(self._peers, self.ledger.slot)

    def _peer_gone(self, cache_id: str, incarnation: str, outputs: list[AlignerOutput]) -> None:
        peer = self._peers.get(cache_id)
        if peer is None or peer.incarnation != incarnation or not peer.live:
            return
        peer.live = False
        if not peer.reask:
            peer.voids_asked = self.ledger.void_serial
        if self.session is not None:
            if self.session.peer is peer:
                self._end(self.session, "the peer is gone", outputs)
            else:
                self.session.pulls.drop_peer(cache_id)

    def _root_received(self, payload: bytes, outputs: list[AlignerOutput]) -> None:
        try:
            root = decode_root(payload)
        except RemoteProtocolError as error:
            outputs.append(ReportRefusal("", str(error)))
            return
        peer = self._peers.get(root.cache_id)
        if peer is not None and peer.incarnation == root.incarnation:
            peer.announced(root, self._now_ns, self.options.views_max)

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
        self, peer: Peer, request: Request, session: Session | None, outputs: list[AlignerOutput]
    ) -> None:
        self._request_id += 1
        payload = encode_request(request)
        self._requests[self._request_id] = (peer, session)
        if session is not None:
            session.requests += 1
            session.bytes_sent += len(payload)
        timeout_seconds = self.options.request_timeout_seconds
        outputs.append(SendRequest(peer.cache_id, self._request_id, payload, timeout_seconds))

    def _reply_received(
        self, request_id: int, payload: bytes, outputs: list[AlignerOutput]
    ) -> None:
        found = self._requests.pop(request_id, None)
        if found is None:
            return
        peer, session = found
        self._credit -= len(payload)
        try:
            reply = decode_reply(payload)
            if session is None:
                self._on_hello(peer, reply, outputs)
                return
            if session is not self.session:
                return
            session.bytes_received += len(payload)
            self._on_reply(session, peer, reply, outputs)
        except RemoteProtocolError as error:
            outputs.append(ReportRefusal(peer.cache_id, str(error)))
            self._failed(peer, session, str(error), outputs)
            if session is None:
                peer.asking_hello, peer.refused = False, str(error)
                return
        session.asked = None
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
        self, session: Session, peer: Peer, reply: Reply, outputs: list[AlignerOutput]
    ) -> None:
        asked = session.asked
        match reply:
            case DiffReply() if isinstance(asked, Diff):
                session.on_diff(reply)
            case EntriesReply() if isinstance(asked, Entries):
                session.on_entries(reply)
            case PullReply() if isinstance(asked, Pull):
                batch = session.on_pull(reply)
                if len(batch):
                    outputs.append(Offer(peer.cache_id, *session.pulls.split(batch)))
            case BlocksReply() if isinstance(asked, Blocks):
                session.on_blocks(reply)
            case WrongSlot():
                session.on_wrong_slot(reply.slot)
            case Refused():
                self._failed(peer, session, reply.reason, outputs)
                if reply.retry:  # it answers: it is not to be left alone for long
                    peer.failures = min(peer.failures, 2)
            case _:
                raise RemoteProtocolError("a reply of another kind than the request")
        if session.purges:
            outputs.append(RaisePurge(session.peer.cache_id, tuple(session.purges)))
            session.purges = []
        found, session.content.conflicts = session.content.conflicts, []
        outputs.extend(ReportConflict(session.peer.cache_id, *conflict) for conflict in found)

    def _request_failed(self, request_id: int, reason: str, outputs: list[AlignerOutput]) -> None:
        found = self._requests.pop(request_id, None)
        if found is None:
            return
        peer, session = found
        if session is None:
            peer.asking_hello = False
            self._failed(peer, None, reason, outputs)
        elif session is self.session:
            self._failed(peer, session, reason, outputs)
            session.asked = None
            self._step(outputs)

    def _failed(
        self, peer: Peer, session: Session | None, reason: str, outputs: list[AlignerOutput]
    ) -> None:
        """Leave a peer alone for a while; another takes its place if there is one."""
        peer.failures += 1
        peer.hold_until_ns = self._now_ns + self._pause(peer.failures)
        if session is not None and session is self.session and session.on_failed():
            self._end(session, reason, outputs)

    def _pause(self, times: int) -> int:
        seconds = min(self.options.slot_seconds << min(times, 20), self.options.retry_seconds_max)
        return round(seconds * _SECOND_NS * (0.75 + self._random.random() / 2))

    def _step(self, outputs: list[AlignerOutput]) -> None:
        """Ask the session's next question, or end it."""
        session = self.session
        if session is None or session.asked is not None or self.ledger.applying:
            return
        if session.ended:
            session.finish(self._now_ns)
            self._end(session, "", outputs)
            return
        if 0 < session.wait_slot - self.ledger.slot < self.options.ring_max:
            return
        found = session.next(pull=not self._busy and self._credit > 0)
        if found is not None:
            self._send(self._peers.named(found[0]), found[1], session, outputs)

    def _end(self, session: Session, error: str, outputs: list[AlignerOutput]) -> None:
        peer = session.peer
        self.session = None
        peer.due_ns = None
        if session.effect:
            self._hold_slot = self._unix_ns // (self.options.slot_seconds * _SECOND_NS)
            peer.fruitless = 0
        if error and session.voids_asked is not None:
            peer.reask, peer.voids_asked = True, session.voids_asked
        if not error:
            peer.failures = 0
            if not session.effect:
                peer.fruitless += 1
                peer.hold_until_ns = self._now_ns + self._pause(peer.fruitless)
            if session.suspect and not session.effect:
                self._rebuild(session.view)
        outputs.append(session.report(error))

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
        if self.session is None and not held:
            self.session = self._choice.choose(self._peers, now_ns, unix_ns)
        self._step(outputs)
