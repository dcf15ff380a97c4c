"""Publishers on the simulated network: ours, with tokens and receipts, and foreign ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample, SampleBatch, SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame, next_epoch
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.wire import Ack, Incarnation, encode_packed
from durable_cache.testing.simulation.network import Network, Node, Token
from durable_cache.testing.simulation.questions import Question, holds
from durable_cache.testing.simulation.truth import Numbering, Publication, Truth
from durable_cache.testing.simulation.world import SECOND_NS, START_NS, World

__all__ = ["PublisherPlan", "PublisherToken", "SimPublisher"]

_LONG_AGO_FRAMES = 5000
"""Half a day: a numbering near its wrap is older."""


@dataclass(frozen=True, slots=True)
class PublisherToken:
    """What a publisher's token says."""

    source: SourceId
    epoch: int
    incarnation: str
    key_expr: KeyExpression
    run: int


@dataclass(frozen=True, slots=True)
class PublisherPlan:
    """What kind of publisher it is."""

    name: str
    zid: str
    keys: tuple[str, ...]
    pinned: bool = True
    """Whether it keeps its Zenoh id over restarts."""
    declared: bool = True
    """Whether it is ours; a foreign one has no token and says no epoch."""
    history: int = 1000
    first_sn: int = 0
    """Where the first numbering begins, near the wrap to see it."""
    times_back: bool = False
    """Whether it puts timestamps of its own that sometimes go back."""


