"""What must hold after a history, and how a seed becomes one.

Properties, by their names in `docs/alignment.md`: P1 nothing trimmed comes back, P2 nothing is
held that was not published and wanted, P3 after healing nobody wants what a live peer retains, P4
then nothing is asked any more, P5 caches of one class hold the same, P6 other content under one
identity is reported by both, P7 the trees are those of the storages, P9 pages keep their bounds,
P10 what is wanted is there soon after healing, before any content is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, Stream, sample_digest
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.alignment import (
    AlignerOptions,
    CacheProfile,
)
from durable_cache.protocol.alignment.fingerprints import knowledge_fingerprint
from durable_cache.protocol.alignment.knowledge import flat, floor_of_depth, known_of
from durable_cache.testing.simulated_caches import SimulatedCache, source_of
from durable_cache.testing.simulated_network import SECOND_NS, START_NS, Network, SimulationOptions

_KEYS = ("a/b/1", "a/b/2", "a/c/1", "a/c/2", "d/1")
_SCOPES = (("a/**",), ("a/**",), ("a/**",), ("a/b/**",), ("**",), ("a/c/**", "d/**"))
_POLICIES: tuple[tuple[int | None, float | None], ...] = (
    (None, None),
    (None, None),
    (8, None),
    (3, None),
    (None, 60.0),
    (20, 120.0),
)
_BACK_SECONDS = (0.0, 0.0, 0.0, 4.0, 600.0, 1e9)
"""How far a publisher's timestamps may go back, and half as far ahead."""
_SETTLE_SECONDS = 600.0
_QUIET_SECONDS = 600.0
_SOON_SECONDS = 290.0
"""Within this after healing every cache has what it wants, though no content was compared yet."""


class _Publisher:
    """One (key, source) with its numbering."""

    def __init__(self, key: str, number: int) -> None:
        self.key, self.source = key, source_of(number)
        self.epoch, self.sn, self.content = number % 3, 0, 0
        self.back_seconds = 0.0


