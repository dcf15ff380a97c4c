"""Whether caches align whatever happens to them: seeded histories in virtual time.

A history has two to ten caches with their own retention and scope, publishers that restart, a
network that loses, delays, doubles and reorders, partitions in one direction, crashes, wiped and
restored storages, skewed clocks. Then everything heals and the properties of `docs/alignment.md`
must hold. One seed is one history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream, sample_digest
from durable_cache.protocol.aligner import Aligner
from durable_cache.protocol.aligner_answer import pull_reply
from durable_cache.protocol.aligner_events import (
    AlignerEvent,
    AlignerOptions,
    AlignerOutput,
    Appended,
    CacheProfile,
    ContentEnded,
    ContentRead,
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
    RequestFailed,
    RequestReceived,
    RootReceived,
    SendReply,
    SendRequest,
    StreamLoaded,
    Tick,
    Trimmed,
)
from durable_cache.protocol.aligner_scope import Scope
from durable_cache.protocol.aligner_wire import Pull, PullReply, decode_reply, decode_request
from durable_cache.protocol.events import Moment
from durable_cache.protocol.knowledge import flat, floor_of_depth, ranges
from durable_cache.protocol.wire import decode_batch

__all__ = ["Network", "SimulatedCache", "SimulationOptions"]

SECOND_NS = 1_000_000_000
START_NS = 1_800_000_000 * SECOND_NS


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How bad the network is, and how the caches are set; everything else goes with the seed."""

    loss: float = 0.1
    duplication: float = 0.05
    delay_seconds: float = 0.05
    delay_seconds_max: float = 2.0
    append_failure: float = 0.02
    """How often a storage does not take what is offered to it."""
    idle_tick_seconds: float = 5.0
    aligner: AlignerOptions = field(
        default_factory=lambda: AlignerOptions(
            secret=b"simulation",
            block=1,
            page_items_max=8,
            page_samples_max=16,
            page_bytes_max=4096,
            entry_runs_max=4,
            entries_per_reply_max=8,
            nodes_per_request_max=8,
            streams_per_tick_max=16,
            wants_max=8,
            request_timeout_seconds=3.0,
            retry_seconds_max=40.0,
            content_seconds=30.0,
            audit_seconds=60.0,
            tried_seconds=1e6,
            announce_seconds=(5.0, 10.0, 20.0, 40.0),
        )
    )


