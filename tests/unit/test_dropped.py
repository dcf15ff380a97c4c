"""What a subscriber remembers of samples that found no room (ADR 0398)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from durable_cache.protocol.subscriber.dropped import TOKENS_MAX, Dropped
from tests.unit.subscriber_reader import OTHER, SOURCE, sample

Told = list[tuple[list[str], list[int]]]


def taken(dropped: Dropped[str]) -> Told:
    batches = []
    while dropped:
        tokens, samples = dropped.first
        assert dropped.take() == (tokens, samples)
        batches.append((tokens, [one.sn for one in samples]))
    return batches


def test_the_last_number_of_a_source_is_kept_behind_all_that_tokens_did() -> None:
    dropped: Dropped[str] = Dropped()
    dropped.add(["begins"], [sample(0), sample(1)])
    dropped.add([], [sample(2)])
    dropped.add(["ends"], [sample(3)])
    assert taken(dropped) == [(["begins", "ends"], [3])]
    assert not dropped


def test_what_came_before_a_token_stays_before_it() -> None:
    dropped: Dropped[str] = Dropped()
    dropped.add(["a"], [sample(7)])
    dropped.add(["b"], [sample(0, source=OTHER)])
    assert taken(dropped) == [(["a"], [7]), (["b"], [0])]


def test_what_tokens_did_before_it_is_told_before_an_answer() -> None:
    """A run began while history was read: all of it is owed (seed 78063)."""
    dropped: Dropped[str] = Dropped()
    assert dropped.take_tokens() == ()
    dropped.add(["a"], [sample(7)])
    dropped.add(["b"], [sample(0, source=OTHER)])
    assert dropped.take_tokens() == ["a"]
    assert taken(dropped) == [([], [7]), (["b"], [0])]


def test_a_late_copy_does_not_hide_the_highest_number() -> None:
    dropped: Dropped[str] = Dropped()
    dropped.add(["a"], [sample(28)])
    dropped.add(["b"], [sample(24)])
    dropped.add(["c"], [sample(20), sample(25), sample(22)])
    assert taken(dropped) == [(["a"], [28]), (["b", "c"], [22])]


def test_of_one_batch_the_highest_and_the_last_are_kept() -> None:
    dropped: Dropped[str] = Dropped()
    dropped.add([], [sample(3), sample(9), sample(4), sample(6), sample(0, source=OTHER)])
    assert taken(dropped) == [([], [9, 6, 0])]


def test_of_what_tokens_do_while_nothing_has_room_the_newest_is_kept() -> None:
    dropped: Dropped[str] = Dropped()
    told = [str(at) for at in range(TOKENS_MAX + 3)]
    dropped.add(told[:2], [sample(0)])
    dropped.add(told[2:4], [sample(0, source=OTHER)])
    dropped.add(told[4:], [sample(1)])
    assert taken(dropped) == [(told[3:4], [0]), (told[4:], [1])]


@given(st.lists(st.lists(st.tuples(st.sampled_from((SOURCE, OTHER)), st.integers(0, 9)))))
def test_two_of_a_source_are_kept_at_most_the_highest_and_the_last(
    batches: list[list[tuple[object, int]]],
) -> None:
    dropped: Dropped[str] = Dropped()
    every = [[sample(sn, source=source) for source, sn in batch] for batch in batches]  # type: ignore[arg-type]
    for at, batch in enumerate(every):
        dropped.add([str(at)], batch)
    tokens: list[str] = []
    left: list[tuple[object, int]] = []
    while dropped:
        told, samples = dropped.take()
        tokens += told
        left += [(one.source, one.sn) for one in samples]
    assert tokens == [str(at) for at in range(len(every))]
    for source in (SOURCE, OTHER):
        came = [one.sn for batch in every for one in batch if one.source == source]
        kept = [sn for of, sn in left if of == source]
        assert len(kept) <= 2
        assert not came or (kept[0], kept[-1]) == (max(came), came[-1])