class SimPublisher(Node):
    """One publisher; `restart` makes a new process of it."""

    def __init__(self, world: World, network: Network, truth: Truth, plan: PublisherPlan) -> None:
        super().__init__(world, network, plan.name)
        self.truth, self.plan = truth, plan
        self.key_expr = _covering(plan.keys)
        self.starts = 0
        self.numbering: Numbering | None = None
        self.token: Token | None = None
        self.kept: OrderedDict[int, Publication] = OrderedDict()
        self.acked: dict[tuple[Numbering, str], set[int]] = {}
        """What each cache acknowledged of each numbering."""
        self._sn = plan.first_sn
        self._epoch = 0
        self._newest_ntp64 = 0

    @property
    def source(self) -> SourceId:
        zid = self.plan.zid if self.plan.pinned else f"{self.plan.zid}{self.starts:x}"
        return SourceId(zid, 7)

    def start(self) -> None:
        """Begin a process with a numbering of its own."""
        self.starts += 1
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        if self.starts > 1:
            self._sn = 0
        self._epoch = frame(self._unix_ns())
        if self._sn:
            self._epoch -= _LONG_AGO_FRAMES  # who is near the wrap did not begin just now
        self.kept.clear()
        self._begin()
        self.network.show_all(self.name)

    def _begin(self) -> None:
        epoch = self._epoch if self.plan.declared else 0
        incarnation = f"{self.world.random.getrandbits(32):08x}" if self.plan.declared else ""
        now_ns = -1 if self._sn else self.world.now_ns
        self.numbering = self.truth.begin(self.source, epoch, self.name, incarnation, now_ns)
        if self.world.tracing:
            self.world.say(f"{self.name} begins {self.source} epoch {epoch} at {self._sn}")
        if not self.plan.declared:
            return
        old = self.token
        run = self.numbering.at
        value = PublisherToken(self.source, self._epoch, incarnation, self.key_expr, run)
        self.token = Token(self.name, value)
        self.network.declare(self.token)
        if old is not None:
            self.network.undeclare(old)

    def died(self, how: str) -> None:
        """End the process."""
        if self.running:
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1
            self.token = None
            if self.numbering is not None:
                self.numbering.ended = True
            self.network.withdraw(self.name)
            if self.world.tracing:
                self.world.say(f"{self.name} ended: {how}")

    def put(self, count: int = 1, key: str | None = None) -> None:
        """Publish some samples at once."""
        if not self.running:
            return
        samples = [self._sample(key) for _ in range(count)]
        world = self.world
        world.events += count
        if world.tracing:
            first, last = samples[0].sn, samples[-1].sn
            world.say(f"{self.name} puts {first}..{last} {samples[0].key}")
        for node in list(self.network.nodes.values()):
            if isinstance(node, Listener):
                for sample in samples:
                    if holds(node.key_expr, sample.key):
                        self._send(node, sample)

    def _send(self, node: Listener, sample: Sample) -> None:
        publication = self.truth.of(sample)
        assert publication is not None
        run = publication.numbering.at

        def arrive() -> None:
            if node.follows(sample.source, run):
                node.arrived(sample)
            else:
                self.world.occur("sample of an earlier run lost")

        self.network.carry(self.name, node.name, arrive)

    def _sample(self, key: str | None) -> Sample:
        world = self.world
        if self._sn >= SOURCE_SN_MODULUS:
            world.occur("numbering wrapped")
            self._sn = 0
            self._epoch = next_epoch(self._unix_ns(), self._epoch)
            self._begin()
        numbering = self.numbering
        assert numbering is not None
        kind = Kind.DELETE if world.random.random() < 0.05 else Kind.PUT
        sample = Sample(
            key or world.random.choice(self.plan.keys),
            self.source,
            numbering.epoch,
            self._sn,
            b"" if kind is Kind.DELETE else b"x" * world.random.choice((1, 1, 1, 300)),
            kind,
            attachment=self.truth.mark(),
            ntp64=self._timestamp(),
            timestamp_id="1",
            received_ns=self._unix_ns(),
        )
        publication = self.truth.publish(numbering, sample, world.now_ns)
        self.kept[sample.sn] = publication
        if len(self.kept) > self.plan.history:
            self.kept.popitem(last=False)
        self._sn += 1
        return sample

    def _timestamp(self) -> int:
        now = ntp64_from_ns(self._unix_ns())
        if self.plan.times_back and self.world.random.random() < 0.3:
            self.world.occur("timestamp goes back")
            return now - round(self.world.random.random() * 4 * (1 << 32))
        self._newest_ntp64 = max(self._newest_ntp64 + 1, now)
        return self._newest_ntp64

    def _unix_ns(self) -> int:
        return START_NS + self.world.now_ns + self.skew_ns

    def acknowledged(self, ack: Ack) -> None:
        """Hear an acknowledgement."""
        numbering = self.numbering
        if numbering is None or ack.source != self.source:
            return
        if (ack.incarnation or numbering.incarnation) != numbering.incarnation:
            return
        if not ack.incarnation and ack.epoch != numbering.epoch:
            return
        known = self.acked.setdefault((numbering, ack.cache_id), set())
        for first, last in ack.runs:
            known.update(range(first, last + 1))

    def answer(self, question: Question) -> Iterator[bytes]:
        """Answer from the publisher's own cache."""
        found = [
            publication.sample
            for publication in self.kept.values()
            if question.names(publication.sample)
        ]
        place = question.selection.place
        if question.after is not None:
            after = place(question.after)
            found = [sample for sample in found if place(sample) > after]
        found.sort(key=place)
        for at in range(0, max(1, len(found)), 64):
            yield encode_packed(SampleBatch(found[at : at + 64]), False, (), self._names())

    def _names(self) -> tuple[Incarnation, ...]:
        numbering = self.numbering
        if numbering is None or not numbering.incarnation:
            return ()
        return (Incarnation(numbering.source, numbering.epoch, numbering.incarnation),)

    @property
    def quiet_seconds(self) -> float:
        """For how long this process has run, or not."""
        return (self.world.now_ns - self.since_ns) / SECOND_NS


class Listener(Node):
    """A process that hears samples."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        super().__init__(world, network, name)
        self._runs: dict[SourceId, int] = {}

    key_expr: KeyExpression

    def follows(self, source: SourceId, run: int) -> bool:
        """Tell whether no later run of a source was heard of yet.

        Links keep the order of one publisher's samples across its restarts: a number of an earlier
        run that came after the first of a later one could not be told from the later one's.
        """
        latest = self._runs.get(source, 0)
        self._runs[source] = max(latest, run)
        return run >= latest

    def arrived(self, sample: Sample) -> None:
        """Take a sample off the network."""


def _covering(keys: tuple[str, ...]) -> KeyExpression:
    """Return the key expression a publisher of these keys declares."""
    if len(keys) == 1:
        return KeyExpression(keys[0])
    head = keys[0].split("/")[0]
    return KeyExpression(f"{head}/**")
