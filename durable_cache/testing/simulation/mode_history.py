"""How a seed becomes a history of subscribers with delivery modes, and what must hold at its end.

A network that loses, doubles and reorders brings each of them what it brings. So what a mode passes
on of that, which numbers it reports, and R and UR are known exactly: a mode asks nobody.

At-least-once stands beside them, and is brought everything: what is judged of it are its retries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.modes import Mode, ModeOptions
from durable_cache.testing.simulation.listening import Listening
from durable_cache.testing.simulation.network import Conditions, Network, Node, Token
from durable_cache.testing.simulation.publishers import PublisherToken
from durable_cache.testing.simulation.retrying import SimRetrying
from durable_cache.testing.simulation.truth import Numbering, Publication, Truth
from durable_cache.testing.simulation.world import START_NS, World

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
    """A subscriber in one mode."""

    def __init__(self, world: World, network: Network, truth: Truth, name: str, mode: Mode) -> None:
        super().__init__(world, network, name)
        self.heard = Listening(world, truth, name, mode)
        self.running = True

    def token_changed(self, token: Token, alive: bool) -> None:
        if alive and isinstance(token.value, PublisherToken):
            self.heard.declared(token.value)

    def arrived(self, publication: Publication) -> None:
        """Take a sample off the network."""
        self.heard.arrived(publication)


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
                listener.heard.check(numberings)
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
