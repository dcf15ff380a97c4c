"""How a seed becomes a history of readers with profiles, and what must hold at its end.

Several writers whose clocks differ within the HLC's bound share a few keys; caches align and are
killed, links are cut, writers leave and come back, readers join late, read and take in between.
When all is quiet, whoever reads by source timestamp knows the same newest sample of each key as the
caches do, or was told that it lost it. Then every writer writes every key of its once more, some
leave for good, and all those readers agree on the state of each instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.newest import comes_after
from durable_cache.model.sample import Kind, Sample
from durable_cache.model.selection import Selection
from durable_cache.protocol.cache.events import EngineOptions
from durable_cache.protocol.reader.instances import (
    InstanceState,
    InstanceStatus,
    SampleState,
    ViewState,
)
from durable_cache.protocol.reader.profile import (
    DestinationOrder,
    DurabilityKind,
    Profile,
    Reliability,
)
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.testing.simulation.caches import CachePlan, SimCache, answerers_of
from durable_cache.testing.simulation.network import Conditions, Network
from durable_cache.testing.simulation.promises import SubscriberPromise
from durable_cache.testing.simulation.publishers import PublisherPlan
from durable_cache.testing.simulation.readers import ALL_STATES, SimReader
from durable_cache.testing.simulation.subscribers import SubscriberPlan
from durable_cache.testing.simulation.truth import Numbering, Truth
from durable_cache.testing.simulation.world import SECOND_NS, World
from durable_cache.testing.simulation.writers import SimWriter

READER_KINDS = frozenset(
    {
        "cache killed",
        "link cut",
        "late joiner asks for history",
        "lost: consumed",
        "lost: no room",
        "lost: samples_max",
        "lost: instances_max",
        "pushed out",
        "read",
        "reader without room",
        "sample doubled",
        "sample late",
        "sample lost",
        "take",
        "unregister",
        "writer leaves",
        "writer leaves for good",
    }
)
"""What histories must show, for nothing is known of what none does."""

_EVERYTHING = KeyExpression("**")
_READERS_MAX = 3
_KEYS = ("a/1", "a/2", "a/3")
_HLC_BOUND_SECONDS = 0.25
"""Half of what Zenoh allows a timestamp to be ahead of who receives it: two clocks differ by it."""
_ENGINE = EngineOptions(
    window_size_samples=2000, recovery_delay_seconds=0.02, gap_timeout_seconds=4.0
)
_SETTLE_SECONDS, _ALIGN_SECONDS, _REVEAL_SECONDS, _LEAVE_SECONDS = 12.0, 40.0, 2.0, 1.0
_BY_SOURCE = DestinationOrder.BY_SOURCE_TIMESTAMP


class ReaderHistory:
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        self.network = Network(world)
        self.truth = Truth()
        self.random: Random = world.random
        self.caches: list[SimCache] = []
        self.writers: list[SimWriter] = []
        self.readers: list[SimReader] = []
        self.network.conditions = self._draw_conditions()
        caches = self.random.choice((1, 1, 2))
        for at in range(caches):
            plan = CachePlan(f"cache{at}", _EVERYTHING, _ENGINE, align=caches > 1)
            cache = SimCache(world, self.network, self.truth, plan)
            self.caches.append(cache)
            cache.start()
        for at in range(self.random.choice((2, 2, 3))):
            self._add_writer(at)
        self._add_reader(eventually=True)
        self._add_reader(eventually=False)

    def _draw_conditions(self) -> Conditions:
        random = self.random
        return Conditions(
            loss=random.choice((0.0, 0.02, 0.1)),
            duplication=random.choice((0.0, 0.1)),
            delay_seconds=random.choice((0.002, 0.02, 0.1)),
            reordering=random.choice((0.0, 0.02, 0.2)),
        )

    def _add_writer(self, at: int) -> None:
        random = self.random
        keys = tuple(sorted(random.sample(_KEYS, random.randint(1, 3))))
        plan = PublisherPlan(
            f"writer{at}", f"{at + 1:x}f", keys, pinned=random.random() < 0.7, history=1000
        )
        writer = SimWriter(
            self.world,
            self.network,
            self.truth,
            plan,
            lambda asked: answerers_of(self.network, asked),
            auto_dispose=random.random() < 0.5,
        )
        writer.skew_ns = self._skew_ns()
        self.writers.append(writer)
        self.world.at(random.random(), lambda: self._start(writer))

    def _skew_ns(self) -> int:
        return round(self.random.uniform(-1, 1) * _HLC_BOUND_SECONDS * SECOND_NS)

    def _add_reader(self, *, eventually: bool) -> None:
        random = self.random
        profile = self._draw_profile(eventually=eventually)
        recovery = profile.reliability is Reliability.RELIABLE
        history = profile.history
        plan = SubscriberPlan(
            f"reader{len(self.readers)}",
            KeyExpression(random.choice(("**", "**", "a/1"))),
            DeliveryOptions(
                recovery=recovery,
                periodic_queries_seconds=6.0 if recovery else None,
                gap_timeout_seconds=3.0,
                window_size_samples=2000,
            ),
            history=None if history is False else 0 if history is True else history,
            query_timeout_seconds=1.0,
        )
        promise = SubscriberPromise(self.world, self.truth, self.caches)
        reader = SimReader(self.world, self.network, plan, self.truth, promise, profile)
        reader.skew_ns = self._skew_ns()
        self.readers.append(reader)
        reader.start()

    def _draw_profile(self, *, eventually: bool) -> Profile:
        random = self.random
        per_instance = random.randint(1, 4)
        total = random.choice((None, None, random.randint(0, 4)))
        transient, by_source = DurabilityKind.TRANSIENT, _BY_SOURCE
        reliable = Reliability.RELIABLE
        return Profile(
            durability=transient if eventually else random.choice([*DurabilityKind][:3]),
            reliability=reliable if eventually else random.choice([*Reliability]),
            depth=random.choice((per_instance, per_instance, None)),
            samples_max=None if total is None else per_instance + total,
            samples_max_per_instance=per_instance,
            instances_max=random.choice((100, 100, 100, 2)),
            destination_order=by_source if eventually else random.choice([*DestinationOrder]),
        )

    def run(self) -> list[str]:
        """Play the history, heal, and return what broke the promise."""
        steps: list[tuple[float, Callable[[], None]]] = [
            (16, self._publish),
            (6, self._delete),
            (14, self._look),
            (4, self._part),
            (2, self._kill_cache),
            (5, self._leave),
            (3, self._unregister),
            (3, self._join),
        ]
        weights = [weight for weight, _ in steps]
        for _ in range(self.random.randint(8, 20)):
            self.random.choices(steps, weights)[0][1]()
            self.world.run(self.random.choice((0.01, 0.05, 0.2, 1.0, 2.0)))
        self._heal()
        self.world.run(_SETTLE_SECONDS if len(self.caches) == 1 else _ALIGN_SECONDS)
        self._check_newest()
        for kind in (self.random.choice((Kind.PUT, Kind.DELETE)), Kind.PUT):
            for writer in self.writers:
                for key in writer.plan.keys:
                    writer.put_of(kind, key)
            self.world.run(_REVEAL_SECONDS)
        self._check_newest()
        self._check_states()
        for writer in self.writers:
            if self.random.random() < 0.5:
                self.world.occur("writer leaves for good")
                writer.leaves_for_good = True
                writer.died("left for good")
        self.world.run(_LEAVE_SECONDS)
        self._check_states()
        for reader in self.readers:
            reader.check()
            if reader.profile.reliability is Reliability.RELIABLE:
                reader.promise.check()
        return self.world.wrong

    # What happens

    def _publish(self) -> None:
        for writer in self.random.sample(self.writers, self.random.randint(1, 2)):
            writer.put(self.random.randint(1, 3))

    def _delete(self) -> None:
        writer = self.random.choice(self.writers)
        writer.put_of(Kind.DELETE, self.random.choice(writer.plan.keys))

    def _look(self) -> None:
        random = self.random
        reader = random.choice(self.readers)
        every = ALL_STATES
        some = (
            SampleState(random.randint(1, 3)),
            ViewState(random.randint(1, 3)),
            InstanceState(random.randint(1, 7)),
        )
        reader.look(*(every if random.random() < 0.6 else some), take=random.random() < 0.5)

    def _part(self) -> None:
        """Cut a side off, or one link."""
        names = sorted(self.network.nodes)
        one = set(self.random.sample(names, self.random.randint(1, len(names) // 2)))
        pairs = [(left, right) for left in one for right in names if right not in one]
        if self.random.random() < 0.4:
            pairs = [self.random.choice(sorted(pairs))]
        ways = [way for left, right in sorted(pairs) for way in ((left, right), (right, left))]
        self.network.cut(ways, self.random.choice((0.3, 2.0, 8.0)))

    def _kill_cache(self) -> None:
        cache = self.random.choice(self.caches)
        if cache.running:
            self.world.occur("cache killed")
            cache.died("killed")
        self.world.at(self.random.choice((0.5, 3.0)), cache.start)

    def _leave(self) -> None:
        writer = self.random.choice(self.writers)
        if writer.running:
            self.world.occur("writer leaves")
            writer.died("left")
        self.world.at(self.random.choice((0.1, 1.0, 5.0)), lambda: self._start(writer))

    def _start(self, writer: SimWriter) -> None:
        if not writer.running and not writer.leaves_for_good:
            writer.start()

    def _unregister(self) -> None:
        writer = self.random.choice(self.writers)
        writer.unregister(self.random.choice(writer.plan.keys))

    def _join(self) -> None:
        answers = any(cache.running for cache in self.caches)  # else there is no history to be had
        if answers and len(self.readers) < _READERS_MAX:
            self._add_reader(eventually=self.random.random() < 0.6)

    def _heal(self) -> None:
        self.network.heal()
        for cache in self.caches:
            cache.start()
        for writer in self.writers:
            self._start(writer)

    # What must hold

    def _check_newest(self) -> None:
        """No reader that can be consistent is behind the caches, unless it said so."""
        newest: dict[str, Sample] = {}
        for cache in self.caches:
            assert cache.process is not None
            page = cache.process.read(Selection(key_expr=_EVERYTHING, newest=1), 1000, None)
            mine = {sample.key: sample for sample in page.samples}
            for key, sample in mine.items():
                if key not in newest or comes_after(sample, newest[key]):
                    newest[key] = sample
            self._check_alike(cache.name, mine, newest)
        for reader in self.readers:
            if reader.is_comparable:
                self._check_reader(reader, newest)

    def _check_alike(self, name: str, mine: dict[str, Sample], newest: dict[str, Sample]) -> None:
        if {k: self.truth.of(s) for k, s in mine.items()} != {
            k: self.truth.of(s) for k, s in newest.items()
        }:
            self.world.fail(f"{name} has other newest samples than the caches before it")

    def _check_reader(self, reader: SimReader, newest: dict[str, Sample]) -> None:
        known = {status.key: status.newest for status in reader.cache.statuses()}
        for key, sample in newest.items():
            if not reader.key_expr.matches(key):
                continue
            mine = known.get(key)
            publication = self.truth.of(sample)
            assert publication is not None
            if mine is not None and (
                self.truth.of(mine) is publication or comes_after(mine, sample)
            ):
                continue
            if not reader.promise.owes(publication):
                self.world.occur("out of sight")
            elif self._shares_epoch(publication.numbering):
                self.world.occur("two runs of one epoch")
            elif not reader.reading.lost[publication]:
                number = f"{sample.source} {sample.sn}"
                self.world.fail(f"{reader.name} is behind on {key} without a report: {number}")

    def _shares_epoch(self, numbering: Numbering) -> bool:
        """Tell whether a writer began twice within one time frame: such a run is not polled."""
        runs = self.truth.numberings[numbering.source]
        return sum(run.epoch == numbering.epoch for run in runs) > 1

    def _check_states(self) -> None:
        """Readers by source timestamp agree on instances, and with what the writers did."""
        said: dict[str, dict[tuple[InstanceState, int, object], list[str]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for reader in self.readers:
            lost = {key for key in _KEYS if self._lost_some(reader, key)}
            for status in reader.cache.statuses() if reader.is_comparable else ():
                if status.key not in lost and status.newest is not None:
                    said[status.key][self._view(status)].append(reader.name)
        for key, views in sorted(said.items()):
            expected = self._expected(key)
            for view, names in views.items():
                if view[:2] != expected:
                    found = f"{view[0].name} with {view[1]} writers"
                    wanted = f"{expected[0].name} with {expected[1]}"
                    self.world.fail(f"{names} see {key} {found}, not {wanted}")
            if len(views) > 1:
                self.world.fail(f"readers differ on {key}: {sorted(views.values())}")

    def _lost_some(self, reader: SimReader, key: str) -> bool:
        """Tell whether a reader was told that it lost what every writer wrote last of a key."""
        for writer in self.writers:
            numbering = writer.numbering
            if numbering is None or key not in writer.plan.keys:
                continue
            written = numbering.published.values()
            last = [one for one in written if one.sample.key == key][-1:]
            if any(reader.reading.lost[one] for one in last):
                return True
        return False

    def _view(self, status: InstanceStatus) -> tuple[InstanceState, int, object]:
        assert status.newest is not None
        publication = self.truth.of(status.newest)
        return status.state, status.writers, None if publication is None else publication.at

    def _expected(self, key: str) -> tuple[InstanceState, int]:
        """Return what an instance is, which every one of its writers put right before."""
        writers = [writer for writer in self.writers if key in writer.plan.keys]
        there = sum(not writer.leaves_for_good for writer in writers)
        if any(writer.leaves_for_good and writer.auto_dispose for writer in writers):
            return InstanceState.NOT_ALIVE_DISPOSED, there
        return (InstanceState.ALIVE if there else InstanceState.NOT_ALIVE_NO_WRITERS), there
