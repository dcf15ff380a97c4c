"""Alignment on a session: carries the aligner's messages, reads for it, and takes what it pulls.

One thread owns the pure aligner; others ask peers, and read the storage for them. What is pulled
goes through the same door as live samples and counts when it is durable.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import assert_never

from durable_cache.endpoints.aligned_store import AlignedStore, in_time
from durable_cache.endpoints.alignment_counts import AlignmentCounts
from durable_cache.endpoints.ingest import Ingest
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.session import (
    Query,
    Queryable,
    Session,
    ZError,
    ask_peer,
    declare_queryable,
    declare_token,
    hear,
    put_own,
    query_parts,
    receive_query,
    reply_bytes,
    reply_error,
    start_thread,
    undeclare,
    watch_tokens,
)
from durable_cache.endpoints.settling import Settling
from durable_cache.errors import Closed, DurableCacheError
from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.protocol.alignment import (
    Aligner,
    AlignerEvent,
    AlignerOutput,
    Appended,
    CacheProfile,
    ComparisonEnded,
    ContentEnded,
    ContentRead,
    Forgotten,
    Loaded,
    LoadEnded,
    Offer,
    PeerGone,
    PeerSeen,
    PeerStatus,
    PublishRoot,
    Purged,
    RaisePurge,
    ReadSamples,
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
    pull_reply,
    ranges,
)
from durable_cache.protocol.wire import cache_token, own_key
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage

__all__ = ["Aligning"]

_Job = ReadSamples | RaisePurge | Offer

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.5
_QUERIES_MAX = 64
_ASKING_THREADS = 4
"""A peer that is silent for half a minute does not keep the others waiting."""
_BUSY_BYTES = 16 << 20


class Aligning:
    """Keeps one cache aligned with the others of its domain."""

    def __init__(
        self,
        session: Session,
        store: JournaledStorage,
        ingest: Ingest,
        options: CacheOptions,
        include: Sequence[str],
        exclude: Sequence[str],
    ) -> None:
        self._session = session
        self._aligned = AlignedStore(store, ingest)
        self._ingest = ingest
        self._domain = options.domain
        self._cache_id = store.index.cache_id
        self._incarnation = secrets.token_hex(4)
        profile = CacheProfile(
            self._cache_id,
            self._incarnation,
            tuple(include),
            tuple(exclude),
            options.retention.age_seconds_max,
            options.retention.samples_max,
            options.retention.bytes_max,
        )
        chosen = replace(options.aligner, random_seed=secrets.randbits(63))
        self._aligner = Aligner(chosen, profile)
        self._events: SimpleQueue[AlignerEvent | None] = SimpleQueue()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._questions: SimpleQueue[SendRequest | None] = SimpleQueue()
        self._queries: OrderedDict[int, Query] = OrderedDict()
        self._handle = 0
        self._settling = Settling(ingest.epochs)
        self._stopped = Event()
        self._closed = False
        self._declared: list[object] = []
        self._threads: list[Thread] = []
        self._status: tuple[PeerStatus, ...] = ()
        self.counts = AlignmentCounts()
        self.error = ""
        """Why alignment ended by itself; empty while it goes on."""

    def start(self) -> None:
        """Begin: what is stored first, then the network."""
        self._ingest.on_committed.append(self._committed)
        self._ingest.on_forgotten.append(self.forgotten)
        self._ingest.on_purged.append(partial(self.trimmed, purged=True))
        self._ingest.on_learned.append(lambda alias: self._relearn(alias.source))
        self._spawn("aligner", self._run)
        self._spawn("align-read", self._run_jobs)
        for at in range(_ASKING_THREADS):
            self._spawn(f"align-ask-{at}", self._run_questions)

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception as error:
                if self._stopped.is_set():
                    return
                self.error = f"alignment has ended: {type(error).__name__}: {error}"
                _log.exception("alignment has ended, the cache goes on", extra={"where": name})
                self._leave("alignment has ended here")

        self._threads.append(start_thread(guarded, f"durable-cache-{name}"))

    def _tell(self, event: AlignerEvent) -> None:
        if not self._stopped.is_set():
            self._events.put(event)

    @property
    def pulled(self) -> int:
        """How many samples peers gave."""
        return self._aligned.pulled

    @property
    def conflicts(self) -> int:
        """How often a peer was found to hold other content."""
        return self.counts.conflicts + self._aligned.conflicts

    def status(self) -> tuple[PeerStatus, ...]:
        """Return how this cache stands with each peer it knows."""
        return self._status

    def trimmed(self, floors: Iterable[Floor], *, purged: bool = False) -> None:
        """Retention, or an operator, removed what is below the floors, durably."""
        pairs = tuple(
            (self._ingest.epochs.canonical_stream(floor.stream), floor.sn) for floor in floors
        )
        if pairs:
            self._tell(Purged(pairs) if purged else Trimmed(pairs))

    def close(self) -> None:
        """Stop; idempotent. Queries that wait are ended with an error."""
        if self._closed:
            return
        self._closed = True
        self._leave("the cache is closing")
        for thread in self._threads:
            thread.join(timeout=2.0)
        self._refuse_waiting("the cache is closing")

    def _leave(self, reason: str) -> None:
        """Let every thread end, and peers know that there is nobody to ask."""
        self._stopped.set()
        declared, self._declared = self._declared, []
        for one in declared:
            undeclare(one)
        self._events.put(None)
        self._jobs.put(None)
        for _ in range(_ASKING_THREADS):
            self._questions.put(None)
        self._refuse_waiting(reason)

    def _refuse_waiting(self, reason: str) -> None:
        while self._queries:
            with self._queries.popitem()[1] as query:
                _refuse(query, reason)

    def _run(self) -> None:
        self._aligner.handle(Loaded(self._aligned.streams()))
        self._aligner.handle(LoadEnded())
        self._declare()
        self._spawn("align-content", self._read_content)
        due = time.monotonic()
        while not self._stopped.is_set():
            now = time.monotonic()
            if now >= due:
                due = now + _TICK_SECONDS
                for settled in self._settling.settled(now):
                    self._aligner.handle(settled)
                busy = self._ingest.queued_bytes > _BUSY_BYTES
                self._do(self._aligner.handle(Tick(_now(), busy)))
                self._status = self._aligner.status()
                self.counts.note(self._status)
            try:
                event = self._events.get(timeout=max(0.001, due - now))
            except Empty:
                continue
            if event is not None:
                self._do(self._aligner.handle(event))

    def _read_content(self) -> None:
        """Read every stored sample once, for the content sums, in the background."""
        try:
            for batch in self._aligned.pages():
                self._tell(ContentRead(batch))
                if self._stopped.wait(0.02):
                    return
            self._tell(ContentEnded())
        except DurableCacheError as error:
            _log.warning("content is not compared", extra={"reason": str(error)})

    def _declare(self) -> None:
        session, domain = self._session, self._domain
        queryable = declare_queryable(session, own_key(domain, "align", self._cache_id), 256)
        self._declared.append(queryable)
        self._spawn("align-asked", lambda: self._run_asked(queryable))
        roots = own_key(domain, "root", "**")
        self._declared.append(hear(session, roots, self._root_heard))
        token = cache_token(domain, self._cache_id, self._incarnation)
        self._declared.append(declare_token(session, token))
        tokens = own_key(domain, "cache", "**")
        self._declared.append(watch_tokens(session, tokens, self._token_changed))

    def _root_heard(self, key: str, payload: bytes) -> None:
        if key.rpartition("/")[2] == self._cache_id:
            return  # others on this session are heard, and so are we
        self.counts.received(payload)
        self._tell(RootReceived(payload))

    def _token_changed(self, key: str, alive: bool) -> None:
        name = key.removeprefix(own_key(self._domain, "cache", ""))
        cache_id, _, incarnation = name.partition("/")
        if incarnation and cache_id != self._cache_id:
            event = PeerSeen if alive else PeerGone
            self._tell(event(cache_id, incarnation))

    def _run_asked(self, queryable: Queryable) -> None:
        while (query := receive_query(queryable)) is not None:
            self._handle += 1
            self._queries[self._handle] = query
            payload = query_parts(query).payload
            self.counts.received(payload)
            self._tell(RequestReceived(self._handle, payload))
            if len(self._queries) > _QUERIES_MAX:
                with self._queries.popitem(last=False)[1] as oldest:
                    _refuse(oldest, "too many questions wait here; ask later")
            del query

    def _committed(self, batch: SampleBatch) -> None:
        appended = Appended(batch)
        if not self._settling.put(appended):
            self._tell(appended)

    def forgotten(self, streams: Iterable[Stream]) -> None:
        """Streams are stored under another epoch now, and no more under theirs."""
        self._settling.put(Forgotten(tuple(streams)))

    def _relearn(self, source: SourceId) -> None:
        """An epoch was learned late: what counted under the old one counts under the new."""
        for stream, held in self._aligned.renamed(source):
            self._tell(Trimmed(((stream, (held.last or 0) + 1),)))
            canonical = self._ingest.epochs.canonical_stream(stream)
            for run in held:
                found = self._aligned.stored([(canonical, RangeSet([run]))])
                self._tell(Appended(SampleBatch(found)))

    def _do(self, outputs: Iterable[AlignerOutput]) -> None:
        for output in outputs:
            match output:
                case SendRequest():
                    self._questions.put(output)
                case ReadSamples() | RaisePurge() | Offer():
                    self._jobs.put(output)
                case SendReply(handle, payload):
                    self._reply(handle, payload)
                case PublishRoot(view, payload):
                    self._publish(view, payload)
                case ReportConflict():
                    self.counts.conflicts += 1
                    _log.warning("another content at a peer", extra={"peer": output.peer})
                case ReportRefusal(peer, reason):
                    self.counts.refused(peer, reason)
                    _log.warning("a peer is not aligned", extra={"peer": peer, "reason": reason})
                case ComparisonEnded():
                    self.counts.ended(output)
                    if output.samples_refused:
                        _log.warning(
                            "samples of a peer were left out",
                            extra={
                                "peer": output.peer,
                                "samples": output.samples_refused,
                                "reason": output.refusal,
                            },
                        )
                case _:
                    assert_never(output)

    def _publish(self, view: str, payload: bytes) -> None:
        try:
            put_own(self._session, own_key(self._domain, "root", view, self._cache_id), payload)
        except ZError:
            return  # repeated by the aligner
        self.counts.sent(payload)

    def _reply(self, handle: int, payload: bytes) -> None:
        query = self._queries.pop(handle, None)
        if query is None:
            return
        with query:
            try:
                reply_bytes(query, str(query.key_expr), payload)
            except ZError:
                return  # the asker is gone; it asks again
        self.counts.sent(payload)

    def _run_questions(self) -> None:
        while (question := self._questions.get()) is not None:
            self._tell(self._request(question))

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            match job:
                case ReadSamples():
                    self._read(job)
                case Offer(peer, batch, held):
                    self._aligned.offer(batch)
                    self.counts.pulled(peer, len(batch))
                    self._aligned.compare(held)
                case RaisePurge(_, floors):
                    if self._aligned.purge(floors):
                        self._tell(Purged(floors))
                case _:
                    assert_never(job)

    def _request(self, job: SendRequest) -> ReplyReceived | RequestFailed:
        key = own_key(self._domain, "align", job.peer)
        self.counts.sent(job.payload)
        try:
            reply = ask_peer(self._session, key, job.payload, job.timeout_seconds)
        except (Closed, ZError) as error:
            return RequestFailed(job.request_id, str(error)[:200])
        if isinstance(reply, str):
            return RequestFailed(job.request_id, reply)
        self.counts.received(reply)
        return ReplyReceived(job.request_id, reply)

    def _read(self, job: ReadSamples) -> None:
        wanted = self._aligned.stored((stream, ranges(runs)) for stream, runs in job.wanted)
        try:
            self._reply(job.handle, pull_reply(job, in_time(wanted)))
        except DurableCacheError as error:
            query = self._queries.pop(job.handle, None)
            if query is not None:
                with query:
                    _refuse(query, str(error))


def _now() -> Moment:
    return Moment(time.monotonic_ns(), time.time_ns())


def _refuse(query: Query, reason: str) -> None:
    try:
        reply_error(query, reason)
    except ZError:
        return
