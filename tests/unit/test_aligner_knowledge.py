"""Is what a stream's knowledge says the same as plain sets say, in whatever order it came?"""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream
from durable_cache.protocol.alignment.fingerprints import content_term
from durable_cache.protocol.alignment.knowledge import (
    StreamKnowledge,
    count_of,
    flat,
    floor_of_depth,
    known_of,
    ranges,
)

STREAM = Stream("a", SourceId("1", 1), 0)
TOP = 60
sets = st.sets(st.integers(0, TOP), max_size=40)


def numbers(runs: tuple[int, ...]) -> set[int]:
    return {sn for first, last in ranges(runs) for sn in range(first, last + 1)}


def term(sn: int) -> int:
    return content_term(sn, sn.to_bytes(16, "little"))


@given(sets, sets)
def test_runs_are_sets(one: set[int], two: set[int]) -> None:
    assert numbers(flat(RangeSet.of(one).intersection(RangeSet.of(two)))) == one & two
    assert count_of(flat(RangeSet.of(one))) == len(one)


@given(sets, st.integers(0, TOP), sets)
def test_knowledge_is_the_union_in_canonical_form(
    held: set[int], floor: int, unrecoverable: set[int]
) -> None:
    known = known_of(flat(RangeSet.of(held)), floor, flat(RangeSet.of(unrecoverable)))
    assert numbers(known) == held | unrecoverable | set(range(floor))
    assert known == flat(RangeSet.of(numbers(known)))


@given(sets, st.integers(1, 20))
def test_the_floor_of_a_depth_is_its_lowest_number(held: set[int], depth: int) -> None:
    runs = flat(RangeSet.of(held))
    expected = sorted(held)[-depth] if len(held) >= depth else 0
    assert floor_of_depth(runs, depth) == expected
    assert floor_of_depth(runs, None) == 0


@given(
    st.lists(sets, max_size=5),
    st.integers(0, TOP),
    st.sampled_from((1, 4, 16)),
    st.none() | st.integers(1, 20),
    st.randoms(),
)
def test_any_order_gives_the_same_fingerprints(
    batches: list[set[int]], floor: int, block: int, depth: int | None, random: Random
) -> None:
    results = set()
    for _ in range(3):
        record = StreamKnowledge(STREAM, 12345)
        random.shuffle(batches)
        at = random.randint(0, len(batches))
        for number, batch in enumerate(batches):
            if number == at:
                record.raise_floor(floor)
                record.refresh(b"s", depth, block)
            chosen = list(batch)
            random.shuffle(chosen)
            record.insert(chosen, [term(sn) for sn in chosen], block)
            record.refresh(b"s", depth, block)
        record.raise_floor(floor)
        record.refresh(b"s", depth, block)
        held = set().union(*batches)
        kept = {sn for sn in held if sn >= floor}
        assert numbers(record.runs) == kept
        lowest = record.effective_floor(depth)
        whole = [sn for sn in kept if sn // block * block >= lowest]
        total = sum(term(sn) for sn in whole) * (record.place | 1) % (1 << 64)
        assert record.content == total
        results.add((record.runs, record.knowledge, record.content))
    assert len(results) == 1


@given(sets, sets, st.sampled_from((1, 4, 16)))
def test_content_read_later_counts_once(loaded: set[int], live: set[int], block: int) -> None:
    late, direct = StreamKnowledge(STREAM, 7), StreamKnowledge(STREAM, 7)
    late.load(RangeSet.of(loaded))
    late.insert(sorted(live), [term(sn) for sn in sorted(live)], block)
    everything = [(sn, sn.to_bytes(16, "little")) for sn in sorted(loaded | live)]
    late.count_loaded(everything, block)
    late.count_loaded(everything, block)
    both = sorted(loaded | live)
    direct.insert(both, [term(sn) for sn in both], block)
    for record in (late, direct):
        record.refresh(b"", None, block)
    assert (late.knowledge, late.content, late.uncounted) == (
        direct.knowledge,
        direct.content,
        None,
    )


@given(sets, sets)
def test_a_sample_that_arrives_is_no_longer_unrecoverable(
    unrecoverable: set[int], held: set[int]
) -> None:
    record = StreamKnowledge(STREAM, 7)
    record.add_unrecoverable(RangeSet.of(unrecoverable), None)
    record.insert(sorted(held), [term(sn) for sn in sorted(held)], 16)
    assert numbers(record.unrecoverable) == unrecoverable - held


@given(sets, st.integers(0, 3), st.integers(0, 3))
def test_the_sum_of_blocks_is_that_of_their_samples(held: set[int], first: int, last: int) -> None:
    record = StreamKnowledge(STREAM, 7)
    record.insert(sorted(held), [term(sn) for sn in sorted(held)], 16)
    expected = sum(term(sn) for sn in held if first <= sn // 16 <= last)
    assert record.block_sum(first, last) == expected % (1 << 64)


def test_raising_a_floor_over_a_million_numbers_is_one_step() -> None:
    record = StreamKnowledge(STREAM, 7)
    record.load(RangeSet([(0, 10**6)]))
    assert record.raise_floor(999_999) == 999_999
    assert record.runs == (999_999, 10**6)
    known = known_of(record.runs, record.effective_floor(None), record.unrecoverable)
    assert known == (0, 10**6)
