"""Is a page what a plain sort and filter give? And what is held, and what is skipped?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.newest import newest_per_key
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId
from durable_cache.model.selection import Cursor, Order, Selection
from durable_cache.storage.shared.paging import held_of, page_of
from durable_cache.storage.shared.skips import SkipSet
from durable_cache.testing.samples import SOURCE, run, sample
from durable_cache.testing.strategies import skips

histories = st.lists(
    st.builds(
        sample,
        st.integers(0, 9),
        st.sampled_from(["a", "b", "\uff5e", "\U0001f980"]),
        st.sampled_from([SourceId("f", 2), SourceId("f", 10), SourceId("10", 1)]),
        ntp64=st.integers(0, 3),
        received_ns=st.integers(0, 9),
    ),
    max_size=25,
    unique_by=lambda one: one.identity,
)


@given(histories, st.integers(1, 30), st.sampled_from(Order))
def test_pages_make_the_sorted_whole(made: list[Sample], limit: int, order: Order) -> None:
    selection = Selection(order=order)
    found: list[Sample] = []
    cursor: Cursor | None = None
    while True:
        page = page_of(iter(made), selection, limit, cursor)
        found.extend(page.samples)
        cursor = page.cursor
        if cursor is None:
            break
        assert len(page.samples) == limit
        assert cursor == selection.place(found[-1])
    assert found == sorted(made, key=selection.place)


def test_a_page_that_ends_with_the_last_sample_has_no_cursor() -> None:
    assert page_of(run(0, 4), Selection(), 5, None).cursor is None
    assert page_of(run(0, 4), Selection(), 4, None).cursor == sample(3).order
    assert page_of([], Selection(), 4, None).samples == SampleBatch()


@given(histories, st.integers(1, 6))
def test_newest_are_the_last_in_time_order_of_each_key(made: list[Sample], newest: int) -> None:
    kept = {one.identity for one in newest_per_key(made, newest)}
    for key in {one.key for one in made}:
        group = sorted((one for one in made if one.key == key), key=lambda one: one.time_order)
        for at, one in enumerate(reversed(group)):
            assert (one.identity in kept) == (at < newest)


@given(histories)
def test_no_newest_keeps_all(made: list[Sample]) -> None:
    assert list(newest_per_key(made, None)) == made


def test_what_is_held_of_a_stream() -> None:
    made = [
        sample(1, ntp64=9, received_ns=1),
        sample(2, ntp64=3, received_ns=7),
        sample(5, ntp64=1),
    ]
    held = held_of(made[0].stream, made[:2])
    assert (held.runs, held.newest_ntp64, held.newest_received_ns) == (RangeSet([(1, 2)]), 9, 7)
    assert held_of(made[0].stream, made).runs == RangeSet([(1, 2), (5, 5)])


@given(st.lists(skips(20), max_size=6), st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_skips_are_what_is_neither_held_nor_found(
    given_up: list[Skip], held: set[int], found: set[int]
) -> None:
    kept = SkipSet()
    for skip in given_up:
        kept.add(skip, RangeSet.of(held))
    for skip in given_up:
        came = [sample(sn, source=skip.source) for sn in found]
        kept.replace(sample(0, source=skip.source).stream, came)
    for source in {skip.source for skip in given_up}:
        expected = (
            {
                sn
                for skip in given_up
                if skip.source == source
                for sn in range(skip.first, skip.last + 1)
            }
            - held
            - found
        )
        runs = [(skip.first, skip.last) for skip in kept if skip.source == source]
        assert {sn for first, last in runs for sn in range(first, last + 1)} == expected
        assert runs == [tuple(one) for one in RangeSet.of(expected)]
    sources = [(int(skip.source.zid, 16), skip.source.eid, skip.first) for skip in kept]
    assert sources == sorted(sources)


def test_a_sample_of_another_epoch_replaces_nothing() -> None:
    kept = SkipSet()
    kept.add(Skip(SOURCE, 1, 0, 2), RangeSet())
    for other in (sample(1, epoch=2), sample(1, source=SourceId("4f2a", 8))):
        kept.replace(other.stream, [other])
    assert list(kept) == [Skip(SOURCE, 1, 0, 2)]
    found = sample(1, "any/key")
    kept.replace(found.stream, [found])
    assert list(kept) == [Skip(SOURCE, 1, 0, 0), Skip(SOURCE, 1, 2, 2)]
