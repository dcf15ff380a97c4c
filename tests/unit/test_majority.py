"""Members that claim a source from a majority of caches: what was held is read, whoever comes next.

The caches judge as real ones do; links, orders, clocks and alignment are a random stream's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.consumers import (
    Position,
    claim_key,
    decode_position,
    encode_position,
    is_claim_key,
    position_key,
)
from durable_cache.protocol.fences import Fences
from durable_cache.protocol.majority import (
    CLAIM_MARGIN_NTP64,
    LEASE_NS,
    Claims,
    majority_of,
)
from durable_cache.protocol.resends import RefusalReason

SOURCE = SourceId("5", 1)
KEY = position_key("default", "bill", SOURCE, 1)
CLAIM = claim_key("default", "bill", SOURCE)
CACHES = 3
Writer = SourceId


@pytest.mark.parametrize(("caches", "majority"), [(1, 1), (3, 2), (5, 3), (7, 4)])
def test_a_majority_is_more_than_half(caches: int, majority: int) -> None:
    assert majority_of(caches) == majority


def test_stamps_grow_with_each_batch_and_stay_below_the_next_claim() -> None:
    claims = Claims()
    ntp64 = claims.next_ntp64(1000, 0)
    claims.held([SOURCE], 1, ntp64, 0)
    stamps = []
    while not claims.due([SOURCE], ntp64):
        claims.advance()
        stamps.append(claims.stamp(SOURCE))
    assert stamps == sorted(set(stamps))
    assert stamps[0] > ntp64
    assert Claims().next_ntp64(0, stamps[-1]) >= stamps[-1] + CLAIM_MARGIN_NTP64
    assert claims.next_ntp64(0, 0) > stamps[-1]


def test_a_claim_is_written_anew_after_an_hour_and_counts_for_a_lease() -> None:
    claims = Claims()
    assert claims.due([SOURCE], 0) == {SOURCE}
    claims.held([SOURCE], 1, 5 << 32, 100)
    assert not claims.due([SOURCE], 3600 << 32)
    assert claims.due([SOURCE], 3606 << 32) == {SOURCE}
    assert claims.has(SOURCE, 100 + LEASE_NS - 1)
    assert not claims.has(SOURCE, 100 + LEASE_NS)
    claims.proven([SOURCE], 200)
    assert claims.has(SOURCE, 100 + LEASE_NS)
    claims.forget()
    assert not claims.has(SOURCE, 200)


def test_a_claim_that_is_written_once_more_overtakes_nobody() -> None:
    """Another source was gained under a later fence; whoever claimed this one is above ours."""
    claims, other = Claims(), SourceId("6", 1)
    assert claims.by_fence([SOURCE, other], 2) == {2: {SOURCE, other}}
    claims.held([SOURCE], 2, 5 << 32, 0)
    assert claims.by_fence([SOURCE, other], 4) == {2: {SOURCE}, 4: {other}}
    claims.held([other], 4, 6 << 32, 0)
    assert [claims.fence_of(SOURCE), claims.fence_of(other)] == [2, 4]


class Cache:
    """What one cache holds of a run's positions and of the claims to its source."""

    def __init__(self) -> None:
        self.samples: dict[tuple[Writer, int], Sample] = {}
        self.of_before: set[tuple[Writer, int]] = set()
        """What it held when it was restarted: a cache forgets what it withheld (ADR 0196)."""
        self.fences = Fences("default")

    def take(self, sample: Sample) -> bool:
        """Take what its publisher sends; tells whether it is acknowledged."""
        if (sample.source, sample.sn) in self.samples:
            return self.fences.refusal(sample) is None
        if not len(self.fences.admit(SampleBatch([sample]), judged=True)):
            return False
        self.samples[sample.source, sample.sn] = sample
        return True

    def acknowledges(self, sample: Sample) -> bool:
        """Tell whether the cache acknowledges by itself what came there on any way."""
        at = sample.source, sample.sn
        if at not in self.samples or at in self.of_before:
            return False
        return sample.sn in self.fences.acknowledged(sample.source, [(sample.sn, sample.sn)])

    def pull(self, other: Cache) -> None:
        lacking = [one for at, one in other.samples.items() if at not in self.samples]
        self.fences.admit(SampleBatch(lacking), judged=False)
        self.samples.update(((one.source, one.sn), one) for one in lacking)

    def newest(self) -> list[Sample]:
        found: dict[str, Sample] = {}
        for sample in self.samples.values():
            known = found.get(sample.key)
            if known is None or sample.ntp64 > known.ntp64:
                found[sample.key] = sample
        return list(found.values())

    def restart(self) -> None:
        self.fences, self.of_before = Fences("default"), set(self.samples)
        claims = [one for one in self.samples.values() if one.key == CLAIM]
        known = self.fences.read_all([*self.newest(), *claims])
        self.fences.stored, self.fences.stored_claims = known


