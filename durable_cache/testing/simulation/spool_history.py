"""How a seed becomes a history of a publisher with a spool, and what must hold at its end.

The publisher is killed between any two steps of a put and begins again, under the same Zenoh id or
another; its disk runs full, its samples do not leave; caches are killed, refuse, and are cut off;
samples, resends and acknowledgements are lost, doubled and late.
"""

from __future__ import annotations

from durable_cache.protocol.publisher.events import EngineOptions
from durable_cache.testing.simulation.pipe_ends import SimTarget
from durable_cache.testing.simulation.seeded import SeededHistory
from durable_cache.testing.simulation.spool_promises import SpoolPromise
from durable_cache.testing.simulation.spools import SimSpooler
from durable_cache.testing.simulation.truth import Publication

SPOOL_KINDS = frozenset(
    {
        "a numbering goes on",
        "a put raises and leaves a row",
        "a sample does not leave",
        "begins under another id",
        "cache killed",
        "epochs unknown",
        "goes on with what was left",
        "killed between network and receipt",
        "killed between spool and network",
        "known is known",
        "link cut",
        "no room in the spool",
        "publisher killed",
        "receipt done",
        "refused for good",
        "refused for now",
        "removed before",
        "rows come back that were let go",
        "sample doubled",
        "sample late",
        "sample lost",
        "subscribers are told",
        "the end of a spool is lost",
        "too many unacknowledged",
        "unknown in the end",
    }
)
"""What histories must show, for nothing is known of what none does."""

_SETTLE_SECONDS = 120.0
_CONFLICT = 0.02


class SpoolHistory(SeededHistory):
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        world, random = self.world, self.random
        caches = random.choice((1, 2, 2, 3))
        wanted = random.randint(1, min(2, caches))
        self.promise = SpoolPromise(world, self.truth, wanted)
        trims = random.random() < 0.3
        self.targets = [
            SimTarget(
                world, self.network, self.truth, f"cache{at}", trims=trims, acknowledges_early=False
            )
            for at in range(caches)
        ]
        self.promise.targets = self.targets
        options = EngineOptions(
            history=random.choice((None, 5, 1000)),
            acknowledgements=wanted,
            unacknowledged_max=random.choice((4, 100)),
            unacknowledged_seconds_max=random.choice((None, None, 5.0)),
            resend_seconds_max=2.0,
            resend_samples_max=random.choice((1, 3, 100)),
        )
        self.publisher = SimSpooler(
            world, self.network, self.truth, options, self.promise, self.targets
        )
        for target in self.targets:
            target.start()
        self.publisher.start()

    def run(self) -> list[str]:
        """Play the history, heal, and return what broke the promise."""
        self._play(
            ((10, self._put), (3, self._kill), (3, self._kill_cache), (3, self._part)),
        )
        self._heal()
        self._wait(lambda: self.promise.all_over(self.publisher.unacknowledged), _SETTLE_SECONDS)
        self.promise.check(self.publisher.unacknowledged)
        return self.world.wrong

    # What happens

    def _put(self) -> None:
        before = len(self.truth.publications)
        self.publisher.put(self.random.choice((1, 5, 15)))
        for publication in self.truth.publications[before:]:
            if self.world.chance(_CONFLICT):
                self._conflict(publication)

    def _conflict(self, publication: Publication) -> None:
        """Let a cache have another sample under a number, where it has not this one yet."""
        target = self.random.choice(self.targets)
        if publication not in target.held:
            target.conflicts.add(publication)

    def _kill(self) -> None:
        self.publisher.died("killed")
        anew = self.random.random() < 0.5
        pause = self.random.choice((0.0, 0.5, 3.0))
        self.world.at(pause, lambda: self.publisher.start(anew=anew))

    def _kill_cache(self) -> None:
        target = self.random.choice(self.targets)
        target.died("killed")
        self.world.at(self.random.choice((0.1, 1.0, 5.0)), target.start)

    def _part(self) -> None:
        """Cut the publisher off from a cache, or from all of them, one way or both."""
        cut = self.targets if self.random.random() < 0.5 else [self.random.choice(self.targets)]
        name = self.publisher.name
        self._cut([way for one in cut for way in ((one.name, name), (name, one.name))])

    def _heal(self) -> None:
        self.network.heal()
        for target in self.targets:
            target.start()
        self.publisher.start()