class History:
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(
        self,
        seed: int,
        options: SimulationOptions | None = None,
        cache_type: type[SimulatedCache] = SimulatedCache,
    ) -> None:
        self.seed = seed
        self.random = Random(f"history {seed}")  # noqa: S311  a history is to be repeated
        random = self.random
        base = options or SimulationOptions()
        aligner = replace(base.aligner, content_seconds=300.0, audit_seconds=300.0)
        if random.random() < 0.3:
            aligner = replace(aligner, block=random.choice((2, 4)))
        self.network: Network[SimulatedCache] = Network(
            seed, replace(base, loss=random.choice((0.0, 0.05, 0.2)), aligner=aligner)
        )
        count = random.choice((2, 2, 2, 3, 3, 4, 5, 10 if seed % 20 == 0 else 3))
        skewed = random.random() < 0.1
        same = random.random() < 0.4
        policy, scope = random.choice(_POLICIES), random.choice(_SCOPES)
        for number in range(count):
            if not same:
                policy, scope = random.choice(_POLICIES), random.choice(_SCOPES)
            cache_type(
                self.network,
                CacheProfile(f"cache{number}", "", scope, (), policy[1], policy[0]),
                skew_seconds=random.uniform(-90, 90) if skewed else random.uniform(-1, 1),
            )
        self.publishers = [
            _Publisher(random.choice(_KEYS), number) for number in range(random.randint(1, 5))
        ]
        for publisher in self.publishers:
            publisher.back_seconds = random.choice(_BACK_SECONDS)
        if random.random() < 0.1:
            self.publishers[0].sn = (1 << 32) - 3
        self.published: dict[tuple[Stream, int], set[bytes]] = defaultdict(set)
        self.backups: dict[str, tuple[object, ...]] = {}

    @property
    def caches(self) -> list[SimulatedCache]:
        return list(self.network.caches.values())

    def run(self) -> list[str]:
        """Play the history, heal, and return every property that does not hold."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (60, self._publish),
            (8, self._burst),
            (6, self._trim),
            (5, self._partition),
            (2, self._flap),
            (5, self._crash),
            (4, self._restart),
            (2, self._wipe),
            (2, self._backup),
            (1, self._restore),
            (1, self._policy),
            (2, self._new_epoch),
            (1, self._reused),
            (2, self._purge),
        ]
        weights = [weight for weight, _ in steps]
        for _ in range(self.random.randint(10, 50)):
            self.random.choices(steps, weights)[0][1]()
            self.network.run(self.random.choice((0.01, 0.5, 2.0, 6.0)))
        for cache in self.caches:
            cache.trim()
            cache.held_back_until_ns.clear()
        self.network.run(2.5)
        self.network.heal()
        self.network.run(_SOON_SECONDS)
        late = [f"P10: late, {wrong}" for wrong in self._unequal() if wrong.startswith("P3")]
        self.network.run(_SETTLE_SECONDS)
        for cache in self.caches:
            cache.trim()
        self.network.run(_SETTLE_SECONDS)
        before = self.network.requests
        self.network.run(_QUIET_SECONDS)
        return late + self._check(self.network.requests - before)

    def _sample(self, publisher: _Publisher) -> Sample:
        unix_ns = START_NS + self.network.now_ns
        if self.random.random() < 0.3:
            back_seconds = publisher.back_seconds * self.random.uniform(-0.5, 1.0)
            unix_ns -= round(back_seconds * SECOND_NS)
        sample = Sample(
            publisher.key,
            publisher.source,
            publisher.epoch,
            publisher.sn,
            b"%d %d" % (publisher.sn, publisher.content) * self.random.choice((1, 1, 1, 400)),
            ntp64=ntp64_from_ns(unix_ns),
            timestamp_id="1",
        )
        publisher.sn += 1
        self.published[sample.stream, sample.sn].add(sample_digest(sample))
        return sample

    def _publish(self) -> None:
        self._send([self._sample(self.random.choice(self.publishers))])

    def _burst(self) -> None:
        publisher = self.random.choice(self.publishers)
        self._send([self._sample(publisher) for _ in range(self.random.randint(2, 40))])

    def _send(self, samples: list[Sample]) -> None:
        network = self.network
        for cache in self.caches:
            part = [s for s in samples if self.random.random() >= network.options.loss]
            if part and self.random.random() < 0.97:
                network.at(network.delay(), partial(_arrive, cache, part))

    def _trim(self) -> None:
        self.random.choice(self.caches).trim()

    def _partition(self) -> None:
        network = self.network
        if network.blocked and self.random.random() < 0.5:
            network.unblock(*self.random.choice(sorted(network.blocked)))
        elif len(self.caches) > 1:
            one, two = self.random.sample(sorted(network.caches), 2)
            network.block(one, two)
            if self.random.random() < 0.7:
                network.block(two, one)

    def _flap(self) -> None:
        """Let a link come and go every 0.1 to 0.7 s for a while."""
        network = self.network
        if len(self.caches) < 2:
            return
        one, two = self.random.sample(sorted(network.caches), 2)
        after = 0.0
        for _ in range(self.random.randint(2, 8)):
            for way in ((one, two), (two, one)):
                network.at(after, partial(network.block, *way))
            after += self.random.uniform(0.1, 0.7)
            for way in ((one, two), (two, one)):
                network.at(after, partial(network.unblock, *way))
            after += self.random.uniform(0.1, 0.7)

    def _crash(self) -> None:
        cache = self.random.choice(self.caches)
        if cache.running:
            cache.crash()
            if self.random.random() < 0.5:
                cache.start()

    def _restart(self) -> None:
        down = [cache for cache in self.caches if not cache.running]
        if down:
            self.random.choice(down).start()

    def _wipe(self) -> None:
        cache = self.random.choice(self.caches)
        cache.crash()
        cache.wipe()
        cache.start()

    def _backup(self) -> None:
        cache = self.random.choice(self.caches)
        self.backups[cache.profile.cache_id] = cache.backup()

    def _restore(self) -> None:
        for cache_id, copy in self.backups.items():
            cache = self.network.caches[cache_id]
            cache.crash()
            cache.restore(copy)  # type: ignore[arg-type]
            cache.start()
            return

    def _policy(self) -> None:
        samples_max, age = self.random.choice(_POLICIES)
        self.random.choice(self.caches).change_policy(samples_max=samples_max, age_seconds_max=age)

    def _new_epoch(self) -> None:
        publisher = self.random.choice(self.publishers)
        publisher.epoch, publisher.sn = publisher.epoch + 1, 0

    def _reused(self) -> None:
        """Restart a publisher that nobody noticed: the same numbers, other content."""
        publisher = self.random.choice(self.publishers)
        publisher.sn = max(0, publisher.sn - self.random.randint(1, 6))
        publisher.content += 1

    def _purge(self) -> None:
        cache = self.random.choice(self.caches)
        held = [stream for stream, samples in cache.store.items() if samples]
        if held and cache.running:
            stream = self.random.choice(held)
            cache.purge(((stream, self.random.choice(sorted(cache.store[stream])) + 1),))

    def _check(self, requests: int) -> list[str]:
        wrong = list(self.network.faults)
        if requests:
            wrong.append(f"P4: {requests} requests after everything had settled")
        for cache in self.caches:
            wrong += [f"P1: {cache.profile.cache_id} {found}" for found in cache.resurrected]
            wrong += self._check_published(cache)
            wrong += _check_tree(cache)
        return wrong + self._unequal()

    def _unequal(self) -> list[str]:
        return [
            wrong
            for one in self.caches
            for two in self.caches
            if one is not two
            for wrong in self._check_pair(one, two)
        ]

    def _check_published(self, cache: SimulatedCache) -> list[str]:
        return [
            f"P2: {cache.profile.cache_id} holds {sample.identity}"
            for stream, held in cache.store.items()
            for sn, sample in held.items()
            if sample_digest(sample) not in self.published[stream, sn]
            or not cache.scope.holds(stream.key)
        ]

    def _check_pair(self, one: SimulatedCache, two: SimulatedCache) -> list[str]:
        wrong = []
        names = f"{one.profile.cache_id} {two.profile.cache_id}"
        for stream, theirs in two.store.items():
            if not one.scope.holds(stream.key):
                continue
            mine = one.store.get(stream, {})
            wrong += [f"P3: {names} {stream} {sn}" for sn in sorted(_wanted(one, stream, theirs))]
            wrong += [
                f"P6: {names} {stream} {sn}"
                for sn in sorted(mine.keys() & theirs.keys())
                if sample_digest(mine[sn]) != sample_digest(theirs[sn])
                and self._comparable(one, two, stream, sn)
                and (stream, sn) not in one.conflicts
            ]
            if _class(one) == _class(two) and mine.keys() != theirs.keys():
                wrong.append(f"P5: {names} {stream} {RangeSet.of(mine)} {RangeSet.of(theirs)}")
        return wrong

    def _comparable(
        self, one: SimulatedCache, two: SimulatedCache, stream: Stream, sn: int
    ) -> bool:
        """Tell whether a number is in a block that is whole above both floors."""
        block = self.network.options.aligner.block
        floor = max(_floor(one, stream), _floor(two, stream))
        return sn // block * block >= floor


def _arrive(cache: SimulatedCache, samples: list[Sample]) -> None:
    if cache.running:
        received_ns = cache.unix_ns
        cache.take(
            SampleBatch(
                Sample(
                    s.key,
                    s.source,
                    s.epoch,
                    s.sn,
                    s.payload,
                    ntp64=s.ntp64,
                    timestamp_id=s.timestamp_id,
                    received_ns=received_ns,
                )
                for s in samples
            )
        )


def _class(cache: SimulatedCache) -> tuple[object, ...]:
    profile = cache.profile
    return profile.include, profile.samples_max, profile.age_seconds_max


def _floor(cache: SimulatedCache, stream: Stream) -> int:
    runs = flat(RangeSet.of(cache.store.get(stream, {})))
    return max(
        cache.floors.get(stream, 0),
        cache.purges.get(stream, 0),
        floor_of_depth(runs, cache.profile.samples_max),
    )


def _wanted(cache: SimulatedCache, stream: Stream, theirs: dict[int, Sample]) -> set[int]:
    """Return what of another's samples a cache lacks and would keep."""
    mine = cache.store.get(stream, {})
    both = flat(RangeSet.of({*mine, *theirs}))
    floor = max(_floor(cache, stream), floor_of_depth(both, cache.profile.samples_max))
    age = cache.profile.age_seconds_max
    oldest_ns = 0 if age is None else cache.unix_ns - round(age * SECOND_NS)
    return {
        sn
        for sn, sample in theirs.items()
        if sn not in mine and sn >= floor and sample.received_ns >= oldest_ns
    }


