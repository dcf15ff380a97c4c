"""Members of one durable consumer on the simulated network: the real engines, all around played.

Who owns what, positions, fences, claims and what is said of a partition are the product's. Its two
threads are played here as generators that yield how long they wait: what the deliver thread does
between two samples, and what writes positions. A member may be killed wherever they do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from durable_cache.errors import (
    DurableCacheError,
    Fenced,
    OutcomeUnknown,
    StorageUnavailable,
)
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.consumers import (
    Position,
    claim_key,
    decode_position,
    encode_position,
    is_claim_key,
    position_key,
)
from durable_cache.protocol.majority import LEASE_NS, Claims, majority_of
from durable_cache.protocol.members import NO_VIEW, Sharing, View
from durable_cache.protocol.resends import RefusalReason
from durable_cache.protocol.subscriber.positions import Positions, join_positions
from durable_cache.protocol.takeovers import Takeovers, Twice
from durable_cache.testing.simulation.keepers import DOMAIN, Receipt, SimKeeper, Writer
from durable_cache.testing.simulation.network import Network, Node, Outcome, Token
from durable_cache.testing.simulation.truth import Publication
from durable_cache.testing.simulation.world import SECOND_NS, Crash, World

if TYPE_CHECKING:
    from durable_cache.testing.simulation.member_promises import MemberPromise

__all__ = ["MemberOptions", "SimMember"]

T = TypeVar("T")
Thread = Generator[float, None, T]
"""What a thread does; it yields how many seconds it waits."""

_CONSUMER, _KEY_EXPR = "bill", "**"
_LOOK_SECONDS, _WAIT_SECONDS, _RETRY_SECONDS = 0.05, 0.02, 0.5
_CONFIRM_SECONDS, _QUERY_SECONDS, _FLUSH_SECONDS, _GIVEN_UP_SECONDS = 0.1, 1.0, 2.0, 10.0
_LEASE_SECONDS = 1.1 * LEASE_NS / SECOND_NS
_CRASHES, _HANDLER_FAILS, _CONFIRMS_LATER = 0.01, 0.02, 0.4
_STAMP_STEP = 16
_UNCONFIRMED_MAX = 8


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """How the members of one consumer work; all alike."""

    acknowledgements: int = 1
    caches: int | None = None
    """With `exclusive`: how many caches there are."""
    by_itself: bool = True
    """Whether what a handler is done with is confirmed; else the program does, in any order."""
    handover_seconds: float = 1.0

    @property
    def wanted(self) -> int:
        """How many caches must hold a position."""
        return self.acknowledgements if self.caches is None else majority_of(self.caches)


class SimMember(Node):
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
        super().__init__(world, network, f"member{at}")
        self._at, self._options, self._promise = at, options, promise
        self._keepers, self._writers = keepers, writers
        self.failed = 0
        """Handlers that raised in this life: their samples come again in the next."""
        self.begin_life(SourceId(f"{at + 1:x}f", 9))

    def begin_life(self, source: SourceId) -> None:
        """Know nothing."""
        self.writer = Writer(self, source, self._keepers, self._options.wanted)
        self._writers[source] = self.writer
        self.sharing = Sharing(source)
        self._takeovers = Takeovers()
        self._positions = Positions(_KEY_EXPR)
        self._claims = Claims()
        self._held: dict[tuple[SourceId, int], Position] = {}
        """By run, what caches acknowledged last."""
        self._inbox: deque[tuple[Token, bool]] = deque()
        self._reach: set[str] = set()
        self._shown: tuple[View, Token] | None = None
        self._asked = self._begun = self.leaving = False
        self._fenced = self._writing = self._hurried = False
        self._lapses = self._batches = 0
        self._stop_ns = self._retry_ns = 0
        self._newest_ntp64 = self._fence_read = 0
        self._answered: set[str] | None = None
        self._showing: dict[str, set[str]] = {}
        self._cursors: dict[SourceId, int] = {}
        self.in_hand: list[Sample] = []
        """What the program has and did not confirm."""
        self.read_from: frozenset[str] = frozenset()
        """The caches whose positions this member began with last."""
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
            self.later(0.0, partial(self._run, thread))

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

    def owns(self, source: SourceId) -> bool:
        """Tell whether this process takes a source for its own."""
        return self.running and self.sharing.owns(source)

    def knows(self, other: SimMember) -> bool:
        """Tell whether another one is a member to this one."""
        return other.writer.source in self.sharing.members

    @property
    def at_rest(self) -> bool:
        """Whether nothing is to be written, handed over or begun."""
        moves = self._positions.changed or self._writing or self.in_hand or self._inbox
        return not moves and self._agreed and self.sharing.has_begun

    def _run(self, thread: Thread[None]) -> None:
        seconds = next(thread, None)
        if seconds is not None:
            self.later(seconds, partial(self._run, thread))

    def _may_crash(self, where: str) -> None:
        if self.world.chance(_CRASHES):
            raise Crash(f"killed {where}")

    # The deliver thread

    def _deliver_thread(self) -> Thread[None]:
        while not self.leaving:
            yield from self._between()
            if self._agreed and not self.sharing.has_begun:
                yield from self._take_over()
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
            self._may_crash("between stop and view")
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
            yield _WAIT_SECONDS
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
            self._may_crash("between reading and fence")
            if not (yield from self._write(gained, self._for_a_while())):
                raise OutcomeUnknown("caches do not acknowledge positions")
        except DurableCacheError as error:
            self.world.occur(f"handover put off: {type(error).__name__}")
            self._retry_ns = self.world.now_ns + round(_RETRY_SECONDS * SECOND_NS)
            return
        self._may_crash("between fence and begin")
        if sharing.contenders - sharing.members:
            self.world.occur("sources of one who is gone are begun")
        self._takeovers.note(sharing, gained)
        self._tell(self._takeovers.unread(sharing, read))
        unsaid = self._takeovers.unsaid(sharing, self._positions.all(), read)
        sharing.begin()
        self._positions.fence = max(fence, self._positions.fence)
        self._positions.put_back(unsaid)
        self._positions.go_on(sharing.owns, gained)
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
            return read, 1 + max((position.fence for position in read), default=0)
        fence, claimed = 1 + self._fence_read, set[SourceId]()
        while gained := {one.source for one in read if self._is_gained(one.source)} - claimed:
            claimed |= gained
            if not (yield from self._claim(claimed, fence, self._for_a_while())):
                raise OutcomeUnknown("no majority of the caches acknowledges claims")
            self._may_crash("between claim and reading")
            read = yield from self._read_claimed(claimed, _LEASE_SECONDS)
        return read, fence

    # Samples

    def _hand_out(self, source: SourceId) -> Thread[None]:
        """Take what follows of a source; nothing of it is lost before it comes here."""
        while self.sharing.owns(source) and self._begun and not self.leaving:
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
            yield from self._process(publication)

    def _process(self, publication: Publication) -> Thread[None]:
        sample = publication.sample
        self._promise.processed(self, publication)
        if not self._options.by_itself:
            self._positions.hand_out(sample)
            self.in_hand.append(sample)
            return
        self._may_crash("between handler and position")
        if self.world.chance(_HANDLER_FAILS):
            self.world.occur("a handler raises")
            self.failed += 1
            self._positions.hand_out(sample)
            return
        self._promise.confirms(self, sample)
        self._positions.handled(sample)
        yield self.world.random.random() * _WAIT_SECONDS
        yield from self._between()

    def _program_thread(self) -> Thread[None]:
        """Confirm what was handed out, in any order, and not always all of it."""
        while True:
            waiting, self.in_hand = self.in_hand, []
            self.world.random.shuffle(waiting)
            for sample in waiting:
                if self.world.chance(_CONFIRMS_LATER):
                    self.in_hand.append(sample)
                    continue
                self._may_crash("between processing and confirm")
                self._positions.confirm(sample)
                self._promise.confirms(self, sample)
            yield _CONFIRM_SECONDS

    # Positions

    def _confirm_thread(self) -> Thread[None]:
        while True:
            while not self._positions.changed:
                yield _WAIT_SECONDS
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
            yield _WAIT_SECONDS

    def _write(self, positions: Sequence[Position], end_ns: int | None) -> Thread[bool]:
        """Write positions and wait until caches hold them."""
        if self._options.caches is None:
            receipts = [self._put(position, self._stamp()) for position in positions]
            held = yield from self._are_held(receipts, end_ns)
            if held:
                self._held.update({(one.source, one.epoch): one for one in positions})
            return held
        lapses, sources = self._lapses, [one.source for one in positions]
        due = self._claims.due(sources, self._now_ntp64)
        fence = max((one.fence for one in positions), default=0)
        for under, claimed in self._claims.by_fence(due, fence).items():
            if not (yield from self._claim(claimed, under, end_ns)):
                return False
        if lapses != self._lapses:
            return False
        sent_ns = self.world.now_ns
        self._claims.advance()
        if not all(source in self._claims for source in sources):
            raise Fenced("claims were given up meanwhile")
        receipts = [self._put_claimed(position) for position in positions]
        held = yield from self._are_held(receipts, end_ns)
        if held:
            self._claims.proven(sources, sent_ns)
        return held

    def _put_claimed(self, position: Position) -> Receipt:
        fence = self._claims.fence_of(position.source)
        exclusive = msgspec.structs.replace(position, exclusive=True, fence=fence)
        return self._put(exclusive, self._claims.stamp(position.source))

    def _put(self, position: Position, ntp64: int) -> Receipt:
        key = position_key(DOMAIN, _CONSUMER, position.source, position.epoch)
        self._promise.writes(self, position, ntp64)
        return self.writer.put(key, encode_position(position), ntp64)

    def _are_held(self, receipts: Iterable[Receipt], end_ns: int | None) -> Thread[bool]:
        lapses, given_up_ns = self._lapses, self.world.now_ns + _GIVEN_UP_SECONDS * SECOND_NS
        for receipt in receipts:
            while len(receipt.acked) < self.writer.wanted:
                if RefusalReason.FENCED in receipt.refused.values():
                    raise Fenced("another member has the source by now")
                now_ns = self.world.now_ns
                if self._options.caches is not None and now_ns >= given_up_ns:
                    raise OutcomeUnknown("too few caches acknowledged it")
                if lapses != self._lapses and self._options.caches is not None:
                    return False
                if end_ns is not None and now_ns >= end_ns:
                    return False
                yield _WAIT_SECONDS
            self._promise.held(receipt)
        return True

    @property
    def _now_ntp64(self) -> int:
        return ntp64_from_ns(self.world.moment(self.skew_ns).unix_ns)

    def _stamp(self) -> int:
        """Return a time after all positions that were read: their writer's clock may be ahead."""
        if self._now_ntp64 > self._newest_ntp64:
            return self._now_ntp64
        self._newest_ntp64 += _STAMP_STEP
        return self._newest_ntp64

    # Reading and claiming

    def _read_now(self) -> Thread[list[Position]]:
        heard: list[tuple[str, list[Sample]]] = []
        ended: list[Outcome] = []
        asked = ((keeper, keeper.answer) for keeper in self._keepers)
        self.network.ask(self, asked, _QUERY_SECONDS, heard.append, ended.append)
        while not ended:
            yield _WAIT_SECONDS
        if ended[0].errors or not heard:
            raise StorageUnavailable("positions could not be read")
        self._answered = {name for name, _ in heard}
        self.read_from = frozenset(self._answered)
        self._showing = {}
        found: list[Position] = []
        for name, samples in heard:
            for sample in samples:
                self._newest_ntp64 = max(self._newest_ntp64, sample.ntp64)
                position = decode_position(sample.payload)
                self._fence_read = max(self._fence_read, position.fence)
                if not is_claim_key(DOMAIN, sample.key):
                    found.append(position)
                elif sample.source == self.writer.source and self._claims.is_newest(sample.ntp64):
                    self._showing.setdefault(sample.key, set()).add(name)
        if self._options.caches is not None:
            self._check(len(self._answered))
        return join_positions(found)

    def _check(self, answers: int) -> None:
        if answers < majority_of(self._options.caches or 0):
            raise StorageUnavailable("fewer caches than a majority told where it stands")

    def _read_claimed(
        self, sources: Iterable[SourceId], pause_seconds: float
    ) -> Thread[list[Position]]:
        yield from self._read_now()
        showed = self._showing
        yield pause_seconds
        positions = yield from self._read_now()
        for source in sources:
            key = claim_key(DOMAIN, _CONSUMER, source)
            self._check(len(showed.get(key, set()) & (self._answered or set())))
        return positions

    def _claim(self, sources: Iterable[SourceId], fence: int, end_ns: int | None) -> Thread[bool]:
        sent_ns, claimed = self.world.now_ns, sorted(sources)
        self._fence_read = max(self._fence_read, fence)
        ntp64 = self._claims.next_ntp64(self._now_ntp64, self._newest_ntp64)
        receipts = []
        for source in claimed:
            told = Position(_KEY_EXPR, source, 0, "", -1, fence=fence, exclusive=True)
            key = claim_key(DOMAIN, _CONSUMER, source)
            receipts.append(self.writer.put(key, encode_position(told), ntp64))
        if not (yield from self._are_held(receipts, end_ns)):
            return False
        self._claims.held(claimed, fence, ntp64, sent_ns)
        return True

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
            stands = yield from self._read_claimed((source,), 0.0)
        except DurableCacheError:
            self._claims.forget((source,))
            raise
        if any(one.source == source for one in stands):
            self._lapse()
