"""Caches that name a publisher's runs each in its own way come to one name for each."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from durable_cache.endpoints.agreeing import Agreeing
from durable_cache.model.sample import Identity, Sample, SampleBatch, SourceId
from durable_cache.model.selection import Selection
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.events import (
    Alias,
    Append,
    Appended,
    BatchReceived,
    EpochFreed,
    EpochsAgreed,
    Event,
    Moment,
    Origin,
    SourceLoaded,
    Verified,
    Verify,
)
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.memory import MemoryStorage

SOURCE = SourceId("ab12", 7)
SECOND_NS = 10**9
BEGAN_NS = 1_700_000_000 * SECOND_NS
LENGTH = 40
EVERYONE = range(15, 21)
"""What everyone who hears a run hears of it: without a number in common nothing can be known."""


def run_of(number: int) -> list[Sample]:
    """Return one run of the publisher: a sample every two seconds, four to a frame."""
    began_ns = BEGAN_NS + number * 600 * SECOND_NS
    return [
        Sample(
            f"k/{sn % 2}",
            SOURCE,
            0,
            sn,
            b"%d %d" % (number, sn),
            ntp64=ntp64_from_ns(began_ns + sn * 2 * SECOND_NS),
            timestamp_id="ab12",
        )
        for sn in range(LENGTH)
    ]


class Cache:
    """Engine, storage and agreeing as an endpoint puts them together, without threads."""

    def __init__(self, others: list[Cache]) -> None:
        self.others = others
        self.store = JournaledStorage(MemoryStorage(), None)
        self.now = 0.0
        self.agreed: list[Alias] = []
        self.asked: list[tuple[int, int, int]] = []
        self.start()

    def start(self) -> None:
        """Begin with what is stored, as a new process does."""
        self.engine = CacheEngine()
        self.agreeing = Agreeing(self.store, self._agree, self._revoke, self._ask, lambda: self.now)
        self._handle(SourceLoaded(SOURCE, *self._loaded()))

    def _loaded(self) -> tuple[object, ...]:
        states, aliases = self.store.load(SOURCE)
        return states, Moment(0, BEGAN_NS), aliases

    def _agree(self, agreement: Alias) -> bool:
        self.store.index.agree(agreement)
        self._handle(EpochsAgreed(SOURCE, agreement.stored, agreement.epoch))
        self.agreed.append(agreement)
        return True

    def _revoke(self, agreement: Alias) -> None:
        self.store.index.disagree(agreement)
        self._handle(EpochFreed(SOURCE, agreement.stored))

    def _ask(self, inquiry_id: int, _: SourceId, first: int, last: int) -> None:
        self.asked.append((inquiry_id, first, last))

    def _handle(self, event: Event) -> None:
        outputs = list(self.engine.handle(event))
        now = Moment(0, BEGAN_NS)
        while outputs:
            match outputs.pop(0):
                case Append(batch, skips):
                    self.store.commit(batch, skips)
                    outputs += self.engine.handle(Appended(now))
                case Verify(samples):
                    outputs += self.engine.handle(Verified(tuple(self.store.find(samples)), now))

    def take(self, samples: list[Sample], origin: Origin) -> None:
        """Take a batch, then move what was agreed on and ask what is to be asked."""
        batch = SampleBatch(samples)
        if origin is Origin.ALIGNED:
            batch = self.agreeing.settle(batch, self.engine.known)
        now_ns = max((sample.ntp64 >> 32) * SECOND_NS for sample in samples)
        self._handle(BatchReceived(batch, origin, Moment(0, now_ns)))
        self._move_all()
        while self.asked:
            inquiry_id, first, last = self.asked.pop()
            for other in self.others:
                found = [sample for sample in other.all() if first <= sample.sn <= last]
                if other is not self and found:
                    self.take(found, Origin.ALIGNED)
            self.agreeing.answered(inquiry_id, self.engine.known)
            self._move_all()

    def _move_all(self) -> None:
        while self.agreed:
            self._move(self.agreed.pop(0))

    def _move(self, agreement: Alias) -> None:
        _, loser, _, winner = agreement
        old = [sample for sample in self.all() if sample.epoch == loser]
        moved = SampleBatch(_named(sample, winner) for sample in old)
        self._handle(BatchReceived(moved, Origin.REFILED, Moment(0, BEGAN_NS)))
        assert self.store.moved(agreement)
        right = all(
            stored is not None and stored.payload == sample.payload
            for sample, stored in self.store.find(moved.samples)
        )
        if right:
            self.store.forget(SOURCE, loser)
        else:
            self.agreeing.differ(SOURCE, winner, loser)
            self.store.index.disagree(agreement)
        if not right or loser == EPOCH_UNKNOWN:
            self._handle(EpochFreed(SOURCE, loser))
            self.agreeing.release(SOURCE)

    def all(self) -> list[Sample]:
        return list(self.store.read(Selection(), 10_000).samples)


def _named(sample: Sample, epoch: int) -> Sample:
    from msgspec.structs import replace

    return replace(sample, epoch=epoch)


def exchange(caches: list[Cache], chance: Random) -> None:
    """Let each take from each what it lacks, in pages, later epochs first as the aligner does."""
    for cache in caches:
        cache.now += 30
        for other in chance.sample(caches, len(caches)):
            held = {sample.identity for sample in cache.all()}
            lacking = [sample for sample in other.all() if sample.identity not in held]
            lacking.sort(key=lambda sample: (-sample.epoch, -sample.sn))
            size = chance.choice([1, 7, 100])
            for at in range(0, len(lacking), size):
                cache.take(lacking[at : at + size], Origin.ALIGNED)


def play(seed: int, count: int) -> tuple[list[Cache], set[tuple[bytes, int]]]:
    """Let caches hear parts of some runs, then exchange; returns them and all that was heard."""
    chance = Random(seed)
    caches: list[Cache] = []
    for _ in range(count):
        caches.append(Cache(caches))
    heard: set[tuple[bytes, int]] = set()
    for number in range(chance.choice([1, 2, 3])):
        run = run_of(number)
        for at, cache in enumerate(caches):
            if at and chance.random() < 0.3:
                continue  # it is away, or not there yet
            first = chance.choice([0, 0, 3, 14] if cache.all() else [0, 10, 14])
            part = [s for s in run[first:] if s.sn in EVERYONE or chance.random() < 0.9]
            heard.update((sample.payload, sample.sn) for sample in part)
            size = chance.choice([1, 5, 100])
            for begin in range(0, len(part), size):
                cache.take(part[begin : begin + size], Origin.LIVE)
            if number == 0 and chance.random() < 0.3:
                cache.start()
        if chance.random() < 0.4:
            exchange(caches, chance)
    for _ in range(25):
        exchange(caches, chance)
    return caches, heard


def contents(cache: Cache) -> list[tuple[bytes, int]]:
    return sorted((sample.payload, sample.sn) for sample in cache.all())


@settings(max_examples=80)
@given(st.integers(0, 1 << 32))
def test_two_caches_come_to_one_name_for_each_run_and_both_have_all_of_it(seed: int) -> None:
    """What one gave without an epoch before it knew one may be there under both, no more."""
    (one, two), heard = play(seed, 2)
    assert set(contents(one)) == set(contents(two)) == heard
    assert named(one) == named(two)
    names = {(sample.payload.split()[0], sample.epoch) for sample in named(one).values()}
    assert len(names) == len({run for run, _ in names}) == len({epoch for _, epoch in names})


def named(cache: Cache) -> dict[Identity, Sample]:
    return {sample.identity: sample for sample in cache.all() if sample.epoch != EPOCH_UNKNOWN}


@settings(max_examples=40)
@given(st.integers(0, 1 << 32), st.integers(3, 4))
def test_nothing_is_lost_whatever_more_caches_take_for_one(seed: int, count: int) -> None:
    """Two that have the same run without an epoch may mix it with an older one of a third."""
    caches, heard = play(seed, count)
    assert heard <= {found for cache in caches for found in contents(cache)}
    assert all(named(cache).keys() == named(caches[0]).keys() for cache in caches)
