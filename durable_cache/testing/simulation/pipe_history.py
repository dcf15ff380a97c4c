"""How a seed becomes a history of a pipe, and what must hold at its end.

Publishers with several runs each publish in the source network. A seed draws the pipe's mode: what
it remembers and sends again, or that it takes what arrives and sends it once. The middle to the
target network loses, doubles and reorders frames, replies, acknowledgements and positions, and
confirms too early; the pipe, the caches and the consumer behind it are killed and begin again, the
consumer goes back or cannot process a sample, links are cut.
"""

from __future__ import annotations

from functools import partial

from durable_cache.model.delivery import DeliveryMode
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import frame
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.modes import Mode
from durable_cache.protocol.pipe.events import EngineOptions
from durable_cache.testing.simulation.network import Token
from durable_cache.testing.simulation.passing_pipes import PassingPipe, PassingPromise
from durable_cache.testing.simulation.pipe_ends import SimConsumer, SimTarget
from durable_cache.testing.simulation.pipe_promises import PipePromise
from durable_cache.testing.simulation.pipes import SimPipe
from durable_cache.testing.simulation.publishers import PublisherToken
from durable_cache.testing.simulation.seeded import SeededHistory
from durable_cache.testing.simulation.truth import Numbering, Publication
from durable_cache.testing.simulation.world import START_NS

PIPE_KINDS = frozenset(
    {
        "a handler raises",
        "a lost sample came again",
        "a repeat goes no further",
        "acknowledged before it is durable",
        "another pipe was faster",
        "cache killed",
        "carried again after a crash",
        "claim failed",
        "consumer killed",
        "dead letter",
        "discarded",
        "dropped before the pipe",
        "found after its report",
        "killed before a rewind is held",
        "killed between letter and position",
        "known is known",
        "link cut",
        "lost before the pipe",
        "lost behind the pipe",
        "no room under way",
        "pipe in at-least-once",
        "pipe in at-most-once",
        "pipe in exactly-once",
        "pipe in unreliable",
        "pipe killed",
        "position lost",
        "processed again after a crash",
        "processed again after a rewind",
        "publisher restarts",
        "refused for good",
        "refused for now",
        "removed before",
        "reported",
        "rewind",
        "run withdrawn",
        "sample doubled",
        "sample late",
        "sample lost",
        "the middle confirms too early",
    }
)
"""What histories must show, for nothing is known of what none does."""

_SETTLE_SECONDS = 60.0
_LOST, _CONFLICT, _OTHER_PIPE, _POISON = 0.02, 0.02, 0.03, 0.03
_RETRY_SECONDS = 0.5
_QUIET_SECONDS = 6.0
"""Longer than anything is on its way to a pipe that takes what arrives, or waits before it: a
restart stands between two such pauses."""
_EVERYTHING = KeyExpression("**")
_MODES = (
    DeliveryMode.EXACTLY_ONCE,
    DeliveryMode.EXACTLY_ONCE,
    DeliveryMode.EXACTLY_ONCE,
    DeliveryMode.AT_LEAST_ONCE,
    DeliveryMode.AT_MOST_ONCE,
    DeliveryMode.UNRELIABLE,
)


