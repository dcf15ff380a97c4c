"""A cache on a Zenoh session: it stores what is published, acknowledges it, and answers for it.

Threads, all owned by the cache: *receive* decodes what Zenoh's channel holds and never waits for a
disk; *engine* runs the pure engine and commits to the journal; *drain* moves the journal into the
backend; *fetch* asks others for what is missing; *query* answers; *retain* applies retention. The
first to fail stops the others, and its error leaves `close`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import Self

from durable_cache.endpoints.aligning import Aligning
from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.ingest import Ingest
from durable_cache.endpoints.options import CacheOptions, parse_key_expr
from durable_cache.endpoints.replies import (
    AnswerBounds,
    Form,
    Refused,
    answer,
    form_of,
    parse_query,
)
from durable_cache.endpoints.session import (
    Decoder,
    Origins,
    Query,
    Queryable,
    Session,
    ZenohSubscriber,
    ZError,
    close_at_exit,
    declare_queryable,
    declare_subscriber,
    query_parts,
    receive,
    receive_query,
    reply_error,
    start_thread,
    undeclare,
    watch_tokens,
    zid_of,
)
from durable_cache.endpoints.status import CacheStatus, status_of
from durable_cache.errors import ConfigError, DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.wire import Absence, own_key, parse_publisher_token
from durable_cache.storage.contract import Floor, Page, Storage
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.plugins import open_storage
from durable_cache.storage.shared.wildcards import read_values

_QUERIES_WAITING_MAX = 256

__all__ = ["CacheStatus", "ReliabilityCache", "declare_reliability_cache"]


class ReliabilityCache:
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
    ) -> None:
        self._session = session
        self.options = options
        self.key_exprs = tuple(map(parse_key_expr, key_exprs))
        self._exclude = tuple(map(parse_key_expr, exclude))
        self.backend = backend
        self.closing = self._ending = False
        self.queries_ok = self.queries_failed = 0
        self._error = ""
        directory = None if options.state_dir is None else options.state_dir / options.name
        try:
            self.store = JournaledStorage(
                storage, directory, level=options.acknowledge, options=options.journal
            )
        except BaseException:
            storage.close()
            raise
        self.cache_id = self.store.index.cache_id
        own_zid = zid_of(session)
        self.decoder = Decoder(own_zid, options.payload_bytes_max)
        asking = Asking(
            session,
            own_zid,
            timeout_seconds=options.fetch_timeout_seconds,
            asker=self.cache_id,
        )
        self.ingest = Ingest(session, self.store, options, self.key_exprs, asking, self._excluded)
        self.aligning = (
            Aligning(
                session,
                self.store,
                self.ingest,
                options,
                tuple(map(str, self.key_exprs)),
                tuple(map(str, self._exclude)),
            )
            if options.align
            else None
        )
        self._threads: list[Thread] = []
        self._declared: list[object] = []
        self._queryables: list[Queryable] = []
        self._asked: Queue[tuple[Query, Form] | None] = Queue(_QUERIES_WAITING_MAX)
        try:
            self._start()
        except BaseException:
            self.close(timeout_seconds=1)
            raise
        close_at_exit(self, session)

    def _start(self) -> None:
        options, session = self.options, self._session
        self.store.index.keep_by(options.retention)
        self._spawn("engine", self.ingest.run)
        if self.store.journal is not None:
            self._spawn("drain", self.store.run_drain)
        if not options.retention.unlimited:
            self._spawn("retain", self._run_retention)
        for at in range(options.fetch_threads):
            self._spawn(f"fetch-{at}", self.ingest.fetching.run)
        self._spawn("refile", self.ingest.refiling.run)
        for at in range(options.queries_max):
            self._spawn(f"query-{at}", self._run_queries)
        for key_expr in self.key_exprs:
            subscriber = declare_subscriber(
                session, str(key_expr), options.allowed_origin, options.channel_samples
            )
            self._declared.append(subscriber)
            self._spawn("receive", partial(self._run_receive, subscriber))
            self._answer_on(f"*/{key_expr}", Form.SOURCED)
            if options.answer_plain:
                self._answer_on(str(key_expr), Form.PLAIN)
        if options.allowed_origin is not Origins.SESSION_LOCAL:
            pattern = own_key(options.domain, "pub", "**")
            self._declared.append(watch_tokens(session, pattern, self._token_changed))
            for key_expr in self.key_exprs:
                self._declared.append(self.ingest.hear_native(f"{key_expr}/@adv/pub/**"))
            self.ingest.fetching.catch_up()
        if self.aligning is not None:
            self.aligning.start()

    def _answer_on(self, key_expr: str, form: Form) -> None:
        queryable = declare_queryable(self._session, key_expr, 1024)
        self._queryables.append(queryable)
        self._spawn("asked", partial(self._run_asked, queryable, form))

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception as error:
                if not self._ending:
                    self._error = f"{name}: {error}"
                    self.ingest.stop()
                    if not isinstance(error, DurableCacheError):
                        raise

        self._threads.append(start_thread(guarded, f"{self.options.name}-{name}"))

    def _run_receive(self, subscriber: ZenohSubscriber) -> None:
        options = self.options
        while True:
            taken = receive(subscriber, options.batch_samples_max)
            if not taken:
                return
            samples = self.decoder.decode(taken, time.time_ns())
            if self._exclude:
                samples = [sample for sample in samples if not self._excluded(sample.key)]
            self.ingest.offer(samples)

    def _excluded(self, key: str) -> bool:
        return any(key_expr.covers(key) for key_expr in self._exclude)

    def _token_changed(self, key: str, alive: bool) -> None:
        token = parse_publisher_token(key, self.options.domain)
        if not alive or token is None:
            return
        if any(token.key_expr.intersects(key_expr) for key_expr in self.key_exprs):
            self.ingest.declared(token.source, token.epoch)

    def _run_asked(self, queryable: Queryable, form: Form) -> None:
        while (query := receive_query(queryable)) is not None:
            self._asked.put((query, form))

    def _run_queries(self) -> None:
        while (asked := self._asked.get()) is not None:
            query, form = asked
            del asked
            with query:
                try:
                    self._answer(query, form)
                except Refused as error:
                    self.queries_failed += 1
                    _reply_error(query, str(error))
                except DurableCacheError as error:
                    self.queries_failed += 1
                    _reply_error(query, f"storage {self.options.name!r}: {error}")
                except ZError:
                    self.queries_failed += 1
            del query

    def _answer(self, query: Query, form: Form) -> None:
        options = self.options
        parts = query_parts(query)
        if form_of(parts.key_expr, self.store.index.has_zid) is not form:
            return  # the other queryable of this cache answers it
        asked = parse_query(parts, form, time.time_ns())
        if asked.asker == self.cache_id:
            return
        bounds = AnswerBounds(
            options.query_samples_max,
            options.query_bytes_max,
            options.query_seconds_max,
            options.packed_bytes_max,
        )
        read = self.values if asked.by_value else self.read
        answer(query, asked, read, bounds, self.absences)
        self.queries_ok += 1

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page of what is stored, the journal included, as `Storage.read` does.

        Samples stored under an epoch that was learned better later carry the better one.
        """
        page = self.store.read(selection, limit, cursor)
        samples_max = self.options.retention.samples_max
        if samples_max is not None:
            floors = self.store.history_floor([*page.samples.by_stream], samples_max)
            kept = [s for s in page.samples if s.sn >= floors[s.stream]]
            page = Page(SampleBatch(kept), page.cursor)
        return self.ingest.epochs.canonical(page)

    def absences(self, selection: Selection) -> tuple[Absence, ...]:
        """Return which numbers a question asks for that are known here and not in its answer."""
        return self.store.absences(selection, self.options.retention.samples_max)

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
        removed = self.store.purge(floors)
        if self.aligning is not None:
            self.aligning.trimmed(floors, purged=True)
        return removed

    def _run_retention(self) -> None:
        while not self.ingest.stopped.wait(self.options.retention_seconds):
            try:
                floors = self.store.trim(self.options.retention, time.time_ns())
                if self.aligning is not None:
                    self.aligning.trimmed(floors)
            except DurableCacheError as error:
                self._error = f"retention: {error}"

    @property
    def error(self) -> str:
        """What went wrong last, for people; empty when nothing is wrong now."""
        ingest = self.ingest
        aligning = "" if self.aligning is None else self.aligning.error
        troubles = (self._error, ingest.error, ingest.fetching.error, self.store.backend_error)
        return next(filter(None, troubles), aligning)

    def status(self) -> CacheStatus:
        """Return the figures of this moment; cheap."""
        return status_of(self)

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
        error of a thread that failed, once everything is closed.
        """
        if self.closing:
            return
        self._ending = True
        deadline = time.monotonic() + timeout_seconds
        if self.aligning is not None:
            self.aligning.close()
        for declared in (*self._declared, *self._queryables):
            undeclare(declared)
        receivers = [thread for thread in self._threads if thread.name.endswith("receive")]
        _join(receivers, deadline)
        self.ingest.finish(max(0.1, deadline - time.monotonic()))
        self.closing = True
        for _ in range(self.options.queries_max):
            self._asked.put(None)
        self.store.stop_drain()
        _join(self._threads, deadline)
        try:
            self.store.drain_all(max(0.0, deadline - time.monotonic() - 0.5))
        finally:
            self.store.close()
            self.ingest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _join(threads: Sequence[Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _reply_error(query: Query, reason: str) -> None:
    try:
        reply_error(query, reason)
    except ZError:
        return  # the asker is gone


def declare_reliability_cache(  # noqa: PLR0913  # one call, as zenoh.ext has it
    session: Session,
    key_expr: str | Sequence[str],
    *,
    exclude: Sequence[str] = (),
    backend: str | Storage = "memory",
    backend_options: Mapping[str, object] | None = None,
    history: int | None = None,
    allowed_origin: Origins | None = None,
    resources_limit: int | None = None,
    state_dir: Path | str | None = None,
    options: CacheOptions | None = None,
) -> ReliabilityCache:
    """Declare a cache that stores what is published on `key_expr` (RFC, "The ReliabilityCache").

    `history` is the queue length per key and source, None keeps all; `backend` a backend's name or
    an open storage, which the cache then owns. `state_dir` gives it a journal: without one, samples
    are acknowledged when the backend itself has them. The named arguments win over `options`.
    Raises ConfigError, BackendNotFound, BackendNotInstalled, StorageLocked and other StorageErrors.
    """
    chosen = options or CacheOptions()
    if history is not None:
        chosen = replace(chosen, retention=replace(chosen.retention, samples_max=history))
    if allowed_origin is not None:
        chosen = replace(chosen, allowed_origin=allowed_origin)
    if resources_limit is not None:
        chosen = replace(chosen, resources_limit=resources_limit)
    if state_dir is not None:
        chosen = replace(chosen, state_dir=Path(state_dir))
    if isinstance(backend, str):
        named, storage = backend, open_storage(backend, chosen.name, backend_options)
    else:
        named, storage = type(backend).__name__, backend
    key_exprs = [key_expr] if isinstance(key_expr, str) else list(key_expr)
    try:
        for text in (*key_exprs, *exclude):
            parse_key_expr(text)
    except ConfigError:
        storage.close()
        raise
    return ReliabilityCache(session, key_exprs, storage, chosen, exclude=exclude, backend=named)
