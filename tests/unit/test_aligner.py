"""Does the aligner answer every event as it says, whatever a peer sends?"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
)
from durable_cache.protocol.alignment.knowledge import ranges
from durable_cache.protocol.alignment.scope import Scope, common_scope
from durable_cache.protocol.alignment.wire import (
    Blocks,
    Pull,
    PullReply,
    Refused,
    decode_reply,
    decode_request,
)
from durable_cache.protocol.wire import Incarnation

SECOND_NS = 10**9
START_NS = 1_800_000_000 * SECOND_NS
SOURCE = SourceId("a1", 1)


def sample_of(key: str, sn: int, now_ns: int = 0, payload: bytes = b"x") -> Sample:
    at_ns = START_NS + now_ns
    return Sample(
        key, SOURCE, 0, sn, payload, ntp64=ntp64_from_ns(at_ns), timestamp_id="1", received_ns=at_ns
    )


class Side:
    """One aligner with a plain store, joined to another; what it says goes over at once."""

    def __init__(self, name: str, include: str = "**", **changes: Any) -> None:
        options = replace(AlignerOptions(secret=b"unit"), **changes)
        self.aligner = Aligner(options, CacheProfile(name, "1", (include,)))
        self.name = name
        self.other: Side | None = None
        self.store: dict[tuple[Stream, int], Sample] = {}
        self.sent: list[AlignerOutput] = []
        self.deaf = False
        self.carries_out = True
        self.skew_ns = 0
        self.feed(LoadEnded())

    def feed(self, event: AlignerEvent) -> None:
        for output in self.aligner.handle(event):
            self.sent.append(output)
            other = self.other
            match output:
                case SendRequest(_, request_id, payload, _):
                    if other is None or other.deaf:
                        self.feed(RequestFailed(request_id, "timeout"))
                    else:
                        self.feed(ReplyReceived(request_id, other.answer(payload)))
                case PublishRoot(_, payload) if other is not None:
                    other.feed(RootReceived(payload))
                case Offer(_, batch, _, _):
                    self.take(batch)
                case RaisePurge(_, floors, _) if self.carries_out:
                    self.feed(Purged(floors))

    def answer(self, payload: bytes) -> bytes:
        for output in self.aligner.handle(RequestReceived(1, payload)):
            self.sent.append(output)
            match output:
                case SendReply(_, packed):
                    return packed
                case ReadSamples():
                    return pull_reply(
                        output,
                        (
                            self.store[stream, sn]
                            for stream, runs in output.wanted
                            for first, last in zip(runs[::2], runs[1::2], strict=True)
                            for sn in range(first, last + 1)
                        ),
                    )
        raise AssertionError("no reply")

    def take(self, batch: SampleBatch) -> None:
        for sample in batch:
            self.store.setdefault((sample.stream, sample.sn), sample)
        self.feed(Appended(batch))

    def refusals(self) -> list[str]:
        return [output.reason for output in self.sent if isinstance(output, ReportRefusal)]


class Pair:
    """Two sides and one clock."""

    def __init__(self, one: Side, two: Side) -> None:
        self.sides = (one, two)
        self.now_ns = 0
        one.other, two.other = two, one
        self.run(10)
        one.feed(PeerSeen(two.name, "1"))
        two.feed(PeerSeen(one.name, "1"))

    def run(self, seconds: float) -> None:
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self.now_ns < end_ns:
            self.now_ns += SECOND_NS // 2
            for side in self.sides:
                side.feed(Tick(Moment(self.now_ns, START_NS + self.now_ns + side.skew_ns)))


def test_a_cache_whose_clock_is_behind_gets_what_it_lacks_of_one_that_never_stands_still() -> None:
    """Its own slot of what the other announced last never comes: another is announced by then."""
    ahead, behind = Side("a"), Side("b")
    behind.skew_ns = -30 * SECOND_NS
    pair = Pair(ahead, behind)
    missing = SampleBatch([sample_of("k", 0, pair.now_ns)])
    ahead.take(missing)
    for sn in range(1, 100):
        heard = SampleBatch([sample_of("live", sn, pair.now_ns)])
        for side in pair.sides:
            side.take(heard)
        pair.run(1)
    assert behind.store == ahead.store
    comparisons = [one for one in behind.sent if isinstance(one, ComparisonEnded)]
    assert len(comparisons) == 1


def test_one_missing_sample_costs_three_questions_and_comes_once() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    for key in range(50):
        batch = SampleBatch(sample_of(f"k/{key}", sn, pair.now_ns) for sn in range(5))
        one.take(batch)
        two.take(batch)
    pair.run(30)
    one.sent.clear()
    two.sent.clear()
    one.take(SampleBatch([sample_of("k/7", 5, pair.now_ns)]))
    pair.run(60)
    assert two.store == one.store
    assert sum(isinstance(output, SendRequest) for output in two.sent) <= 4
    assert not any(isinstance(output, SendRequest) for output in one.sent)
    (ended,) = [output for output in two.sent if isinstance(output, ComparisonEnded)]
    assert (ended.samples_missing, ended.samples_offered, ended.error) == (1, 1, "")
    assert ended.bytes_sent + ended.bytes_received < 1024


def test_equal_caches_fall_silent() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    batch = SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(5))
    one.take(batch)
    two.take(batch)
    pair.run(400)
    one.sent.clear()
    two.sent.clear()
    pair.run(3600)
    assert one.sent == two.sent == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"secret": b"other"}, "secrets differ"),
        ({"slot_seconds": 10}, "slot_seconds"),
        ({"block": 4}, "content blocks"),
    ],
)
def test_other_parameters_are_refused_on_both_sides(changes: dict[str, Any], reason: str) -> None:
    one, two = Side("one"), Side("two", **changes)
    pair = Pair(one, two)
    one.take(SampleBatch([sample_of("k", 1)]))
    pair.run(60)
    assert any(reason in said for said in one.refusals())
    assert any(reason in said for said in two.refusals())
    assert not two.store
    assert reason in one.aligner.status()[0].refused


def test_a_dry_run_counts_and_takes_nothing() -> None:
    one, two = Side("one"), Side("two", pull=False)
    pair = Pair(one, two)
    one.take(SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(7)))
    pair.run(60)
    ended = [output for output in two.sent if isinstance(output, ComparisonEnded)]
    assert ended[0].samples_missing == 7
    assert not two.store
    assert not two.aligner.status()[0].equal
    assert not two.aligner.status()[0].complete


def test_nothing_is_pulled_while_ingest_is_behind() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    one.take(SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(7)))
    for _ in range(120):
        pair.now_ns += SECOND_NS // 2
        one.feed(Tick(Moment(pair.now_ns, START_NS + pair.now_ns)))
        two.feed(Tick(Moment(pair.now_ns, START_NS + pair.now_ns), busy=True))
    assert not two.store
    pair.run(10)
    assert len(two.store) == 7


def test_a_rate_bounds_what_comes_in() -> None:
    one, two = Side("one"), Side("two", rate_bytes_per_second=1000, page_samples_max=4)
    pair = Pair(one, two)
    payloads = [Random(sn).randbytes(1000) for sn in range(40)]
    one.take(SampleBatch(sample_of("k", sn, pair.now_ns, payloads[sn]) for sn in range(40)))
    pair.run(30)
    assert 0 < len(two.store) < 40
    pair.run(120)
    assert len(two.store) == 40


def test_an_oversized_sample_comes_alone() -> None:
    one, two = Side("one"), Side("two", page_bytes_max=1000)
    pair = Pair(one, two)
    sizes = [10, 50_000, 10]
    one.take(SampleBatch(sample_of("k", sn, pair.now_ns, bytes(n)) for sn, n in enumerate(sizes)))
    pair.run(60)
    assert two.store == one.store


def test_a_peer_that_does_not_answer_is_asked_less_and_less() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    pair.run(5)
    one.deaf = True
    one.take(SampleBatch([sample_of("k", 1, pair.now_ns)]))
    two.sent.clear()
    pair.run(1200)
    asked = sum(isinstance(output, SendRequest) for output in two.sent)
    assert 3 < asked < 12
    one.deaf = False
    pair.run(900)
    assert two.store == one.store


def test_content_read_in_the_background_makes_the_sums_of_live_samples() -> None:
    batch = SampleBatch(sample_of("k", sn) for sn in range(40))
    live, loaded = Side("live"), Side("loaded")
    live.take(batch)
    stream = batch.samples[0].stream
    loaded.aligner.handle(Loaded((StreamLoaded(stream, RangeSet([(0, 39)])),)))
    loaded.feed(Appended(SampleBatch(batch.samples[30:])))
    loaded.feed(ContentRead(batch))
    loaded.feed(ContentEnded())
    pair = Pair(live, loaded)
    pair.run(30)
    one, two = (next(iter(s.aligner.ledger.views.values())).tree.root for s in pair.sides)
    assert one == two
    assert one.content


def test_floors_and_purges_come_from_the_storage() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    batch = SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(10))
    stream = batch.samples[0].stream
    one.take(batch)
    two.feed(Trimmed(((stream, 6),)))
    pair.run(60)
    assert sorted(sn for _, sn in two.store) == [6, 7, 8, 9]
    one.feed(Purged(((stream, 8),)))
    two.sent.clear()
    pair.run(60)
    assert RaisePurge("one", ((stream, 8),)) in two.sent


def test_a_purge_without_an_epoch_says_until_when() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    batch = SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(10))
    stream = batch.samples[0].stream
    one.take(batch)
    pair.run(60)
    until = ((stream, batch.samples[7].ntp64),)
    one.feed(Purged(((stream, 8),), until))
    pair.run(60)
    assert RaisePurge("one", ((stream, 8),), until) in two.sent


def test_a_purge_that_is_not_carried_out_is_told_with_growing_pauses() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    batch = SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(10))
    two.take(batch)
    one.feed(Loaded((StreamLoaded(batch.samples[0].stream, RangeSet(), 0, 8),)))
    two.carries_out = False
    pair.run(1200)
    told = sum(isinstance(output, RaisePurge) for output in two.sent)
    assert 3 <= told <= 12
    two.carries_out = True
    pair.run(600)
    assert next(iter(two.aligner.ledger.records.values())).purge == 8


def test_a_stream_of_which_nothing_is_left_is_forgotten_when_its_time_is_over() -> None:
    one, two = Side("one", forget_seconds=600.0), Side("two")
    pair = Pair(one, two)
    kept, gone = sample_of("kept", 0, pair.now_ns), sample_of("gone", 0, pair.now_ns)
    one.take(SampleBatch([kept, gone]))
    pair.run(30)

    def known() -> set[str]:
        return {record.stream.key for record in one.aligner.ledger.records.values()}

    one.feed(Trimmed(((gone.stream, 1),)))
    pair.run(500)
    assert known() == {"kept", "gone"}
    pair.run(200)
    assert known() == {"kept"}


def test_two_caches_with_nothing_in_common_say_nothing() -> None:
    one, two = Side("one", "a/**"), Side("two", "b/**")
    pair = Pair(one, two)
    one.take(SampleBatch([sample_of("a/1", 1)]))
    pair.run(60)
    assert not any(isinstance(output, PublishRoot) for output in one.sent + two.sent)


def test_views_are_named_alike_from_both_sides() -> None:
    pairs = [
        (("a/**",), ("a/b/**",)),
        (("a/**",), ("**",)),
        (("a/*", "b/**"), ("b/*", "a/**")),
        (("a/$*x/**",), ("a/b$*/**",)),
    ]
    for one, two in pairs:
        left, right = Scope.of(one), Scope.of(two)
        there, back = common_scope(left, right), common_scope(right, left)
        assert there is not None
        assert back is not None
        assert there.name == back.name
        for key in ("a/b", "a/b/c", "b/c", "a/bx", "a/bx/1", "c"):
            assert there.holds(key) == (left.holds(key) and right.holds(key))
    assert common_scope(Scope.of(("a/**",)), Scope.of(("b/**",))) is None
    hollow = Scope.of(("a/**",), ("a/x/**",))
    common = common_scope(hollow, Scope.of(("a/**",)))
    assert common is not None
    assert common.holds("a/b")
    assert not common.holds("a/x/1")


def test_what_was_not_taken_is_pulled_again_after_pauses_that_double() -> None:
    one, two = Side("one"), Side("two", tried_seconds=100.0)
    pair = Pair(one, two)
    one.take(SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(1)))
    offered: list[float] = []

    def refuse(batch: SampleBatch) -> None:
        offered.append(pair.now_ns / SECOND_NS)

    two.take = refuse  # type: ignore[method-assign]
    two.aligner.ledger.counted = False  # so that no comparison of content comes in between
    pair.run(900)
    pauses = [round(after - before) for before, after in pairwise(offered)]
    assert len(one.store) == 1
    assert pauses[0] < 20  # a slot, the settling time, and the pause after a comparison
    assert pauses[1] < pauses[2] < pauses[3]
    assert 80 <= pauses[4] < 100 <= pauses[5] < 140
    del two.take  # type: ignore[method-assign]
    pair.run(160)
    assert two.store == one.store
    status = two.aligner.status()[0]
    assert (status.equal, status.known_differences) == (True, 0)


def test_a_peer_that_comes_back_is_not_asked_for_what_is_refused() -> None:
    """Another gave it meanwhile, and it was not taken: whoever has it would give the same."""
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    batch = SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(3))
    stream = batch.samples[0].stream
    two.take(SampleBatch(batch.samples[:1]))
    pair.run(60)
    two.feed(PeerGone("one", "1"))
    one.take(batch)
    two.aligner.ledger.refuse(stream, RangeSet([(1, 2)]))
    two.sent.clear()
    two.feed(PeerSeen("one", "1"))
    pair.run(60)
    requests = [decode_request(out.payload) for out in two.sent if isinstance(out, SendRequest)]
    assert requests, "it was not spoken to"
    asked = [runs for it in requests if isinstance(it, Pull) for _, runs in it.items]
    assert not any(ranges(runs).intersection(RangeSet([(1, 2)])) for runs in asked), asked


def test_another_incarnation_begins_anew() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    pair.run(10)
    two.feed(PeerGone("one", "1"))
    assert not two.aligner.status()[0].live
    two.feed(PeerSeen("one", "2"))
    pair.run(20)
    assert two.aligner.status()[0].equal is None


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(0, 1000))
def test_no_payload_makes_it_raise(payloads: list[bytes], seed: int) -> None:
    """Every event with noise or with a real message, cut or garbled or out of place, is taken."""
    random = Random(seed)
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    one.take(SampleBatch(sample_of("k", sn, pair.now_ns) for sn in range(3)))
    pair.run(8)
    requests = [output.payload for output in two.sent if isinstance(output, SendRequest)]
    real = requests + [output.payload for output in one.sent if isinstance(output, SendReply)]
    for payload in payloads + random.sample(real, min(3, len(real))):
        cut = payload[: random.randint(0, len(payload))] if random.random() < 0.3 else payload
        for outputs in (
            two.aligner.handle(RootReceived(cut)),
            two.aligner.handle(RequestReceived(9, cut)),
        ):
            for output in outputs:
                if isinstance(output, SendReply):
                    assert decode_reply(output.payload)
        two.aligner.handle(ReplyReceived(random.randint(0, 9), cut))
        two.aligner.handle(RequestFailed(random.randint(0, 9), "x"))
    pair.run(60)


def test_a_reply_out_of_place_ends_the_session_with_its_reason() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    pair.run(5)
    honest = one.answer
    one.answer = lambda _: honest(b"noise")  # type: ignore[method-assign]
    one.take(SampleBatch([sample_of("k", 1, pair.now_ns)]))
    pair.run(20)
    failed = [output for output in two.sent if isinstance(output, ComparisonEnded)]
    assert failed
    assert "frame" in failed[0].error
    assert isinstance(decode_reply(honest(b"noise")), Refused)


def test_a_block_that_is_trimmed_between_two_answers_is_no_other_content() -> None:
    """The sums of what was trimmed meanwhile are nothing; the samples would tell, and are gone."""

    class Trimming(Side):
        def answer(self, payload: bytes) -> bytes:
            if isinstance(decode_request(payload), Blocks):
                self.feed(Trimmed(((stream, 10),)))
                late_ns = pair.now_ns + 20 * SECOND_NS
                self.feed(Tick(Moment(late_ns, START_NS + late_ns)))
            return super().answer(payload)

    one, two = (
        kind(name, block=1, content_seconds=30.0, audit_seconds=30.0)
        for kind, name in ((Side, "one"), (Trimming, "two"))
    )
    pair = Pair(one, two)
    batch = SampleBatch(sample_of("a", sn) for sn in range(32))
    stream = batch.samples[0].stream
    for side in (one, two):
        side.take(batch)
    two.feed(Trimmed(((stream, 5),)))
    pair.run(120)
    asked = [decode_request(out.payload) for out in one.sent if isinstance(out, SendRequest)]
    assert any(isinstance(request, Blocks) for request in asked)
    said = {type(output) for output in one.sent}
    assert said == {SendRequest, SendReply, PublishRoot, ComparisonEnded}


def test_of_what_is_sent_only_the_names_are_told_that_it_does_not_say() -> None:
    runs = [RunName(epoch, f"{epoch:08x}") for epoch in (3, 4, 5)]
    other = RunName(6, "06060606")
    names = [Incarnation(SOURCE, run.epoch, run.incarnation) for run in (*runs, other)]
    ids = (runs[0].timestamp_id, "1", runs[2].timestamp_id, runs[1].timestamp_id)
    samples = [
        msgspec.structs.replace(sample_of("k", sn), epoch=epoch, timestamp_id=at)
        for sn, (epoch, at) in enumerate(zip((3, 4, 5, 5), ids, strict=True))
    ]
    wanted = tuple((one.stream, (one.sn, one.sn)) for one in samples[:3])
    read = ReadSamples(0, wanted, (), (1, 2, 3), 0, 1 << 20, 100)
    reply = decode_reply(pull_reply(read, samples, names))
    assert isinstance(reply, PullReply)
    assert [*reply.incarnations] == names[1:], "the samples of 4 do not say it, those of 5 two"


def test_what_a_sample_says_of_its_run_goes_to_the_door_with_it() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    run = RunName(3, "0b0b0b0b")
    sample = msgspec.structs.replace(
        sample_of("k", 0), epoch=run.epoch, timestamp_id=run.timestamp_id
    )
    one.take(SampleBatch([sample]))
    pair.run(60)
    (offer,) = [output for output in two.sent if isinstance(output, Offer)]
    assert offer.names == (Incarnation(SOURCE, 3, "0b0b0b0b"),)
