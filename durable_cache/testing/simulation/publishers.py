"""Publishers on the simulated network: ours, with the engine that ships, and foreign ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from durable_cache.model.clock import Moment
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.run_name import run_of
from durable_cache.model.sample import QOS_DEFAULT, Kind, Sample, SampleBatch, SourceId
from durable_cache.model.sequence import SOURCE_SN_MODULUS
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.publisher.engine import PublisherEngine
from durable_cache.protocol.publisher.events import (
    AckReceived,
    AskEpochs,
    Declare,
    EngineOptions,
    EpochsKnown,
    Event,
    Finished,
    Full,
    HandedOver,
    Keep,
    Output,
    Put,
    Resend,
    Send,
    SendFailed,
    Sent,
    Standing,
    Started,
    TokenDeclared,
)
from durable_cache.protocol.wire import Ack, decode_packed, encode_packed
from durable_cache.testing.simulation.network import Network, Node, Outcome, Token
from durable_cache.testing.simulation.questions import Answered, Answering, Question, holds
from durable_cache.testing.simulation.truth import Numbering, Publication, Truth
from durable_cache.testing.simulation.world import SECOND_NS, World

BACK_SECONDS_UNNAMED = 0.09
"""A publisher whose timestamps go back further looks as if it had restarted, where it is foreign or
its token is not seen yet."""
_TOKEN_NS = SECOND_NS
"""How long after a run began its samples may be faster than its token."""
_LONG_AGO_NS = 5000 << 33
"""Half a day: a numbering near its wrap is older."""
_ANSWER_SAMPLES = 64
_EPOCHS_TIMEOUT_SECONDS = 0.5
_DELETES = 0.05
_WILDCARDS = 0.1
_PUT_FAILS = 0.02

Answerers = Callable[[Question], list[tuple[Node, Answering]]]
"""Who on the network answers a question."""


@dataclass(frozen=True, slots=True)
class PublisherToken:
    """What a publisher's token says."""

    source: SourceId
    epoch: int
    incarnation: str
    key_expr: KeyExpression
    run: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a publisher says of its last number."""

    source: SourceId
    sn: int
    numbering: Numbering
    """Of which run it is, as only the truth knows."""


@dataclass(frozen=True, slots=True)
class PublisherPlan:
    """What kind of publisher it is."""

    name: str
    zid: str
    keys: tuple[str, ...]
    pinned: bool = True
    """Whether it keeps its Zenoh id over restarts."""
    history: int = 1000
    first_sn: int = 0
    """Where the first numbering begins, near the wrap to see it."""
    times_back_seconds: float = 0.0
    """How far timestamps of its own sometimes go back; a foreign one's no further than a restart is
    told by."""
    wildcards: bool = False
    """Whether it sometimes updates all its keys at once."""
    acknowledgements: int = 0
    """How many caches must hold a sample, at the level of a disk."""
    unacknowledged_max: int = 1 << 30
    puts_at_once: int = 0
    """How many samples one of ours puts in the moment in which it is declared."""
    heartbeat_seconds: float | None = None
    """How often a foreign one says its last number, while it has said something new."""


class SimPublisher(Node):
    """One publisher; `start` makes a new process of it."""

    def __init__(self, world: World, network: Network, truth: Truth, plan: PublisherPlan) -> None:
        super().__init__(world, network, plan.name)
        self.truth, self.plan = truth, plan
        self.key_expr = _covering(plan.keys)
        self.starts = 0
        self.source = SourceId(plan.zid, 7)
        self.numbering: Numbering | None = None
        self._newest_ntp64 = 0

    def start(self) -> None:
        """Begin a process with a numbering of its own."""
        self.starts += 1
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        zid = self.plan.zid if self.plan.pinned else f"{self.plan.zid}{self.starts:x}"
        self.source = SourceId(zid, 7)
        self._begin(self.plan.first_sn if self.starts == 1 else 0)
        self.network.show_all(self.name)

    def _begin(self, sn: int) -> None:
        """Begin the first numbering of this process."""
        raise NotImplementedError

    def died(self, how: str) -> None:
        """End the process."""
        if self.running:
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1
            if self.numbering is not None:
                self.numbering.ended = True
            self.network.withdraw(self.name)
            if self.world.tracing:
                self.world.say(f"{self.name} ended: {how}")

    def put(self, count: int = 1, key: str | None = None) -> None:
        """Publish some samples at once, as far as they are taken."""
        if not self.running:
            return
        samples: list[Sample] = []
        while len(samples) < count:
            sample = self._take(key or self._any_key())
            if sample is None:
                break
            samples.append(sample)
        world = self.world
        world.events += len(samples)
        if world.tracing and samples:
            first, last = samples[0].sn, samples[-1].sn
            world.say(f"{self.name} puts {first}..{last} {samples[0].key}")
        for node in list(self.network.nodes.values()):
            if isinstance(node, Listener):
                for sample in samples:
                    if holds(node.key_expr, sample.key):
                        self._carry(node, sample)

    def _take(self, key: str) -> Sample | None:
        """Number a sample and keep it; None where it is not taken."""
        raise NotImplementedError

    def reveal(self) -> None:
        """Let everybody know its last numbers: publish something more under each key."""
        for key in self.plan.keys:
            self.put(2, key)

    def _say_last(self, sn: int) -> None:
        assert self.numbering is not None
        beat = Heartbeat(self.source, sn, self.numbering)
        for node in list(self.network.nodes.values()):
            if isinstance(node, Listener) and node.key_expr.intersects(self.key_expr):
                self.network.tell(self.name, node.name, _beating(node, beat))

    def answer(self, question: Question) -> Iterator[bytes]:
        """Answer from the publisher's own cache."""
        raise NotImplementedError

    def _any_key(self) -> str:
        random = self.world.random
        if self.plan.wildcards and random.random() < _WILDCARDS:
            self.world.occur("wildcard update")
            return str(self.key_expr)
        return random.choice(self.plan.keys)

    def _carry(self, node: Listener, sample: Sample) -> None:
        publication = self.truth.of(sample)
        assert publication is not None
        run = publication.numbering.at

        def arrive() -> None:
            if node.follows(sample.source, run):
                node.arrived(sample)
                return
            self.world.occur("sample of an earlier run late")
            if run_of(sample) is not None:
                node.arrived(sample)

        self.network.carry(self.name, node.name, arrive)

    def repeat(self, node: Listener, publication: Publication) -> None:
        """Have what was published come to somebody once more."""
        self._carry(node, publication.sample)

    def _value(self) -> tuple[Kind, bytes]:
        random = self.world.random
        kind = Kind.DELETE if random.random() < _DELETES else Kind.PUT
        return kind, b"" if kind is Kind.DELETE else b"x" * random.choice((1, 1, 1, 300))

    def _timestamp(self) -> int:
        now = ntp64_from_ns(self._moment.unix_ns)
        self._newest_ntp64 = max(self._newest_ntp64 + 1, now)
        back = self.plan.times_back_seconds
        if not self._is_known():
            back = min(back, BACK_SECONDS_UNNAMED)
        if back and self.world.random.random() < 0.3:
            self.world.occur("timestamp goes back")
            return self._newest_ntp64 - round(self.world.random.random() * back * (1 << 32))
        return self._newest_ntp64

    def _is_known(self) -> bool:
        """Tell whether whoever listens has seen for a while of which run its samples are."""
        began_ns = self.since_ns if self.numbering is None else self.numbering.began_ns
        since_ns = self.world.now_ns - _TOKEN_NS
        calm, nodes = self.network.calm, self.network.nodes.values()
        listening = [node for node in nodes if isinstance(node, Listener) and node.running]
        return max(self.since_ns, began_ns) <= since_ns and all(
            calm(self.name, node.name, since_ns) and not node.lags for node in listening
        )

    @property
    def _moment(self) -> Moment:
        return self.world.moment(self.skew_ns)

    def _numbers(self, epoch: int, incarnation: str, sn: int) -> Numbering:
        """Tell the truth that a numbering begins; one near its wrap began long ago."""
        now_ns = -1 if sn else self.world.now_ns
        numbering = self.truth.begin(self.source, epoch, self.name, incarnation, now_ns)
        self.numbering = numbering
        if self.world.tracing:
            self.world.say(f"{self.name} begins {self.source} epoch {epoch} at {sn}")
        return numbering


