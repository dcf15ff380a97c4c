"""What stands at both ends of a simulated pipe: caches of the target network, and its consumer.

A cache is played, for here the pipe is what is judged: it commits a while after it was given
something, acknowledges what it committed, and loses the rest when it is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import (
    DeadLetter,
    Position,
    dead_letter_key,
    encode_dead_letter,
)
from durable_cache.protocol.publisher.events import AckReceived, Resend, ResendFailed, Resent
from durable_cache.protocol.resends import RefusalReason, ResendRefusal
from durable_cache.protocol.subscriber.positions import Point, Positions, join_positions
from durable_cache.protocol.wire import Ack
from durable_cache.storage.contract import Durability
from durable_cache.testing.simulation.network import Network, Node, Token
from durable_cache.testing.simulation.pipe_promises import ATTEMPTS_MAX, PipePromise
from durable_cache.testing.simulation.truth import Publication, Truth
from durable_cache.testing.simulation.world import World

_COMMIT_SECONDS, _ANSWER_SECONDS = 0.3, 1.5
_POLL_SECONDS, _WRITE_SECONDS = 0.1, 0.3
_ATTEMPT_SECONDS, _LETTER_SECONDS, _BURIED_DIES = 0.2, 1.0, 0.2
_LATER, _TRIM, _EARLY_ACKS, _REWIND_FAILS = 0.1, 0.05, 0.1, 0.3


class Kept:
    """The positions of one consumer as caches keep them, joined as it joins them at its start."""

    def __init__(self) -> None:
        self.positions: list[Position] = []

    def put(self, position: Position) -> None:
        """Keep a position; one that is older takes nothing back."""
        self.positions = join_positions([*self.positions, position])

    def confirms(self, publication: Publication, name: str) -> bool:
        """Tell whether a position covers a publication, whose run goes by `name`."""
        sn, source = publication.sample.sn, publication.sample.source
        return any(
            position.source == source
            and position.incarnation == name
            and sn <= position.reached
            and not any(first <= sn <= last for first, last in position.open)
            for position in self.positions
        )


class SimTarget(Node):
    """One cache of the target network; what it committed outlives its processes."""

    def __init__(
        self,
        world: World,
        network: Network,
        truth: Truth,
        name: str,
        *,
        trims: bool,
        acknowledges_early: bool = True,
    ) -> None:
        super().__init__(world, network, name)
        self._truth = truth
        self._trims, self._early_acks = trims, _EARLY_ACKS if acknowledges_early else 0.0
        self._token = Token(name, "history")
        self.held: dict[Publication, Sample] = {}
        """What it committed and did not remove, as it came."""
        self.removed: set[Publication] = set()
        self.letters: dict[str, bytes] = {}
        """The newest dead letter under each key that it committed."""
        self.conflicts: set[Publication] = set()
        """Under whose numbers it stores something else."""

    def start(self) -> None:
        """Begin a process."""
        if not self.running:
            self.life += 1
            self.running, self.since_ns = True, self.world.now_ns
            self.network.declare(self._token)

    def died(self, how: str) -> None:
        if self.running:
            self.world.occur("cache killed")
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1
            self.network.withdraw(self.name)

    def take(
        self,
        resend: Resend,
        reply: Callable[[tuple[ResendRefusal, ...]], None],
        acknowledge: Callable[[Ack], None],
    ) -> None:
        """Take a frame, say what is refused, and acknowledge what is committed later."""
        if self.world.chance(_LATER):
            self.world.occur("refused for now")
            samples = resend.samples
            reply((ResendRefusal(samples[0].sn, samples[-1].sn, RefusalReason.LATER),))
            return
        refused: list[ResendRefusal] = []
        taken: list[tuple[Publication, Sample]] = []
        for sample in resend.samples:
            publication = self._genuine(resend, sample)
            if publication is None:
                continue
            if publication in self.conflicts:
                self.world.occur("refused for good")
                refused.append(ResendRefusal(sample.sn, sample.sn, RefusalReason.CONFLICT))
            elif publication in self.removed:
                self.world.occur("removed before")
                refused.append(ResendRefusal(sample.sn, sample.sn, RefusalReason.REMOVED))
            else:
                taken.append((publication, sample))
        reply(tuple(refused))
        if taken and self.world.chance(self._early_acks):
            self.world.occur("acknowledged before it is durable")
            acknowledge(self._ack(resend, taken, Durability.PROCESS))
        pause = self.world.random.random() * _COMMIT_SECONDS
        self.later(pause, lambda: self._commit(resend, taken, acknowledge))

    def keep(self, key: str, letter: bytes, acknowledge: Callable[[], None]) -> None:
        """Take a dead letter; acknowledge it when it is committed."""

        def commit() -> None:
            self.letters[key] = letter
            acknowledge()

        self.later(self.world.random.random() * _COMMIT_SECONDS, commit)

    def bring(
        self, publication: Publication, name: str, acknowledge: Callable[[Ack], None]
    ) -> None:
        """Take a sample that another pipe brings; all that carry the run hear of it."""
        sample = publication.sample
        brought = Resend(0, self.name, sample.source, sample.epoch, name, (sample,))
        self._commit(brought, [(publication, sample)], acknowledge)

    def _genuine(self, resend: Resend, sample: Sample) -> Publication | None:
        publication = self._truth.of(sample)
        if publication is None or sample.epoch != publication.numbering.epoch:
            self.world.fail(f"{self.name} is sent what nobody published: {sample}")
            return None
        if resend.source != sample.source or resend.epoch != sample.epoch:
            self.world.fail(f"{self.name} is sent a frame of another run: {sample}")
        return publication

    def _commit(
        self,
        resend: Resend,
        taken: Sequence[tuple[Publication, Sample]],
        acknowledge: Callable[[Ack], None],
    ) -> None:
        if not taken:
            return
        for publication, sample in taken:
            if publication in self.held:
                self.world.occur("known is known")
            elif publication not in self.removed:
                self.held[publication] = sample
        acknowledge(self._ack(resend, taken, Durability.DISK))
        if self._trims and self.held and self.world.chance(_TRIM):
            gone = self.world.random.choice(list(self.held))
            del self.held[gone]
            self.removed.add(gone)

    def _ack(
        self, resend: Resend, taken: Sequence[tuple[Publication, Sample]], level: Durability
    ) -> Ack:
        """Return an acknowledgement: whole runs of numbers, as caches write them."""
        numbers = RangeSet.of(sample.sn for _, sample in taken)
        if level is Durability.DISK:
            held = RangeSet.of(
                one.sample.sn for one in self.held if one.numbering is taken[0][0].numbering
            )
            touched = [(a, b) for a, b in held if any(a <= sn <= b for sn, _ in numbers)]
        else:
            touched = [(a, b) for a, b in numbers]
        named = resend.source, resend.epoch, tuple(touched), resend.incarnation
        return Ack(self.name, int(level), *named)


class Frames:
    """How a process hands frames to caches: each is answered once, or time runs out."""

    def __init__(
        self,
        node: Node,
        targets: Iterable[SimTarget],
        hear: Callable[[AckReceived | Resent | ResendFailed], None],
    ) -> None:
        self._node, self._network, self._hear = node, node.network, hear
        self.targets = {target.name: target for target in targets}

    def ask(self, resend: Resend, *, confirmed_early: float = 0.0) -> None:
        """Hand a frame to its cache and hear its answer; now and then something answers first."""
        node, world = self._node, self._node.world
        answered, life = False, node.life

        def end(event: Resent | ResendFailed) -> None:
            nonlocal answered
            if not answered and node.life == life:
                answered = True
                self._hear(event)

        def reply(refused: tuple[ResendRefusal, ...]) -> None:
            came = Resent(resend.resend_id, refused, world.moment(node.skew_ns))
            self._network.carry(resend.cache_id, node.name, lambda: end(came))

        late = ResendFailed(resend.resend_id, "no answer", world.moment(node.skew_ns))
        node.later(_ANSWER_SECONDS, lambda: end(late))
        if world.chance(confirmed_early):
            world.occur("the middle confirms too early")
            reply(())
        else:
            self._give(self.targets[resend.cache_id], resend, reply)

    def show(self, live: Resend) -> None:
        """Bring what is published to all caches, which answer nothing."""
        for target in self.targets.values():
            self._give(target, live, lambda _: None)

    def _give(
        self, target: SimTarget, resend: Resend, reply: Callable[[tuple[ResendRefusal, ...]], None]
    ) -> None:
        name = self._node.name

        def acknowledge(ack: Ack) -> None:
            self._network.carry(ack.cache_id, name, lambda: self._hear(AckReceived(ack)))

        self._network.carry(name, target.name, lambda: target.take(resend, reply, acknowledge))


class Consuming(Node):
    """A process that has positions and writes them now and then."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        super().__init__(world, network, name)
        self.kept = Kept()
        """What caches keep of its positions; the pipe's are kept in the source network."""
        self.hears_of_it: list[Callable[[Position], None]] = []
        """Who hears its positions; the network carries them."""
        self._positions = Positions("**")

    def died(self, how: str) -> None:
        if self.running:
            self.world.occur(f"{self.name} killed")
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1

    def _again(self, seconds: float, action: Callable[[], None]) -> None:
        def turn() -> None:
            action()
            self.later(seconds, turn)

        self.later(seconds * self.world.random.random(), turn)

    def _write(self) -> None:
        positions = self._positions.take()
        if not positions:
            return
        if self.world.chance(0.2):
            self.world.occur("position lost")
            self._positions.put_back(positions)
            return
        self.later(self.world.random.random() * 0.2, lambda: self._written(positions))

    def _written(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self.kept.put(position)
            for hear in self.hears_of_it:
                hear(position)


class SimConsumer(Consuming):
    """The durable consumer that must process what is carried, with the real `Positions`.

    It is given each run's numbers in their order, run after run, as a subscriber's engine delivers
    them. One that keeps its position in its own transaction has an effect of each sample once. What
    its handler cannot process goes to the dead letters; what follows waits until caches hold that.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        targets: Sequence[SimTarget],
        promise: PipePromise,
        *,
        transacts: bool,
    ) -> None:
        super().__init__(world, network, "consumer")
        self._targets, self._promise = targets, promise
        self.transacts = transacts
        self._own: dict[str, Position] = {}
        """What its own database keeps, by run."""
        self.table: list[Publication] = []
        """The effects in its own database."""
        self._next: dict[SourceId, int] = {}
        self._unconfirmed: list[Sample] = []
        self._failing = False
        """Whether a handler raised, and delivery waits for its next attempt or a dead letter."""
        self._turn = 0
        """A rewind begins another one: what was tried before is tried anew."""

    def start(self) -> None:
        """Begin a process where the positions stand."""
        if self.running:
            return
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        known = join_positions([*self.kept.positions, *self._own.values()])
        self._positions = Positions("**", known)
        self._positions.put_back([one for one in known if one not in self.kept.positions])
        self._next, self._unconfirmed, self._failing = {}, [], False
        self._promise.consumer_began()
        self._again(_POLL_SECONDS, self._read)
        self._again(_WRITE_SECONDS, self._write)

    def rewind(self, first: Mapping[SourceId, Publication] | None) -> bool:
        """Begin anew from these of their sources on, or from the beginning; caches hold it then.

        False where it was killed before: the next life knows nothing of it.
        """
        points = None
        if first is not None:
            samples = [publication.sample for publication in first.values()]
            points = {one.source: Point(one.epoch, one.sn) for one in samples}
        self._positions.rewind(points)
        if self.world.chance(_REWIND_FAILS):
            self.world.occur("killed before a rewind is held")
            self.died("killed")
            return False
        self._written(self._positions.take())
        self._next, self._unconfirmed = {}, []
        self._turn, self._failing = self._turn + 1, False
        self._promise.rewound(first)
        return True

    def _read(self) -> None:
        """Take what follows of each source, as far as a cache holds it."""
        for source, row in self._promise.rows.items():
            at = self._next.get(source, 0)
            while not self._failing and at < len(row) and self._reached(row[at]):
                at += 1
            self._next[source] = at
        self._confirm_some()

    def _reached(self, publication: Publication) -> bool:
        """Take one; False where it is not there yet, and all behind it waits."""
        sample = publication.sample
        name = self._promise.name_of(publication.numbering)
        self._positions.call(sample.source, sample.epoch, (sample.epoch, name))
        if self._positions.is_confirmed(sample):
            self._promise.resumed_behind(publication)
            return True
        if self._promise.will_never_come(publication):
            self._positions.pass_over(sample.source, sample.epoch, sample.sn, sample.sn)
            return True
        found = next((t.held[publication] for t in self._targets if publication in t.held), None)
        if found is None:
            return False
        if publication in self._promise.poison:
            self._failing = True
            self._attempt(publication, found, 1, self._turn)
            return False
        self._positions.hand_out(found)
        if self.transacts:
            position = self._positions.standing_with(found)
            self.table.append(publication)  # with the position, in one transaction
            self._own[f"{position.source}/{position.incarnation}"] = position
            self._positions.confirm(found)
        else:
            self._unconfirmed.append(found)
        self._promise.processed(publication)
        return True

    def _attempt(self, publication: Publication, sample: Sample, attempts: int, turn: int) -> None:
        """Call a handler that raises, again and again; then see to a dead letter."""
        if turn != self._turn:
            return
        self.world.occur("a handler raises")
        self._promise.attempted(publication)
        if attempts < ATTEMPTS_MAX:
            again = partial(self._attempt, publication, sample, attempts + 1, turn)
            self.later(_ATTEMPT_SECONDS, again)
            return
        letter = DeadLetter(f"number {sample.sn} is poison", attempts, sample)
        key, payload = dead_letter_key("default", self.name, sample), encode_dead_letter(letter)
        life = self.life

        def waits() -> bool:
            return self.life == life and turn == self._turn and self._failing

        def acknowledged() -> None:
            if waits():
                self._buried(publication, sample)

        def write() -> None:
            for target in self._targets if waits() else ():
                told = partial(self.network.carry, target.name, self.name, acknowledged)
                keep = partial(target.keep, key, payload, told)
                self.network.carry(self.name, target.name, keep)
            if waits():
                self.later(_LETTER_SECONDS, write)

        write()

    def _buried(self, publication: Publication, sample: Sample) -> None:
        """Caches hold the letter: the position passes over its sample, or it comes again."""
        if self.world.chance(_BURIED_DIES):
            self.world.occur("killed between letter and position")
            self.died("killed")
            self.world.at(0.2, self.start)
            return
        self.world.occur("dead letter")
        self._failing, self._turn = False, self._turn + 1
        self._promise.buried(publication)
        self._positions.handled(sample)
        self._next[sample.source] = self._next.get(sample.source, 0) + 1

    def _confirm_some(self) -> None:
        """Confirm what was handed out, in any order, and not always all of it."""
        waiting, self._unconfirmed = self._unconfirmed, []
        self.world.random.shuffle(waiting)
        for sample in waiting:
            if self.world.chance(0.3):
                self._unconfirmed.append(sample)
            else:
                self._positions.confirm(sample)
