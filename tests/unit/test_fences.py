"""A cache takes no position that an earlier owner of its source wrote than the one it knows."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId
from durable_cache.protocol.consumers import (
    Position,
    claim_key,
    dead_letter_key,
    encode_position,
    is_position_key,
    position_key,
    run_key_of,
)
from durable_cache.protocol.fences import Fences
from durable_cache.protocol.resends import RefusalReason

SOURCE, OWNER, EARLIER = SourceId("5", 1), SourceId("a", 1), SourceId("b", 1)
sns = count()


def position(fence: int, rewinds: int = 0, *, source: SourceId = SOURCE) -> Sample:
    stands = Position("k", source, 1, "", 10, rewinds=rewinds, fence=fence)
    key = position_key("default", "bill", source, 1, rewinds)
    return Sample(key, OWNER, 1, next(sns), encode_position(stands))


def claim(fence: int, writer: SourceId = OWNER, *, at_ms: int = 0) -> Sample:
    told = Position("k", SOURCE, 0, "", -1, fence=fence, exclusive=True)
    key, ntp64 = claim_key("default", "bill", SOURCE), (1000 + at_ms << 32) // 1000
    return Sample(key, writer, 1, next(sns), encode_position(told), ntp64=ntp64)


def of(writer: SourceId, fence: int, rewinds: int = 0) -> Sample:
    """Return the position of an exclusive member."""
    told = Position("k", SOURCE, 1, "", 10, rewinds=rewinds, fence=fence, exclusive=True)
    key = position_key("default", "bill", SOURCE, 1, rewinds)
    return Sample(key, writer, 1, next(sns), encode_position(told))


def admitted(fences: Fences, *samples: Sample, judged: bool = True) -> list[bool]:
    taken = fences.admit(SampleBatch(samples), judged=judged)
    return [sample in taken.samples for sample in samples]


def test_an_earlier_fence_is_refused_and_an_equal_or_a_later_one_taken() -> None:
    fences = Fences("default")
    assert admitted(fences, position(2), position(1), position(2), position(3)) == [
        *(True, False, True, True)
    ]
    assert fences.refusal(position(2)) is RefusalReason.FENCED
    assert admitted(fences, position(1, source=EARLIER)) == [True], "another run's"
    assert fences.refused == 1


def test_a_rewind_outweighs_a_later_fence() -> None:
    """It takes back what was confirmed, by whomever; who does not know of it begins anew."""
    fences = Fences("default")
    assert admitted(fences, position(5), position(1, rewinds=1)) == [True, True]
    assert admitted(fences, position(5), position(6), position(6, rewinds=1)) == [
        *(False, False, True)
    ]


def test_a_position_of_before_a_rewind_never_takes_the_place_of_what_was_rewound() -> None:
    """A clock that is ahead stamps it later: under one key, who reads the newest would read it."""
    keys = [position_key("default", "bill", SOURCE, 7, rewinds) for rewinds in range(16)]
    assert len({*keys}) == 16
    assert {is_position_key("default", key) for key in keys} == {True}
    assert {run_key_of(key) for key in keys} == {keys[0]}
    assert position_key("default", "bill", SOURCE, 7, 16) == keys[0], "a run has so many at most"


def test_what_two_members_write_of_a_run_does_not_hide_each_other() -> None:
    """Behind a partition both lie in one cache, and the one of the later fence may be older."""
    keys = [
        position_key("default", "bill", SOURCE, 7, rewinds, writer)
        for rewinds in (0, 1)
        for writer in (OWNER, EARLIER)
    ]
    assert len({*keys}) == 4
    assert {is_position_key("default", key) for key in keys} == {True}
    assert {run_key_of(key) for key in keys} == {position_key("default", "bill", SOURCE, 7)}


def test_a_run_has_so_many_positions_at_most_however_many_members_had_it() -> None:
    lives = [SourceId(f"{life:x}", 1) for life in range(1, 1000)]
    assert len({position_key("default", "bill", SOURCE, 7, 0, life) for life in lives}) == 16


def test_an_exclusive_rewind_that_no_majority_held_does_not_outweigh_the_next_owner() -> None:
    """It came to a cache that had not heard of the claim, and from there to all (ADR 0236)."""
    fences = Fences("default")
    assert admitted(fences, claim(2), of(OWNER, 2)) == [True, True]
    assert admitted(fences, of(EARLIER, 1, rewinds=1), judged=False) == [True]
    assert admitted(fences, of(OWNER, 2), of(OWNER, 2, rewinds=1)) == [True, True]


def test_what_other_caches_hold_is_taken_as_it_is_and_teaches() -> None:
    fences = Fences("default")
    assert admitted(fences, position(3), position(1), judged=False) == [True, True]
    assert admitted(fences, position(2)) == [False]


def test_what_was_stored_before_the_start_counts() -> None:
    fences = Fences("default")
    fences.stored = fences.read_all([position(2), position(4)]).weights
    assert admitted(fences, position(3), position(4)) == [False, True]


def test_who_claimed_a_source_outweighs_every_earlier_fence() -> None:
    fences = Fences("default")
    assert admitted(fences, claim(2), of(OWNER, 2), of(EARLIER, 1), of(EARLIER, 1, rewinds=1)) == [
        *(True, True, False, False)
    ]
    assert admitted(fences, position(3)) == [True], "a later fence is the next owner's"
    assert fences.refusal(of(EARLIER, 1)) is RefusalReason.FENCED


def test_of_two_claims_of_one_fence_the_first_is_taken() -> None:
    fences = Fences("default")
    assert admitted(fences, claim(2), claim(2, EARLIER, at_ms=20), claim(2, at_ms=20)) == [
        *(True, False, True)
    ]
    assert admitted(fences, claim(3, EARLIER, at_ms=25)) == [False], "stamped too early"
    assert admitted(fences, claim(3, EARLIER, at_ms=30)) == [True]


def test_nothing_of_exclusive_consumers_is_taken_before_what_is_stored_was_read() -> None:
    fences = Fences("default")
    fences.unread = True
    assert admitted(fences, claim(1), of(OWNER, 1), position(1)) == [False, False, True]
    assert fences.refusal(claim(1)) is RefusalReason.LATER
    known = fences.read_all([claim(4)])
    fences.stored, fences.stored_claims, fences.unread = *known, False
    assert admitted(fences, claim(4, EARLIER), of(EARLIER, 3), of(OWNER, 4)) == [
        *(False, False, True)
    ]


def test_what_an_earlier_owner_wrote_is_kept_as_others_have_it_and_not_acknowledged() -> None:
    fences = Fences("default")
    late = of(EARLIER, 1)
    assert admitted(fences, claim(2)) == [True]
    assert admitted(fences, late, judged=False) == [True]
    runs = [(late.sn - 1, late.sn + 1)]
    assert late.sn not in fences.acknowledged(EARLIER, runs)
    assert late.sn + 1 in fences.acknowledged(EARLIER, runs)
    assert late.sn in fences.acknowledged(OWNER, runs)


def test_beyond_the_bound_no_further_source_is_claimed() -> None:
    fences = Fences("default", fences_max=0)
    assert admitted(fences, claim(1)) == [False]
    assert fences.refusal(claim(1)) is RefusalReason.FULL


@pytest.mark.parametrize(
    "other",
    [
        Sample("a/b", OWNER, 1, 0, b"x"),
        Sample(position(1).key, OWNER, 1, 0, b"damaged"),
        Sample(position(1).key, OWNER, 1, 0, b"", kind=Kind.DELETE),
        Sample(
            dead_letter_key("default", "bill", Sample("a", SOURCE, 1, 2, b"")),
            *(OWNER, 1, 0),
            position(1).payload,
        ),
        msgspec.structs.replace(position(1), key=position(1).key.replace("default", "other")),
    ],
    ids=["a sample", "damaged", "deleted", "a dead letter", "of another domain"],
)
def test_what_is_no_position_is_passed_over(other: Sample) -> None:
    fences = Fences("default")
    assert admitted(fences, position(2), other) == [True, True]


def test_fences_beyond_the_bound_are_forgotten() -> None:
    fences = Fences("default", fences_max=2)
    for eid in range(1, 4):
        assert admitted(fences, position(5, source=SourceId("5", eid))) == [True]
    assert admitted(fences, position(1, source=SourceId("5", 3))) == [False]
    assert admitted(fences, position(1, source=SourceId("5", 1))) == [True]