class OwnPublisher(SimPublisher):
    """One of ours: what it decides is `PublisherEngine`."""

    def __init__(
        self,
        world: World,
        network: Network,
        truth: Truth,
        plan: PublisherPlan,
        answerers: Answerers,
    ) -> None:
        super().__init__(world, network, truth, plan)
        self._answerers = answerers
        self.acked: dict[tuple[Numbering, str], set[int]] = {}
        """What each cache acknowledged of each numbering."""
        self.receipts: dict[Standing, Publication] = {}
        """Which of those that are not done yet is of which publication."""
        self.on_done: list[Callable[[Standing, Publication], None]] = []
        self._engine = PublisherEngine(self.source, "")
        self._token: Token | None = None
        self._ready = False

    def _begin(self, sn: int) -> None:
        incarnation = f"{self.world.random.getrandbits(32):08x}"
        options = EngineOptions(
            history=self.plan.history,
            acknowledgements=self.plan.acknowledgements,
            unacknowledged_max=self.plan.unacknowledged_max,
        )
        self._engine = PublisherEngine(self.source, incarnation, options, next_sn=sn)
        self._token, self._ready = None, False
        self.receipts.clear()
        self._tell(Started(self._began(sn)))

    def _began(self, sn: int) -> Moment:
        """Return when a numbering that is at `sn` began, as its clock has it."""
        return self.world.moment(self.skew_ns - _LONG_AGO_NS) if sn else self._moment

    def _tell(self, event: Event) -> list[Output]:
        outputs = self._engine.handle(event)
        self._do(outputs)
        return outputs

    def _do(self, outputs: Iterable[Output]) -> None:
        """Carry out everything but `Send` and `Full`, which are of the put that waits for them.

        No spool and no token of a cache is played to it, so that it keeps and resends nothing.
        """
        for output in outputs:
            match output:
                case AskEpochs():
                    self._ask_epochs()
                case Declare(epoch, incarnation):
                    self._declare(epoch, incarnation)
                case Finished(standings):
                    self._finished(standings)
                case Send() | Full() | Keep() | Resend() | HandedOver():
                    pass
                case _:
                    assert_never(output)

    def reveal(self) -> None:
        """As above, or as where all that waits for receipts was resent and is held."""
        super().reveal()
        if self.running and not self._engine.has_room and self._engine.next_sn:
            self._say_last(self._engine.next_sn - 1)

    def _ask_epochs(self) -> None:
        """Ask which epochs of this source caches know; number 0 stands for a whole numbering."""
        question = Question(self.key_expr, self.source, 0, 0)
        highest = 0

        def hear(answered: Answered) -> None:
            nonlocal highest
            found = decode_packed(answered[1])
            named = [*found.samples, *found.absent, *found.incarnations]
            epochs = [one.epoch for one in named if one.source == self.source]
            highest = max(highest, *epochs, 0)

        def end(_: Outcome) -> None:
            self._ready = True
            self._tell(EpochsKnown(highest, self._began(self._engine.next_sn)))
            if self.plan.puts_at_once:
                self.put(self.plan.puts_at_once)

        self.network.ask(self, self._answerers(question), _EPOCHS_TIMEOUT_SECONDS, hear, end)

    def _declare(self, epoch: int, incarnation: str) -> None:
        run = self._numbers(epoch, incarnation, self._engine.next_sn).at
        before = self._token
        token = PublisherToken(self.source, epoch, incarnation, self.key_expr, run)
        self._token = Token(self.name, token)
        self.network.declare(self._token)
        self._tell(TokenDeclared(incarnation))
        if before is not None:
            self.world.occur("numbering wrapped")
            self.network.undeclare(before)

    def _take(self, key: str) -> Sample | None:
        if not self._ready:
            return None  # the program waits until its publisher is declared
        kind, payload = self._value()
        mark, ntp64 = self.truth.mark(), self._timestamp()
        clock = "1" if ntp64 < self._newest_ntp64 else ""  # the program gave it
        rest = mark, ntp64, clock, QOS_DEFAULT, self._moment
        put = Put(key, kind, payload, "zenoh/bytes", *rest)
        for output in self._tell(put):
            if isinstance(output, Full):
                self.world.occur("too many unacknowledged")
            elif isinstance(output, Send):
                return self._send(output)
        return None

    def _send(self, send: Send) -> Sample | None:
        if self.world.chance(_PUT_FAILS):
            self.world.occur("put fails")
            self._tell(SendFailed())
            return None
        assert self.numbering is not None
        publication = self.truth.publish(self.numbering, send.sample, self.world.now_ns)
        if send.standing is not None:
            self.receipts[send.standing] = publication
        self._tell(Sent())
        self._check_bounds()
        return send.sample

    def _check_bounds(self) -> None:
        waiting = self._engine.unacknowledged
        if waiting > self.plan.unacknowledged_max:
            self.world.fail(f"{self.name} waits for {waiting} receipts")
        kept = len(self._engine.kept())
        if kept > self.plan.history + waiting:
            self.world.fail(f"{self.name} keeps {kept} samples")

    def _finished(self, standings: Iterable[Standing]) -> None:
        for standing in standings:
            publication = self.receipts.pop(standing, None)
            if publication is None:
                self.world.fail(f"{self.name} is told twice, or of no put, that {standing.sn} is")
                continue
            self.world.occur("receipt done")
            for hear in self.on_done:
                hear(standing, publication)

    def acknowledged(self, ack: Ack) -> None:
        """Hear an acknowledgement; of what was not put yet it counts for nothing."""
        self._tell(AckReceived(ack))
        numbering = self.truth.incarnations.get(ack.incarnation)
        if numbering is None and self.numbering is not None and ack.source == self.source:
            numbering = self.numbering if ack.epoch == self.numbering.epoch else None
        if numbering is not None:
            known = self.acked.setdefault((numbering, ack.cache_id), set())
            for first, last in ack.runs:
                known.update(sn for sn in numbering.published if first <= sn <= last)

    def answer(self, question: Question) -> Iterator[bytes]:
        engine, selection = self._engine, question.selection
        cursor = None if question.after is None else selection.place(question.after)
        while True:
            page, cursor = engine.read(selection, _ANSWER_SAMPLES, cursor)
            if cursor is None:
                absent, names = engine.absences(selection), engine.incarnations()
                yield encode_packed(SampleBatch(page), False, absent, names)
                return
            yield encode_packed(SampleBatch(page), False)


