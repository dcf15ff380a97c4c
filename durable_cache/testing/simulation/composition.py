"""One process of a cache: the real core and storage, with a shell that waits in virtual time.

As `endpoints.ingest` carries out a core's effects with threads, this does without: what is urgent
is done at once, the rest a little later, and every answer comes back as an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, assert_never

from durable_cache.errors import DurableCacheError, StorageError
from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.selection import Cursor, Selection
from durable_cache.model.sequence import frame
from durable_cache.protocol.cache.events import (
    Append,
    Appended,
    AppendFailed,
    BatchRefused,
    EpochDeclared,
    Fetch,
    FetchEnded,
    HeartbeatReceived,
    Origin,
    ReportAbsent,
    ReportConflict,
    ReportMiss,
    SendAck,
    Tick,
    TokenGone,
    Verified,
    Verify,
    VerifyFailed,
)
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.answering import answer, look_up
from durable_cache.runtime.core import CacheCore, CoreOptions
from durable_cache.runtime.effects import (
    Announce,
    Answered,
    AnswerResend,
    Arrived,
    Ask,
    AskFailed,
    CoreEvent,
    Effect,
    Inquire,
    Inquired,
    ReportEpochs,
    Started,
)
from durable_cache.runtime.reading import NamedReading, newest_of_streams
from durable_cache.storage.contract import Floor, Page, Retention
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.testing.simulation.aligning import SimAligning
from durable_cache.testing.simulation.media import SimBackend, SimIndex, SimJournal
from durable_cache.testing.simulation.publishers import Heartbeat, Listener, PublisherToken
from durable_cache.testing.simulation.truth import Publication

if TYPE_CHECKING:
    from durable_cache.testing.simulation.caches import SimCache

RemovedT = TypeVar("RemovedT")
_OCCURS = {
    AnswerResend: "resend answered",
    ReportConflict: "conflict",
    ReportAbsent: "held but not found",
}
_FRESH_FRAMES = 3
"""As the shell of the real thing has it."""
_HAND_SECONDS = 0.01
"""How long the pool takes for what is not urgent, at most; slow media add to it."""
_STREAMS_MAX = 1000
"""A simulated source has far fewer streams."""


class Composition:
    """Core and journaled storage of one process; gone with it."""

    def __init__(self, cache: SimCache) -> None:
        self._cache = cache
        plan = cache.plan
        self.index = SimIndex(cache.index, cache.world.random)
        self.journal = SimJournal(cache.journal, entries_max=plan.journal_entries_max)
        self.store = _store(cache, self.journal, self.index)
        self.cache_id = self.index.cache_id
        limited = plan.resources_limit is not None
        self.core = CacheCore(
            CoreOptions(plan.engine, plan.resources_limit),
            aliases=self.index.aliases(),
            agreements=self.index.agreements(),
            screen=lambda batch, _: self.store.admit(batch),
            streams=[info.stream for info in self.index.all_infos()] if limited else (),
        )
        self.before_commit: list[Callable[[SampleBatch], None]] = []
        """Called with what is about to be stored; raises StorageError as a commit does."""
        self.aligning = SimAligning(cache, self) if plan.align else None
        self.store.on_purged.append(self._purged)
        self.merging = None if cache.merges is None else cache.merges(self)
        self._began_ns = cache.unix_ns
        self._purging = False
        """Whether the backend may still hold something that was purged."""
        self._todo: deque[Effect] = deque()
        self._committing = False
        self._given_refused = 0
        self.index.keep_by(plan.retention)

    @property
    def now(self) -> Moment:
        return self._cache.world.moment(self._cache.skew_ns)

    def begin(self) -> None:
        """Go on recovering what was awaited when the last process ended."""
        sources = self.index.sources_with_holes(self._cache.plan.engine.sources_max)
        self.handle(Started(tuple(sources), self.now))

    def tick(self) -> None:
        """Let time pass."""
        self.handle(Tick(self.now))

    def received(
        self, samples: Sequence[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        """Hand in samples; what others gave finds no room beyond the bound."""
        room = max(0, self._cache.plan.given_samples_max - self.core.given_waiting)
        if origin is not Origin.LIVE and len(samples) > room:
            self._cache.failed("room for what others gave")
            self._given_refused += len(samples) - room
            samples = samples[:room]
        if samples:
            self.handle(Arrived(SampleBatch(samples), origin, self.now, names))

    def refused(self, samples: Sequence[Sample]) -> None:
        """Say that live samples found no room."""
        runs: dict[SourceId, RangeSet] = {}
        for sample in samples:
            runs.setdefault(sample.source, RangeSet()).add(sample.sn, sample.sn)
        ranges = tuple((source, run) for source, held in runs.items() for run in held)
        self.handle(BatchRefused(ranges, self.now))

    def declared(self, token: PublisherToken) -> None:
        """Say that a publisher's token came into sight."""
        now = self.now
        since_ns = max(self._began_ns, now.unix_ns - (_FRESH_FRAMES << 33))
        fresh = token.epoch >= frame(since_ns)
        self.handle(EpochDeclared(token.source, token.epoch, fresh, now, token.incarnation))

    def gone(self, token: PublisherToken) -> None:
        """Say that a publisher's token is out of sight."""
        key_expr = token.key_expr.text
        self.handle(TokenGone(token.source, token.incarnation, self.now, key_expr))

    def beaten(self, beat: Heartbeat) -> None:
        """Say what a foreign publisher's last number is."""
        self.handle(HeartbeatReceived(beat.source, beat.sn, self.now))

    def handle(self, event: CoreEvent) -> None:
        """Carry effects out in order; what an answer leads to comes before what follows it.

        Where commits take their time, effects wait behind one, and the core hears of more.
        """
        self._todo.extend(self.core.handle(event))
        self._carry_out()

    def _carry_out(self) -> None:
        while self._todo and not self._committing:
            effect = self._todo.popleft()
            if isinstance(effect, Append) and self._cache.plan.commit_seconds:
                self._commit_later(effect)
                break
            answered = self._do(effect)
            if answered is not None:
                self._todo.extendleft(reversed(self.core.handle(answered)))
        self._cache.check_bounds()

    def _commit_later(self, append: Append) -> None:
        cache = self._cache
        cache.world.occur("commit takes its time")
        self._committing = True

        def commit() -> None:
            self._committing = False
            self._todo.extendleft(reversed(self.core.handle(self._commit(append))))
            self._carry_out()

        pause = cache.world.random.random() * cache.plan.commit_seconds
        cache.later(pause, lambda: cache.tell(commit))

    def _inquired(self, inquiry_id: int, refused_before: int, failed: bool) -> None:
        whole = self._given_refused == refused_before
        self.handle(Inquired(inquiry_id, self.now, failed, whole))

    def _do(self, effect: Effect) -> CoreEvent | None:
        cache = self._cache
        match effect:
            case Append():
                return self._commit(effect)
            case SendAck():
                cache.acknowledge(effect, self.cache_id)
            case Ask():
                if effect.urgent:
                    return self._answer(effect)
                self._by_hand(lambda: self._answer(effect))
            case Verify():
                cache.world.occur("look-up")
                self._by_hand(lambda: self._verify(effect))
            case Fetch(fetch_id, source, _, first, last, native_first):
                cache.fetch(
                    source,
                    first,
                    last,
                    lambda failed: self.handle(FetchEnded(fetch_id, self.now, failed)),
                    native_first,
                )
            case Inquire(inquiry_id, source, first, last):
                cache.world.occur("cache asks for other names")
                ended = partial(self._inquired, inquiry_id, self._given_refused)
                cache.fetch(source, first, last, ended)
            case Announce():
                self._announce(effect)
            case ReportMiss():
                for report in cache.on_miss:
                    report(effect)
            case AnswerResend() | ReportConflict() | ReportAbsent():
                cache.world.occur(_OCCURS[type(effect)])
            case ReportEpochs():
                self._judged(effect)
            case _:
                assert_never(effect)
        return None

    def _announce(self, told: Announce) -> None:
        cache, key_expr = self._cache, KeyExpression(told.key_expr)
        cache.world.occur("cache tells of a last number")
        for node in list(cache.network.nodes.values()):
            if isinstance(node, Listener) and node.key_expr.intersects(key_expr):
                hear = partial(node.told, told.source, told.epoch, told.sn)
                cache.network.tell(cache.name, node.name, hear)

    def _judged(self, report: ReportEpochs) -> None:
        self._cache.world.occur("epochs agreed" if report.are_one else "epochs differ")
        if report.are_one and self.aligning is not None:
            self.aligning.learned(report.alias.source)

    def _by_hand(self, work: Callable[[], CoreEvent]) -> None:
        """Do something a little later, as the pool does."""
        cache = self._cache
        pause = cache.world.random.random() * _HAND_SECONDS + cache.backend.seconds
        cache.later(pause, lambda: cache.tell(lambda: self.handle(work())))

    def _answer(self, ask: Ask) -> Answered | AskFailed:
        try:
            answered = answer(self.store, ask.question, forgotten=self._forgotten)
        except DurableCacheError:
            self._cache.failed("question")
            return AskFailed(ask.ask_id, self.now)
        return Answered(ask.ask_id, answered, self.now)

    def _forgotten(self, streams: Sequence[Stream]) -> None:
        if self.aligning is not None:
            self.aligning.forgotten(streams)

    def _purged(self, floors: Sequence[Floor]) -> None:
        self._cache.removes(floors)  # perhaps under the name that stands since
        if self.aligning is not None:
            self.aligning.trimmed(floors, purged=True)

    def _verify(self, verify: Verify) -> Verified | VerifyFailed:
        try:
            found = look_up(self.store, verify.samples)
        except DurableCacheError:
            self._cache.failed("look-up")
            return VerifyFailed(verify.verify_id, self.now)
        return Verified(verify.verify_id, found, self.now)

    def _commit(self, append: Append) -> Appended | AppendFailed:
        try:
            for hear in self.before_commit:
                hear(append.batch)
            stored = self.store.commit(append.batch, append.skips)
        except StorageError:
            self._cache.failed("commit")
            return AppendFailed(self.now)
        self._cache.committed(append.batch.samples)
        if stored is not append.batch:  # an operator purged some of it on its way
            self._cache.lost(set(self._cache.held_ns))
        self._cache.drain_soon()
        if self.aligning is not None:
            self.aligning.committed(stored)
        return Appended(self.now)

    def drain(self) -> bool:
        """Move what waits into the backend; tells whether it took everything."""
        before = set(self._cache.held_ns)
        try:
            while self.store.drain() or self.store.backlog.head(1):
                pass  # what moved may have been skips alone
        except DurableCacheError:
            self._cache.world.occur("drain failed")
            return False
        if self._purging:  # a purge that could not be carried out whole is, with it
            self._purging = False
            self._cache.lost(before)
        return True

    def trim(self, retention: Retention) -> bool:
        """Apply retention; tells whether that removed anything."""
        floors = self._remove(lambda: self.store.trim(retention, self.now.unix_ns))
        self._cache.removes(floors or ())
        if floors and self.aligning is not None:
            self.aligning.trimmed(floors)
        return bool(floors)

    def went_by_retention(self, gone: Iterable[Publication]) -> set[Publication]:
        """Return what the index says that retention removed, before it failed at the next step."""
        infos = {one: self.index.infos_of_source(one.sample.source, _STREAMS_MAX) for one in gone}
        return {
            one
            for one, of_source in infos.items()
            for info in of_source or ()
            if info.stream.key == one.sample.key and one.sample.sn < info.floor
        }

    def purge(self, floors: Sequence[Floor]) -> bool:
        """Remove what is below the floors for good; tells whether that was said to be done."""
        done = self._remove(lambda: self.store.purge(floors)) is not None
        self._purging = not done
        return done

    def _remove(self, remove: Callable[[], RemovedT]) -> RemovedT | None:
        """Remove something; None where that failed."""
        before = set(self._cache.held_ns)
        try:
            return remove()
        except StorageError:
            return None
        finally:
            self._cache.lost(before)
            self._cache.drain_soon()

    def read(self, selection: Selection, limit: int, cursor: Cursor | None) -> Page:
        """Read as an answer to a query does."""
        epochs = self.core.epochs
        page = NamedReading(self.store, epochs, self.store.read).read(selection, limit, cursor)
        samples_max = self._cache.plan.retention.samples_max
        return newest_of_streams(self.store, epochs, page, samples_max)

    def save(self) -> None:
        """Leave the index to the next process, as its file does."""
        self.index.save()


def _store(cache: SimCache, journal: SimJournal, index: SimIndex) -> JournaledStorage:
    """Assemble a journaled storage on simulated media."""
    plan = cache.plan
    return JournaledStorage(
        SimBackend(cache.backend),
        None,
        level=plan.level,
        options=plan.journal,
        journal=journal,
        index=index,
        clock=lambda: cache.world.now_ns / 1e9,
    )
