"""Histories of two sides of a network that both go on while they cannot see each other.

Each side has caches, writers whose clocks differ, and readers; readers join late on either side,
caches are killed, also while one of them corrects. Then all is healed, and everybody must agree on
every instance: caches with each other, readers with caches, and all with what the merge policy
says of what the master's side had. Nothing that a cache had stored is gone, but what
`remove_history` removed, and that was reported. One seed is one history, and its draws are its
own: those of the other histories stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

from durable_cache.endpoints.alignment.corrected import Corrected
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.newest import comes_after
from durable_cache.model.sample import Kind, Sample
from durable_cache.model.selection import Selection
from durable_cache.protocol.alignment import MergePolicy, SplitBrainOptions
from durable_cache.protocol.cache.events import EngineOptions
from durable_cache.protocol.reader.instances import InstanceState, InstanceStatus
from durable_cache.protocol.reader.profile import DestinationOrder, DurabilityKind, Profile
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.testing.simulation.aligning import ALIGNER
from durable_cache.testing.simulation.caches import CachePlan, SimCache, answerers_of
from durable_cache.testing.simulation.composition import Composition
from durable_cache.testing.simulation.merging import SimCorrector, SimMerging
from durable_cache.testing.simulation.network import Conditions, Network
from durable_cache.testing.simulation.promises import SubscriberPromise
from durable_cache.testing.simulation.publishers import Heartbeat, Listener, PublisherPlan
from durable_cache.testing.simulation.readers import ALL_STATES, SimReader
from durable_cache.testing.simulation.subscribers import SubscriberPlan
from durable_cache.testing.simulation.truth import Publication, Truth
from durable_cache.testing.simulation.world import SECOND_NS, World
from durable_cache.testing.simulation.writers import SimWriter

SPLIT_BRAIN_KINDS = frozenset(
    {
        *(f"policy {policy.value}" for policy in MergePolicy),
        "a side stands still",
        "both sides went on",
        "cache killed",
        "corrected",
        "history removed",
        "late joiner asks for history",
        "master killed after the healing",
        "published after the healing",
        "sample lost",
        "take",
        "the policy decides",
    }
)
"""What histories must show, for nothing is known of what none does."""

State = dict[str, bytes | None]
"""The payload of each key, None where it is disposed."""
_EVERYTHING = KeyExpression("**")
_KEYS = ("a/1", "a/2", "a/3", "a/4")
_HLC_BOUND_SECONDS = 0.25
_ENGINE = EngineOptions(
    window_size_samples=2000, recovery_delay_seconds=0.02, gap_timeout_seconds=4.0
)
_BEGIN_SECONDS, _QUIET_SECONDS, _NOTICED_SECONDS = 2.0, 15.0, 1.5
_HEALED_SECONDS, _BEAT_SECONDS = 100.0, 10.0
_MEET_SECONDS = 2 * ALIGNER.slot_seconds + ALIGNER.settle_seconds + 1


class _Writer(SimWriter):
    """A writer whose values tell from each other, and which says its last number when asked to."""

    def _value(self) -> tuple[Kind, bytes]:
        kind, payload = super()._value()
        return kind, b"" if kind is Kind.DELETE else b"%d " % len(self.truth.publications) + payload


class SplitBrainHistory:
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        self.network = Network(world)
        self.truth = Truth()
        self.random: Random = world.random
        self.policy: MergePolicy = self.random.choice([*MergePolicy])
        world.occur(f"policy {self.policy.value}")
        self.removes = self.policy.decides and self.random.random() < 0.3
        self.sides: tuple[list[str], list[str]] = ([], [])
        self.caches: list[SimCache] = []
        self.correctors: dict[str, SimCorrector] = {}
        self.writers: list[_Writer] = []
        self.readers: list[SimReader] = []
        self.corrected = Corrected()
        self._corrections = 0
        self._killed_after_healing = False
        self._at_healing: dict[str, State] = {}
        """What each cache had when it knew that both sides had gone on."""
        self.network.conditions = Conditions(
            loss=self.random.choice((0.0, 0.02, 0.1)),
            duplication=self.random.choice((0.0, 0.1)),
            delay_seconds=self.random.choice((0.002, 0.02, 0.1)),
            reordering=self.random.choice((0.0, 0.02, 0.2)),
        )
        counts = self.random.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
        self.master = self.random.randrange(2)
        for side, count in enumerate(counts):
            for _ in range(count):
                self._add_cache(side)
        for side in (0, 1):
            for _ in range(self.random.choice((1, 2))):
                self._add_writer(side)
            self._add_reader(side)

    def _skew_ns(self) -> int:
        return round(self.random.uniform(-1, 1) * _HLC_BOUND_SECONDS * SECOND_NS)

    def _add_cache(self, side: int) -> None:
        at = len(self.caches)
        plan = CachePlan(f"cache{at}", _EVERYTHING, _ENGINE)
        cache = SimCache(self.world, self.network, self.truth, plan)
        cache.skew_ns = self._skew_ns() // 10
        priority = at + (10 if side == self.master else 0)
        options = SplitBrainOptions(self.policy, priority, self.removes)
        corrector = SimCorrector(
            self.world,
            self.network,
            self.truth,
            PublisherPlan(f"{cache.name} corrects", f"c{at}", _KEYS, pinned=False),
            lambda asked: answerers_of(self.network, asked),
        )
        self.correctors[cache.name] = corrector

        def merges(process: Composition) -> SimMerging:
            return SimMerging(cache, process, options, corrector, _MEET_SECONDS)

        if self.policy is not MergePolicy.MERGE:
            cache.merges = merges
        cache.on_healing.append(lambda: self._met(cache))
        cache.on_corrected.append(self._has_corrected)
        self.caches.append(cache)
        self.sides[side].extend((cache.name, corrector.name))
        cache.start()

    def _met(self, cache: SimCache) -> None:
        self._at_healing.setdefault(cache.name, self._stored(cache))

    def _has_corrected(self, corrected: Corrected) -> None:
        self.corrected = corrected
        self._corrections += 1

    def _add_writer(self, side: int) -> None:
        at = len(self.writers)
        keys = tuple(sorted(self.random.sample(_KEYS, self.random.randint(2, 4))))
        plan = PublisherPlan(f"writer{at}", f"{at + 1:x}f", keys)
        writer = _Writer(
            self.world,
            self.network,
            self.truth,
            plan,
            lambda asked: answerers_of(self.network, asked),
            auto_dispose=False,
        )
        writer.skew_ns = self._skew_ns()
        self.writers.append(writer)
        self.sides[side].append(writer.name)
        self.world.at(0.1 * self.random.random(), writer.start)

    def _add_reader(self, side: int) -> None:
        random = self.random
        depth = random.randint(1, 3)
        profile = Profile(
            durability=DurabilityKind.TRANSIENT,
            depth=random.choice((depth, depth, None)),
            samples_max_per_instance=depth,
            destination_order=DestinationOrder.BY_SOURCE_TIMESTAMP,
        )
        history = profile.history
        plan = SubscriberPlan(
            f"reader{len(self.readers)}",
            _EVERYTHING,
            DeliveryOptions(
                periodic_queries_seconds=30.0, gap_timeout_seconds=3.0, window_size_samples=2000
            ),
            history=None if history is False else 0 if history is True else history,
            query_timeout_seconds=1.0,
        )
        promise = SubscriberPromise(self.world, self.truth, self.caches)
        reader = SimReader(self.world, self.network, plan, self.truth, promise, profile)
        reader.skew_ns = self._skew_ns()
        self.readers.append(reader)
        self.sides[side].append(reader.name)
        reader.start()

    def run(self) -> list[str]:
        """Play the history and return what broke the promise."""
        self.world.run(_BEGIN_SECONDS)
        self._go_on((0, 1), self.random.randint(3, 10))
        self._settle()
        self._cut()
        self.world.run(_NOTICED_SECONDS)
        stands_still = self.random.randrange(2) if self.random.random() < 0.15 else None
        if stands_still is not None:
            self.world.occur("a side stands still")
        sides = tuple(side for side in (0, 1) if side != stands_still)
        for side in sides:
            self._write(side)
        self._go_on(sides, self.random.randint(2, 12), join=True, kill=True)
        self._settle()
        for cache in self.caches:
            cache.start()
        had = {cache: set(cache.held_ns) for cache in self.caches}
        union: set[Publication] = set().union(*had.values())
        published = set(self.truth.publications)
        self._mend()
        later = self._after_healing()
        self.world.run(_HEALED_SECONDS)
        self._settle()
        self._check_kept(had, union)
        if self.policy is MergePolicy.IGNORE:
            return self.world.wrong
        came = set[Publication]().union(*((*one.held_ns, *one.removed) for one in self.caches))
        late = (published - union) & came
        if late and self.policy.decides:  # its master may know of them when it corrects, or not
            self.world.occur("came to no cache before the healing")
            self._check_agreed(None)
        else:
            self._check_agreed(self._expected(had, union | late, later))
        self._check_reports()
        return self.world.wrong

    # What happens

    def _go_on(
        self, sides: tuple[int, ...], steps: int, *, join: bool = False, kill: bool = False
    ) -> None:
        actions: list[tuple[float, Callable[[], None]]] = [
            (12, lambda: self._write(self.random.choice(sides))),
            (4, lambda: self._delete(self.random.choice(sides))),
            (6, self._look),
            (2 if join else 0, self._join),
            (2 if kill else 0, self._kill_any),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            self.random.choices(actions, weights)[0][1]()
            self.world.run(self.random.choice((0.01, 0.05, 0.2, 1.0)))

    def _writers_of(self, side: int) -> list[_Writer]:
        return [writer for writer in self.writers if writer.name in self.sides[side]]

    def _write(self, side: int) -> None:
        writer = self.random.choice(self._writers_of(side))
        writer.put_of(Kind.PUT, self.random.choice(writer.plan.keys))

    def _delete(self, side: int) -> None:
        writer = self.random.choice(self._writers_of(side))
        writer.put_of(Kind.DELETE, self.random.choice(writer.plan.keys))

    def _look(self) -> None:
        reader = self.random.choice(self.readers)
        reader.look(*ALL_STATES, take=self.random.random() < 0.4)

    def _join(self) -> None:
        if len(self.readers) < 4:
            self._add_reader(self.random.randrange(2))

    def _kill_any(self) -> None:
        self._kill(self.random.choice(self.caches))

    def _kill(self, cache: SimCache) -> None:
        if cache.running:
            self.world.occur("cache killed")
            cache.died("killed")
            self.correctors[cache.name].died("its cache was killed")
        self.world.at(self.random.choice((0.5, 3.0)), cache.start)

    def _cut(self) -> None:
        for one in self.sides[0]:
            for other in self.sides[1]:
                self.network.block(one, other)
                self.network.block(other, one)

    def _mend(self) -> None:
        self.network.heal()

    def _settle(self) -> None:
        """Let everybody in reach say its last number, and wait until all is asked for."""
        self._beat()
        self.world.run(_QUIET_SECONDS)

    def _beat(self) -> None:
        publishers = [*self.writers, *self.correctors.values()]
        for publisher in publishers:
            numbering = publisher.numbering
            if not publisher.running or numbering is None or not numbering.published:
                continue
            beat = Heartbeat(publisher.source, max(numbering.published), numbering)
            for node in list(self.network.nodes.values()):
                if isinstance(node, Listener):
                    self.network.tell(publisher.name, node.name, _beating(node, beat))

    def _after_healing(self) -> list[Publication]:
        """Kill caches while the sides meet, and publish something; returns what was published."""
        random, world = self.random, self.world
        before = len(self.truth.publications)
        for at in range(1, 12):
            world.at(_BEAT_SECONDS * at, self._beat)
        master = max(self.caches, key=self._rank)
        if random.random() < 0.4:
            cache = master if random.random() < 0.7 else random.choice(self.caches)
            if cache is master:
                world.occur("master killed after the healing")
            self._killed_after_healing = True
            for _ in range(random.randint(1, 2)):
                world.at(random.uniform(0.5, 40.0), lambda: self._kill(cache))
        published: list[Publication] = []
        if random.random() < 0.4:
            # A cache that returns, having missed something, heals once more: that is the healing.
            world.run(46.0 if self._killed_after_healing else 3.0)
            for side in (0, 1):
                self._write(side)
            published = self.truth.publications[before:]
            if published:
                world.occur("published after the healing")
        return published

    def _rank(self, cache: SimCache) -> int:
        at = self.caches.index(cache)
        return at + (10 if cache.name in self.sides[self.master] else 0)

    # What must hold

    def _stored(self, cache: SimCache) -> State:
        assert cache.process is not None
        return {key: value_of(sample) for key, sample in self._newest(cache).items()}

    def _newest(self, cache: SimCache) -> dict[str, Sample]:
        assert cache.process is not None
        page = cache.process.read(Selection(key_expr=_EVERYTHING, newest=1), 1000, None)
        newest: dict[str, Sample] = {}
        for sample in page.samples:
            if sample.key not in newest or comes_after(sample, newest[sample.key]):
                newest[sample.key] = sample
        return newest

    def _expected(
        self,
        had: dict[SimCache, set[Publication]],
        union: set[Publication],
        later: list[Publication],
    ) -> State | None:
        """Return what all agree on in the end; None where the caches of one side had differed."""
        newest = newest_of(union)
        expected = {key: value_of(sample) for key, sample in newest.items()}
        masters = [cache for cache in self.caches if cache.name in self.sides[self.master]]
        states = [self._at_healing.get(cache.name) for cache in masters]
        if any(state != states[0] for state in states):
            self.world.occur("caches of the master's side differ")
            return None
        state = states[0]
        if state is not None and any(union - had[cache] for cache in masters):
            restored = {} if self.policy is MergePolicy.DELETE else state
            expected = {key: restored.get(key) for key in expected}
            self.world.occur("the policy decides")
        for sample in sorted((one.sample for one in later), key=lambda one: one.time_order):
            if sample.key not in newest or comes_after(sample, newest[sample.key]):
                expected[sample.key] = value_of(sample)
        return expected

    def _check_agreed(self, expected: State | None) -> None:
        """Caches have the same newest samples, readers know them, and the policy was kept."""
        first = self.caches[0]
        newest = self._newest(first)
        for cache in self.caches:
            if self._publications(self._newest(cache)) != self._publications(newest):
                self.world.fail(f"{cache.name} has other newest samples than {first.name}")
        state = {key: value_of(sample) for key, sample in newest.items()}
        if expected is not None and state != expected:
            self.world.fail(f"{self.policy.value} ends with {state}, not {expected}")
        seen: dict[str, set[str]] = defaultdict(set)
        for reader in self.readers:
            known = {status.key: status for status in reader.cache.statuses()}
            for key, sample in newest.items():
                self._check_instance(reader.name, known.get(key), sample)
                if key in known:
                    seen[key].add(known[key].state.name or "")
            reader.check()
            reader.promise.check()
        for key, names in seen.items():
            # Who corrected goes with its cache, and late readers know no other writer.
            if len(names) > 1 and not self._killed_after_healing:
                self.world.fail(f"readers differ on {key}: {sorted(names)}")

    def _check_instance(self, name: str, status: InstanceStatus | None, sample: Sample) -> None:
        """A reader knows the newest sample of an instance, and whether that disposed it."""
        newest = None if status is None else status.newest
        if status is None or newest is None or self.truth.of(newest) is not self.truth.of(sample):
            self.world.fail(f"{name} has another newest sample of {sample.key}")
            return
        disposed = status.state is InstanceState.NOT_ALIVE_DISPOSED
        if disposed is not (sample.kind is Kind.DELETE):
            self.world.fail(f"{name} sees {sample.key} {status.state.name}")

    def _publications(self, newest: dict[str, Sample]) -> dict[str, Publication | None]:
        return {key: self.truth.of(sample) for key, sample in newest.items()}

    def _check_kept(self, had: dict[SimCache, set[Publication]], union: set[Publication]) -> None:
        """No acknowledged sample is gone, but what the policy was told to remove."""
        for cache, held in had.items():
            wanted = held if self.policy is MergePolicy.IGNORE else union
            gone = wanted - cache.held_ns.keys()
            if gone and not self.removes:
                self.world.fail(f"{cache.name} has {len(gone)} acknowledged samples no more")
            if gone - cache.removed:
                silently = len(gone - cache.removed)
                self.world.fail(f"{cache.name} has {silently} samples no more that nobody purged")
            for key in sorted(newest_of(wanted).keys() - self._newest(cache).keys()):
                self.world.fail(f"{cache.name} knows {key} no more")

    def _check_reports(self) -> None:
        """What a policy changed and removed is what it says."""
        if self._killed_after_healing or self._corrections > 1:
            return
        master = max(self.caches, key=self._rank)
        if len(master.removed) != self.corrected.removed:
            removed = self.corrected.removed
            self.world.fail(f"{len(master.removed)} samples were removed, {removed} are reported")
        corrector = self.correctors[master.name]
        made: dict[str, Kind] = {}
        if corrector.numbering is not None:
            for publication in corrector.numbering.published.values():
                made[publication.sample.key] = publication.sample.kind
        kinds = [*made.values()]
        told = self.corrected.disposed, self.corrected.restored
        if (kinds.count(Kind.DELETE), kinds.count(Kind.PUT)) != told:
            self.world.fail(f"{told} instances are reported as disposed and restored, not {kinds}")


def newest_of(publications: set[Publication]) -> dict[str, Sample]:
    """Return the newest sample of each key, by the one order."""
    newest: dict[str, Sample] = {}
    for publication in publications:
        sample = publication.sample
        if sample.key not in newest or comes_after(sample, newest[sample.key]):
            newest[sample.key] = sample
    return newest


def value_of(sample: Sample) -> bytes | None:
    return None if sample.kind is Kind.DELETE else sample.payload


def _beating(node: Listener, beat: Heartbeat) -> Callable[[], None]:
    return lambda: node.beaten(beat)
