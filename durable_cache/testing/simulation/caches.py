"""A cache on the simulated network: the real composition, with everything around it played.

What a cache decides is in `composition.Composition`; here are its process, its media, its queue,
and the network's side of its questions and answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import msgspec

from durable_cache.endpoints.alignment.corrected import Corrected
from durable_cache.endpoints.behind import beginning_behind
from durable_cache.errors import DurableCacheError, StorageError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.alignment import SplitBrainToken
from durable_cache.protocol.cache.events import Origin, ReportMiss, SendAck
from durable_cache.protocol.standings import Standings, encode_beginning
from durable_cache.protocol.wire import Ack, Incarnation, encode_packed
from durable_cache.runtime.given import GivenInTurn
from durable_cache.runtime.reading import OneState
from durable_cache.storage.contract import Floor
from durable_cache.testing.simulation.aligning import CacheToken
from durable_cache.testing.simulation.cache_plan import CachePlan
from durable_cache.testing.simulation.composition import Composition
from durable_cache.testing.simulation.media import BackendState, IndexMedium, JournalState, Medium
from durable_cache.testing.simulation.merging import SimMerging
from durable_cache.testing.simulation.network import Network, Node, Outcome, Token
from durable_cache.testing.simulation.publishers import (
    ForeignPublisher,
    Heartbeat,
    Listener,
    OwnPublisher,
    PublisherToken,
    SimPublisher,
)
from durable_cache.testing.simulation.purged import PurgedRuns, note_name
from durable_cache.testing.simulation.questions import Answered, Answering, Heard, Question
from durable_cache.testing.simulation.truth import Numbering, Publication, Truth
from durable_cache.testing.simulation.untold import Heard as HeardRuns
from durable_cache.testing.simulation.world import START_NS, World

__all__ = ["HISTORY", "CachePlan", "SimCache"]

HISTORY = "history"
"""What the token says of a cache that answers."""
_PAGE_SAMPLES = 256
_WAKE_SECONDS_MIN = 0.02
_DRAIN_SECONDS = 0.2

_Queued = Sample | list[Sample] | tuple[PublisherToken, bool] | Heartbeat
"""A list is of what found no room there."""


class SimCache(Listener):
    """One cache; what it holds outlives its processes."""

    def __init__(self, world: World, network: Network, truth: Truth, plan: CachePlan) -> None:
        super().__init__(world, network, plan.name)
        self.truth, self.plan, self.key_expr = truth, plan, plan.key_expr
        self.journal = Medium(world, f"{plan.name} journal", JournalState(), JournalState.copy)
        self.index = IndexMedium(world, f"{plan.name} index")
        self.backend = Medium(world, f"{plan.name} backend", BackendState(), BackendState.copy)
        self.process: Composition | None = None
        self.held_ns: dict[Publication, int] = {}
        """Since when each publication is durable here and can be read, as the truth has it."""
        self.named: dict[tuple[SourceId, int], Numbering] = {}
        """Which numbering it calls by an epoch, as what it stores shows."""
        self.purged_runs = PurgedRuns(self.named)
        self.removed: set[Publication] = set()
        """What retention or a purge took away."""
        self.floors: list[tuple[Numbering, str, int]] = []
        """Of a run's key, below which number it did."""
        self._unknown_floors: list[Floor] = []  # of runs that nothing here shows yet
        self.gone: set[Publication] = set()
        """What went with a medium that lied, was lost or came back older, or as it rotted."""
        self.unread: set[Publication] = set()  # what rotted, or newer ones hid for a while
        self._below: set[Publication] = set()  # on a medium, and below a purge
        self._losses = 0
        self.purged: list[Floor] = []
        """What an operator was told is gone for good."""
        self.told_purges: list[Floor] = []
        """What other caches purged; without an epoch it is of the run that they call so."""
        self._named_runs: set[str] = set()
        """The incarnations whose tokens it saw."""
        self.cache_ids: set[str] = set()
        """What it has called itself; another one where its own name was lost."""
        self.on_miss: list[Callable[[ReportMiss], None]] = []
        self.on_ack: list[Callable[[SendAck], None]] = []
        self.on_answer: list[Callable[[Question, list[Sample]], None]] = []
        self.merges: Callable[[Composition], SimMerging] | None = None
        """Makes the merge policy of each process; None where both sides merge."""
        self.on_healing: list[Callable[[], None]] = []
        self.on_corrected: list[Callable[[Corrected], None]] = []
        self.reads_troubled_ns = self.troubled_ns = -1
        """When a read of the backend last failed, and anything of this cache's own."""
        self._queue: deque[_Queued] = deque()
        self._events: deque[Callable[[], None]] = deque()
        self._given: GivenInTurn[Callable[[], None]] = GivenInTurn()
        self._stepping = self._draining = False
        self._wake_ns: int | None = None
        self._heard = HeardRuns()

    @property
    def media(self) -> tuple[Medium[JournalState], Medium[bytes], Medium[BackendState]]:
        return self.journal, self.index, self.backend

    def start(self) -> None:
        """Begin a process on what the media hold; one that cannot is tried again."""
        if self.running:
            return
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        self.guard(self._open)
        if self.process is None and self.running:
            self.died("could not open")

    def _open(self) -> None:
        try:
            process = Composition(self)
        except StorageError as error:
            self.world.occur("start failed")
            if self.world.tracing:
                self.world.say(f"{self.name} cannot start: {error}")
            self.world.at(2.0, self.start)
            return
        self.process = process
        self.cache_ids.add(process.cache_id)
        self.removed |= process.went_by_retention(self._survey())
        self._heard = HeardRuns()
        for publication in (*self.removed, *self.held_ns):
            self._heard.add(publication)
        if self.world.tracing:
            self.world.say(f"{self.name} starts with {len(self.held_ns)} samples")
        self.network.show_all(self.name)
        self.network.declare(Token(self.name, HISTORY))
        process.begin()
        if process.merging is not None:
            process.merging.start()
        if process.aligning is not None:
            process.aligning.start()
        self._schedule_wake()
        self.drain_soon()
        if not self.plan.retention.unlimited:
            self.later(self.plan.retention_seconds, self._retain)

    def died(self, how: str) -> None:
        """End the process; media keep what they keep."""
        if not self.running:
            return
        if self.world.tracing:
            self.world.say(f"{self.name} ended: {how}")
        self.running, self.since_ns = False, self.world.now_ns
        self.life += 1
        if self.process is not None:
            self.process.save()
        self.process = None
        self._queue.clear()
        self._events.clear()
        self._given.clear()
        self._stepping = self._draining = False
        self._wake_ns = None
        for medium in self.media:
            medium.crash_in = None
        self.network.withdraw(self.name)

    def _survey(self) -> set[Publication]:
        """Look at the media: what is held now, and was not purged? Returns what is no more."""
        found, self._below = set[Publication](), set()
        samples = [s for held in self.backend.state.streams.values() for s in held.values()]
        for entry in self._process.journal.waiting():
            samples += entry.batch.samples
        purges = map(self.purged_runs.stands, self.purged + self.told_purges)
        floors = {floor.stream: floor.sn for floor in sorted(purges)}
        for sample in samples:
            publication = self.truth.of(sample)
            if publication is None:
                self.world.fail(f"{self.name} holds what nobody published: {sample}")
            elif sample.sn >= floors.get(sample.stream, 0):
                found.add(publication)
                note_name(self.named, sample, publication.numbering)
            else:
                self._below.add(publication)
        went = self.held_ns.keys() - found
        if (losses := self.journal.losses + self.backend.losses) != self._losses:
            self._losses = losses  # the index holds none
            self.gone |= went
        few = went and self.plan.retention.samples_max is not None
        hidden = [one for one in found & self.held_ns.keys() if few and self.hides(one)]
        self.held_ns = {one: self.held_ns.get(one, self.world.now_ns) for one in found}
        again = {one: self.world.now_ns for one in hidden if not self.hides(one)}
        self.held_ns, self.unread = self.held_ns | again, self.unread | again.keys()
        return went

    def committed(self, samples: Iterable[Sample]) -> None:
        """Hear from the composition that samples are durable."""
        for sample in samples:
            publication = self.truth.of(sample)
            if publication is None:
                self.world.fail(f"{self.name} stores what nobody published: {sample}")
            else:
                self.held_ns.setdefault(publication, self.world.now_ns)
                self._heard.add(publication)
                note_name(self.named, sample, publication.numbering)

    def numbering_of(self, source: SourceId, epoch: int, incarnation: str = "") -> Numbering | None:
        """Return which of a source's numberings this cache calls by an epoch."""
        if incarnation in self.truth.incarnations:  # else a wrap is expected that is none
            return self.truth.incarnations[incarnation]
        found = self.named.get((source, epoch))
        if found is None and self.process is not None:
            for _, named, called in self.process.index.incarnations([source]):
                if named == epoch:
                    return self.truth.incarnations[called]
        return found

    def arrived(self, sample: Sample) -> None:
        """Take a live sample off the network; a full queue refuses it visibly."""
        sample = msgspec.structs.replace(sample, epoch=0, received_ns=self.unix_ns)
        publication = self.truth.of(sample)
        assert publication is not None
        if len(self._queue) >= self.plan.queue_samples_max:
            self.world.occur("queue full")
            last = self._queue[-1]
            if isinstance(last, list):
                last.append(sample)
            else:
                self._queue.append([sample])
            self._hears(publication.numbering, sample.sn, 0)  # its number is kept, and no time
        else:
            self._queue.append(sample)
            self._hears(publication.numbering, sample.sn, sample.ntp64)
            self._heard.add(publication)
        self._step_soon()

    def _hears(self, numbering: Numbering, sn: int, ntp64: int) -> None:
        untold = self.truth.untold
        if untold.judge(self.name, self._heard, numbering, sn, ntp64, gives=True):
            self.world.occur("restart that nothing tells")

    def offer(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        """Queue what others gave."""
        if samples:
            for sample in sorted(samples, key=lambda sample: sample.sn):
                publication = self.truth.of(sample) if origin is Origin.NATIVE else None
                if publication is not None:
                    self._hears(publication.numbering, sample.sn, sample.ntp64)
                    self._heard.add(publication)
            self._give(lambda: self._process.received(samples, origin, names))

    def _give(self, event: Callable[[], None]) -> None:
        """Queue what others gave, or that there is no more of it."""
        self._given.add(event)
        self._step_soon()

    def tell(self, event: Callable[[], None]) -> None:
        """Queue what is no live sample."""
        self._events.append(event)
        self._step_soon()

    def token_changed(self, token: Token, alive: bool) -> None:
        value = token.value
        if isinstance(value, PublisherToken) and value.key_expr.intersects(self.key_expr):
            self._seen(value, alive)
        elif isinstance(value, CacheToken) and self._process.aligning is not None:
            self._process.aligning.seen(value, alive)
        elif isinstance(value, SplitBrainToken) and self._process.merging is not None:
            self._process.merging.seen(value, alive)

    def _seen(self, token: PublisherToken, alive: bool) -> None:
        if alive:
            if (
                self._runs.get(token.source) == token.run
                and token.incarnation not in self._named_runs
            ):
                self.world.occur("samples before their token")
            self._named_runs.add(token.incarnation)
            self.follows(token.source, token.run)
        self._queue.append((token, alive))
        self._given.heard()
        self._step_soon()

    def beaten(self, beat: Heartbeat) -> None:
        self._hears(beat.numbering, beat.sn, 0)
        self._queue.append(beat)
        self._step_soon()

    @property
    def unix_ns(self) -> int:
        return START_NS + self.world.now_ns + self.skew_ns

    @property
    def _process(self) -> Composition:
        assert self.process is not None
        return self.process

    def _step_soon(self) -> None:
        if not self._stepping:
            self._stepping = True
            pause = self.world.random.random() * 0.005 + self.journal.seconds
            self.later(pause, self._step)

    def _step(self) -> None:
        """Hand in the oldest of what waits; what is live waits until the core is ready."""
        self._stepping = False
        process = self._process
        if self._events:
            self._events.popleft()()
        elif self._given:
            self._given.take()()
        elif self._queue and process.core.ready:
            self._take_oldest(process)
        self._schedule_wake()
        if self._events or self._given or (self._queue and process.core.ready):
            self._step_soon()

    def _take_oldest(self, process: Composition) -> None:
        """Hand in live samples up to the next token or heartbeat, or that."""
        batch: list[Sample] = []
        while self._queue and len(batch) < 256:
            oldest = self._queue[0]
            if not isinstance(oldest, Sample):
                break
            batch.append(oldest)
            self._queue.popleft()
        if batch:
            if len({sample.source for sample in batch}) > 1:
                self.world.occur("batch of several sources")
            process.received(batch, Origin.LIVE)
        else:
            heard = self._queue.popleft()
            if isinstance(heard, list):
                process.refused(heard)
            elif isinstance(heard, tuple):
                self._given.handed_in()
                token, alive = heard
                (process.declared if alive else process.gone)(token)
            elif isinstance(heard, Heartbeat):
                process.beaten(heard)

    def failed(self, what: str) -> None:
        """Remember that this cache could not do something itself just now."""
        self.world.occur(f"{what} failed")
        if self.world.tracing:
            self.world.say(f"{self.name}: {what} failed")
        self.troubled_ns = self.world.now_ns

    def check_bounds(self) -> None:
        """Compare what the core holds with the options that bound it."""
        core, engine = self._process.core, self.plan.engine
        if core.gaps_open > engine.gaps_open_max:
            self.world.fail(f"{self.name} waits for {core.gaps_open} gaps")
        if core.doubtful > engine.doubtful_samples_max:
            self.world.fail(f"{self.name} holds {core.doubtful} doubtful samples")
        if core.given_waiting > self.plan.given_samples_max:
            self.world.fail(f"{self.name} holds {core.given_waiting} that others gave")

    def _schedule_wake(self) -> None:
        process = self.process
        wake_ns = None if process is None else process.core.wake_ns()
        if wake_ns is None or (self._wake_ns is not None and self._wake_ns <= wake_ns):
            return
        self._wake_ns = wake_ns
        # What is due already is looked at again a little later, as a thread that was woken would.
        pause = max(_WAKE_SECONDS_MIN, (wake_ns - self.world.now_ns) / 1e9)
        self.later(pause, lambda: self._wake(wake_ns))

    def _wake(self, wake_ns: int) -> None:
        if self._wake_ns != wake_ns:
            return  # something earlier came in between
        self._wake_ns = None
        self._process.tick()
        self._schedule_wake()
        if self._queue:
            self._step_soon()

    def drain_soon(self) -> None:
        """Have the journal moved into the backend in a while, together with what comes until then.

        Nothing is scheduled where nothing waits: most of a history's time it would be for nothing.
        """
        if not self._draining:
            self._draining = True
            self.later(_DRAIN_SECONDS + self.backend.seconds, self._drain)

    def _drain(self) -> None:
        self._draining = False
        if not self._process.drain():
            self.drain_soon()

    def _retain(self) -> None:
        self.later(self.plan.retention_seconds, self._retain)
        if self._process.trim(self.plan.retention):
            self.world.occur("retention removes")

    def purge(self, floors: list[Floor], *, told: bool = False) -> None:
        """Let an operator remove what is below, here or where `told` at another cache."""
        self.tell(lambda: self._purge(floors, told))

    def _purge(self, floors: list[Floor], told: bool) -> None:
        self.removes(floors)
        before = set(self.held_ns)
        if self._process.purge(floors):
            self.purged_runs.note(floors)
            (self.told_purges if told else self.purged).extend(floors)
            self.lost(before)

    def removes(self, floors: Iterable[Floor]) -> None:
        """Count what is below as removed: a copy under another name of its run is no reprieve.

        When the two names become one, what is below the floor of either is gone.
        """
        told, self._unknown_floors = [*self._unknown_floors, *floors], []
        for floor in told:
            (key, source, epoch), sn = floor
            numbering = self.numbering_of(source, epoch)
            if numbering is None:
                self._unknown_floors.append(floor)
                continue
            self.floors.append((numbering, key, sn))
            self.removed |= {
                one
                for one in self.held_ns
                if one.numbering is numbering and one.sample.key == key and one.sample.sn < sn
            }

    def lost(self, before: set[Publication]) -> None:
        """Compare with what was here: what went by retention or purge is no loss."""
        self._survey()
        self.removed |= before - self.held_ns.keys()

    def acknowledge(self, ack: SendAck, cache_id: str) -> None:
        """Send an acknowledgement to the publisher, wherever it is."""
        for hear in self.on_ack:
            hear(ack)
        runs = tuple((run.first, run.last) for run in ack.runs)
        message = Ack(cache_id, int(self.plan.level), ack.source, ack.epoch, runs, ack.incarnation)
        for node in self.network.nodes.values():
            if isinstance(node, OwnPublisher) and node.source == ack.source:
                self.network.tell(self.name, node.name, partial(node.acknowledged, message))

    def fetch(
        self,
        source: SourceId,
        first: int,
        last: int | None,
        ended: Callable[[bool], None],
        native_first: int | None = None,
    ) -> None:
        """Ask caches and publishers' own caches, page by page; `ended(failed)` comes last."""
        question = Question(self.key_expr, source, first, last)
        since = first if native_first is None else native_first
        native = replace(question, first=since, native=True)
        self._fetch_page(question, lambda bad: self._fetch_native(native, ended, failed=bad))

    def _fetch_page(
        self, question: Question, ended: Callable[[bool], None], *, failed: bool = False
    ) -> None:
        heard = Heard(question)

        def end(outcome: Outcome) -> None:
            for part in heard.parts:
                asked = [*filter(question.names, part.samples)]
                self.offer(asked, Origin.RECOVERED, part.incarnations)
            cut = heard.cut_after
            bad = failed or bool(outcome.errors)
            if cut is not None and cut != question.after:
                self._fetch_page(replace(question, after=cut), ended, failed=bad)
            else:
                ended(bad)

        self._ask(question, heard.hear, end)

    def _fetch_native(
        self, question: Question, ended: Callable[[bool], None], *, failed: bool
    ) -> None:
        heard = Heard(question)

        def end(outcome: Outcome) -> None:
            self.offer([*filter(question.names, heard.samples)], Origin.NATIVE)
            self._give(lambda: ended(failed or bool(outcome.errors)))

        self._ask(question, heard.hear, end)

    def _ask(
        self, question: Question, hear: Callable[[Answered], None], end: Callable[[Outcome], None]
    ) -> None:
        if self.world.tracing:
            self.world.say(f"{self.name} asks {question}")
        answerers = answerers_of(self.network, question)
        self.network.ask(self, answerers, self.plan.fetch_timeout_seconds, hear, end)

    def answer(self, question: Question) -> Iterator[bytes]:
        """Answer a question; raises what the storage raised."""
        process = self.process
        if process is None:
            return
        found: list[Sample] = []
        cursor = None if question.after is None else question.selection.place(question.after)
        waiting: list[Sample] = []
        bound = min(self.plan.answer_samples_max, question.samples_max)
        read = OneState(process.read, process.core.epochs).read
        try:
            while True:
                page = read(question.selection, _PAGE_SAMPLES, cursor)
                cursor = page.cursor
                if waiting:
                    yield encode_packed(SampleBatch(waiting), False)
                waiting = list(page.samples)
                found += waiting
                if cursor is None or len(found) >= bound:
                    break
        except DurableCacheError:
            self.reads_troubled_ns = self.world.now_ns
            raise
        more = cursor is not None
        given = found if len(found) == len(waiting) and question.after is None else ()
        try:
            absent = process.store.absences(
                question.selection, self.plan.retention.samples_max, SampleBatch(given)
            )
            sources = {sample.source for sample in found}
            sources |= set() if question.source is None else {question.source}
            names = process.index.incarnations(sources)
        except DurableCacheError:
            self.reads_troubled_ns = self.world.now_ns
            raise
        if not more:
            for check in self.on_answer:
                check(question, found)
        yield encode_packed(SampleBatch(waiting), more, absent, names)

    def answer_beginning(self, key_expr: KeyExpression, standings: Standings) -> Iterator[bytes]:
        """Say since when there is something behind standings; raises what the storage raised."""
        if self.process is not None:
            yield encode_beginning(beginning_behind(self.process.store, key_expr, standings))

    def peers(self) -> list[SimCache]:
        """Return the other caches, whether they run or not."""
        nodes = self.network.nodes.values()
        return [node for node in nodes if isinstance(node, SimCache) and node is not self]

    def answer_peer(self, payload: bytes) -> Iterator[bytes]:
        """Answer a peer's aligner; raises what the storage raised."""
        aligning = None if self.process is None else self.process.aligning
        return iter(()) if aligning is None else aligning.answer(payload)

    def root_heard(self, payload: bytes) -> None:
        """Take a peer's announcement."""
        if self._process.aligning is not None:
            self._process.aligning.root_heard(payload)

    def power_cut(self) -> None:
        """End the process and lose what was not synced."""
        self.died("power cut")
        if sum(medium.cut_power() for medium in self.media):
            self.world.occur("power cut that loses writes")

    def lets_go(self, publication: Publication) -> bool:
        """Tell whether retention or a purge may keep a publication out of here."""
        return publication in self.removed or not self.plan.retention.unlimited

    def hides(self, publication: Publication) -> bool:
        """Tell whether readers may not see one that is held: it was purged, or newer ones count."""
        self.removes(())
        numbering, key, sn = publication.numbering, publication.sample.key, publication.sample.sn
        if publication in self.removed or any(
            one is numbering and of_key == key and sn < floor for one, of_key, floor in self.floors
        ):
            return True
        newest = self.plan.retention.samples_max
        if newest is None:
            return False
        of_run = (one.sample for one in self.held_ns if one.numbering is numbering)
        return len([one for one in of_run if one.key == key and one.sn > sn]) >= newest

    def has_durably(self, one: Publication) -> bool:
        """Tell whether a publication is here, or went by retention, a purge or a broken medium."""
        return any(one in those for those in (self.held_ns, self._below, self.removed, self.gone))


def answerers_of(network: Network, question: Question) -> list[tuple[Node, Answering]]:
    """Return who answers a question: caches and our publishers, or foreign publishers."""
    kinds = (ForeignPublisher,) if question.native else (SimCache, OwnPublisher)
    return [
        (node, _answering(node, question))
        for node in network.nodes.values()
        if isinstance(node, kinds)
    ]


def _answering(node: SimCache | SimPublisher, question: Question) -> Answering:
    return lambda: ((node.name, frame) for frame in node.answer(question))