class ForeignPublisher(SimPublisher):
    """Somebody else's: no token, no epoch, but numbers, its own cache and perhaps heartbeats."""

    def __init__(self, world: World, network: Network, truth: Truth, plan: PublisherPlan) -> None:
        super().__init__(world, network, truth, plan)
        self._kept: OrderedDict[int, Sample] = OrderedDict()
        self._sn = self._said = 0

    def _begin(self, sn: int) -> None:
        self._sn, self._said = sn, -1
        self._kept.clear()
        self._numbers(0, "", sn)
        if self.plan.heartbeat_seconds is not None:
            self.later(self.plan.heartbeat_seconds, self._beat)

    def _beat(self) -> None:
        assert self.plan.heartbeat_seconds is not None
        self.later(self.plan.heartbeat_seconds, self._beat)
        last = next(reversed(self._kept), None)
        if last is None or last == self._said:
            return
        self._said = last
        self.world.occur("heartbeat")
        self._say_last(last)

    def _take(self, key: str) -> Sample | None:
        if self._sn >= SOURCE_SN_MODULUS:
            self.world.occur("numbering wrapped")
            self._sn = 0
            self._numbers(0, "", 0)
        assert self.numbering is not None
        kind, payload = self._value()
        sample = Sample(
            key,
            self.source,
            0,
            self._sn,
            payload,
            kind,
            attachment=self.truth.mark(),
            ntp64=self._timestamp(),
            timestamp_id="1",
            received_ns=self._moment.unix_ns,
        )
        self.truth.publish(self.numbering, sample, self.world.now_ns)
        self._kept[sample.sn] = sample
        if len(self._kept) > self.plan.history:
            self._kept.popitem(last=False)
        self._sn += 1
        return sample

    def answer(self, question: Question) -> Iterator[bytes]:
        place = question.selection.place
        found = [sample for sample in self._kept.values() if question.names(sample)]
        if question.after is not None:
            after = place(question.after)
            found = [sample for sample in found if place(sample) > after]
        found.sort(key=place)
        for at in range(0, max(1, len(found)), _ANSWER_SAMPLES):
            yield encode_packed(SampleBatch(found[at : at + _ANSWER_SAMPLES]), False)


