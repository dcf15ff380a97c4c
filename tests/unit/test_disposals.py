"""Which instances are due for their cleanup, and which caches are known to have seen them?"""

from __future__ import annotations

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Kind, Sample, SampleBatch
from durable_cache.protocol.alignment import Appended, PeerGone, Tick
from durable_cache.protocol.disposals import UNREGISTERED, Disposals, is_disposal
from tests.unit.test_aligner import SECOND_NS, SOURCE, START_NS, Pair, Side, sample_of


def disposal(key: str, at_ns: int) -> Sample:
    return Sample(
        key, SOURCE, 0, 1, b"", kind=Kind.DELETE, attachment=UNREGISTERED, received_ns=at_ns
    )


def test_only_a_marked_delete_is_a_disposal() -> None:
    assert is_disposal(disposal("a", 1))
    assert not is_disposal(Sample("a", SOURCE, 0, 1, b"", kind=Kind.DELETE))
    assert not is_disposal(Sample("a", SOURCE, 0, 1, b"", kind=Kind.DELETE, attachment=b"mine"))
    assert not is_disposal(Sample("a", SOURCE, 0, 1, b"", attachment=UNREGISTERED))


def test_the_earliest_are_due_first_by_the_time_they_were_received() -> None:
    known = Disposals(10)
    assert known.note([disposal("late", 30), disposal("early", 10), disposal("next", 20)])
    assert known.due(20, 10) == ["early", "next"]
    assert known.due(20, 1) == ["early"]
    known.note([disposal("early", 25), disposal("late", 5)])
    assert known.due(29, 10) == ["next", "early"], "the later disposal of two counts"
    known.forget("next")
    known.forget("next")
    assert known.due(99, 10) == ["early", "late"]


def test_what_there_is_no_room_for_is_told_and_costs_the_others_nothing() -> None:
    known = Disposals(2)
    assert not known.note([disposal(key, 1) for key in "abc"])
    assert known.note([disposal("a", 2)])
    assert known.due(9, 10) == ["b", "a"]
    known.forget("a")
    assert known.note([disposal("c", 3)])
    assert len(known) == 2


def test_a_cache_lacks_what_it_is_not_known_to_know() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    mine = sample_of("k", 1, pair.now_ns)
    assert one.aligner.lacking(["one", "two"], [mine.stream]) == ["two"], "nobody knows the stream"
    one.take(SampleBatch([mine]))
    assert one.aligner.lacking(["one", "two"], [mine.stream]) == ["two"]
    pair.run(60)
    assert one.aligner.lacking(["one", "two"], [mine.stream]) == []
    assert one.aligner.lacking(["three", "two"], [mine.stream]) == ["three"]
    more = sample_of("k", 2, pair.now_ns)
    one.take(SampleBatch([more]))
    assert one.aligner.lacking(["two"], [mine.stream]) == ["two"], "not of the new sample"
    pair.run(60)
    assert one.aligner.lacking(["two"], [mine.stream]) == []
    one.feed(PeerGone("two", "1"))
    assert one.aligner.lacking(["two"], [mine.stream]) == ["two"]


def test_traffic_on_other_keys_neither_hides_nor_makes_up_what_a_cache_knows() -> None:
    one, two = Side("one"), Side("two")
    pair = Pair(one, two)
    mine = sample_of("k", 1, pair.now_ns)
    one.take(SampleBatch([mine]))
    seen = 0
    for at in range(200):
        both = SampleBatch([sample_of("traffic", at, pair.now_ns)])
        one.take(both)
        two.take(both)
        pair.now_ns += SECOND_NS // 2
        for side in pair.sides:
            side.feed(Tick(Moment(pair.now_ns, START_NS + pair.now_ns)))
            if not one.aligner.lacking(["two"], [mine.stream]):
                assert (mine.stream, 1) in two.store
                seen += 1
    assert seen > 200


def test_a_difference_that_cannot_be_settled_is_no_agreement() -> None:
    class Refusing(Side):
        def take(self, batch: SampleBatch) -> None:
            kept = SampleBatch(sample for sample in batch if sample.key != "k")
            for sample in kept:
                self.store.setdefault((sample.stream, sample.sn), sample)
            self.feed(Appended(kept))

    one, two = Side("one"), Refusing("two")
    pair = Pair(one, two)
    mine, other = sample_of("k", 1, pair.now_ns), sample_of("j", 1, pair.now_ns)
    one.take(SampleBatch([mine, other]))
    for _ in range(60):
        pair.run(10)
        assert one.aligner.lacking(["two"], [mine.stream]) == ["two"]
    assert (other.stream, 1) in two.store


def test_a_cache_that_does_not_keep_a_key_need_not_see_it() -> None:
    one, two = Side("one", "**"), Side("two", "kept/**")
    pair = Pair(one, two)
    mine = sample_of("else", 1, pair.now_ns)
    one.take(SampleBatch([mine]))
    pair.run(30)
    assert one.aligner.lacking(["two"], [mine.stream]) == []
