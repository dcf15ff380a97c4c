"""A cache on a Zenoh session: it stores what is published, acknowledges it, and answers for it.

Threads of its own: *receive* decodes what Zenoh's channel holds and never waits for a disk, one for
each key expression; *engine* owns the core and commits to the journal; *drain* moves the journal
into the backend. Queries, look-ups, fetches and retention are tasks of a pool, which the caches of
one service share. The first loop to fail stops the others, and its error leaves `close`; a query
that fails costs its asker an error reply and nobody else anything (`docs/concurrency.md`).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from durable_cache.endpoints.ahead import TimestampsAhead
from durable_cache.endpoints.alignment import Aligning
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.behind import beginning_behind
from durable_cache.endpoints.cleanup import Cleanup
from durable_cache.endpoints.closing import Closing
from durable_cache.endpoints.fencing import Fencing
from durable_cache.endpoints.fetching import Fetching, Offer
from durable_cache.endpoints.ingest import Ingest
from durable_cache.endpoints.key_expressions import parse_key_expr
from durable_cache.endpoints.options import CacheOptions, parse_one_source
from durable_cache.endpoints.questions import Questions
from durable_cache.endpoints.replies import (
    AnswerBounds,
    AnsweringPlace,
    Form,
    answer,
    answer_beginning,
    as_meant,
    form_of,
    parse_query,
    places_of,
    without_namespace,
)
from durable_cache.endpoints.resends import TakingResends
from durable_cache.endpoints.session import (
    Decoder,
    IntoKeyExpr,
    KeyExpr,
    Locality,
    Origins,
    Query,
    Session,
    ZenohSubscriber,
    check_session,
    close_at_exit,
    declare_subscriber,
    declare_token,
    hear_queries,
    query_parts,
    read_origins,
    read_text,
    receive,
    run_within,
    undeclare,
    watch_tokens,
    while_open,
    zid_of,
)
from durable_cache.endpoints.status import CacheStatus, status_of
from durable_cache.endpoints.unnumbered import Plain, Unnumbered, parse_unnumbered
from durable_cache.endpoints.workers import PREFIX, Lane, Loops, Pool
from durable_cache.errors import Closed, ConfigError, DurableCacheError
from durable_cache.model.arguments import bounded, check_kind, check_number, read_timeout, refused
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.consumers import (
    dead_letters_in,
    dead_letters_key_expr,
    positions_key_expr,
)
from durable_cache.protocol.losses import LossRow
from durable_cache.protocol.wire import Absence, own_key, parse_publisher_token, tokens_about
from durable_cache.runtime.reading import NamedReading, OneState, newest_of_streams
from durable_cache.storage.contract import Floor, Page, Retention, Storage
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.plugins import open_storage
from durable_cache.storage.shared.wildcards import read_values

_log = logging.getLogger(__name__)
_CLOSING_SECONDS_MAX = 5.0
"""For closing files behind the time of a `close`: a merge of Delta files may have begun."""


class ReliabilityCache(Closing):
    """A running cache (RFC, "The ReliabilityCache"); a context manager. Close it explicitly."""

    def __init__(
        self,
        session: Session,
        key_exprs: Sequence[str],
        storage: Storage,
        options: CacheOptions,
        *,
        exclude: Sequence[str] = (),
        backend: str = "",
        pool: Pool | None = None,
    ) -> None:
        self._session = session
        self.options = options
        self.key_exprs = tuple(map(parse_key_expr, key_exprs))
        self._exclude = tuple(map(parse_key_expr, exclude))
        self._wanted = parse_one_source(options.source)
        self.backend = backend
        self.closing = False
        self._closed = self._retaining = False
        self._error = self._retention_error = ""
        directory = None if options.state_dir is None else options.state_dir / options.name
        try:
            self.store = JournaledStorage(
                storage, directory, level=options.acknowledge, options=options.journal
            )
        except BaseException:
            storage.close()
            raise
        self._pool = pool or Pool(options.name, threads=options.pool_threads)
        self._owns_pool = pool is None
        self._lanes: list[Lane] = []
        try:
            self._compose(session)
        except BaseException:
            self._close_lanes(time.monotonic() + 1)
            if self._owns_pool:
                self._pool.close(1)
            self.store.close()
            raise
        try:
            self._start()
        except BaseException:
            self.close(timeout_seconds=1)
            raise
        close_at_exit(self, session)

    def _compose(self, session: Session) -> None:
        options = self.options
        self.cache_id = self.store.index.cache_id
        self.own_zid = zid_of(session)
        self.decoders = [Decoder(self.own_zid, options.payload_bytes_max) for _ in self.key_exprs]
        """One for each thread that receives: what a decoder remembers is of the sample before."""
        self.ahead = TimestampsAhead("plain reads and `latest` take it for the newest until then")
        self.plain = Plain(options.name, options.unnumbered, self.key_exprs)
        self._reading = self._lane("read", running_max=options.pool_threads, waiting_max=4096)
        self._answering = self._lane(
            "answer",
            running_max=max(1, min(options.queries_max, options.pool_threads - 1)),
            waiting_max=options.queries_waiting_max,
        )
        self._trimming = self._lane("retain", running_max=1, waiting_max=1)
        self.ingest = Ingest(session, self.store, options, self._fetching, self._reading)
        self.consumer_dead_letters = 0
        self.aligning = (
            Aligning(
                session,
                self.store,
                self.ingest,
                options,
                self._lane,
                tuple(map(str, self.key_exprs)),
                tuple(map(str, self._exclude)),
            )
            if options.align
            else None
        )
        self.cleanup = self._cleaning(options.service_cleanup_delay_seconds)
        self._resends: TakingResends | None = None
        self._loops = Loops(options.name, self._stopped_by_error)
        self._declared: list[object] = []
        self._subscribers: list[object] = []
        self._questions: list[Questions] = []

    def _lane(self, name: str, *, running_max: int, waiting_max: int) -> Lane:
        lane = self._pool.lane(
            f"{self.options.name}-{name}", running_max=running_max, waiting_max=waiting_max
        )
        self._lanes.append(lane)
        return lane

    def _fetching(self, offer: Offer) -> Fetching:
        options = self.options
        asking = Asking(
            self._session,
            self.own_zid,
            timeout_seconds=options.fetch_timeout_seconds,
            payload_bytes_max=options.payload_bytes_max,
            asker=self.cache_id,
        )
        return Fetching(asking, self.key_exprs, self._excluded, offer, self._reading)

    def _cleaning(self, delay_seconds: float | None) -> Cleanup | None:
        if delay_seconds is None:
            return None
        lane = self._lane("cleanup", running_max=1, waiting_max=1)
        return Cleanup(self, delay_seconds, lane)

    def _count_dead_letters(self, batch: SampleBatch) -> None:
        self.consumer_dead_letters += dead_letters_in(batch, self.options.domain)

    def _stopped_by_error(self) -> None:
        self._error = str(self._loops.error)
        self.ingest.stop()
        self.store.stop_drain()

    def _start(self) -> None:
        options, session = self.options, self._session
        self.store.index.keep_by(options.retention)
        self._loops.spawn("engine", self.ingest.run)
        if self.store.journal is not None:
            self._loops.spawn("drain", self.store.run_drain)
        if not options.retention.unlimited:
            self._retain_from_now_on()
        if self.cleanup is not None:
            self.ingest.on_committed.append(self.cleanup.committed)
            self.cleanup.start()
        self._serve_consumers()
        for place, key_expr in enumerate(self.key_exprs):
            subscriber = declare_subscriber(
                session, str(key_expr), options.allowed_origin, options.channel_samples
            )
            self._subscribers.append(subscriber)
            self._loops.spawn("receive", partial(self._run_receive, subscriber, place))
            for answering in places_of(str(key_expr), options.source or "*"):
                self._answer_on(answering)
            plain = not options.source if options.answer_plain is None else options.answer_plain
            if plain:
                self._answer_on(AnsweringPlace(str(key_expr), Form.PLAIN))
        if options.allowed_origin is not Origins.SESSION_LOCAL:
            everywhere = own_key(options.domain, "pub", "**")
            named = {tokens_about(options.domain, "pub", key_expr) for key_expr in self.key_exprs}
            for pattern in sorted({everywhere} | named):
                self._declared.append(watch_tokens(session, pattern, self._token_changed))
            for key_expr in self.key_exprs:
                self._declared.append(self.ingest.hear_native(f"{key_expr}/@adv/pub/**"))
            self.ingest.fetching.catch_up()
        if self.aligning is not None:
            self.aligning.start()
        if options.allowed_origin is not Origins.SESSION_LOCAL:
            self._take_resends()
        incarnation = secrets.token_hex(4)
        for key_expr in self.key_exprs:
            token = own_key(options.domain, "history", self.cache_id, incarnation, str(key_expr))
            self._declared.append(declare_token(session, token))

    def _serve_consumers(self) -> None:
        """Look at what consumers write, where that is stored."""
        domain = self.options.domain
        positions, letters = positions_key_expr(domain, "*"), dead_letters_key_expr(domain, "*")
        if any(key_expr.intersects(positions) for key_expr in self.key_exprs):
            self.ingest.fencing = Fencing(self.store, domain, self._reading)
            self.ingest.fencing.start()
        if any(key_expr.intersects(letters) for key_expr in self.key_exprs):
            self.ingest.on_committed.append(self._count_dead_letters)

    def _take_resends(self) -> None:
        lane = self._lane("resend", running_max=1, waiting_max=self.options.resends_waiting_max)
        self._resends = TakingResends(
            self._session,
            self.options.domain,
            self.cache_id,
            self.key_exprs,
            lane,
            self._stores,
            self.ingest.tell,
            self.ingest.refusal,
        )
        self.ingest.on_judged.append(self._resends.answer)
        self._resends.start()

    def _stores(self, sample: Sample) -> bool:
        """Tell whether a sample is this cache's to store."""
        return (
            self._wanted.has_numbering(sample.source, sample.epoch)
            and any(own.concerns(sample.key) for own in self.key_exprs)
            and not self._excluded(sample.key)
        )

    def _answer_on(self, place: AnsweringPlace) -> None:
        owner = f"storage {self.options.name!r}"
        asked = Questions(self._answering, owner, partial(self._answer, place))
        self._questions.append(asked)
        self._declared.append(hear_queries(self._session, place.key_expr, asked.take))

    def _run_receive(self, subscriber: ZenohSubscriber, place: int) -> None:
        options, plain, decoder = self.options, self.plain, self.decoders[place]
        while True:
            taken = receive(subscriber, options.batch_samples_max)
            if not taken:
                return
            keep_plain = plain.wants(place)
            samples = decoder.decode(taken, time.time_ns(), keep_plain=keep_plain)
            if self._exclude:
                samples = [sample for sample in samples if not self._excluded(sample.key)]
            if keep_plain:
                samples = plain.take(samples, place)
            self.ahead.note(samples)
            self.ingest.offer(samples)

    def _excluded(self, key: str) -> bool:
        return any(key_expr.covers(key) for key_expr in self._exclude)

    def _token_changed(self, key: str, alive: bool) -> None:
        token = parse_publisher_token(key, self.options.domain)
        if token is None:
            return
        if any(token.key_expr.intersects(key_expr) for key_expr in self.key_exprs):
            tell = self.ingest.declared if alive else self.ingest.token_gone
            tell(token)

    def _answer(self, place: AnsweringPlace, query: Query) -> None:
        options = self.options
        parts, namespace = as_meant(query_parts(query))
        form = form_of(parts.key_expr, self.store.index.has_zid)
        if not place.answers(form, namespace):
            return  # another queryable of this cache answers it
        asked = parse_query(parts, form, time.time_ns(), namespace)
        if asked.asker == self.cache_id:
            return
        if options.source and asked.selection.zid is None:
            only = parse_one_source(options.source)
            selection = replace(asked.selection, zid=only.zid, eid=only.eid)
            asked = replace(asked, selection=selection)
        bounds = AnswerBounds(
            options.query_samples_max,
            options.query_bytes_max,
            options.query_seconds_max,
            options.packed_bytes_max,
        )
        if asked.behind is not None:
            expression = asked.selection.key_expr
            answer_beginning(query, beginning_behind(self.store, expression, asked.behind))
            return
        state = OneState(self.values if asked.by_value else self.read, self.ingest.epochs)
        read = without_namespace(state.read, namespace)
        answer(query, asked, read, bounds, self.absences, self.store.index.incarnations)

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page of what is stored, the journal included, as `Storage.read` does.

        Samples stored under an epoch that was learned better later carry the better one. Raises
        StorageUnavailable, read again, where that one is not to be told at this moment.
        """
        epochs = self.ingest.epochs
        page = NamedReading(self.store, epochs, self.store.read).read(selection, limit, cursor)
        return newest_of_streams(self.store, epochs, page, self.options.retention.samples_max)

    def absences(self, selection: Selection, given: SampleBatch) -> tuple[Absence, ...]:
        """Return which numbers a question asks for that are known here and not in its answer.

        `given` is the answer, or nothing where it is longer than a page.
        """
        return self.store.absences(selection, self.options.retention.samples_max, given)

    def values(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page of the newest values of keys, wildcard updates applied (ADR 0095)."""
        updates = self.store.concerning(selection)
        if not updates:
            return self.read(selection, limit, cursor)
        return read_values(self.read, updates, selection, limit, cursor)

    def find(self, key_expr: str, limit: int = 1000) -> list[Sample]:
        """Return up to `limit` stored samples of a key expression, oldest first per stream."""
        return list(self.read(Selection(key_expr=KeyExpression(key_expr)), limit).samples)

    def purge(self, floors: Sequence[Floor]) -> int:
        """Remove samples below the floors for good; returns how many. Idempotent."""
        return self.store.purge(floors)

    def keep_by(self, retention: Retention) -> None:
        """Keep by another retention from now on; not for a cache that aligns (ConfigError).

        What a narrower one removed comes back from other caches after the next start, if at all.
        """
        if self.aligning is not None:
            raise ConfigError("the retention of an aligned storage is changed by a restart")
        self.store.index.keep_by(retention, release=False)
        self.options = replace(self.options, retention=retention)
        if not retention.unlimited:
            self._retain_from_now_on()

    def _retain_from_now_on(self) -> None:
        if not self._retaining:
            self._retaining = True
            self._trimming.every(self.options.retention_seconds, self._retain)

    def _retain(self) -> None:
        try:
            floors = self.store.trim(self.options.retention, time.time_ns())
        except DurableCacheError as error:
            self._retention_error = f"retention: {error}"
            _log.warning("retention failed, tried again later", extra={"reason": str(error)})
            return
        self._retention_error = ""
        if self.aligning is not None:
            self.aligning.trimmed(floors)

    @property
    def error(self) -> str:
        """What went wrong last, for people; empty when nothing is wrong now."""
        ingest = self.ingest
        aligning = "" if self.aligning is None else self.aligning.error
        troubles = (
            self._error,
            ingest.error,
            ingest.full,
            ingest.fetching.error,
            self.store.backend_error,
            self._retention_error,
            "" if self.cleanup is None else self.cleanup.error,
            *(lane.last_failure for lane in self._lanes),
        )
        return next(filter(None, troubles), aligning)

    @property
    def queries_ok(self) -> int:
        """Queries answered whole or up to a bound."""
        return sum(asked.answered for asked in self._questions)

    @property
    def queries_failed(self) -> int:
        """Queries that got an error reply, or whose asker went away."""
        return sum(asked.failed for asked in self._questions)

    @property
    def stopped(self) -> bool:
        """Whether the cache has ended, closed or by an error that `close` raises."""
        return self.ingest.stopped.is_set()

    def status(self) -> CacheStatus:
        """Return the figures of this moment; cheap."""
        return status_of(self)

    @property
    def losses(self) -> Sequence[LossRow]:
        """What happened to each source's samples, as `durable-cache loss` shows it; any thread."""
        return self.ingest.counts.losses.rows()

    def wait_drained(self, timeout_seconds: float) -> bool:
        """Wait until the backend has everything that was committed; False when time is over."""
        deadline = time.monotonic() + timeout_seconds
        while self.ingest.waiting or self.store.backlog.samples:
            if time.monotonic() > deadline:
                return False
            self.store.backlog.flush_soon()
            time.sleep(0.01)
        return True

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Undeclare, commit and acknowledge what was received, drain, close; idempotent.

        What is not drained within the time stays in the journal for the next start. Raises the
        error of the loop that failed, once everything is closed; says in the log which loops did
        not end in time. A backend that does not come back is left behind five seconds later.
        """
        timeout_seconds = read_timeout(timeout_seconds)
        if self._closed:
            return
        self._closed = True
        self._loops.ending()
        deadline = time.monotonic() + timeout_seconds
        if self.aligning is not None:
            self.aligning.close()
        if self._resends is not None:
            self._resends.close()
        undeclare(*self._subscribers, *self._declared)
        self.ingest.finish(max(0.1, deadline - time.monotonic()))
        self.closing = True
        left = self._close_lanes(deadline)
        for asked in self._questions:
            asked.refuse_all("the cache is closing")
        self.store.stop_drain()
        left += self._loops.join(max(0.1, deadline - time.monotonic()))
        if self._owns_pool:
            left += self._pool.close(max(0.1, deadline - time.monotonic()))
        name = f"{PREFIX}close-{self.options.name}-storage"
        try:
            seconds = max(0.0, deadline - time.monotonic()) + _CLOSING_SECONDS_MAX
            if not run_within(partial(self._close_store, deadline - 0.5), name, seconds):
                left.append(name)
        finally:
            self.ingest.close()
        if self._loops.error is not None:
            raise self._loops.error
        if left:
            about = {"storage": self.options.name, "loops": ", ".join(left)}
            _log.error("not ended in time, left behind", extra=about)

    def _close_lanes(self, deadline: float) -> list[str]:
        ends = [(lane, lane.close(max(0.1, deadline - time.monotonic()))) for lane in self._lanes]
        return [lane.name for lane, is_ended in ends if not is_ended]

    def _close_store(self, drain_until: float) -> None:
        try:
            self.store.drain_all(max(0.0, drain_until - time.monotonic()))
        finally:
            self.store.close()


def declare_reliability_cache(  # noqa: PLR0913  # one call, as zenoh.ext has it
    session: Session,
    key_expr: IntoKeyExpr | Sequence[IntoKeyExpr],
    *,
    exclude: Sequence[IntoKeyExpr] = (),
    backend: str | Storage = "memory",
    backend_options: Mapping[str, object] | None = None,
    history: int | None = None,
    allowed_origin: Origins | Locality | None = None,
    resources_limit: int | None = None,
    source: str | None = None,
    unnumbered: Unnumbered | Literal["store", "warn", "ignore"] | None = None,
    state_dir: Path | str | None = None,
    options: CacheOptions | None = None,
    pool: Pool | None = None,
) -> ReliabilityCache:
    """Declare a cache that stores what is published on `key_expr` (RFC, "The ReliabilityCache").

    `history` is the queue length per key and source, None keeps all; `backend` a backend's name or
    an open storage, which the cache then owns. `source` (`<zid>[:<eid>]`) makes it the cache of one
    publisher, which answers under that prefix instead of `*`. `unnumbered` says what becomes of
    samples without SourceInfo, which are ignored by default. `state_dir` gives it a journal:
    without one, samples are acknowledged when the backend itself has them. The named arguments win
    over `options`.
    `pool` gives it threads that it shares with other caches; None gives it its own.
    Raises ConfigError, BackendNotFound, BackendNotInstalled, StorageLocked and other StorageErrors;
    Closed where the session is closed.
    """
    if options is not None:
        check_kind("options", options, CacheOptions, "a durable_cache.CacheOptions")
    if pool is not None:
        check_kind("pool", pool, Pool, "a Pool")
    chosen = options or CacheOptions()
    if history is not None:
        check_number("history", history, 1, whole=True)
        chosen = replace(chosen, retention=replace(chosen.retention, samples_max=history))
    if allowed_origin is not None:
        chosen = replace(chosen, allowed_origin=read_origins(allowed_origin, "allowed_origin"))
    if resources_limit is not None:
        chosen = replace(chosen, resources_limit=resources_limit)
    if source is not None:
        chosen = replace(chosen, source=source)
    if unnumbered is not None:
        chosen = replace(chosen, unnumbered=parse_unnumbered(unnumbered))
    if state_dir is not None:
        if not isinstance(state_dir, (str, Path)):
            raise refused("state_dir", state_dir, "a str or a Path")
        chosen = replace(chosen, state_dir=Path(state_dir))
    try:
        check_session(session)
        chosen.check()
        chosen = bounded(chosen)
        key_exprs = _texts("key_expr", [key_expr] if _is_one(key_expr) else key_expr)
        excluded = _texts("exclude", exclude)
    except (Closed, ConfigError):
        if isinstance(backend, Storage):
            backend.close()
        raise
    named, storage = _open(backend, chosen.name, backend_options)
    with while_open(session):
        return ReliabilityCache(
            session, key_exprs, storage, chosen, exclude=excluded, backend=named, pool=pool
        )


def _is_one(key_expr: object) -> bool:
    return isinstance(key_expr, (str, KeyExpr))


def _texts(name: str, given: object) -> list[str]:
    """Return key expressions as text, each of which is one."""
    if isinstance(given, (bytes, bytearray, memoryview)) or not isinstance(given, Sequence):
        raise refused(name, given, "a key expression, as a str or a zenoh.KeyExpr, or a list of")
    texts = [read_text(one, name) for one in given]
    for text in texts:
        parse_key_expr(text)
    return texts


def _open(backend: object, name: str, backend_options: object) -> tuple[str, Storage]:
    """Return what the backend is called, and its open storage."""
    if backend_options is not None and not isinstance(backend_options, Mapping):
        raise refused("backend_options", backend_options, "a mapping")
    if isinstance(backend, Storage):
        return type(backend).__name__, backend
    named = check_kind("backend", backend, str, "a backend's name or an open Storage")
    return named, open_storage(named, name, backend_options)