class Listener(Node):
    """A process that hears samples."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        super().__init__(world, network, name)
        self._runs: dict[SourceId, int] = {}

    key_expr: KeyExpression

    @property
    def lags(self) -> bool:
        """Whether it may take samples later than tokens that came behind them."""
        return False

    def follows(self, source: SourceId, run: int) -> bool:
        """Tell whether no later run of a source was heard of yet.

        Where its samples do not name their run, links keep their order across its restarts: a
        number of an earlier run that came after the first of a later one could not be told from the
        later one's.
        """
        latest = self._runs.get(source, 0)
        self._runs[source] = max(latest, run)
        return run >= latest

    def arrived(self, sample: Sample) -> None:
        """Take a sample off the network."""

    def beaten(self, beat: Heartbeat) -> None:
        """Hear what a foreign publisher's last number is."""

    def told(self, source: SourceId, epoch: int, sn: int) -> None:
        """Hear which number a cache has of a source that shows no token."""


def _beating(node: Listener, beat: Heartbeat) -> Callable[[], None]:
    return lambda: node.beaten(beat)


def _covering(keys: tuple[str, ...]) -> KeyExpression:
    """Return the key expression a publisher of these keys declares."""
    if len(keys) == 1:
        return KeyExpression(keys[0])
    head = keys[0].split("/")[0]
    return KeyExpression(f"{head}/**")
