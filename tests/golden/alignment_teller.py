"""Stories of two aligners that talk: what each holds, and every message between them.

Messages arrive at once, unless a story lets them be lost. What is offered is taken and stored, as
the door of live samples does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Stream, sample_digest
from durable_cache.protocol.alignment import (
    Aligner,
    AlignerEvent,
    AlignerOptions,
    AlignerOutput,
    Appended,
    CacheProfile,
    ComparisonEnded,
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
    ReportRefusal,
    RequestFailed,
    RequestReceived,
    RootReceived,
    SendReply,
    SendRequest,
    StreamLoaded,
    Tick,
    Trimmed,
    pull_reply,
    ranges,
)
from durable_cache.protocol.alignment.wire import (
    Pull,
    PullReply,
    decode_reply,
    decode_request,
    decode_root,
)
from tests.golden.stories import (
    SECOND_NS,
    Clock,
    Teller,
    Words,
    run,
    samples,
    source_of,
    told,
)

_TICK_NS = SECOND_NS // 2


class _Cache:
    """A storage that never fails, its door, and its aligner."""

    def __init__(self, name: str, clock: Clock, depth: int | None) -> None:
        self.name, self.depth = name, depth
        self._clock = clock
        self.starts = 0
        self.store: dict[Stream, dict[int, Sample]] = {}
        self.purges: dict[Stream, int] = {}
        self.aligner = self._aligner()

    def _aligner(self) -> Aligner:
        self.starts += 1
        profile = CacheProfile(self.name, str(self.starts), ("**",), (), None, self.depth)
        return Aligner(replace(AlignerOptions(), random_seed=len(self.name)), profile)

    def begin(self) -> list[AlignerOutput]:
        """Start on what is stored."""
        self.aligner = self._aligner()
        streams = tuple(
            StreamLoaded(stream, RangeSet.of(held), 0, self.purges.get(stream, 0))
            for stream, held in self.store.items()
        )
        content = SampleBatch(sample for held in self.store.values() for sample in held.values())
        events: tuple[AlignerEvent, ...] = (
            *(Loaded(streams), LoadEnded()),
            *(ContentRead(content), ContentEnded()),
        )
        return [output for event in events for output in self.aligner.handle(event)]

    def take(self, batch: SampleBatch) -> tuple[list[Sample], list[Sample]]:
        """Store what is new; returns it, and what came with another content."""
        stored, conflicts = [], []
        for sample in batch:
            held = self.store.setdefault(sample.stream, {})
            known = held.get(sample.sn)
            if known is not None and sample_digest(known) != sample_digest(sample):
                conflicts.append(sample)
            elif known is None and sample.sn >= self.purges.get(sample.stream, 0):
                held[sample.sn] = sample
                stored.append(sample)
        return stored, conflicts

    def drop(self, stream: Stream, floor: int) -> None:
        """Remove what is below a number."""
        held = self.store.get(stream, {})
        for sn in [sn for sn in held if sn < floor]:
            del held[sn]

    def read(self, read: ReadSamples) -> Iterator[Sample]:
        """Yield what is wanted, newest first."""
        for stream, flat_runs in read.wanted:
            held = self.store.get(stream, {})
            for first, last in reversed([*ranges(flat_runs)]):
                yield from (held[sn] for sn in range(last, first - 1, -1) if sn in held)


class AlignmentTeller(Teller):
    """Two caches, one and two, and the link between them."""

    def __init__(self) -> None:
        super().__init__()
        self._caches: dict[str, _Cache] = {}
        self._parted = False
        self._lines: list[str] = []

    def tell(self, line: Words) -> list[str]:
        self._lines = []
        match line.verb, *line.words:
            case "cache", name:
                depth = line.settings.get("samples_max")
                self._caches[name] = _Cache(name, self.clock, int(depth) if depth else None)
            case "start", *names:
                self._start(names or [*self._caches])
            case "stop", name:
                self._see(name, alive=False)
            case "parted", *_:
                self._parted = True
            case "healed", *_:
                self._parted = False
            case "wait", seconds:
                self._wait(float(seconds))
            case (name, "holds", *_) if name in self._caches:
                stored = samples(line.tail.partition(" ")[2], self.clock)
                self._stored(self._caches[name], SampleBatch(stored))
            case (name, "trims", below, text) if name in self._caches:
                self._remove(self._caches[name], Trimmed, below, int(text))
            case (name, "purges", below, text) if name in self._caches:
                self._remove(self._caches[name], Purged, below, int(text))
            case "state", *_:
                for cache in self._caches.values():
                    held = (s for of in cache.store.values() for _, s in sorted(of.items()))
                    self._lines.append(f"{cache.name} holds {told(held)}")
            case _:
                raise ValueError(f"caches that align have no event {line.text!r}")
        return self._lines

    def _start(self, names: list[str]) -> None:
        for name in names:
            self._carry_out(self._caches[name], self._caches[name].begin())
        for name in names:
            self._see(name, alive=True)
        for name in self._caches.keys() - set(names):
            self._see(name, alive=True)

    def _see(self, name: str, *, alive: bool) -> None:
        seen = PeerSeen if alive else PeerGone
        for other in self._caches.values():
            if other.name != name:
                self._feed(other, seen(name, str(self._caches[name].starts)))

    def _stored(self, cache: _Cache, batch: SampleBatch) -> None:
        stored, conflicts = cache.take(batch)
        if conflicts:
            self._say(f"{cache.name} keeps its own {told(conflicts)}")
        if stored:
            self._feed(cache, Appended(SampleBatch(stored)))

    def _remove(
        self, cache: _Cache, kind: type[Trimmed] | type[Purged], below: str, floor: int
    ) -> None:
        source, epoch = source_of(below)
        floors = tuple((s, floor) for s in cache.store if (s.source, s.epoch) == (source, epoch))
        self._drop(cache, kind, floors)

    def _drop(
        self,
        cache: _Cache,
        kind: type[Trimmed] | type[Purged],
        floors: tuple[tuple[Stream, int], ...],
    ) -> None:
        for stream, floor in floors:
            cache.drop(stream, floor)
            if kind is Purged:
                cache.purges[stream] = max(floor, cache.purges.get(stream, 0))
        self._feed(cache, kind(floors))

    def _wait(self, seconds: float) -> None:
        end_ns = self.clock.now_ns + round(seconds * SECOND_NS)
        while self.clock.now_ns < end_ns:
            self.clock.now_ns = min(end_ns, self.clock.now_ns + _TICK_NS)
            for cache in self._caches.values():
                self._feed(cache, Tick(self.clock.moment))

    def _feed(self, cache: _Cache, event: AlignerEvent) -> None:
        self._carry_out(cache, cache.aligner.handle(event))

    def _say(self, text: str) -> None:
        self._lines.append(f"{self.clock}: {text}")

    def _carry_out(self, cache: _Cache, outputs: list[AlignerOutput]) -> None:
        for output in outputs:
            match output:
                case PublishRoot(_, payload):
                    root = decode_root(payload)
                    self._say(
                        f"{cache.name} announces {root.samples} samples in {root.streams} streams"
                    )
                    for other in self._caches.values():
                        if other is not cache and not self._parted:
                            self._feed(other, RootReceived(payload))
                case SendRequest(peer, request_id, payload):
                    self._ask(cache, self._caches[peer], request_id, payload)
                case Offer(peer, batch, held, _):
                    offered = [told(_by_number(batch))] if len(batch) else []
                    offered += [f"to compare {told(_by_number(held))}"] if len(held) else []
                    self._say(f"{cache.name} is offered by {peer} {' and '.join(offered)}")
                    self._stored(cache, SampleBatch((*batch, *held)))
                case RaisePurge(peer, floors, _):
                    below = ", ".join(f"{s.source.zid}@{s.epoch} {floor}" for s, floor in floors)
                    self._say(f"{cache.name} learns from {peer} of a purge below {below}")
                    self._drop(cache, Purged, floors)
                case ReportRefusal(peer, reason):
                    self._say(f"{cache.name} cannot align with {peer}: {reason}")
                case ComparisonEnded():
                    self._say(_ended(cache.name, output))
                case SendReply() | ReadSamples():
                    raise AssertionError("an answer without a request")

    def _ask(self, asker: _Cache, asked: _Cache, request_id: int, payload: bytes) -> None:
        request = decode_request(payload)
        self._say(f"{asker.name} asks {asked.name}: {_request(request)}")
        if self._parted:
            self._feed(asker, RequestFailed(request_id, "timeout"))
            return
        for output in asked.aligner.handle(RequestReceived(0, payload)):
            if isinstance(output, ReadSamples):
                reply = pull_reply(output, asked.read(output))
            elif isinstance(output, SendReply):
                reply = output.payload
            else:
                self._carry_out(asked, [output])
                continue
            self._say(f"{asked.name} answers: {_reply(decode_reply(reply))}")
            self._feed(asker, ReplyReceived(request_id, reply))


def _by_number(batch: SampleBatch) -> list[Sample]:
    return sorted(batch, key=lambda sample: sample.order)


def _request(request: object) -> str:
    if isinstance(request, Pull):
        wanted = (one for _, flat_runs in request.items for one in ranges(flat_runs))
        return f"pull {','.join(run(*one) for one in wanted)}"
    return type(request).__name__.lower()


def _reply(reply: object) -> str:
    if isinstance(reply, PullReply):
        absent = [one for _, flat_runs in reply.absent for one in ranges(flat_runs)]
        if absent:
            return f"a page, without {','.join(run(*one) for one in absent)}"
        return "a page"
    return type(reply).__name__.removesuffix("Reply").lower()


def _ended(name: str, ended: ComparisonEnded) -> str:
    how = ended.error or f"{ended.samples_missing} missing, {ended.samples_offered} offered"
    gone = ended.samples_unrecoverable
    lost = f", {gone} nobody has" if gone else ""
    return f"{name} has compared with {ended.peer}, {ended.lane.name.lower()}: {how}{lost}"
