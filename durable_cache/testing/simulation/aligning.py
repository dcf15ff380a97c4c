"""A cache's aligner on the simulated network: the real one, with the real inbox and store.

As `endpoints.alignment` carries it out with a thread and a pool, this does in virtual time: what
happens in the storage goes through the inbox, what peers ask is answered from the storage, what
they give enters by the door that fetched samples enter by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from durable_cache.endpoints.alignment.inbox import Inbox
from durable_cache.endpoints.alignment.stored import AlignedStore
from durable_cache.errors import DurableCacheError, StorageUnavailable
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.protocol.alignment import (
    Aligner,
    AlignerOptions,
    AlignerOutput,
    Appended,
    CacheProfile,
    ComparisonEnded,
    ContentEnded,
    ContentRead,
    Forgotten,
    LeftAsTheyAre,
    Loaded,
    LoadEnded,
    Offer,
    PeerGone,
    PeerSeen,
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
    pull_reply,
    ranges,
)
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Origin
from durable_cache.protocol.wire import Incarnation
from durable_cache.runtime.effects import PulledAgain
from durable_cache.storage.contract import Floor
from durable_cache.testing.simulation.network import Outcome, Token
from durable_cache.testing.simulation.world import SECOND_NS

if TYPE_CHECKING:
    from durable_cache.testing.simulation.caches import SimCache
    from durable_cache.testing.simulation.composition import Composition

ALIGNER = AlignerOptions(
    secret=b"simulation",
    block=1,
    page_items_max=8,
    page_samples_max=16,
    page_bytes_max=4096,
    nodes_per_request_max=64,
    request_timeout_seconds=3.0,
    retry_seconds_max=20.0,
    tried_seconds=20.0,
    announce_seconds=(5.0, 10.0, 20.0),
    content_seconds=10.0,
    audit_seconds=20.0,
)
"""Small pages, and delays short enough that all of them are reached before a history ends."""
_TICK_SECONDS = 1.0
_EVENT_SECONDS = 0.01
_JOB_SECONDS = 0.05
_RETRY_SECONDS = 5.0
_EVENTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class CacheToken:
    """What a token of a cache that aligns says."""

    cache_id: str
    incarnation: str


class SimAligning:
    """The aligner of one process of a cache; gone with it."""

    def __init__(self, cache: SimCache, process: Composition) -> None:
        self._cache, self._process = cache, process
        self._inbox = Inbox(
            process.core.epochs,
            bytes_max=cache.plan.align_bytes_max,
            events_max=_EVENTS_MAX,
            wake=self._take_soon,
        )
        self._store = AlignedStore(process.store, self)
        self._aligner: Aligner
        self._incarnation = ""
        self._token: Token | None = None
        self._beginnings = 0
        self._changes: deque[tuple[CacheToken, bool]] = deque()
        self._comparisons: deque[SampleBatch] = deque()
        self._answers: dict[int, list[bytes | DurableCacheError]] = {}
        self._handle = 0
        self._taking = False

    @property
    def epochs(self) -> Epochs:
        """The table that names of epochs go through."""
        return self._process.core.epochs

    def offer(
        self, samples: list[Sample], origin: Origin, names: tuple[Incarnation, ...] = ()
    ) -> None:
        """Hand samples of peers in at the door."""
        self._cache.offer(samples, origin, names)

    def pulled_again(self, source: SourceId, epoch: int) -> None:
        """Tell the core that a peer does not keep a run by its epoch here."""
        process = self._process
        self._cache.tell(lambda: process.handle(PulledAgain(source, epoch, process.now)))

    def start(self) -> None:
        """Begin on what is stored, and let peers see it; raises what reading the index raised."""
        self._begin()
        self._tick()

    def _begin(self) -> None:
        """Know what is stored, and nothing of peers, as a new process does."""
        world = self._cache.world
        self._incarnation = f"{world.random.getrandbits(32):08x}"
        self._beginnings += 1
        self._inbox.clear()
        retention = self._cache.plan.retention
        profile = CacheProfile(
            self._process.cache_id,
            self._incarnation,
            (str(self._cache.key_expr),),
            (),
            retention.age_seconds_max,
            retention.samples_max,
            retention.bytes_max,
        )
        options = replace(ALIGNER, random_seed=world.random.getrandbits(63))
        self._aligner = Aligner(options, profile)
        self._aligner.handle(Loaded(self._store.streams()))
        self._aligner.handle(LoadEnded())
        network = self._cache.network
        if self._token is not None:
            network.undeclare(self._token)
        token = CacheToken(self._process.cache_id, self._incarnation)
        self._token = Token(self._cache.name, token)
        network.declare(self._token)
        network.show_all(self._cache.name)
        self._read_content_later(_JOB_SECONDS)

    def seen(self, token: CacheToken, alive: bool) -> None:
        """See another cache come or go; looked at with the next tick."""
        if token.cache_id != self._process.cache_id:
            self._changes.append((token, alive))

    def committed(self, batch: SampleBatch) -> None:
        """Hear that samples are durable."""
        self._stored(Appended(batch))

    def trimmed(self, floors: Iterable[Floor], *, purged: bool = False) -> None:
        """Hear that retention, or an operator, removed what is below, durably."""
        pairs = tuple((self._store.canonical(floor.stream), floor.sn) for floor in floors)
        if pairs:
            until = self._store.purge_times(stream for stream, _ in pairs) if purged else ()
            self._stored(Purged(pairs, until) if purged else Trimmed(pairs))

    def forgotten(self, streams: Sequence[Stream]) -> None:
        """Hear that streams are stored under another epoch only."""
        self._stored(Forgotten(tuple(streams)))

    def learned(self, source: SourceId) -> None:
        """Hear that two epochs of a source are one."""
        self._job(lambda: self._rename(source))

    def _stored(
        self, event: Appended | Trimmed | Purged | Forgotten | ContentRead | ContentEnded
    ) -> None:
        self._inbox.stored(event, self._seconds)

    @property
    def _seconds(self) -> float:
        return self._cache.world.now_ns / SECOND_NS

    def _job(self, job: Callable[[], None], delay_seconds: float = _JOB_SECONDS) -> None:
        """Do something a little later, as the pool does; not where this began anew since."""
        beginnings = self._beginnings
        pause = self._cache.world.random.random() * delay_seconds + self._cache.backend.seconds

        def run() -> None:
            if beginnings == self._beginnings:
                job()

        self._cache.later(pause, run)

    def _take_soon(self) -> None:
        if not self._taking:
            self._taking = True
            self._cache.later(_EVENT_SECONDS, self._take)

    def _take(self) -> None:
        """Hand in what waits in the inbox."""
        self._taking = False
        if self._inbox.overflown:
            self._cache.world.occur("alignment begins anew")
            self._begin_again()
            return
        while (event := self._inbox.take(self._seconds)) is not None:
            self._do(self._aligner.handle(event))

    def _begin_again(self) -> None:
        try:
            self._begin()
        except DurableCacheError:
            self._cache.later(_RETRY_SECONDS, self._begin_again)

    def _tick(self) -> None:
        self._cache.later(_TICK_SECONDS, self._tick)
        merging = self._process.merging
        if merging is not None:
            self._do(self._aligner.handle(LeftAsTheyAre(merging.ignored)))
        while self._changes:
            token, alive = self._changes.popleft()
            event = PeerSeen if alive else PeerGone
            self._do(self._aligner.handle(event(token.cache_id, token.incarnation)))
        self._do(self._aligner.handle(Tick(self._process.now)))
        for _ in range(len(self._comparisons)):
            self._compare(self._comparisons.popleft())
        self._take()  # what was too young to be told before
        if merging is not None:
            merging.tick(self._aligner.status())

    def _do(self, outputs: Iterable[AlignerOutput]) -> None:
        world = self._cache.world
        for output in outputs:
            match output:
                case SendRequest():
                    self._ask(output)
                case SendReply(handle, payload):
                    self._answers.setdefault(handle, []).append(payload)
                case ReadSamples():
                    self._answers.setdefault(output.handle, []).append(self._read(output))
                case PublishRoot(_, payload):
                    self._publish(payload)
                case Offer():
                    self._job(partial(self._offer, output))
                case RaisePurge():
                    self._job(partial(self._purge, output))
                case ReportRefusal(peer, reason):
                    world.fail(f"{self._cache.name} does not align with {peer}: {reason}")
                case ComparisonEnded():
                    world.occur("caches compared")
                case _:
                    assert_never(output)

    def _publish(self, payload: bytes) -> None:
        network, name = self._cache.network, self._cache.name
        for other in self._cache.peers():
            network.carry(name, other.name, _hearing(other, payload))

    def root_heard(self, payload: bytes) -> None:
        """Take a peer's announcement."""
        self._do(self._aligner.handle(RootReceived(payload)))

    def _ask(self, request: SendRequest) -> None:
        cache, incarnation = self._cache, self._incarnation
        peers = [other for other in cache.peers() if request.peer in other.cache_ids]
        heard: list[bytes] = []

        def end(outcome: Outcome) -> None:
            if incarnation != self._incarnation:
                return
            if heard:
                self._inbox.answered(ReplyReceived(request.request_id, heard[0]))
            else:
                reason = "; ".join(outcome.errors) or "nobody answered"
                self._inbox.answered(RequestFailed(request.request_id, reason))

        answerers = [(other, _answering(other, request.payload)) for other in peers]
        seconds = request.timeout_seconds
        cache.network.ask(cache, answerers, seconds, heard.append, end, counted=False)

    def answer(self, payload: bytes) -> Iterator[bytes]:
        """Answer a peer's question; raises what the storage raised."""
        self._handle += 1
        handle = self._handle
        self._do(self._aligner.handle(RequestReceived(handle, payload)))
        answers = self._answers.pop(handle, [])
        if not answers:
            raise StorageUnavailable(f"{self._cache.name} has no answer")
        for answer in answers:
            if isinstance(answer, DurableCacheError):
                raise answer
            yield answer

    def _read(self, read: ReadSamples) -> bytes | DurableCacheError:
        wanted = ((stream, ranges(runs)) for stream, runs in read.wanted)
        try:
            names = self._store.names(stream.source for stream, _ in read.wanted)
            return pull_reply(read, self._store.to_pull(wanted, names, self._seconds), names)
        except DurableCacheError as error:
            self._cache.reads_troubled_ns = self._cache.world.now_ns
            return error

    def _offer(self, offer: Offer) -> None:
        self._cache.world.occur("samples pulled")
        try:
            held = self._store.offer(offer.batch, offer.held, offer.names)
        except DurableCacheError:
            return  # it is pulled again
        if len(held):
            self._compare(held)

    def _compare(self, batch: SampleBatch) -> None:
        cache, before = self._cache, self._store.conflicts
        try:
            self._store.compare(batch, named=False)
        except DurableCacheError:
            self._comparisons.append(batch)
        runs = {one.numbering for one in map(cache.truth.of, batch) if one is not None}
        told = not any(cache.truth.untold.excuses(cache.name, run) for run in runs)
        if self._store.conflicts > before and told:
            cache.world.fail(f"{cache.name} finds other content at a peer")

    def _purge(self, raised: RaisePurge) -> None:
        self._cache.world.occur("purge pulled")
        try:
            floors = self._store.to_purge(raised)
        except DurableCacheError:
            return  # it is heard of again
        if floors:
            self._cache.purge(floors, told=True)

    def _rename(self, source: SourceId) -> None:
        try:
            for event in self._store.renamed(source):
                self._stored(event)
        except DurableCacheError:
            self._inbox.lost()

    def _read_content_later(self, delay_seconds: float) -> None:
        self._job(self._read_content, delay_seconds)

    def _read_content(self) -> None:
        """Read every stored sample once, for the content sums."""
        try:
            for page in self._store.pages():
                self._stored(ContentRead(page))
            self._stored(ContentEnded())
        except DurableCacheError:
            self._read_content_later(_RETRY_SECONDS)


def _answering(cache: SimCache, payload: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: cache.answer_peer(payload)


def _hearing(cache: SimCache, payload: bytes) -> Callable[[], None]:
    return lambda: cache.root_heard(payload)
