"""Alignment on a session: carries the aligner's messages and lets it take and read samples.

The pure aligner runs in turns, tasks of the pool of which one runs at a time: at each tick, and as
soon as something waits (ADR 0118). What takes as long as the storage does is a task of its own
(`jobs`); questions to peers are answered on Zenoh's threads, so a silent peer keeps nobody waiting;
announcements and tokens are taken at each tick. Whatever comes goes through the `inbox`, which is
bounded: where something that was stored had to be left out, the aligner begins anew from what is
stored, under a new incarnation (ADR 0040 to 0048, 0099).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Event
from typing import assert_never

from durable_cache.endpoints.alignment.asked import Asked
from durable_cache.endpoints.alignment.counts import AlignmentCounts
from durable_cache.endpoints.alignment.inbox import Inbox
from durable_cache.endpoints.alignment.jobs import Jobs
from durable_cache.endpoints.alignment.merging import Merging
from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.endpoints.clock import moment_now
from durable_cache.endpoints.ingest import Ingest
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.session import (
    Query,
    Replies,
    Session,
    ZenohSubscriber,
    ZError,
    ask_later,
    declare_token,
    hear_polled,
    hear_queries,
    is_sendable,
    put_own,
    query_parts,
    take_heard,
    take_token_changes,
    undeclare,
    unsendable,
    watch_tokens_polled,
)
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import Closed
from durable_cache.model.sample import Sample, SampleBatch, Stream
from durable_cache.protocol.alignment import (
    Aligner,
    AlignerOutput,
    Appended,
    CacheProfile,
    ComparisonEnded,
    Forgotten,
    LeftAsTheyAre,
    Loaded,
    LoadEnded,
    MergePolicy,
    Offer,
    PeerGone,
    PeerSeen,
    PeerStatus,
    PublishRoot,
    Purged,
    RaisePurge,
    ReadSamples,
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
from durable_cache.protocol.cache.events import Alias
from durable_cache.protocol.wire import cache_token, own_key
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.5
_EVENTS_AT_ONCE = 1_000
"""So many events in one turn; other tasks of the pool come before the next."""
_QUERIES_MAX = 64
_BUSY_BYTES = 16 << 20
_REPLIES_MAX = 4
"""One cache answers a question; others that answer under its name are not believed."""
_JOIN_SECONDS = 2.0


class Aligning:
    """Keeps one cache aligned with the others of its domain.

    `open_lane(name, running_max=…, waiting_max=…)` gives it lanes of the cache's pool.
    """

    def __init__(
        self,
        session: Session,
        store: JournaledStorage,
        ingest: Ingest,
        options: CacheOptions,
        open_lane: Callable[..., Lane],
        include: Sequence[str],
        exclude: Sequence[str],
    ) -> None:
        self._session = session
        self._ingest, self._store = ingest, store
        self._options = options
        self._domain = options.domain
        self._cache_id = store.index.cache_id
        retention = options.retention
        self._profile = CacheProfile(
            self._cache_id,
            "",
            tuple(include),
            tuple(exclude),
            retention.age_seconds_max,
            retention.samples_max,
            retention.bytes_max,
        )
        self.counts = AlignmentCounts()
        self._asked = Asked(_QUERIES_MAX)
        self._turns = open_lane("aligner", running_max=1, waiting_max=1)
        self._inbox = Inbox(
            ingest.epochs,
            bytes_max=options.align_bytes_max,
            events_max=options.align_events_max,
            wake=self._soon,
        )
        self._aligned = AlignedStore(store, ingest)
        lane = open_lane("align", running_max=1, waiting_max=options.align_jobs_max)
        self._jobs = Jobs(lane, self._aligned, self._inbox, self._asked, self.counts)
        self.merging: Merging | None = None
        """What is done after partitions; None with `merge`, which does nothing more."""
        if options.split_brain.policy is not MergePolicy.MERGE:
            self.merging = Merging(
                session,
                store,
                options,
                open_lane("merge", running_max=1, waiting_max=1),
                include,
                lambda: ingest.epochs,
                store.purge,
            )
        self._aligner: Aligner
        self._incarnation = ""
        self._due = 0.0
        self._stopped = Event()
        self._closed = False
        self._declared: list[object] = []
        self._present: list[object] = []
        self._roots: ZenohSubscriber
        self._tokens: ZenohSubscriber
        self._failure: Exception | None = None
        self._status: tuple[PeerStatus, ...] = ()

    @property
    def error(self) -> str:
        """Why alignment ended by itself; empty while it goes on."""
        error = self._failure
        return "" if error is None else f"alignment has ended: {type(error).__name__}: {error}"

    def start(self) -> None:
        """Begin: what is stored first, then the network."""
        self._ingest.on_committed.append(self._committed)
        self._ingest.on_forgotten.append(self._forgotten)
        self._store.on_purged.append(partial(self.trimmed, purged=True))
        self._ingest.on_learned.append(self._learned)
        if self.merging is not None:
            self._ingest.before_commit.append(self.merging.storing)
            self.merging.start()
        self._turns.every(_TICK_SECONDS, self._turn)
        self._soon()

    @property
    def pulled(self) -> int:
        """How many samples peers gave."""
        return self._aligned.pulled

    @property
    def conflicts(self) -> int:
        """How often a peer was found to hold other content."""
        return self._aligned.conflicts

    def status(self) -> tuple[PeerStatus, ...]:
        """Return how this cache stands with each peer it knows."""
        return self._status

    def trimmed(self, floors: Iterable[Floor], *, purged: bool = False) -> None:
        """Retention, or an operator, removed what is below the floors, durably."""
        pairs = tuple((self._aligned.canonical(floor.stream), floor.sn) for floor in floors)
        if pairs:
            until = self._aligned.purge_times(stream for stream, _ in pairs) if purged else ()
            event = Purged(pairs, until) if purged else Trimmed(pairs)
            self._inbox.stored(event, time.monotonic())

    def ask_lacking(
        self, streams: Mapping[str, Sequence[Stream]], then: Callable[[dict[str, list[str]]], None]
    ) -> None:
        """Find out, for each name, which of `align_peers` do not know its streams as this cache.

        `then` is called soon, in a thread of the pool and between two of the aligner's turns; not
        at all where alignment has ended or is only beginning.
        """

        def look() -> None:
            if self._stopped.is_set() or not self._incarnation:
                return
            lacking = self._aligner.lacking
            canonical = self._aligned.canonical
            peers = self._options.align_peers
            then({name: lacking(peers, [*map(canonical, of)]) for name, of in streams.items()})

        self._turns.submit(look, within_bound=False)

    def _committed(self, batch: SampleBatch) -> None:
        self._inbox.stored(Appended(batch), time.monotonic())

    def _forgotten(self, streams: Iterable[Stream]) -> None:
        self._inbox.stored(Forgotten(tuple(streams)), time.monotonic())

    def _learned(self, alias: Alias) -> None:
        self._jobs.rename(alias.source)

    def close(self) -> None:
        """Stop; idempotent. Askers that wait get an error."""
        if self._closed:
            return
        self._closed = True
        self._stopped.set()
        self._turns.close(_JOIN_SECONDS)
        if self.merging is not None:
            self.merging.close()
        self._leave("the cache is closing")

    def _leave(self, reason: str) -> None:
        """Let peers know that there is nobody to ask."""
        declared = self._declared + self._present
        self._declared, self._present = [], []
        undeclare(*declared)
        self._asked.refuse_all(reason)

    def _soon(self) -> None:
        self._turns.submit(self._turn)

    def _turn(self) -> None:
        """Take a turn, unless alignment has ended; an error ends alignment and nothing else."""
        if self._stopped.is_set():
            return
        try:
            self._take_turn()
        except Exception as error:
            self._failure = error
            self._stopped.set()
            _log.exception("alignment has ended, the cache goes on")
            self._leave("alignment has ended here")

    def _take_turn(self) -> None:
        if not self._incarnation:
            self._begin()
            self._declare()
        elif self._inbox.overflown:
            _log.warning("too much was committed at once, alignment begins anew")
            self._begin()
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _TICK_SECONDS
            self._tick(now)
        for _ in range(_EVENTS_AT_ONCE):
            event = self._inbox.take(now)
            if event is None:
                return
            self._do(self._aligner.handle(event))
        self._soon()

    def _begin(self) -> None:
        """Know what is stored, and nothing of peers, as a new process does."""
        self._incarnation = secrets.token_hex(4)  # answers to the one before are left out from here
        self._jobs.begin()
        self._inbox.clear()
        self._asked.refuse_all("alignment begins anew here; ask again later")
        profile = replace(self._profile, incarnation=self._incarnation)
        chosen = replace(self._options.aligner, random_seed=secrets.randbits(63))
        self._aligner = Aligner(chosen, profile, self._refusal)
        self._aligner.handle(Loaded(self._aligned.streams()))
        self._aligner.handle(LoadEnded())
        if self._present:
            undeclare(*self._present)
            self._show()

    def _refusal(self, sample: Sample) -> str:
        """Tell why a sample of a peer is not taken, as from its publisher it would not be."""
        size, most = len(sample.payload), self._options.payload_bytes_max
        if size > most:
            return f"{sample.key[:80]!r}: a payload of {size} bytes; payload_bytes_max is {most}"
        return "" if is_sendable(sample.encoding) else unsendable(sample)

    def _declare(self) -> None:
        session, domain = self._session, self._domain
        own = own_key(domain, "align", self._cache_id)
        self._declared.append(hear_queries(session, own, self._was_asked))
        self._roots = hear_polled(session, own_key(domain, "root", "**"))
        self._declared.append(self._roots)
        self._show()

    def _show(self) -> None:
        """Let peers see this incarnation, and see theirs."""
        session, domain = self._session, self._domain
        token = declare_token(session, cache_token(domain, self._cache_id, self._incarnation))
        self._tokens = watch_tokens_polled(session, own_key(domain, "cache", "**"))
        self._present = [token, self._tokens]

    def _tick(self, now: float) -> None:
        if self.merging is not None:
            self._aligner.handle(LeftAsTheyAre(self.merging.ignored))
        self._hear()
        busy = self._ingest.queued_bytes > _BUSY_BYTES
        self._do(self._aligner.handle(Tick(moment_now(), busy)))
        self._jobs.tick(now)
        self._status = self._aligner.status()
        self.counts.note(self._status)
        if self.counts.left_out_now(self._aligner.left_out):
            _log.warning(
                "streams beyond the bound are not aligned, raise streams_max",
                extra={"streams_max": self._options.aligner.streams_max},
            )
        if self.merging is not None:
            self.merging.tick(now, self._status)

    def _hear(self) -> None:
        """Take what changed on the network since the last tick."""
        for key, alive in take_token_changes(self._tokens):
            name = key.removeprefix(own_key(self._domain, "cache", ""))
            cache_id, _, incarnation = name.partition("/")
            if incarnation and cache_id != self._cache_id:
                event = PeerSeen if alive else PeerGone
                self._do(self._aligner.handle(event(cache_id, incarnation)))
        for key, payload in take_heard(self._roots):
            if key.rpartition("/")[2] != self._cache_id:  # a session hears itself, too
                self.counts.received(payload)
                self._do(self._aligner.handle(RootReceived(payload)))

    def _was_asked(self, query: Query) -> None:
        """Take a peer's question, on Zenoh's thread."""
        payload = query_parts(query).payload
        self.counts.received(payload)
        number = self._asked.put(query)
        if not self._inbox.heard(RequestReceived(number, payload)):
            self._asked.refuse(number, "too many questions wait here; ask again later")

    def _do(self, outputs: Iterable[AlignerOutput]) -> None:
        for output in outputs:
            match output:
                case SendRequest():
                    self._ask(output)
                case ReadSamples():
                    self._jobs.read(output)
                case RaisePurge():
                    self._jobs.purge(output)
                case Offer():
                    self._jobs.take(output)
                case SendReply(handle, payload):
                    if self._asked.reply(handle, payload):
                        self.counts.sent(payload)
                case PublishRoot(view, payload):
                    self._publish(view, payload)
                case ReportRefusal(peer, reason):
                    self.counts.refused(peer, reason)
                    _log.warning("a peer is not aligned", extra={"peer": peer, "reason": reason})
                case ComparisonEnded():
                    self._ended(output)
                case _:
                    assert_never(output)

    def _ended(self, comparison: ComparisonEnded) -> None:
        self.counts.ended(comparison)
        if comparison.samples_refused:
            about = {
                "peer": comparison.peer,
                "samples": comparison.samples_refused,
                "reason": comparison.refusal,
            }
            _log.warning("samples of a peer were left out", extra=about)

    def _publish(self, view: str, payload: bytes) -> None:
        try:
            put_own(self._session, own_key(self._domain, "root", view, self._cache_id), payload)
        except ZError:
            return  # repeated by the aligner
        self.counts.sent(payload)

    def _ask(self, question: SendRequest) -> None:
        """Ask a peer; its answer, or that there is none, is heard later."""
        incarnation = self._incarnation

        def ended(replies: Replies) -> None:
            payload = replies.payload()
            if isinstance(payload, str):
                self._answered(incarnation, RequestFailed(question.request_id, payload))
            else:
                self.counts.received(payload)
                self._answered(incarnation, ReplyReceived(question.request_id, payload))

        self.counts.sent(question.payload)
        try:
            ask_later(
                self._session,
                own_key(self._domain, "align", question.peer),
                ended,
                timeout_seconds=question.timeout_seconds,
                payload=question.payload,
                replies_max=_REPLIES_MAX,
            )
        except (Closed, ZError) as error:
            self._answered(incarnation, RequestFailed(question.request_id, str(error)[:200]))

    def _answered(self, incarnation: str, answer: ReplyReceived | RequestFailed) -> None:
        """Hand in an answer, unless the aligner that asked has begun anew since."""
        if incarnation == self._incarnation:
            self._inbox.answered(answer)
