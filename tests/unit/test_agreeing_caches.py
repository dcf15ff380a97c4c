"""Caches that name a publisher's runs each in its own way come to one name for each."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from durable_cache.model.sample import Identity, Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.cache.events import Origin
from durable_cache.runtime.effects import Inquired
from tests.unit.driven import BEGAN_NS, DrivenCache

SOURCE = SourceId("ab12", 7)
SECOND_NS = 10**9
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


class Cache(DrivenCache):
    """The core of a cache beside others whom it asks."""

    def __init__(self, others: list[Cache]) -> None:
        self.others = others
        super().__init__()

    def hear(self, samples: list[Sample], origin: Origin) -> None:
        """Take a batch, then ask the others what is to be asked, and move what was agreed on."""
        newest_ns = max((sample.ntp64 >> 32) * SECOND_NS for sample in samples)
        self.seconds = max(self.seconds, (newest_ns - BEGAN_NS) / SECOND_NS)
        self.take(samples, origin)
        for inquiry in self.inquiries():
            for other in self.others:
                found = [s for s in other.all() if inquiry.first <= s.sn <= inquiry.last]
                if other is not self and found:
                    self.hear(found, Origin.ALIGNED)
            self.give(Inquired(inquiry.inquiry_id, self.now))
        while self.core.moving:
            self.wait(0.5)


def exchange(caches: list[Cache], chance: Random) -> None:
    """Let each take from each what it lacks, in pages, later epochs first as the aligner does."""
    for cache in caches:
        cache.wait(30, 5)
        for other in chance.sample(caches, len(caches)):
            held = {sample.identity for sample in cache.all()}
            lacking = [sample for sample in other.all() if sample.identity not in held]
            lacking.sort(key=lambda sample: (-sample.epoch, -sample.sn))
            size = chance.choice([1, 7, 100])
            for at in range(0, len(lacking), size):
                cache.hear(lacking[at : at + size], Origin.ALIGNED)


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
                cache.hear(part[begin : begin + size], Origin.LIVE)
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
