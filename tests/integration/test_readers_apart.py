"""Do readers and caches end in one state, whatever a link that is cut did to them meanwhile?

What the simulator of readers plays in virtual time, with real sessions: writers on both sides of a
link, clocks that differ, deletes, reads and takes, a reader that comes late on the side that is cut
off. Once the link has healed, nothing is published until all agree.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from durable_cache import (
    CacheOptions,
    Profile,
    ReliabilityCache,
    ReliablePublisher,
    ReliableReader,
    declare_reliability_cache,
    declare_reliable_publisher,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.session import build_timestamp, zid_of
from durable_cache.model.sample import Kind, Sample
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.profiles import (
    DestinationOrder,
    DurabilityKind,
    InstanceSample,
    InstanceState,
    LostReason,
)
from durable_cache.protocol.alignment import AlignerOptions
from durable_cache.storage.contract import Durability
from durable_cache.testing.network import LocalNetwork, wait_until
from tests.kit.far import FarNetwork
from tests.kit.proxy import TcpProxy

FAST = AlignerOptions(slot_seconds=1, settle_seconds=0.2, start_delay_seconds=0.05)
KEYS = [f"d/{at}" for at in range(4)]
SKEW_NTP64 = (200 << 32) // 1000
"""200 ms: Zenoh's clocks refuse what is half a second ahead."""
CONSISTENT = Profile(
    durability=DurabilityKind.TRANSIENT, destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP
)
PROFILES = {
    "newest": CONSISTENT,
    "deep": replace(CONSISTENT, depth=3, auto_dispose_unregistered_instances=True),
    "all": replace(CONSISTENT, depth=None, samples_max=40, samples_max_per_instance=12),
}
Place = tuple[str, int]
"""Source and number: every writer has one run here."""


class Writer:
    """A publisher whose clock is wrong by a little."""

    def __init__(self, network: LocalNetwork, skew_ntp64: int, *, disposes: bool) -> None:
        self._session = network.client()
        self._skew_ntp64 = skew_ntp64
        self.publisher: ReliablePublisher[Any] = declare_reliable_publisher(
            self._session, "d/*", auto_dispose_unregistered_instances=disposes
        )
        self._puts = self._at = 0

    def write(self, key: str, *, delete: bool) -> None:
        self._at = max(self._at + 1, ntp64_from_ns(time.time_ns()) + self._skew_ntp64)
        timestamp = build_timestamp(self._at, zid_of(self._session))
        if delete:
            self.publisher.delete(key=key, timestamp=timestamp)
            return
        self._puts += 1
        self.publisher.put(b"%d" % self._puts, key=key, timestamp=timestamp)


class Watched:
    """A reader, and what became of all that it was given."""

    def __init__(self, network: LocalNetwork, name: str) -> None:
        self.name, self.profile = name, PROFILES[name]
        self.reader: ReliableReader = declare_reliable_subscriber(
            network.client(), "d/*", profile=self.profile
        )
        self.taken: Counter[Place] = Counter()
        self.held: Counter[Place] = Counter()
        self.missed = 0
        self.lost: list[Place] = []
        self._lost = self.reader.sample_lost_listener()
        self._upto: dict[tuple[str, int], tuple[Any, ...]] = {}

    def look(self, *, take: bool = False, states: InstanceState | None = None) -> None:
        """Read or take, and see that it is within bounds and in order."""
        every = states is None
        collect = self.reader.take if take else self.reader.read
        found = collect() if states is None else collect(instance_states=states)
        samples = [(each, each.sample) for each in found if each.sample is not None]
        profile = self.profile
        assert len(samples) <= (profile.samples_max or len(KEYS) * (profile.depth or 0))
        held = Counter(each.key for each, _ in samples)
        assert max(held.values(), default=0) <= (profile.per_instance or 0)
        self._see_order(samples, take=take)
        places = Counter(place(sample) for _, sample in samples)
        if take:
            self.taken += places
        if every:
            self.held = Counter() if take else places

    def _see_order(self, samples: list[tuple[InstanceSample, Sample]], *, take: bool) -> None:
        upto = dict(self._upto)
        for each, sample in samples:
            life = each.key, each.mark.life
            assert sample.time_order > upto.get(life, ()), f"{self.name}: {sample} is out of order"
            upto[life] = sample.time_order
        if take:
            self._upto = upto

    def hear(self) -> None:
        """Take the reports of what was dropped."""
        while (lost := self._lost.try_recv()) is not None:
            assert lost.last is not None
            if lost.reason is LostReason.MISSED:
                self.missed += lost.change
            else:
                assert lost.change == 1
                self.lost.append((str(lost.last[0]), lost.last[2]))

    def make_room(self) -> None:
        """Take what is there where the reader keeps all: newer ones wait until there is room."""
        if self.profile.depth is None:
            self.look(take=True)

    def sees(self, count: int) -> bool:
        """Tell whether it sees so many writers."""
        self.make_room()
        return self.reader.liveliness_changed_status().alive == count

    def ends_as(self, ends: dict[str, tuple[InstanceState, Place]]) -> bool:
        """Tell whether every instance is what it is to be."""
        self.hear()
        self.make_room()
        return self.newest() == ends

    def newest(self) -> dict[str, tuple[InstanceState, Place]]:
        return {
            each.key: (each.state, place(each.newest))
            for each in self.reader.instances()
            if each.newest is not None
        }

    def account(self, published: list[Sample]) -> None:
        """See that every sample is held, was taken, reported, or pushed out for newer ones."""
        of_key: dict[str, list[Sample]] = defaultdict(list)
        for sample in sorted(published, key=lambda sample: sample.time_order):
            of_key[sample.key].append(sample)
        what = f"what became of each sample at {self.name}"
        wait_until(lambda: not self._unaccounted(of_key), 30, what)
        assert self.missed == 0
        wait_until(self._heard_all, what=f"each report of {self.name}")
        known, lives = self._known(), self._lives()
        for key, samples in of_key.items():
            again = sum(max(0, known[place(sample)] - 1) for sample in samples)
            assert again <= lives[key], f"{self.name}: {key} has {again} samples once more"

    def _heard_all(self) -> bool:
        self.hear()
        return self.reader.sample_lost_status().total == len(self.lost)

    def _known(self) -> Counter[Place]:
        return self.taken + self.held + Counter(self.lost)

    def _lives(self) -> dict[str, int]:
        return {
            each.key: each.disposed_generations + each.no_writers_generations
            for each in self.reader.instances()
        }

    def _unaccounted(self, of_key: dict[str, list[Sample]]) -> list[Sample]:
        """Return samples that are nowhere, and that not enough newer ones came after."""
        self.make_room()
        self.hear()
        self.look()
        known, lives, depth = self._known(), self._lives(), self.profile.depth
        return [
            sample
            for key, samples in of_key.items()
            for newer, sample in enumerate(reversed(samples))
            if not known[place(sample)] and (depth is None or newer + lives[key] < depth)
        ]


