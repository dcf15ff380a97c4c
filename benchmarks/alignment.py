"""How much must two caches say to each other to come to hold the same samples?

Two aligners are joined in process: what one sends the other gets at once, and every byte counts.
Both know `--streams` streams; then one gets samples the other missed, and the other finds them.
Beside it stand the lower bound (the missing samples alone), a plain exchange of what everyone has
(24 bytes a stream, one run each), and what the session cost. Samples name their run, as those of a
ReliablePublisher do; with `--nameless` they do not, as those of foreign publishers.

    python benchmarks/alignment.py --streams 10000
    python benchmarks/alignment.py --streams 1000000
    python benchmarks/alignment.py --streams 1000 --samples-each 10000
    python benchmarks/alignment.py --streams 10000 --nameless
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.run_name import RunName
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.alignment import (
    Aligner,
    AlignerEvent,
    AlignerOptions,
    AlignerOutput,
    Appended,
    CacheProfile,
    ContentEnded,
    Loaded,
    LoadEnded,
    Offer,
    PeerSeen,
    PublishRoot,
    ReadSamples,
    ReplyReceived,
    RequestReceived,
    RootReceived,
    SendReply,
    SendRequest,
    StreamLoaded,
    Tick,
    pull_reply,
)
from durable_cache.protocol.alignment.wire import PullReply, decode_reply
from durable_cache.protocol.wire import Incarnation

SECOND_NS = 10**9
START_NS = 1_800_000_000 * SECOND_NS
PAYLOAD_BYTES = 100
"""Of each sample, random, so that nothing is gained by compressing them."""


@dataclass
class Cost:
    """What was sent, in bytes and messages, and the time both sides took."""

    roots: int = 0
    root_bytes: int = 0
    requests: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0
    sample_bytes: int = 0
    payload_bytes: int = 0
    samples: int = 0
    cpu_seconds: float = 0.0

    @property
    def control_bytes(self) -> int:
        return self.root_bytes + self.request_bytes + self.reply_bytes - self.sample_bytes


class Side:
    """One cache: an aligner and a storage that makes up the samples it is asked for."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.name = bench, name
        self.aligner = Aligner(
            AlignerOptions(secret=b"benchmark"), CacheProfile(name, "1", ("**",))
        )

    def feed(self, event: AlignerEvent) -> None:
        for output in self.aligner.handle(event):
            self.carry_out(output)

    def carry_out(self, output: AlignerOutput) -> None:
        cost, other = self.bench.cost, self.bench.other(self)
        match output:
            case PublishRoot(_, payload):
                cost.roots += 1
                cost.root_bytes += len(payload)
                other.feed(RootReceived(payload))
            case SendRequest(_, request_id, payload, _):
                cost.requests += 1
                cost.request_bytes += len(payload)
                self.feed(ReplyReceived(request_id, other.answer(payload)))
            case Offer(_, batch, _):
                cost.samples += len(batch)
                cost.payload_bytes += sum(len(sample.payload) for sample in batch)
                self.feed(Appended(batch))

    def answer(self, payload: bytes) -> bytes:
        cost = self.bench.cost
        for output in self.aligner.handle(RequestReceived(0, payload)):
            match output:
                case SendReply(_, packed):
                    cost.reply_bytes += len(packed)
                    return packed
                case ReadSamples():
                    packed = pull_reply(output, self.bench.read(output), self.bench.names(output))
                    cost.reply_bytes += len(packed)
                    reply = decode_reply(packed)
                    assert isinstance(reply, PullReply)
                    cost.sample_bytes += len(reply.batch)
                    return packed
        raise AssertionError("a request without a reply")


def run_of(source: SourceId) -> RunName:
    return RunName(3, blake2b(str(source).encode(), digest_size=4).hexdigest())


def stream_of(number: int) -> Stream:
    return Stream(
        f"fleet/robot{number % 1000}/sensor{number}", SourceId(f"{number % 1000 + 1:x}", 7), 3
    )


