"""Is a RangeSet the set of numbers it stands for? The model is Python's own set."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.testing.strategies import ranges

TOP = 60
HUGE = 1 << 40
sets = st.sets(st.integers(0, TOP), max_size=6) | st.lists(ranges(TOP), max_size=5).map(
    lambda runs: {sn for first, last in runs for sn in range(first, last + 1)}
)
operations = st.lists(st.tuples(st.sampled_from(["add", "remove"]), ranges(TOP)), max_size=25)


def numbers(held: RangeSet) -> set[int]:
    return {sn for first, last in held for sn in range(first, last + 1)}


def check(held: RangeSet, model: set[int]) -> None:
    """The same numbers, in runs that are sorted, disjoint and maximal."""
    assert numbers(held) == model
    runs = list(held)
    assert all(run.first <= run.last for run in runs)
    assert all(one.last + 1 < two.first for one, two in itertools.pairwise(runs))
    assert held.count == len(model)
    assert len(held) == len(runs)
    assert (held.first, held.last) == ((min(model), max(model)) if model else (None, None))


@given(operations)
def test_add_and_remove(steps: list[tuple[str, SnRange]]) -> None:
    held, model = RangeSet(), set[int]()
    for name, (first, last) in steps:
        if name == "add":
            held.add(first, last)
            model |= set(range(first, last + 1))
        else:
            held.remove(first, last)
            model -= set(range(first, last + 1))
        check(held, model)


@given(sets)
def test_of(model: set[int]) -> None:
    check(RangeSet.of([*model, *sorted(model, reverse=True)]), model)
    assert RangeSet.of(model) == RangeSet((sn, sn) for sn in model)
    assert RangeSet(RangeSet.of(model)) == RangeSet.of(model)


@given(sets, sets)
def test_update_and_difference(one: set[int], two: set[int]) -> None:
    left, right = RangeSet.of(one), RangeSet.of(two)
    check(left.difference(right), one - two)
    check(left, one)
    left.update(right)
    check(left, one | two)
    check(right, two)


@given(st.lists(sets, max_size=5))
def test_the_union_of_many(models: list[set[int]]) -> None:
    check(RangeSet.union(map(RangeSet.of, models)), set().union(*models))


@given(sets, ranges(TOP))
def test_clip_and_gaps(model: set[int], bounds: SnRange) -> None:
    held, within = RangeSet.of(model), set(range(bounds.first, bounds.last + 1))
    check(held.clip(*bounds), model & within)
    check(held.gaps(*bounds), within - model)
    check(held, model)


@given(sets, st.integers(0, TOP + 2))
def test_membership_and_the_run_around_a_number(model: set[int], sn: int) -> None:
    held = RangeSet.of(model)
    assert (sn in held) == (sn in model)
    run = held.run_at(sn)
    if sn not in model:
        assert run is None
        return
    assert run is not None
    assert run.holds(sn)
    assert run in list(held)


@given(sets, st.integers(1, TOP))
def test_the_nth_highest_number(model: set[int], count: int) -> None:
    expected = sorted(model)[-count] if count <= len(model) else None
    assert RangeSet.of(model).nth_last(count) == expected


@given(sets, sets)
def test_equality_is_of_the_numbers(one: set[int], two: set[int]) -> None:
    assert (RangeSet.of(one) == RangeSet.of(two)) == (one == two)
    assert RangeSet.of(one) != one


@given(sets, ranges(TOP))
def test_a_copy_is_apart(model: set[int], change: SnRange) -> None:
    held = RangeSet.of(model)
    twin = held.copy()
    part = held.clip(0, TOP)
    twin.add(*change)
    part.remove(*change)
    check(held, model)


def test_wide_runs_cost_no_more_than_narrow_ones() -> None:
    held = RangeSet([(0, HUGE), (HUGE + 2, 2 * HUGE)])
    held.remove(HUGE // 2, HUGE // 2)
    assert list(held) == [(0, HUGE // 2 - 1), (HUGE // 2 + 1, HUGE), (HUGE + 2, 2 * HUGE)]
    assert held.count == 2 * HUGE - 1
    held.add(0, 2 * HUGE)
    assert list(held) == [(0, 2 * HUGE)]


@pytest.mark.parametrize(("first", "last", "text"), [(3, 3, "3"), (3, 5, "3..5"), (5, 3, "5..3")])
def test_a_range_holds_both_ends(first: int, last: int, text: str) -> None:
    one = SnRange(first, last)
    assert str(one) == text
    assert [sn for sn in range(9) if one.holds(sn)] == list(range(first, last + 1))


def test_a_set_is_shown_by_its_runs() -> None:
    assert repr(RangeSet([(0, 2), (4, 4)])) == "RangeSet(0..2, 4)"


def test_a_set_that_changes_is_no_key() -> None:
    with pytest.raises(TypeError):
        hash(RangeSet())