def place(sample: Sample) -> Place:
    return str(sample.source), sample.sn


def stored(cache: ReliabilityCache) -> dict[tuple[str, Place], Sample]:
    """Return what a cache has, but for when it received it."""
    return {
        (sample.key, place(sample)): msgspec.structs.replace(sample, received_ns=0)
        for sample in cache.find("d/**", 10_000)
    }


def expected(samples: list[Sample]) -> dict[str, tuple[InstanceState, Place]]:
    """Return what each instance is, by the one order."""
    last: dict[str, Sample] = {}
    for sample in sorted(samples, key=lambda sample: sample.time_order):
        last[sample.key] = sample
    states = {Kind.PUT: InstanceState.ALIVE, Kind.DELETE: InstanceState.NOT_ALIVE_DISPOSED}
    return {key: (states[sample.kind], place(sample)) for key, sample in last.items()}


class Scene:
    """Two sides and a link between them."""

    def __init__(self, stack: ExitStack, seed: int) -> None:
        self._random = Random(seed)
        self._stack = stack
        near = stack.enter_context(LocalNetwork())
        self.proxy = stack.enter_context(TcpProxy(int(near.endpoint.rpartition(":")[2])))
        self.far = stack.enter_context(FarNetwork(self.proxy.port))
        options = CacheOptions(align=True, aligner=FAST, acknowledge=Durability.MEMORY)
        self.caches = [
            stack.enter_context(declare_reliability_cache(of.client(), "d/**", options=options))
            for of in (near, self.far)
        ]
        self.readers: list[Watched] = []
        for of in (near, self.far):
            for name in PROFILES:
                self.add_reader(of, name)
        self.writers = [
            Writer(near, SKEW_NTP64, disposes=False),
            Writer(near, 0, disposes=True),
            Writer(self.far, -SKEW_NTP64, disposes=False),
        ]
        for writer in self.writers:
            stack.enter_context(writer.publisher)
        self.await_writers(len(self.writers))

    def add_reader(self, network: LocalNetwork, name: str) -> None:
        watched = Watched(network, name)
        self._stack.enter_context(watched.reader)
        self.readers.append(watched)

    def await_writers(self, count: int) -> None:
        """Wait until every reader sees so many writers."""
        for watched in self.readers:
            wait_until(partial(watched.sees, count), 30, f"{count} writers of {watched.name}")

    def await_cut(self) -> None:
        """Wait until neither side sees the other's writers."""
        counts = [2] * len(PROFILES) + [1] * len(PROFILES)
        for watched, count in zip(self.readers, counts, strict=True):
            wait_until(partial(watched.sees, count), 30, f"the cut at {watched.name}")

    def go_on(self, steps: int) -> None:
        """Let writers write and delete, and readers read and take."""
        random = self._random
        for _ in range(steps):
            writer, key = random.choice(self.writers), random.choice(KEYS)
            writer.write(key, delete=random.random() < 0.2)
            watched = random.choice(self.readers)
            if random.random() < 0.3:
                states = random.choice([None, InstanceState.ALIVE])
                watched.look(take=random.random() < 0.5, states=states)

    def _has(self, cache: ReliabilityCache, count: int) -> bool:
        for watched in self.readers:
            watched.make_room()
        return len(stored(cache)) == count

    def end(self) -> list[Sample]:
        """Wait until all is quiet and the same everywhere; returns what was published."""
        count = sum(writer.publisher.next_sn for writer in self.writers)
        for cache in self.caches:
            wait_until(partial(self._has, cache, count), 30, f"{count} samples in each cache")
        one, two = map(stored, self.caches)
        assert one == two
        published = [*one.values()]
        ends = expected(published)
        for watched in self.readers:
            wait_until(partial(watched.ends_as, ends), 30, f"the end of {watched.name}")
        return published


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("seed", [1, 2])
def test_all_end_in_one_state_and_nothing_goes_silently(stack: ExitStack, seed: int) -> None:
    scene = Scene(stack, seed)
    scene.go_on(60)
    scene.proxy.cut()
    scene.await_cut()
    scene.go_on(60)
    for name in PROFILES:
        scene.add_reader(scene.far, name)
    scene.go_on(30)
    scene.proxy.heal()
    scene.await_writers(len(scene.writers))
    published = scene.end()
    assert len(published) == 150
    for watched in scene.readers:
        watched.account(published)
    scene.go_on(30)
    published = scene.end()
    assert len(published) == 180
    for watched in scene.readers:
        watched.account(published)
