"""A pipe on the simulated network: the real engine, the real positions, all around them played."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.pipe.engine import PipeEngine
from durable_cache.protocol.pipe.events import (
    Claim,
    Claimed,
    ClaimFailed,
    Confirm,
    EngineOptions,
    Event,
    GaveUp,
    Output,
    Positioned,
    Taken,
    Withdraw,
)
from durable_cache.protocol.publisher.events import (
    AckReceived,
    CacheAppeared,
    CacheGone,
    HandedOver,
    Resend,
    Tick,
)
from durable_cache.protocol.subscriber.positions import Positions
from durable_cache.protocol.wire import Ack
from durable_cache.testing.simulation.network import Network, Token
from durable_cache.testing.simulation.pipe_ends import (
    Consuming,
    Frames,
    Kept,
    SimConsumer,
    SimTarget,
)
from durable_cache.testing.simulation.pipe_promises import PipePromise
from durable_cache.testing.simulation.truth import Truth
from durable_cache.testing.simulation.world import World

_TAKE_SECONDS, _TICK_SECONDS, _WRITE_SECONDS, _ASK_SECONDS = 0.05, 0.1, 0.3, 1.0
_BATCH = 20
_CLAIM_FAILS, _EARLY = 0.2, 0.1


class SimPipe(Consuming):
    """One pipe; what it confirmed outlives its processes, as far as it was written."""

    def __init__(  # noqa: PLR0913  all that stands around it
        self,
        world: World,
        network: Network,
        truth: Truth,
        options: EngineOptions,
        promise: PipePromise,
        targets: Sequence[SimTarget],
        consumer: SimConsumer | None,
        unconfirmed_max: int,
        *,
        remembers: bool = True,
    ) -> None:
        super().__init__(world, network, "pipe")
        self._truth, self._options, self.promise = truth, options, promise
        self._frames = Frames(self, targets, self._handle)
        self._consumer = consumer
        self._unconfirmed_max = unconfirmed_max
        self._remembers = remembers
        """Whether it has positions, as exactly-once has; at-least-once begins at the beginning."""
        self._known = Kept()
        """What it has heard of its consumer's positions in this life."""
        self._engine = PipeEngine(options)
        self._next = 0
        if consumer is not None:
            consumer.hears_of_it.append(self._tell_of)

    def start(self) -> None:
        """Begin a process where the positions stand."""
        if self.running:
            return
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        self._engine = PipeEngine(self._options)
        self._positions = Positions("**", self.kept.positions if self._remembers else ())
        self._known, self._next = Kept(), 0
        self.promise.began()
        self.network.show_all(self.name)
        self._again(_TAKE_SECONDS, self._take)
        self._again(_TICK_SECONDS, lambda: self._handle(Tick(self._now)))
        if self._remembers:
            self._again(_WRITE_SECONDS, self._write)
        if self._consumer is not None:
            self._again(_ASK_SECONDS, self._ask)

    @property
    def under_way(self) -> int:
        """How many samples it took and did not confirm."""
        return self._positions.in_hand

    @property
    def engine(self) -> PipeEngine:
        """What decides in this life."""
        return self._engine

    @property
    def _now(self) -> Moment:
        return self.world.moment(self.skew_ns)

    def token_changed(self, token: Token, alive: bool) -> None:
        self._handle(CacheAppeared(token.owner) if alive else CacheGone(token.owner))

    def hear_of(self, cache: str, ack: Ack) -> None:
        """Hear, over the network, what a cache acknowledges to whoever carries a run."""
        self.network.carry(cache, self.name, lambda: self._handle(AckReceived(ack)))

    # What the source network gives

    def _take(self) -> None:
        """Take what follows, as the source network's consumer hands it out."""
        positions = self._positions
        batch: list[Sample] = []
        publications = self._truth.publications
        while self._next < len(publications) and len(batch) < _BATCH:
            if positions.in_hand >= self._unconfirmed_max:
                self.world.occur("no room under way")
                break
            publication = publications[self._next]
            self._next += 1
            sample, numbering = publication.sample, publication.numbering
            named = sample.epoch, numbering.incarnation
            positions.call(sample.source, sample.epoch, named)
            if positions.is_confirmed(sample):
                continue
            if publication in self.promise.lost:
                if positions.pass_over(sample.source, sample.epoch, sample.sn, sample.sn):
                    self.world.occur("lost before the pipe")
                    self.promise.reported.add(publication)
                continue
            positions.hand_out(sample)
            self.promise.handed_out(publication)
            batch.append(sample)
        if batch:
            self._handle(Taken(tuple(batch), self._now))

    # What the consumer of the target network says

    def _tell_of(self, position: Position) -> None:
        self.network.carry("consumer", self.name, lambda: self._positioned(position))

    def _ask(self) -> None:
        if self._consumer is not None and self._engine.stored:
            for position in self._consumer.kept.positions:
                self._tell_of(position)

    def _positioned(self, position: Position) -> None:
        # What was processed once, was: a consumer that goes back takes nothing of that back.
        self._known.put(msgspec.structs.replace(position, rewinds=0))
        self._handle(Positioned(position))

    # The engine

    def _handle(self, event: Event) -> None:
        self._do(self._engine.handle(event))

    def _do(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            match output:
                case Claim(sample, _):
                    self._claim(output)
                case Withdraw():
                    self._withdraw(output)
                case Resend():
                    self.promise.sent(output)
                    self._frames.ask(output, confirmed_early=_EARLY)
                case HandedOver():
                    self.world.occur("subscribers are told")
                case Confirm(samples):
                    self.promise.confirms(samples, self._known if self._consumer else None)
                    self._settle(samples)
                case GaveUp(sample):
                    self.promise.gave_up(sample)
                case _:
                    assert_never(output)

    def _settle(self, samples: Sequence[Sample]) -> None:
        """Be done with samples."""
        for sample in samples:
            self._positions.confirm(sample)

    def _withdraw(self, withdraw: Withdraw) -> None:
        self.world.occur("run withdrawn")

    def _claim(self, claim: Claim) -> None:
        sample = claim.sample
        publication = self._truth.of(sample)
        assert publication is not None
        if self.world.chance(_CLAIM_FAILS):
            self.world.occur("claim failed")
            self._handle(ClaimFailed(sample.source, sample.epoch, self._now))
            return
        name = self.promise.name_of(publication.numbering)
        epoch = publication.numbering.epoch
        self._handle(Claimed(sample.source, sample.epoch, epoch, name, self._now))
