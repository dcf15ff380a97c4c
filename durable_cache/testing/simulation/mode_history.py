"""How a seed becomes a history of subscribers with delivery modes, and what must hold at its end.

A network that loses, doubles and reorders brings each of them what it brings. So what a mode passes
on of that, which numbers it reports, and R and UR are known exactly: a mode asks nobody.

At-least-once stands beside them, and is brought everything: what is judged of it are its retries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from durable_cache.model.delivery import DeliveryMode, DeliveryRates
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.modes import Deduplication, Mode, ModeOptions
from durable_cache.protocol.subscriber.arriving import ArrivingEngine
from durable_cache.protocol.subscriber.events import Declared, Deliver, Event, Missed, Received
from durable_cache.testing.simulation.network import Conditions, Network, Node, Token
from durable_cache.testing.simulation.publishers import PublisherToken
from durable_cache.testing.simulation.retrying import SimRetrying
from durable_cache.testing.simulation.truth import Numbering, Publication, Truth
from durable_cache.testing.simulation.world import START_NS, World

__all__ = ["MODES", "MODE_KINDS", "ModeHistory"]

MODES = (
    Mode.of("unreliable"),
    Mode.of("at-most-once"),
    Mode.of("at-most-once", ModeOptions(deduplication="id")),
    Mode.of("at-most-once", ModeOptions(next_only=True)),
)
MODE_KINDS = frozenset(
    {
        "confirmed for nothing",
        "discarded",
        "found after its report",
        "given up",
        "handed over again",
        "link cut",
        "never confirmed",
        "passed on again",
        "publisher restarts",
        "reported",
        "sample doubled",
        "sample late",
        "sample lost",
        "too much is not confirmed",
    }
)
"""What histories must show, for nothing is known of what none does."""

_EVERYTHING = KeyExpression("**")
_TRIES_MAX = 100
"""So often at-least-once is waited for, which hands over few at a time."""
_QUIET_SECONDS = 3.0
"""Longer than anything is on its way: a restart stands between two such pauses."""


class _Listener(Node):
    """A subscriber in one mode, with the real engine, and what the network brought it."""

    def __init__(self, world: World, network: Network, truth: Truth, name: str, mode: Mode) -> None:
        super().__init__(world, network, name)
        self._truth, self.mode = truth, mode
        self._engine = ArrivingEngine(mode)
        self.came: list[Publication] = []
        """What the network brought, in that order."""
        self.passed: list[Publication] = []
        """What the program got, in that order."""
        self.reported: dict[tuple[SourceId, int], list[int]] = {}
        self.running = True
        self._engine.start(world.moment())

    def token_changed(self, token: Token, alive: bool) -> None:
        value = token.value
        if alive and isinstance(value, PublisherToken):
            named = value.source, value.epoch, value.incarnation
            self._handle(Declared(*named, self.world.moment()))

    def arrived(self, publication: Publication) -> None:
        """Take a sample off the network."""
        self.came.append(publication)
        self._handle(Received([publication.sample], self.world.moment()))

    def _handle(self, event: Event) -> None:
        for output in self._engine.handle(event):
            match output:
                case Deliver(samples, _, passed):
                    self._losses.passed_on(samples, passed)
                    for sample in samples:
                        self._pass(sample)
                case Missed(source, epoch, first, last):
                    self.world.occur("reported")
                    self._losses.lost(source, last - first + 1)
                    numbers = self.reported.setdefault((source, epoch), [])
                    numbers += range(first, last + 1)
                case _:
                    self.world.fail(f"{self.name} asks somebody: {output}")

    def _pass(self, sample: Sample) -> None:
        publication = self._truth.of(sample)
        if publication is None:
            self.world.fail(f"{self.name} is given what nobody published: {sample}")
            return
        if sample.epoch != publication.numbering.epoch:
            self.world.fail(f"{self.name} is given {sample.sn} of another run, {sample.epoch}")
        if publication in self.passed:
            self.world.occur("passed on again")
        elif sample.sn in self.reported.get((sample.source, sample.epoch), ()):
            self.world.occur("found after its report")
        self.passed.append(publication)

    @property
    def _losses(self) -> Losses:
        return self._engine.losses

    def check(self, numberings: list[Numbering]) -> None:
        """Judge what was passed on and reported of one source, and its R and UR."""
        unique = lost = received = 0
        for numbering in numberings:
            came = [one for one in self.came if one.numbering is numbering]
            wanted = self._wanted(came)
            given = [one for one in self.passed if one.numbering is numbering]
            run = f"{numbering.source} run {numbering.at}"
            if given != wanted:
                numbers = [[one.sample.sn for one in part] for part in (given, wanted)]
                self.world.fail(f"{self.name} is given of {run} {numbers[0]}, not {numbers[1]}")
            if len(given) < len(came):
                self.world.occur("discarded")
            top = max((one.sample.sn for one in came), default=-1)
            missing = {*range(top + 1)} - {one.sample.sn for one in given}
            reported = self.reported.get((numbering.source, numbering.epoch), [])
            if len(reported) != len({*reported}):
                self.world.fail(f"{self.name} reports numbers of {run} twice")
            if not missing <= {*reported}:
                self.world.fail(f"{self.name} says nothing of {run} {missing - {*reported}}")
            unique, lost, received = (
                unique + len({*given}),
                lost + len(missing),
                received + len(came),
            )
        rates = [row.rates for row in self._losses.rows() if row.source == numberings[0].source]
        if unique and rates != [DeliveryRates.measured(unique + lost, received, unique)]:
            self.world.fail(f"{self.name} has R and UR {rates}, not {(unique, lost, received)}")

    def _wanted(self, came: list[Publication]) -> list[Publication]:
        """Return what a mode passes on of what came of one run, as the page says it."""
        if self.mode.delivery is DeliveryMode.UNRELIABLE:
            return came
        if self.mode.deduplication is Deduplication.ID:
            return [*dict.fromkeys(came)]
        wanted: list[Publication] = []
        last = -1
        for one in came:
            sn = one.sample.sn
            if sn == last + 1 or (sn > last and not self.mode.next_only):
                last = sn
                wanted.append(one)
        return wanted


class ModeHistory:
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = world = World(seed, tracing=tracing)
        self.network = Network(world)
        self.truth = Truth()
        self.random: Random = world.random
        random = self.random
        self.network.conditions = Conditions(
            loss=random.choice((0.0, 0.05, 0.3)),
            duplication=random.choice((0.0, 0.05, 0.3)),
            delay_seconds=random.choice((0.002, 0.02, 0.2)),
            reordering=random.choice((0.0, 0.1, 0.3)),
            detour_seconds=2.0,
        )
        self.listeners = [
            _Listener(world, self.network, self.truth, f"listener{at}", mode)
            for at, mode in enumerate(MODES)
        ]
        self.retrying = SimRetrying(world, self.network, self.truth)
        self._current: dict[str, Numbering] = {}
        self._runs = 0
        for at in range(random.randint(1, 2)):
            publisher = Node(world, self.network, f"publisher{at}")
            publisher.running = True
            self._begin(publisher.name)

    def run(self) -> list[str]:
        """Play the history, and return what was other than the modes say."""
        steps: list[tuple[float, Callable[[], None]]] = [
            (10, self._publish),
            (2, self._restart),
            (2, self._part),
        ]
        for _ in range(self.random.randint(6, 20)):
            self.random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()
            self.world.run(self.random.choice((0.01, 0.1, 0.5)))
        self.world.run(_QUIET_SECONDS)
        for _ in range(_TRIES_MAX):
            if not self.retrying.all_over:
                self.world.run(_QUIET_SECONDS)
        self.retrying.check()
        for listener in self.listeners:
            for numberings in self.truth.numberings.values():
                listener.check(numberings)
        return self.world.wrong

    def _begin(self, publisher: str) -> None:
        """Begin a run, which a token names before its first sample."""
        self._runs += 1
        epoch, name = (START_NS + self.world.now_ns >> 33) + self._runs, f"{self._runs:08x}"
        source = SourceId(f"{publisher[-1]}f", 7)
        numbering = self.truth.begin(source, epoch, publisher, name, self.world.now_ns)
        self._current[publisher] = numbering
        token = PublisherToken(source, epoch, name, _EVERYTHING, self._runs)
        self.network.declare(Token(publisher, token))
        self.world.run(_QUIET_SECONDS)
        self._put(publisher)
        self.world.run(_QUIET_SECONDS)

    def _restart(self) -> None:
        self.world.occur("publisher restarts")
        self.world.run(_QUIET_SECONDS)
        publisher = self.random.choice(list(self._current))
        self.network.withdraw(publisher)
        self._begin(publisher)

    def _publish(self) -> None:
        for _ in range(self.random.choice((1, 5, 20))):
            self._put(self.random.choice(list(self._current)))

    def _put(self, publisher: str) -> None:
        world, truth, numbering = self.world, self.truth, self._current[publisher]
        sample = Sample(
            "a/b",
            numbering.source,
            0,
            len(numbering.published),
            b"",
            attachment=truth.mark(),
            ntp64=ntp64_from_ns(START_NS + world.now_ns),
        )
        publication = truth.publish(numbering, sample, world.now_ns)
        self.retrying.delivered(publication)
        for listener in self.listeners:
            self.network.carry(publisher, listener.name, partial(listener.arrived, publication))

    def _part(self) -> None:
        """Cut a listener off for a while."""
        listener = self.random.choice(self.listeners).name
        publisher = self.random.choice(list(self._current))
        self.network.block(publisher, listener)
        seconds = self.random.choice((0.2, 1.0))
        self.world.at(seconds, lambda: self.network.unblock(publisher, listener))
