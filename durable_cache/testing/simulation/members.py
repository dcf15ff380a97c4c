"""Members of one durable consumer on the simulated network: the real engines, all around played.

Who owns what, positions, fences, claims and what is said of a partition are the product's. Its two
threads are played here as generators that yield how long they wait: what the deliver thread does
between two samples, and what writes positions. A member may be killed wherever they do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from durable_cache.errors import (
    DurableCacheError,
    Fenced,
    LocalProtocolError,
    OutcomeUnknown,
)
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import (
    DeadLetter,
    Position,
    dead_letter_key,
    encode_dead_letter,
    next_fence,
)
from durable_cache.protocol.majority import majority_of
from durable_cache.protocol.members import NO_VIEW, Sharing, View
from durable_cache.protocol.subscriber.positions import Positions, join_positions
from durable_cache.protocol.takeovers import Takeovers, Twice
from durable_cache.testing.simulation.keepers import DOMAIN, Receipt, SimKeeper, Writer
from durable_cache.testing.simulation.member_keeping import (
    CONSUMER,
    KEY_EXPR,
    WAIT_SECONDS,
    KeepingNode,
    MemberOptions,
    Thread,
)
from durable_cache.testing.simulation.member_rewinds import Points, Rewound, chosen_points
from durable_cache.testing.simulation.network import Network, Token
from durable_cache.testing.simulation.truth import Publication
from durable_cache.testing.simulation.world import SECOND_NS, World

if TYPE_CHECKING:
    from durable_cache.testing.simulation.member_promises import MemberPromise

__all__ = ["MemberOptions", "SimMember"]

_LOOK_SECONDS, _RETRY_SECONDS = 0.05, 0.5
_CONFIRM_SECONDS, _FLUSH_SECONDS = 0.1, 2.0
_ASKING_SECONDS = 0.5
_HANDLER_FAILS, _CONFIRMS_LATER = 0.02, 0.4
_UNCONFIRMED_MAX = 8


@dataclass(slots=True, eq=False)
class _Rewind:
    """A rewind that was asked for."""

    points: Points
    taken_back: list[Rewound] = field(default_factory=list)
    """What it took back, once it is in force."""
    lapses: int = 0


class SimMember(KeepingNode):
    """One member; each life of it is another one to the rest."""

    def __init__(
        self,
        world: World,
        network: Network,
        at: int,
        options: MemberOptions,
        promise: MemberPromise,
        keepers: Sequence[SimKeeper],
        writers: dict[SourceId, Writer],
    ) -> None:
        super().__init__(world, network, f"member{at}", options, promise, keepers, writers)
        self._at, self._promise = at, promise
        self.failed = 0
        """Handlers that raised in this life: their samples come again in the next."""
        self.begin_life(SourceId(f"{at + 1:x}f", 9))

    def begin_life(self, source: SourceId) -> None:
        """Know nothing."""
        self.begin_keeping(source)
        self.sharing = Sharing(source)
        self._takeovers = Takeovers()
        self._positions = Positions(KEY_EXPR)
        self._inbox: deque[tuple[Token, bool]] = deque()
        self._reach: set[str] = set()
        self._shown: tuple[View, Token] | None = None
        self._asked = self._begun = self.leaving = False
        self._fenced = self._writing = self._hurried = self._handling = False
        self._batches = 0
        self._stop_ns = self._retry_ns = self._refused = 0
        self._cursors: dict[SourceId, int] = {}
        self._levels: dict[tuple[SourceId, int], int] = {}
        """How often each run was rewound that this member goes on with."""
        self._rewind: _Rewind | None = None
        self.in_hand: list[Sample] = []
        """What the program has and did not confirm."""
        self.failed = 0

    def start(self) -> None:
        """Begin a process."""
        if self.running:
            return
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        self.begin_life(SourceId(f"{self._at + 1:x}f", 9 + self.life))
        self._show(NO_VIEW)
        self.network.show_all(self.name)
        self.later(1.01 * self.network.conditions.delay_seconds, self._know_all)
        threads = [self._deliver_thread(), self._confirm_thread()]
        if not self._options.by_itself:
            threads.append(self._program_thread())
        for thread in threads:
            self.later(0.0, partial(self.run_thread, thread))

    def _know_all(self) -> None:
        self._asked = True

    def died(self, how: str) -> None:
        if self.running:
            self.world.occur("member left" if how == "left" else "member killed")
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1
            self.network.withdraw(self.name)

    def leave(self) -> None:
        """End as `close` does: write what is confirmed, for a while."""
        self.leaving = True

    def token_changed(self, token: Token, alive: bool) -> None:
        self._inbox.append((token, alive))

    def rewind(self) -> None:
        """Ask for a rewind, as a thread of the program does."""
        self.later(0.0, partial(self.run_thread, self._rewind_thread()))

    def level_of(self, sample: Sample) -> int:
        """Return how often a sample's run was rewound, as far as this member knows."""
        return self._levels.get((sample.source, sample.epoch), 0)

    def level_at(self, position: Position) -> int:
        """Return how often this member knows that a position's run was rewound."""
        return self._levels.get(_run_of(position), 0)

    def owns(self, source: SourceId) -> bool:
        """Tell whether this process takes a source for its own."""
        return self.running and self.sharing.owns(source)

    def knows(self, other: SimMember) -> bool:
        """Tell whether another one is a member to this one."""
        return other.writer.source in self.sharing.members

    @property
    def at_rest(self) -> bool:
        """Whether nothing is to be processed, written, handed over or begun."""
        moves = self._positions.changed or self._writing or self.in_hand or self._inbox
        moves = moves or self._handling or any(map(self._is_behind, self._promise.rows))
        return not moves and self._agreed and self.sharing.has_begun

    def _is_behind(self, source: SourceId) -> bool:
        """Tell whether something of a source is to be processed here."""
        published = len(self._promise.rows[source])
        return self.owns(source) and self._cursors.get(source, 0) < published

    # The deliver thread

    def _deliver_thread(self) -> Thread[None]:
        while not self.leaving:
            yield from self._between()
            if self._agreed and not self.sharing.has_begun:
                yield from self._take_over()
            if self._rewind is not None and self._begun and self.sharing.contenders:
                self._begin_rewind(self._rewind)
            for source in list(self._promise.rows):
                yield from self._hand_out(source)
            yield _LOOK_SECONDS * (0.5 + self.world.random.random())
        yield from self._flush()
        self.died("left")

    def _between(self) -> Thread[None]:
        self._look()
        while not self._has_majority and not self.leaving:
            self.world.occur("no majority")
            yield _LOOK_SECONDS
            self._look()
        if self.sharing.must_stop and (yield from self._has_stopped()):
            self.may_crash("between stop and view")
            self.sharing.stopped()
        if not self.sharing.must_stop:
            self._show(self.sharing.shown)

    def _look(self) -> None:
        while self._inbox:
            token, alive = self._inbox.popleft()
            if isinstance(token.value, tuple):
                self.sharing.see(*token.value, alive=alive)
            else:
                (self._reach.add if alive else self._reach.discard)(token.owner)
        if self._fenced:
            self._lapse()

    @property
    def _has_majority(self) -> bool:
        caches = self._options.caches
        return caches is None or len(self._reach) >= majority_of(caches)

    def _show(self, view: View) -> None:
        before = self._shown
        if before is not None and before[0] == view:
            return
        token = Token(self.name, (self.writer.source, view))
        self._shown = view, token
        self.network.declare(token)
        if before is not None:
            self.network.undeclare(before[1])

    @property
    def _agreed(self) -> bool:
        shown = self._shown is not None and self._shown[0] == self.sharing.shown
        return self._asked and shown and self.sharing.agreed

    def _has_stopped(self) -> Thread[bool]:
        """Stop what is lost, and write what is confirmed of it; False while that takes time."""
        now_ns, options = self.world.now_ns, self._options
        if not self._begun:
            return True
        if now_ns < self._retry_ns:
            return False
        self._stop_ns = self._stop_ns or now_ns + round(options.handover_seconds * SECOND_NS)
        waits = self._positions.in_hand_of(lambda source: not self.owns(source))
        if waits and not options.by_itself and now_ns < self._stop_ns:
            return False
        if not (yield from self._flush()):
            self._retry_ns = self.world.now_ns + round(_RETRY_SECONDS * SECOND_NS)
            return False
        self._compare()
        self._forget_lost()
        self._stop_ns = 0
        return True

    def _flush(self) -> Thread[bool]:
        target = self._batches + (self._positions.changed > 0) + self._writing
        self._hurried = True
        end_ns = self.world.now_ns + round(_FLUSH_SECONDS * SECOND_NS)
        while self._batches < target and not self._fenced:
            if self.world.now_ns >= end_ns:
                return False
            yield WAIT_SECONDS
        return self._batches >= target

    def _compare(self) -> None:
        if self._options.caches is not None:
            self._takeovers.forget(self.sharing)
            return
        self._tell(self._takeovers.compare(self.sharing, self._positions.all()))

    def _tell(self, found: Iterable[Twice]) -> None:
        for twice in found:
            self.world.occur("processed twice, and reported")
            self._promise.reported(twice)

    def _forget_lost(self) -> None:
        self._positions.go_on(self.sharing.owns)
        self.in_hand = [one for one in self.in_hand if self.sharing.owns(one.source)]
        self._promise.gave_up(self)

    def _lapse(self) -> None:
        """Give up all sources: others took us for dead."""
        self.world.occur("overtaken")
        self._lapses += 1
        self._claims.forget()
        self.sharing.lapse()
        if self._options.caches is None:
            self._takeovers.give_up(self._positions.all())
        self._fenced = False
        self._forget_lost()
        self._stop_ns = 0

    def _take_over(self) -> Thread[None]:
        sharing = self.sharing
        if not sharing.gains:
            self._positions.put_back(self._takeovers.unsaid(sharing, self._positions.all()))
            sharing.begin()
            self._promise.begun(self, 0, 0)
            return
        if self.world.now_ns < self._retry_ns or (not sharing.contenders and self._claims_wait):
            return
        read_ns = self.world.now_ns
        try:
            read, fence = yield from self._read_anew()
            gained = [
                msgspec.structs.replace(position, fence=fence)
                for position in join_positions([*read, *self._held.values()])
                if self._is_gained(position.source)
            ]
            self.may_crash("between reading and fence")
            if not (yield from self._write(gained, self._for_a_while())):
                raise OutcomeUnknown("caches do not acknowledge positions")
        except DurableCacheError as error:
            self.world.occur(f"handover put off: {type(error).__name__}")
            self._refused += isinstance(error, Fenced)
            self._retry_ns = self.world.now_ns + round(_RETRY_SECONDS * SECOND_NS)
            return
        self.may_crash("between fence and begin")
        if sharing.contenders - sharing.members:
            self.world.occur("sources of one who is gone are begun")
        self._takeovers.note(sharing, gained)
        self._tell(self._takeovers.unread(sharing, read))
        unsaid = self._takeovers.unsaid(sharing, self._positions.all(), read)
        sharing.begin()
        self._refused = 0
        self._positions.fence = max(fence, self._positions.fence)
        self._positions.put_back(unsaid)
        self._know_levels(self._positions.go_on(sharing.owns, gained))
        self._cursors = {}
        self._begun = True
        self._promise.begun(self, fence, read_ns)

    @property
    def _claims_wait(self) -> bool:
        return self._options.caches is not None and self._writing

    def _is_gained(self, source: SourceId) -> bool:
        return self.sharing.owned_then(source) and not self.sharing.owns(source)

    def _for_a_while(self) -> int:
        return self.world.now_ns + round(_FLUSH_SECONDS * SECOND_NS)

    def _read_anew(self) -> Thread[tuple[list[Position], int]]:
        read = yield from self._read_now()
        if self._options.caches is None:
            return read, next_fence(read, self._refused)
        fence, claimed = 1 + self._fence_read, set[SourceId]()
        while gained := {one.source for one in read if self._is_gained(one.source)} - claimed:
            claimed |= gained
            if not (yield from self._claim(claimed, fence, self._for_a_while())):
                raise OutcomeUnknown("no majority of the caches acknowledges claims")
            self.may_crash("between claim and reading")
            read = yield from self._read_claimed(claimed)
        return read, fence

    # Samples

    def _hand_out(self, source: SourceId) -> Thread[None]:
        """Take what follows of a source; nothing of it is lost before it comes here."""
        while self.sharing.owns(source) and self._begun and not self._halts:
            row, at = self._promise.rows[source], self._cursors.get(source, 0)
            if at >= len(row) or self._positions.in_hand >= _UNCONFIRMED_MAX:
                return
            publication = row[at]
            sample = publication.sample
            named = sample.epoch, publication.numbering.incarnation
            self._positions.call(source, sample.epoch, named)
            if self._positions.is_confirmed(sample):
                self._promise.passed_over(self, publication)
                self._cursors[source] = at + 1
                continue
            if self._options.caches is not None and not (yield from self._have(source)):
                return
            if at != self._cursors.get(source, 0) or not self.sharing.owns(source):
                continue
            self._cursors[source] = at + 1
            self._handling = True
            yield from self._process(publication)
            self._handling = False

    def _process(self, publication: Publication) -> Thread[None]:
        sample = publication.sample
        self._promise.processed(self, publication)
        if not self._options.by_itself:
            self._positions.hand_out(sample)
            self.in_hand.append(sample)
            return
        self.may_crash("between handler and position")
        done = yield from self._is_done(publication)
        if not self.sharing.owns(sample.source):
            return
        if not done:
            self.failed += 1
            self._positions.hand_out(sample)
            return
        self._promise.confirms(self, sample)
        self._positions.handled(sample)
        yield self.world.random.random() * WAIT_SECONDS
        yield from self._between()

    def _is_done(self, publication: Publication) -> Thread[bool]:
        """Call the handler, again where it raised; then see to a dead letter."""
        options, attempts = self._options, 1
        while self._raises(publication):
            self.world.occur("a handler raises")
            if options.attempts_max is None:
                return False
            if attempts >= options.attempts_max:
                return (yield from self._is_buried(publication, attempts))
            end_ns = self.world.now_ns + round(options.attempt_seconds * SECOND_NS)
            while self.world.now_ns < end_ns and not self._halts:
                yield _LOOK_SECONDS
                yield from self._between()
            if self._halts or not (yield from self._admits(publication.sample)):
                return False
            attempts += 1
            self._promise.attempted(self, publication)
        return True

    def _admits(self, sample: Sample) -> Thread[bool]:
        if self._options.caches is None:
            return self.sharing.owns(sample.source)
        return (yield from self._have(sample.source))

    def _raises(self, publication: Publication) -> bool:
        return publication in self._promise.poison or self.world.chance(_HANDLER_FAILS)

    def _is_buried(self, publication: Publication, attempts: int) -> Thread[bool]:
        """Write a dead letter until caches hold it; False where delivery ends before."""
        burial = self._promise.burying(self, publication.sample)
        receipt = self._bury(DeadLetter("poison", attempts, publication.sample))
        while len(receipt.acked) < self.writer.wanted:
            if self._halts or not self.sharing.owns(publication.sample.source):
                return False
            yield _LOOK_SECONDS
            yield from self._between()
        self._promise.buried(burial)
        self.may_crash("between letter and position")
        return True

    def _bury(self, letter: DeadLetter) -> Receipt:
        key = dead_letter_key(DOMAIN, CONSUMER, letter.sample)
        return self.writer.put(key, encode_dead_letter(letter), self._now_ntp64)

    def _reject(self, sample: Sample) -> None:
        """Give a sample up, as a program does in a thread of its own."""
        thread = self._reject_thread(sample)
        self.later(0.0, partial(self.run_thread, thread))

    def _reject_thread(self, sample: Sample) -> Thread[None]:
        burial = self._promise.burying(self, sample)
        receipt = self._bury(DeadLetter("poison", 1, sample))
        while len(receipt.acked) < self.writer.wanted:
            yield WAIT_SECONDS
        self._promise.buried(burial)
        self.may_crash("between letter and position")
        try:
            if self._positions.confirm(sample):
                self._promise.confirms(self, sample)
        except LocalProtocolError:
            self.world.occur("what is rejected is another one's by now")

    @property
    def _halts(self) -> bool:
        """Whether nothing more is to be handed out as it stands."""
        return self.leaving or self._rewind is not None

    # Rewinds

    def _rewind_thread(self) -> Thread[None]:
        """Ask caches from where on, have it begun, and wait until they hold that."""
        known = self._positions.all()
        points = chosen_points(self.world.random, known, self._promise.rows)
        yield self.world.random.random() * _ASKING_SECONDS
        if self._halts:
            return
        wanted = self._rewind = _Rewind(points)
        while self._rewind is wanted:
            if self.leaving:
                return
            yield WAIT_SECONDS
        target = self._batches + (self._positions.changed > 0) + self._writing
        self._hurried = True
        while self._batches < target and self._lapses == wanted.lapses:
            yield WAIT_SECONDS
        if self._lapses == wanted.lapses and wanted.taken_back:
            self.world.occur("a member rewinds")
            self._promise.rewind_held(wanted.taken_back)

    def _begin_rewind(self, wanted: _Rewind) -> None:
        before, wanted.lapses = self._positions.all(), self._lapses
        try:
            stands = self._positions.rewind(wanted.points, shared=True)
        except Fenced:
            self.world.occur("what is to be rewound is another one's by now")
            stands = self._positions.rewind({})
        self._takeovers.rewound(before, stands)
        moved = [one for one in stands if one.rewinds > self._levels.get(_run_of(one), 0)]
        wanted.taken_back = self._promise.rewound(self, moved, wanted.points)
        self._know_levels(stands)
        self._cursors, self.in_hand, self._rewind = {}, [], None

    def _know_levels(self, stands: Iterable[Position]) -> None:
        self._levels = {_run_of(one): one.rewinds for one in stands}

    def _program_thread(self) -> Thread[None]:
        """Confirm what was handed out, in any order, and not always all of it."""
        while True:
            waiting, self.in_hand = self.in_hand, []
            self.world.random.shuffle(waiting)
            for sample in waiting:
                if self.world.chance(_CONFIRMS_LATER):
                    self.in_hand.append(sample)
                elif self._promise.is_poison(sample):
                    self._reject(sample)
                else:
                    self.may_crash("between processing and confirm")
                    self._positions.confirm(sample)
                    self._promise.confirms(self, sample)
            yield _CONFIRM_SECONDS

    # Positions

    def _confirm_thread(self) -> Thread[None]:
        while True:
            while not self._positions.changed:
                yield WAIT_SECONDS
            batch = self._positions.take()
            self._writing, self._hurried = True, False
            written = fenced = False
            try:
                written = yield from self._write(batch, None)
            except DurableCacheError as error:
                fenced = isinstance(error, Fenced)
            self._writing = False
            if written:
                self._batches += 1
            else:
                self._positions.put_back(batch)
            self._fenced = fenced
            yield from self._pause(_CONFIRM_SECONDS if written else _RETRY_SECONDS, written)

    def _pause(self, seconds: float, may_hurry: bool) -> Thread[None]:
        end_ns = self.world.now_ns + round(seconds * SECOND_NS)
        while self.world.now_ns < end_ns and not (self._hurried and may_hurry):
            yield WAIT_SECONDS

    # Claims

    def _have(self, source: SourceId) -> Thread[bool]:
        """See that a majority takes what this member writes of a source."""
        while not self.leaving and self.sharing.owns(source):
            if self._claims.has(source, self.world.now_ns):
                return True
            try:
                yield from self._claim_met(source)
            except Fenced:
                self._lapse()
            except DurableCacheError:
                yield _RETRY_SECONDS
            yield from self._between()
        return False

    def _claim_met(self, source: SourceId) -> Thread[None]:
        """Claim a source; of one that is met for the first time, see that nobody had it."""
        met = source not in self._claims
        (fence,) = self._claims.by_fence((source,), max(1, self._positions.fence))
        if not (yield from self._claim((source,), fence, self._for_a_while())) or not met:
            return
        try:
            stands = yield from self._read_claimed((source,), met=True)
        except DurableCacheError:
            self._claims.forget((source,))
            raise
        if any(one.source == source for one in stands):
            self._lapse()


def _run_of(position: Position) -> tuple[SourceId, int]:
    return position.source, position.epoch
