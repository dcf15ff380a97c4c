"""A publisher with a spool on the simulated network: the real engine, its disk and the rest played.

The disk keeps what was written, whatever becomes of the process; what was let go may come back, for
letting go is not waited for. A put may fail before its row is written, after it, or on its way. The
end of the rows may be lost, as far as caches hold them: then somebody deletes the mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from durable_cache.model.clock import Moment
from durable_cache.model.sample import QOS_DEFAULT, Kind, Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AskEpochs,
    CacheAppeared,
    CacheGone,
    Declare,
    EngineOptions,
    EpochsKnown,
    EpochsUnknown,
    Event,
    Finished,
    Full,
    HandedOver,
    Keep,
    Kept,
    Output,
    Put,
    Resend,
    Send,
    SendFailed,
    Sent,
    Spooled,
    Standing,
    Started,
    Tick,
    TokenDeclared,
)
from durable_cache.testing.simulation.network import Network, Node, Token
from durable_cache.testing.simulation.pipe_ends import Frames, SimTarget
from durable_cache.testing.simulation.truth import Truth
from durable_cache.testing.simulation.world import Crash, World

if TYPE_CHECKING:
    from durable_cache.testing.simulation.spool_promises import SpoolPromise

_TICK_SECONDS, _EPOCHS_SECONDS = 0.1, 0.3
_NO_ROOM, _RAISES_KEPT, _SEND_FAILS, _CRASHES, _UNKNOWN_EPOCHS = 0.03, 0.03, 0.1, 0.03, 0.2
_COMES_BACK, _DOUBTED = 0.3, 0.05
_Place = tuple[str, int]


@dataclass(slots=True)
class SimSpool:
    """What is on the disk of a publisher."""

    rows: list[tuple[Sample, str]] = field(default_factory=list)
    """Each sample with its incarnation, in the order in which they were written."""
    names: dict[tuple[SourceId, int], str] = field(default_factory=dict)
    current: tuple[SourceId, int] | None = None
    _doubted: bool = False
    """Its end was lost, and no numbering began since."""
    _gone: int = 0
    """So many rows were let go since the process began; a crash may bring them back."""
    _settled: set[_Place] = field(default_factory=set)

    def begin(self, source: SourceId, epoch: int, incarnation: str) -> None:
        """Know a numbering."""
        self.names[source, epoch] = incarnation
        self.current = source, epoch
        self._doubted = False

    def settle(self, standings: Iterable[Standing]) -> None:
        """Let go of what caches hold; the newest row stays."""
        self._settled.update((one.incarnation, one.sn) for one in standings)
        while self._gone + 1 < len(self.rows):
            sample, incarnation = self.rows[self._gone]
            if (incarnation, sample.sn) not in self._settled:
                return
            self._gone += 1

    def opened(self, world: World) -> tuple[Spooled, ...]:
        """Return what the process before left, by numbering, the one it was at last."""
        if self._gone and world.chance(_COMES_BACK):
            world.occur("rows come back that were let go")
        else:
            del self.rows[: self._gone]
        if world.chance(_DOUBTED):
            world.occur("the end of a spool is lost")
            self._doubted = True
            while self.rows and (self.rows[-1][1], self.rows[-1][0].sn) in self._settled:
                self.rows.pop()
        self._gone = 0
        self._settled.clear()
        samples: dict[tuple[SourceId, int], dict[int, Sample]] = {}
        for sample, _ in self.rows:
            samples.setdefault((sample.source, sample.epoch), {})[sample.sn] = sample
        ordered = sorted(self.names, key=lambda at: at == self.current)
        return tuple(
            Spooled(
                *at,
                self.names[at],
                tuple(samples.get(at, {}).values()),
                goes_on=not self._doubted,
            )
            for at in ordered
            if at in samples or at == self.current
        )


class SimSpooler(Node):
    """One publisher with a spool; `start` makes a new process of it on the same disk."""

    def __init__(
        self,
        world: World,
        network: Network,
        truth: Truth,
        options: EngineOptions,
        promise: SpoolPromise,
        targets: Sequence[SimTarget],
    ) -> None:
        super().__init__(world, network, "publisher")
        self._truth, self._options, self._promise = truth, options, promise
        self._frames = Frames(self, targets, self._tell)
        self._spool = SimSpool()
        self._starts = 0
        self._zid = "1f"
        self._source = SourceId(self._zid, 7)
        self._engine = PublisherEngine(self._source, "")
        self._ready = False
        self._ntp64 = 0

    @property
    def unacknowledged(self) -> int:
        """How many samples wait for acknowledgements."""
        return self._engine.unacknowledged

    def start(self, *, anew: bool = False) -> None:
        """Begin a process, with another Zenoh id where `anew`."""
        if self.running:
            return
        self.life += 1
        self._starts += 1
        self.running, self.since_ns = True, self.world.now_ns
        if anew:
            self.world.occur("begins under another id")
            self._zid = f"{self._starts:x}f"
        self._source = SourceId(self._zid, 7)
        incarnation = f"{self.world.random.getrandbits(32):08x}"
        left = self._spool.opened(self.world)
        if any(one.samples for one in left):
            self.world.occur("goes on with what was left")
        self._engine = PublisherEngine(self._source, incarnation, self._options, spooled=left)
        self._ready = False
        self._promise.began()
        self._tell(Started(self._now))
        self.network.show_all(self.name)
        self.later(_TICK_SECONDS, self._tick)

    def died(self, how: str) -> None:
        if self.running:
            self.world.occur("publisher killed")
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1

    def token_changed(self, token: Token, alive: bool) -> None:
        self._tell(CacheAppeared(token.owner) if alive else CacheGone(token.owner))

    def put(self, count: int) -> None:
        """Put some samples, as far as they are taken."""
        for _ in range(count):
            if not (self.running and self._ready):
                return
            self.guard(self._put)

    # A put

    def _put(self) -> None:
        world = self.world
        self._ntp64 = max(self._ntp64 + 1, ntp64_from_ns(self._now.unix_ns))
        put = Put(
            f"a/{world.random.randint(1, 3)}",
            Kind.PUT,
            b"x",
            "zenoh/bytes",
            self._truth.mark(),
            self._ntp64,
            "",
            QOS_DEFAULT,
            self._now,
        )
        kept = False
        for output in self._engine.handle(put):
            match output:
                case Keep(sample, incarnation):
                    if not self._keep(sample, incarnation):
                        self._engine.handle(SendFailed())
                        return
                    kept = True
                case Send(sample=sample):
                    assert kept, "it is sent before it is kept"
                    self._send(sample)
                case Full():
                    world.occur("too many unacknowledged")
                case _:
                    self._do((output,))

    def _keep(self, sample: Sample, incarnation: str) -> bool:
        """Write a row; a put that raises may have left one."""
        world = self.world
        if world.chance(_NO_ROOM):
            world.occur("no room in the spool")
            return False
        numbering = self._truth.incarnations[incarnation]
        publication = self._truth.publish(numbering, sample, world.now_ns)
        self._spool.rows.append((sample, incarnation))
        if world.chance(_RAISES_KEPT):
            world.occur("a put raises and leaves a row")
            self._promise.raised(publication)
            return False
        self._promise.kept(publication)
        if world.chance(_CRASHES):
            raise Crash("killed between spool and network")
        self._engine.handle(Kept())
        return True

    def _send(self, sample: Sample) -> None:
        if self.world.chance(_SEND_FAILS):
            self.world.occur("a sample does not leave")
            self._engine.handle(SendFailed())
            return
        name = self._engine.incarnation
        live = Resend(0, "", sample.source, sample.epoch, name, (sample,))
        self._promise.sent(live)
        self._frames.show(live)
        if self.world.chance(_CRASHES):
            raise Crash("killed between network and receipt")
        self._engine.handle(Sent())

    # The engine

    @property
    def _now(self) -> Moment:
        return self.world.moment(self.skew_ns)

    def _tick(self) -> None:
        self._tell(Tick(self._now))
        self.later(_TICK_SECONDS, self._tick)

    def _tell(self, event: Event) -> None:
        self._do(self._engine.handle(event))

    def _do(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            match output:
                case Declare(epoch, incarnation):
                    self._declare(epoch, incarnation)
                case AskEpochs():
                    self.later(_EPOCHS_SECONDS, self._epochs)
                case Finished(standings):
                    self._promise.finished(standings)
                    self._spool.settle(standings)
                case Resend():
                    self._promise.sent(output)
                    self._frames.ask(output)
                case HandedOver():
                    self.world.occur("subscribers are told")
                case Send() | Keep() | Full():
                    raise AssertionError("nothing is being put")
                case _:
                    assert_never(output)

    def _declare(self, epoch: int, incarnation: str) -> None:
        if incarnation in self._truth.incarnations:
            self.world.occur("a numbering goes on")
        else:
            now_ns = self.world.now_ns
            self._truth.begin(self._source, epoch, self.name, incarnation, now_ns)
        self._spool.begin(self._source, epoch, incarnation)
        self._tell(TokenDeclared(incarnation))

    def _epochs(self) -> None:
        """Hear from the caches in reach which epochs of our source they know."""
        self._ready = True
        if self.world.chance(_UNKNOWN_EPOCHS):
            self.world.occur("epochs unknown")
            self._tell(EpochsUnknown(self._now))
            return
        known = [
            one.numbering.epoch
            for target in self._frames.targets.values()
            if target.running and self.network.reaches(target.name, self.name)
            for one in target.held
            if one.sample.source == self._source
        ]
        self._tell(EpochsKnown(max(known, default=0), self._now))
