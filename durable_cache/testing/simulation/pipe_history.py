"""How a seed becomes a history of a pipe, and what must hold at its end.

Publishers with several runs each publish in the source network. The middle to the target network
loses, doubles and reorders frames, replies, acknowledgements and positions, and confirms too early;
the pipe, the caches and the consumer behind it are killed and begin again, links are cut.
"""

from __future__ import annotations

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.pipe.events import EngineOptions
from durable_cache.testing.simulation.pipe_ends import SimConsumer, SimTarget
from durable_cache.testing.simulation.pipe_promises import PipePromise
from durable_cache.testing.simulation.pipes import SimPipe
from durable_cache.testing.simulation.seeded import SeededHistory
from durable_cache.testing.simulation.truth import Numbering, Publication
from durable_cache.testing.simulation.world import START_NS

__all__ = ["PIPE_KINDS", "PipeHistory"]

PIPE_KINDS = frozenset(
    {
        "acknowledged before it is durable",
        "cache killed",
        "claim failed",
        "consumer killed",
        "known is known",
        "link cut",
        "lost before the pipe",
        "no room under way",
        "pipe killed",
        "position lost",
        "processed again after a crash",
        "publisher restarts",
        "refused for good",
        "refused for now",
        "removed before",
        "run withdrawn",
        "sample doubled",
        "sample late",
        "sample lost",
        "the middle confirms too early",
    }
)
"""What histories must show, for nothing is known of what none does."""

_SETTLE_SECONDS = 60.0
_LOST, _CONFLICT = 0.02, 0.02


class PipeHistory(SeededHistory):
    """One seeded history; `run` plays it and returns what went wrong."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        world, random = self.world, self.random
        self._runs = 0
        caches = random.choice((1, 2, 2, 3))
        acknowledgements = random.randint(1, min(2, caches))
        self.promise = PipePromise(world, self.truth, acknowledgements)
        processed = random.random() < 0.5
        self.targets = [
            SimTarget(world, self.network, self.truth, f"cache{at}", trims=not processed)
            for at in range(caches)
        ]
        self.promise.targets = self.targets
        self.consumer: SimConsumer | None = None
        if processed:
            self.consumer = SimConsumer(
                world,
                self.network,
                self.targets,
                self.promise,
                transacts=random.random() < 0.5,
            )
            self.promise.consumer = self.consumer
        options = EngineOptions(
            acknowledgements=acknowledgements,
            processed=processed,
            frame_samples_max=random.choice((1, 3, 8)),
            frames_max=random.choice((1, 2, 4)),
            retry_seconds=0.5,
            retry_seconds_max=2.0,
            runs_max=random.choice((2, 100)),
        )
        self.pipe = SimPipe(
            world,
            self.network,
            self.truth,
            options,
            self.promise,
            self.targets,
            self.consumer,
            random.choice((5, 100)),
        )
        self._current: dict[int, Numbering] = {}
        for at in range(random.randint(1, 3)):
            self._begin(at)
        for target in self.targets:
            target.start()
        if self.consumer is not None:
            self.consumer.start()
        self.pipe.start()

    def run(self) -> list[str]:
        """Play the history, heal, and return what broke the promise."""
        self._play(
            (
                (10, self._publish),
                (2, self._restart),
                (3, self._kill_pipe),
                (3, self._kill_cache),
                (3, self._kill_consumer),
                (3, self._part),
            )
        )
        self._heal()
        self._wait(lambda: self.promise.all_over, _SETTLE_SECONDS)
        self.promise.check()
        return self.world.wrong

    # What happens

    def _begin(self, at: int) -> None:
        """Begin a run of a publisher, named by a token or not."""
        self._runs += 1
        source = SourceId(f"{at + 1:x}f", 7)
        name = f"{self._runs:08x}" if self.random.random() < 0.7 else ""
        epoch = 1_000 + self._runs
        self._current[at] = self.truth.begin(
            source, epoch, f"publisher{at}", name, self.world.now_ns
        )

    def _restart(self) -> None:
        self.world.occur("publisher restarts")
        self._begin(self.random.choice(list(self._current)))

    def _publish(self) -> None:
        for _ in range(self.random.choice((1, 5, 15))):
            self._put(self._current[self.random.choice(list(self._current))])

    def _put(self, numbering: Numbering) -> None:
        world, truth, random = self.world, self.truth, self.random
        sn = max(numbering.published, default=-1) + 1
        if sn and random.random() < 0.1:
            sn += random.randint(1, 3)  # the numbers between are of other keys
        sample = Sample(
            f"a/{random.randint(1, 3)}",
            numbering.source,
            numbering.epoch,
            sn,
            b"%d" % sn,
            attachment=truth.mark(),
            ntp64=ntp64_from_ns(START_NS + world.now_ns),
        )
        publication = truth.publish(numbering, sample, world.now_ns)
        self.promise.published(publication)
        if world.chance(_LOST):
            self.promise.lost.add(publication)
        elif world.chance(_CONFLICT):
            self._conflict(publication)

    def _conflict(self, publication: Publication) -> None:
        self.random.choice(self.targets).conflicts.add(publication)

    def _kill_pipe(self) -> None:
        self.pipe.died("killed")
        self.world.at(self.random.choice((0.0, 0.5, 3.0)), self.pipe.start)

    def _kill_cache(self) -> None:
        target = self.random.choice(self.targets)
        target.died("killed")
        self.world.at(self.random.choice((0.1, 1.0, 5.0)), target.start)

    def _kill_consumer(self) -> None:
        consumer = self.consumer
        if consumer is not None:
            consumer.died("killed")
            self.world.at(self.random.choice((0.1, 1.0)), self._start_consumer)

    def _start_consumer(self) -> None:
        if self.consumer is not None and not self.consumer.running:
            self.consumer.start()

    def _part(self) -> None:
        """Cut the pipe off from a cache, one way or both."""
        other, pipe = self.random.choice(self.targets).name, self.pipe.name
        self._cut([(other, pipe), (pipe, other)])

    def _heal(self) -> None:
        self.network.heal()
        for target in self.targets:
            target.start()
        self._start_consumer()
        self.pipe.start()