class PipeHistory(SeededHistory):
    """One seeded history; `run` plays it and returns what went wrong."""

    consumer: SimConsumer | None = None
    passing: PassingPipe | None = None
    """The pipe, where it takes what arrives."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        world, random = self.world, self.random
        self._runs = 0
        self._current: dict[int, Numbering] = {}
        self.mode = random.choice(_MODES)
        world.occur(f"pipe in {self.mode.words}")
        caches = random.choice((1, 2, 2, 3))
        acknowledgements = random.randint(1, min(2, caches))
        processed = self.mode.is_reliable and random.random() < 0.5
        self.targets = [
            SimTarget(
                world,
                self.network,
                self.truth,
                f"cache{at}",
                trims=self.mode.is_reliable and not processed,
            )
            for at in range(caches)
        ]
        options = EngineOptions(
            acknowledgements=acknowledgements,
            processed=processed,
            frame_samples_max=random.choice((1, 3, 8)),
            frames_max=random.choice((1, 2, 4)),
            retry_seconds=_RETRY_SECONDS,
            retry_seconds_max=2.0,
            runs_max=random.choice((2, 100)) if self.mode.is_reliable else 100,
            sends_again=self.mode.is_reliable,
        )
        self.pipe = self._pipe(options, random.choice((2, 5, 100)))
        self.promise.targets = self.targets
        if not self.mode.is_reliable:
            self.pipe.start()
        for target in self.targets:
            target.start()
        for at in range(random.randint(1, 3)):
            self._begin(at)
        if self.consumer is not None:
            self.consumer.start()
        self.pipe.start()

    @property
    def promise(self) -> PipePromise:
        """What the pipe must keep."""
        return self.pipe.promise

    def _pipe(self, options: EngineOptions, unconfirmed_max: int) -> SimPipe:
        world, network, truth = self.world, self.network, self.truth
        enough = options.acknowledgements
        if not self.mode.is_reliable:
            once = self.mode is DeliveryMode.AT_MOST_ONCE
            passing = PassingPromise(world, truth, enough, retry_seconds=_RETRY_SECONDS, once=once)
            named = world, network, truth, options, passing, self.targets
            self.passing = PassingPipe(*named, unconfirmed_max, Mode.of(self.mode))
            return self.passing
        promise = PipePromise(world, truth, enough)
        if options.processed:
            transacts = self.random.random() < 0.5
            self.consumer = promise.consumer = SimConsumer(
                world, network, self.targets, promise, transacts=transacts
            )
        return SimPipe(
            world,
            network,
            truth,
            options,
            promise,
            self.targets,
            self.consumer,
            unconfirmed_max,
            remembers=self.mode is DeliveryMode.EXACTLY_ONCE,
        )

    def run(self) -> list[str]:
        """Play the history, heal, and return what broke the promise."""
        self._play(
            (
                (10, self._publish),
                (2, self._restart),
                (3, self._kill_pipe),
                (3, self._kill_cache),
                (3, self._kill_consumer),
                (3, self._rewind),
                (3, self._part),
            )
        )
        self._heal()
        if self.passing is not None:
            self.world.run(_QUIET_SECONDS)  # by then all has come that is on its way
        self._wait(self._is_over, _SETTLE_SECONDS)
        self.promise.check()
        if self.passing is not None:
            self.passing.check_before()
        self.promise.check_counts(self.pipe.engine)
        return self.world.wrong

    def _is_over(self) -> bool:
        return self.promise.all_over if self.passing is None else self.passing.at_rest

    # What happens

    def _begin(self, at: int) -> None:
        """Begin a run of a publisher, named by a token or not."""
        self._runs += 1
        source = SourceId(f"{at + 1:x}f", 7)
        name = f"{self._runs:08x}" if self.random.random() < 0.7 else ""
        epoch, publisher = 1_000 + self._runs, f"publisher{at}"
        if self.passing is not None:
            name = name or f"{self._runs:08x}"
            epoch = frame(self.world.moment().unix_ns)
        now_ns = self.world.now_ns
        run = self._current[at] = self.truth.begin(source, epoch, publisher, name, now_ns)
        if self.passing is not None:
            token = PublisherToken(source, epoch, name, _EVERYTHING, self._runs)
            self.network.declare(Token(publisher, token))
            self.world.run(_QUIET_SECONDS)
            self._put(run)
            self.world.run(_QUIET_SECONDS)

    def _restart(self) -> None:
        self.world.occur("publisher restarts")
        at = self.random.choice(list(self._current))
        if self.passing is not None:
            self.world.run(_QUIET_SECONDS)
            self.network.withdraw(f"publisher{at}")
        self._begin(at)

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
        if self.passing is None and world.chance(_LOST):
            self.promise.lost.add(publication)
        elif world.chance(_CONFLICT):
            self._conflict(publication)
        elif world.chance(_OTHER_PIPE):
            self._bring(publication)
        if self.consumer is not None and world.chance(_POISON):
            self.promise.poison.add(publication)
        if self.passing is not None:
            came = partial(self.passing.arrived, publication)
            self.network.carry(numbering.publisher, self.pipe.name, came)

    def _conflict(self, publication: Publication) -> None:
        self.random.choice(self.targets).conflicts.add(publication)

    def _bring(self, publication: Publication) -> None:
        """Let another pipe bring a sample to a cache."""
        target = self.random.choice(self.targets)
        if target.running:
            self.world.occur("another pipe was faster")
            name = self.promise.name_of(publication.numbering)
            target.bring(publication, name, partial(self.pipe.hear_of, target.name))

    def _kill_pipe(self) -> None:
        self.pipe.died("killed")
        seconds = self.random.choice((0.0, 0.5, 3.0))
        if self.passing is None:
            self.world.at(seconds, self.pipe.start)
            return
        self.world.run(seconds)
        self.pipe.start()
        self.world.run(1.0)  # by then it has seen all tokens, and no restart lies between

    def _kill_cache(self) -> None:
        target = self.random.choice(self.targets)
        target.died("killed")
        self.world.at(self.random.choice((0.1, 1.0, 5.0)), target.start)

    def _kill_consumer(self) -> None:
        consumer = self.consumer
        if consumer is not None:
            consumer.died("killed")
            self.world.at(self.random.choice((0.1, 1.0)), self._start_consumer)

    def _rewind(self) -> None:
        """Let the consumer go back: to a sample, to a time, or to the beginning."""
        consumer, reached = self.consumer, self.promise.processed_now
        if consumer is None or consumer.transacts or not (consumer.running and reached):
            return
        self.world.occur("rewind")
        since = self.random.choice(reached)
        to = self.random.choice(("sample", "time", "all"))
        first = {since.sample.source: since} if to == "sample" else {}
        for one in reached:
            if to == "time" and one.at_ns >= since.at_ns:
                first.setdefault(one.sample.source, one)
        if not consumer.rewind(None if to == "all" else first):
            self.world.at(0.1, self._start_consumer)

    def _start_consumer(self) -> None:
        if self.consumer is not None:
            self.consumer.start()

    def _part(self) -> None:
        """Cut the pipe off from a cache, one way or both."""
        pipe = self.pipe.name
        if self.passing is not None and self.random.random() < 0.5:
            way = f"publisher{self.random.choice(list(self._current))}", pipe
            self.network.cut([way], self.random.choice((0.2, 1.0)))
            return
        other = self.random.choice(self.targets).name
        self._cut([(other, pipe), (pipe, other)])

    def _heal(self) -> None:
        self.network.heal()
        for target in self.targets:
            target.start()
        self._start_consumer()
        self.pipe.start()