def _check_tree(cache: SimulatedCache) -> list[str]:
    aligner = cache.aligner
    if aligner is None:
        return [f"{cache.profile.cache_id} is down"]
    wrong = []
    ledger, options = aligner.ledger, aligner.options
    for stream, held in cache.store.items():
        record = ledger.records.get(ledger.place(stream))
        runs = record.runs if record is not None else ()
        if runs != flat(RangeSet.of(held)):
            wrong.append(f"P7: {cache.profile.cache_id} {stream} {runs}")
    for view in ledger.views.values():
        wrong += _check_sums(cache, options, view.name)
    return wrong


def _check_sums(cache: SimulatedCache, options: AlignerOptions, name: int) -> list[str]:
    aligner = cache.aligner
    assert aligner is not None
    view = aligner.ledger.views[name]
    total = streams = 0
    for record in aligner.ledger.records.values():
        if view.scope.holds(record.stream.key):
            floor = record.effective_floor(cache.profile.samples_max)
            known = known_of(record.runs, floor, record.unrecoverable)
            total += knowledge_fingerprint(options.secret, record.place, known, record.purge)
            streams += 1
    root = view.tree.root
    if (total & (1 << 128) - 1, streams) != (root.knowledge, root.streams):
        return [f"P7: {cache.profile.cache_id} root"]
    return []


def run_history(seed: int, options: SimulationOptions | None = None) -> list[str]:
    """Play one history; returns what went wrong, empty when everything held."""
    return History(seed, options).run()