class Network:
    """Virtual time and what is on its way; the same seed gives the same history."""

    def __init__(self, seed: int, options: SimulationOptions | None = None) -> None:
        self.options = options or SimulationOptions()
        self.random = Random(seed)  # noqa: S311  a history is to be repeated
        self.now_ns = 0
        self.caches: dict[str, SimulatedCache] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.healed = False
        self.requests = 0
        """Queries sent so far."""
        self.roots = 0
        self.bytes = 0
        self.faults: list[str] = []
        """What a peer may never do, as it was seen on the wire."""
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def at(self, delay_seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._serial += 1
        at_ns = self.now_ns + round(delay_seconds * SECOND_NS)
        heapq.heappush(self._queue, (at_ns, self._serial, action))

    def run(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        queue = self._queue
        while queue and queue[0][0] <= end_ns:
            self.now_ns, _, action = heapq.heappop(queue)
            action()
        self.now_ns = end_ns

    def delay(self) -> float:
        options = self.options
        if not self.healed and self.random.random() < 0.1:
            return self.random.random() * options.delay_seconds_max
        return self.random.random() * options.delay_seconds

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Bring something from one cache to another, or lose it, or bring it twice."""
        if (source, target) in self.blocked:
            return
        options, random = self.options, self.random
        if not self.healed and random.random() < options.loss:
            return
        self.at(self.delay(), deliver)
        if not self.healed and random.random() < options.duplication:
            self.at(self.delay(), deliver)

    def block(self, source: str, target: str) -> None:
        """Cut one direction between two caches; the target loses sight of the source."""
        self.blocked.add((source, target))
        gone, seer = self.caches[source], self.caches[target]
        seer.feed(PeerGone(source, gone.profile.incarnation))

    def unblock(self, source: str, target: str) -> None:
        self.blocked.discard((source, target))
        self.sight(source, target)

    def sight(self, source: str, target: str) -> None:
        """Let the target see the source's liveliness token."""
        seen, seer = self.caches[source], self.caches[target]
        if seen.running and (source, target) not in self.blocked:
            seer.feed(PeerSeen(source, seen.profile.incarnation))

    def heal(self) -> None:
        """End every trouble: links that lost something come back as new."""
        self.healed = True
        self.blocked.clear()
        for cache in self.caches.values():
            if not cache.running:
                cache.start()
        for source in self.caches:
            for target in self.caches:
                if source != target:
                    seen = self.caches[source].profile.incarnation
                    self.caches[target].feed(PeerGone(source, seen))
                    self.sight(source, target)


class SimulatedCache:
    """A storage, its door and its aligner, as an endpoint puts them together."""

    def __init__(
        self, network: Network, profile: CacheProfile, *, skew_seconds: float = 0.0
    ) -> None:
        self.network = network
        self.profile = profile
        self.skew_ns = round(skew_seconds * SECOND_NS)
        self.scope = Scope.of(profile.include, profile.exclude)
        self.store: dict[Stream, dict[int, Sample]] = {}
        self.floors: dict[Stream, int] = {}
        self.purges: dict[Stream, int] = {}
        self.conflicts: set[tuple[Stream, int]] = set()
        self.trimmed: set[tuple[Stream, int]] = set()
        self.resurrected: list[tuple[Stream, int]] = []
        self.pulled = 0
        self.aligner: Aligner | None = None
        self.started = 0
        self.outputs: list[AlignerOutput] = []
        network.caches[profile.cache_id] = self
        self.start()
        network.at(network.random.random(), self._tick)

    @property
    def running(self) -> bool:
        return self.aligner is not None

    @property
    def unix_ns(self) -> int:
        return START_NS + self.network.now_ns + self.skew_ns

    def start(self) -> None:
        """Start a new process on what is stored."""
        self.started += 1
        old = self.profile
        self.profile = CacheProfile(
            old.cache_id,
            f"{self.started}",
            old.include,
            old.exclude,
            old.age_seconds_max,
            old.samples_max,
            old.bytes_max,
        )
        options = self.network.options.aligner
        self.aligner = Aligner(_seeded(options, self.network.random), self.profile)
        streams = {*self.store, *self.floors, *self.purges}
        loaded = tuple(
            StreamLoaded(
                stream,
                RangeSet.of(self.store.get(stream, ())),
                self.floors.get(stream, 0),
                self.purges.get(stream, 0),
            )
            for stream in sorted(streams)
        )
        self.feed(Loaded(loaded))
        self.feed(LoadEnded())
        started = self.started
        self.network.at(2.0, lambda: self._read_content(started))
        for other in self.network.caches:
            if other != self.profile.cache_id:
                self.network.sight(other, self.profile.cache_id)
                self.network.sight(self.profile.cache_id, other)

    def _read_content(self, started: int) -> None:
        if started == self.started and self.running:
            for held in self.store.values():
                self.feed(ContentRead(SampleBatch(held.values())))
            self.feed(ContentEnded())

    def crash(self) -> None:
        """Lose everything but the storage."""
        self.aligner = None
        for other in self.network.caches.values():
            if other is not self:
                other.feed(PeerGone(self.profile.cache_id, self.profile.incarnation))

    def wipe(self) -> None:
        """Lose the storage too; the cache is down."""
        self.restore(({}, {}, {}))

    def backup(
        self,
    ) -> tuple[dict[Stream, dict[int, Sample]], dict[Stream, int], dict[Stream, int]]:
        """Return a copy of the storage."""
        held = {stream: dict(samples) for stream, samples in self.store.items()}
        return held, dict(self.floors), dict(self.purges)

    def restore(
        self,
        copy: tuple[dict[Stream, dict[int, Sample]], dict[Stream, int], dict[Stream, int]],
    ) -> None:
        """Put back an older storage; the cache is down."""
        held, floors, purges = copy
        self.store = {stream: dict(samples) for stream, samples in held.items()}
        self.floors, self.purges = dict(floors), dict(purges)
        self.trimmed.clear()
        self.conflicts.clear()

    def change_policy(self, *, samples_max: int | None, age_seconds_max: float | None) -> None:
        """Start anew with another retention; what the old one removed may come back."""
        self.crash()
        old = self.profile
        self.profile = CacheProfile(
            old.cache_id, "", old.include, old.exclude, age_seconds_max, samples_max
        )
        self.floors.clear()
        self.trimmed.clear()
        self.start()

    def _tick(self) -> None:
        if self.running:
            self.feed(Tick(Moment(self.network.now_ns, self.unix_ns)))
        active = self.aligner is not None and self.aligner.active
        pause = 1.0 if active else self.network.options.idle_tick_seconds
        self.network.at(pause, self._tick)

    def feed(self, event: AlignerEvent) -> None:
        """Hand an event to the aligner and carry out what it says."""
        if self.aligner is None:
            return
        aligner = self.aligner
        for output in aligner.handle(event):
            if self.aligner is not aligner:
                return
            self.carry_out(output)

    def carry_out(self, output: AlignerOutput) -> None:
        """Do what an endpoint does with one output."""
        network = self.network
        match output:
            case SendRequest(peer, request_id, payload, timeout_seconds):
                self._query(peer, request_id, payload, timeout_seconds)
            case PublishRoot(_, payload):
                network.roots += 1
                network.bytes += len(payload)
                for other in network.caches.values():
                    if other is not self:
                        self._carry(other, RootReceived(payload))
            case Offer(_, batch):
                self.pulled += len(batch)
                self.take(batch)
            case RaisePurge(_, floors):
                self.purge(floors)
            case _:
                self.outputs.append(output)
                del self.outputs[:-1000]

    def _carry(self, other: SimulatedCache, event: AlignerEvent) -> None:
        self.network.carry(self.profile.cache_id, other.profile.cache_id, lambda: other.feed(event))

    def _query(self, peer: str, request_id: int, payload: bytes, timeout_seconds: float) -> None:
        network, asker, started = self.network, self.profile.cache_id, self.started
        network.requests += 1
        network.bytes += len(payload)
        done: list[bool] = []

        def finish(event: AlignerEvent) -> None:
            if not done and self.started == started:
                done.append(True)
                self.feed(event)

        def answered(reply: bytes) -> None:
            network.bytes += len(reply)
            network.carry(peer, asker, lambda: finish(ReplyReceived(request_id, reply)))

        network.carry(asker, peer, lambda: network.caches[peer].answer(payload, answered))
        network.at(timeout_seconds, lambda: finish(RequestFailed(request_id, "timeout")))

    def answer(self, payload: bytes, reply: Callable[[bytes], None]) -> None:
        """Answer one query."""
        if self.aligner is None:
            return
        for output in self.aligner.handle(RequestReceived(0, payload)):
            match output:
                case SendReply(_, packed):
                    if isinstance(decode_reply(packed), PullReply):
                        self._check_page(payload, packed)
                    reply(packed)
                case ReadSamples():
                    packed = pull_reply(output, self.read(output))
                    self._check_page(payload, packed)
                    reply(packed)
                case _:
                    self.carry_out(output)

    def read(self, read: ReadSamples) -> Iterator[Sample]:
        """Yield what the storage has of what is wanted."""
        for stream, runs in read.wanted:
            held = self.store.get(stream, {})
            for first, last in reversed([*zip(runs[::2], runs[1::2], strict=True)]):
                for sn in range(last, first - 1, -1):
                    if sn in held:
                        yield held[sn]

    def _check_page(self, payload: bytes, packed: bytes) -> None:
        request, reply = decode_request(payload), decode_reply(packed)
        assert isinstance(request, Pull)
        assert isinstance(reply, PullReply)
        asked = {place: ranges(runs) for place, runs in request.items}
        for place, runs in reply.absent:
            if ranges(runs).difference(asked.get(place, RangeSet())):
                self.network.faults.append("P9: a page that says more than it was asked")
        if not reply.batch:
            return
        batch = decode_batch(reply.batch)
        options = self.network.options.aligner
        if len(batch) > options.page_samples_max:
            self.network.faults.append("P9: a page with too many samples")
        if len(batch) > 1 and batch.size > options.page_bytes_max:
            self.network.faults.append("P9: a page with too many bytes")

    def take(self, batch: SampleBatch) -> None:
        """The one door: deduplicate, keep the first content, store, tell the aligner."""
        stored: list[Sample] = []
        for sample in batch:
            stream = sample.stream
            if not self.scope.holds(sample.key):
                continue
            held = self.store.setdefault(stream, {})
            known = held.get(sample.sn)
            if known is not None:
                if sample_digest(known) != sample_digest(sample):
                    self.conflicts.add((stream, sample.sn))
            elif sample.sn >= self.floor(stream) and not self._fails():
                self.keep(sample)
                stored.append(sample)
        if stored:
            self.feed(Appended(SampleBatch(stored)))

    def floor(self, stream: Stream) -> int:
        """Return the number below which nothing is taken."""
        return max(self.floors.get(stream, 0), self.purges.get(stream, 0))

    def _fails(self) -> bool:
        network = self.network
        return not network.healed and network.random.random() < network.options.append_failure

    def keep(self, sample: Sample) -> None:
        """Store one sample durably."""
        stream = sample.stream
        if (stream, sample.sn) in self.trimmed:
            self.resurrected.append((stream, sample.sn))
        self.store[stream][sample.sn] = sample

    def trim(self) -> None:
        """Apply retention: the floor first, then the samples."""
        profile = self.profile
        raised: list[tuple[Stream, int]] = []
        for stream, held in self.store.items():
            sns = sorted(held)
            floor = floor_of_depth(flat(RangeSet.of(sns)), profile.samples_max)
            if profile.age_seconds_max is not None:
                oldest_ns = self.unix_ns - round(profile.age_seconds_max * SECOND_NS)
                young = (sn for sn in sns if held[sn].received_ns >= oldest_ns)
                floor = max(floor, next(young, sns[-1] + 1 if sns else 0))
            if sns and floor > sns[0]:
                raised.append((stream, floor))
        for stream, floor in raised:
            self.floors[stream] = max(self.floors.get(stream, 0), floor)
            self._drop(stream, floor)
        if raised and self.running:
            self.feed(Trimmed(tuple(raised)))

    def purge(self, floors: tuple[tuple[Stream, int], ...]) -> None:
        """Remove what is below for good."""
        for stream, floor in floors:
            self.purges[stream] = max(self.purges.get(stream, 0), floor)
            self._drop(stream, floor)
        self.feed(Purged(floors))

    def _drop(self, stream: Stream, floor: int) -> None:
        held = self.store.get(stream, {})
        for sn in [sn for sn in held if sn < floor]:
            del held[sn]
            self.trimmed.add((stream, sn))


def _seeded(options: AlignerOptions, random: Random) -> AlignerOptions:
    from dataclasses import replace

    return replace(options, random_seed=random.getrandbits(32))


def source_of(number: int) -> SourceId:
    """Return the source a simulated publisher has."""
    return SourceId(f"{number + 1:x}", number)
