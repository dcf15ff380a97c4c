"""What histories of one publisher, pipe or consumer have in common: how they begin, go on and end.

One seed says how bad the network is, which steps are taken and how much time lies between them.
Then everything heals, and the history is over when all that was promised has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from durable_cache.testing.simulation.network import Conditions, Network
from durable_cache.testing.simulation.truth import Truth
from durable_cache.testing.simulation.world import SECOND_NS, World

_AFTER_SECONDS = 3.0
"""In which what is late comes after all, and must change nothing."""
_PAUSES_SECONDS = (0.01, 0.1, 0.5, 2.0)
_CUTS_SECONDS = (0.3, 2.0, 6.0)


class SeededHistory:
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        self.network = Network(self.world)
        self.truth = Truth()
        self.random: Random = self.world.random
        choice = self.random.choice
        self.network.conditions = Conditions(
            loss=choice((0.0, 0.05, 0.3)),
            duplication=choice((0.0, 0.2)),
            delay_seconds=choice((0.002, 0.02, 0.2)),
            reordering=choice((0.0, 0.1, 0.3)),
            detour_seconds=3.0,
        )

    def run(self) -> list[str]:
        """Play the history, heal, and return what broke the promise."""
        raise NotImplementedError

    def _play(self, steps: Sequence[tuple[float, Callable[[], None]]]) -> None:
        """Let some of the steps happen, by their weights."""
        weights = [weight for weight, _ in steps]
        for _ in range(self.random.randint(8, 24)):
            self.random.choices(steps, weights)[0][1]()
            self.world.run(self.random.choice(_PAUSES_SECONDS))

    def _wait(self, all_over: Callable[[], bool], seconds: float) -> None:
        """Let time pass until all is over, so long at most, and for what is late."""
        end_ns = self.world.now_ns + round(seconds * SECOND_NS)
        while self.world.now_ns < end_ns and not all_over():
            self.world.run(1.0)
        self.world.run(_AFTER_SECONDS)

    def _cut(self, ways: Sequence[tuple[str, str]], one_way: float = 0.4) -> None:
        """Cut links for a while, sometimes one way of them alone."""
        if self.random.random() < one_way:
            ways = [self.random.choice(ways)]
        self.network.cut(ways, self.random.choice(_CUTS_SECONDS))
