"""Whether caches align whatever happens to them: seeded histories in virtual time.

A history has two to ten caches with their own retention and scope, publishers that restart, a
network that loses, delays, doubles and reorders, partitions in one direction, crashes, wiped and
restored storages, skewed clocks. Then everything heals and the properties of `docs/alignment.md`
must hold. One seed is one history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream, sample_digest
from durable_cache.protocol.alignment import (
    Aligner,
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
    PublishRoot,
    Purged,
    RaisePurge,
    ReadSamples,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    RootReceived,
    Scope,
    SendReply,
    SendRequest,
    StreamLoaded,
    Tick,
    Trimmed,
    pull_reply,
)
from durable_cache.protocol.alignment.knowledge import flat, floor_of_depth, ranges
from durable_cache.protocol.alignment.packing import unsqueeze
from durable_cache.protocol.alignment.wire import Pull, PullReply, decode_reply, decode_request
from durable_cache.protocol.wire import decode_batch
from durable_cache.testing.simulated_network import SECOND_NS, START_NS, Network


class SimulatedCache:
    """A storage, its door and its aligner, as an endpoint puts them together."""

    def __init__(
        self, network: Network[SimulatedCache], profile: CacheProfile, *, skew_seconds: float = 0.0
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
        self.held_back_until_ns: dict[SourceId, int] = {}
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
            case Offer(_, batch, held, _):
                self.pulled += len(batch)
                let_in = [sample for sample in batch if self._let_in(sample.source)]
                self.take(SampleBatch((*let_in, *held)))
            case RaisePurge(_, floors, _):
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
        batch = decode_batch(unsqueeze(reply.batch, reply.unpacked))
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

    def _let_in(self, source: SourceId) -> bool:
        """Tell whether what peers give of a source may come in now; never is it for ever."""
        network = self.network
        options, random = network.options, network.random
        until_ns = self.held_back_until_ns.get(source)
        if until_ns is None:
            seconds = random.uniform(0.0, options.held_back_seconds_max)
            holds = random.random() < options.held_back
            until_ns = network.now_ns + round(seconds * SECOND_NS) if holds else 0
            self.held_back_until_ns[source] = until_ns
        return network.now_ns >= until_ns

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
    return SourceId(f"{number + 1:x}", number + 1)