class Bench:
    """Two sides over the same streams."""

    def __init__(self, streams: int, samples_each: int, *, named: bool) -> None:
        self.cost = Cost()
        self.named = named
        self.streams = streams
        self.next_sn = [samples_each] * streams
        self.now_ns = 0
        self.sides = [Side(self, "one"), Side(self, "two")]
        for side in self.sides:
            for first in range(0, streams, 10_000):
                numbers = range(first, min(first + 10_000, streams))
                side.feed(
                    Loaded(
                        tuple(
                            StreamLoaded(stream_of(n), RangeSet([(0, samples_each - 1)]))
                            for n in numbers
                        )
                    )
                )
            side.feed(ContentEnded())
            side.feed(LoadEnded())
        for side in self.sides:
            side.feed(PeerSeen(self.other(side).name, "1"))
        self.run(60 + streams / 10_000)

    def sample_of(self, stream: Stream, sn: int) -> Sample:
        return Sample(
            *stream,
            sn,
            random.Random(f"{stream} {sn}").randbytes(PAYLOAD_BYTES),
            ntp64=ntp64_from_ns(START_NS) + sn,
            timestamp_id=run_of(stream.source).timestamp_id if self.named else stream.source.zid,
            received_ns=START_NS + sn,
        )

    def read(self, read: ReadSamples) -> Iterator[Sample]:
        for stream, runs in read.wanted:
            for first, last in zip(runs[::2], runs[1::2], strict=True):
                for sn in range(last, first - 1, -1):
                    yield self.sample_of(stream, sn)

    def names(self, read: ReadSamples) -> list[Incarnation]:
        sources = {stream.source for stream, _ in read.wanted} if self.named else set()
        return [Incarnation(source, *run_of(source)) for source in sorted(sources)]

    def other(self, side: Side) -> Side:
        return self.sides[side is self.sides[0]]

    def run(self, seconds: float) -> None:
        """Let virtual time pass, in half seconds."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self.now_ns < end_ns:
            self.now_ns += SECOND_NS // 2
            for side in self.sides:
                side.feed(Tick(Moment(self.now_ns, START_NS + self.now_ns)))

    def measure(self, missing: list[tuple[int, int]]) -> Cost:
        """Give one side `(stream, how many)` new samples; return what it cost to align both."""
        batch = []
        for number, count in missing:
            stream, first = stream_of(number), self.next_sn[number]
            self.next_sn[number] += count
            batch += [self.sample_of(stream, sn) for sn in range(first, first + count)]
        self.sides[0].feed(Appended(SampleBatch(batch)))
        self.cost = Cost()
        began = time.process_time()
        self.run(60)
        self.cost.cpu_seconds = time.process_time() - began
        one, two = (next(iter(side.aligner.ledger.views.values())) for side in self.sides)
        assert one.tree.root == two.tree.root, "the two do not agree in the end"
        return self.cost


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--samples-each", type=int, default=10, help="the history of a stream")
    parser.add_argument("--nameless", action="store_true", help="as of foreign publishers")
    arguments = parser.parse_args()
    streams = arguments.streams
    gc.disable()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    bench = Bench(streams, arguments.samples_each, named=not arguments.nameless)
    seconds = time.perf_counter() - began
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"{streams} streams: {memory / 2 / streams:.0f} B a stream a cache (peak),", end=" ")
    print(f"{seconds / 2 / streams * 1e6:.1f} us a stream to load")
    print("case           samples  requests  roots  control B  request B   reply B*  ", end="")
    print("payload B  samples B  all/payload  naive B  CPU ms")
    shuffled = random.Random(1).sample(range(streams), min(streams, 10_000))
    cases: dict[str, list[tuple[int, int]]] = {
        "d=0": [],
        "d=1": [(shuffled[0], 1)],
        "d=100": [(n, 1) for n in shuffled[:100]],
        "d=1000": [(shuffled[n % len(shuffled)], 1) for n in range(1000)],
        "d=10000": [(n, 1) for n in shuffled[:10_000]],
        "one source": [(n, 1) for n in range(5, streams, 1000)],
        "one range": [(shuffled[0], 1000)],
    }
    # What comes names its run: no stream is measured before both sides have a sample of it.
    bench.measure([(n, 1) for n in {n for missing in cases.values() for n, _ in missing}])
    for name, missing in cases.items():
        cost = bench.measure(missing)
        everything = cost.root_bytes + cost.request_bytes + cost.reply_bytes
        ratio = everything / cost.payload_bytes if cost.payload_bytes else 0.0
        print(
            f"{name:12} {cost.samples:9} {cost.requests:9} {cost.roots:6} {cost.control_bytes:10}"
            f" {cost.request_bytes:10} {cost.reply_bytes - cost.sample_bytes:10}"
            f" {cost.payload_bytes:10} {cost.sample_bytes:10} {ratio:12.2f}"
            f" {24 * streams:8} {cost.cpu_seconds * 1000:7.0f}"
        )


if __name__ == "__main__":
    main()