@dataclass
class Member:
    """Claims, reads where the source stands, and confirms one number after the other."""

    writer: Writer
    skew_ntp64: int
    fence: int = 0
    reached: int | None = None
    """Where it stands; None while it does not have the source."""
    claims: Claims = field(default_factory=Claims)
    sns: count[int] = field(default_factory=count)
    waiting: Sample | None = None
    acknowledged: set[int] = field(default_factory=set)


class World:
    """Three caches and three members; one thing happens after the other."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ntp64 = 1 << 40
        self.caches = [Cache() for _ in range(CACHES)]
        self.members = [
            Member(SourceId(f"{at + 1}", 1), random.choice([-30, 0, 30]) << 32) for at in range(3)
        ]
        self.confirmed = -1
        """The highest number that a majority acknowledged as confirmed."""
        self.begun: list[tuple[int, int]] = []
        """Under which fence the source was begun, behind which number."""

    def step(self) -> None:
        self.now_ntp64 += self.random.randrange(1 << 32)
        member = self.random.choice(self.members)
        match self.random.randrange(30):
            case 0:
                self.claim(member)
            case 1 | 2:
                one, other = self.random.sample(self.caches, 2)
                one.pull(other)
            case 3:
                self.random.choice(self.caches).restart()
            case 4 | 5 | 6 | 7 | 8 | 9 | 10:
                self.confirm(member)
            case _:
                self.carry(member)

    def read(self, claim: Sample | None = None) -> list[Sample] | None:
        """Return what a majority holds; None where they do not all show a claim."""
        asked = self.random.sample(self.caches, majority_of(CACHES))
        if claim is not None and not all(claim in cache.newest() for cache in asked):
            return None
        return [sample for cache in asked for sample in cache.newest()]

    def put(self, member: Member, key: str, ntp64: int, reached: int) -> None:
        epoch = int(key == KEY)
        told = Position("k", SOURCE, epoch, "", reached, fence=member.fence, exclusive=True)
        member.waiting = Sample(
            key, member.writer, 1, next(member.sns), encode_position(told), ntp64=ntp64
        )
        member.acknowledged = set()

    def claim(self, member: Member) -> None:
        """Begin to take the source over, whoever has it: a member knows less than we do."""
        found = self.read() or []
        read_ntp64 = max((one.ntp64 for one in found), default=0)
        fences = [decode_position(one.payload).fence for one in found]
        member.fence = 1 + max([*fences, member.fence])
        member.reached = None
        ntp64 = member.claims.next_ntp64(self.now_ntp64 + member.skew_ntp64, read_ntp64)
        self.put(member, CLAIM, ntp64, -1)

    def confirm(self, member: Member) -> None:
        if member.reached is None or member.waiting is not None:
            return
        member.claims.advance()
        self.put(member, KEY, member.claims.stamp(SOURCE), member.reached + 1)

    def carry(self, member: Member) -> None:
        """Bring what a member waits for to a cache."""
        sample = member.waiting
        if sample is None:
            return
        at = self.random.randrange(CACHES)
        if self.caches[at].take(sample):
            member.acknowledged.add(at)
        elif self.caches[at].fences.refusal(sample) is RefusalReason.FENCED:
            member.waiting = member.reached = None
            return
        for at, cache in enumerate(self.caches):  # by alignment it may have come there, too
            if cache.acknowledges(sample):
                member.acknowledged.add(at)
        if len(member.acknowledged) < majority_of(CACHES):
            return
        member.waiting = None
        if is_claim_key("default", sample.key):
            member.claims.held([SOURCE], member.fence, sample.ntp64, 0)
            self.begin(member, sample)
        else:
            member.reached = decode_position(sample.payload).reached
            later = [behind for fence, behind in self.begun if fence > member.fence]
            assert member.reached <= min(later, default=member.reached), "is processed again"
            self.confirmed = max(member.reached, self.confirmed)

    def begin(self, member: Member, claim: Sample) -> None:
        read = self.read(claim)
        if read is None:
            return
        positions = [one for one in read if one.key == KEY]
        reached = max((decode_position(one.payload).reached for one in positions), default=-1)
        held = self.confirmed
        assert reached >= held, f"stands at {reached}, and {held} was known to be held"
        member.reached = reached
        self.begun.append((member.fence, reached))


@given(st.integers(0, 1 << 32))
def test_what_a_majority_held_is_never_processed_again(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(250):
        world.step()


def test_the_histories_are_no_empty_ones() -> None:
    worlds = [World(Random(seed)) for seed in range(60)]
    for world in worlds:
        for _ in range(250):
            world.step()
    assert sum(len(world.begun) for world in worlds) > 100
    assert sum(world.confirmed + 1 for world in worlds) > 100
