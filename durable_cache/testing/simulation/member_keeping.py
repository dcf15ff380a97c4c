"""How a simulated process keeps a consumer's positions in caches: as the product's `Keeping` does.

Each wait is a yield: whoever writes or reads may be killed there. Members do so, and an operator
who rewinds a consumer that is not running.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from durable_cache.errors import Fenced, OutcomeUnknown, StorageUnavailable
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
from durable_cache.protocol.majority import LEASE_SECONDS, Claims, majority_of
from durable_cache.protocol.resends import RefusalReason
from durable_cache.protocol.subscriber.positions import join_positions
from durable_cache.testing.simulation.keepers import DOMAIN, Receipt, SimKeeper, Writer
from durable_cache.testing.simulation.network import Network, Node, Outcome
from durable_cache.testing.simulation.world import SECOND_NS, Crash, World

T = TypeVar("T")
Thread = Generator[float, None, T]
"""What a thread does; it yields how many seconds it waits."""

CONSUMER, KEY_EXPR = "bill", "**"
WAIT_SECONDS = 0.02
_QUERY_SECONDS, _GIVEN_UP_SECONDS = 1.0, 10.0
_CRASHES = 0.01
_STAMP_STEP = 16


class Kept(Protocol):
    """Who is told what is written and held."""

    def writes(self, member: KeepingNode, key: str, position: Position, ntp64: int) -> None:
        """Hear of a position that leaves."""

    def held(self, receipt: Receipt) -> None:
        """Hear that a writer knows that enough caches hold a position."""


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """How the members of one consumer work; all alike."""

    acknowledgements: int = 1
    caches: int | None = None
    """With `exclusive`: how many caches there are."""
    by_itself: bool = True
    """Whether what a handler is done with is confirmed; else the program does, in any order."""
    handover_seconds: float = 1.0
    attempts_max: int | None = None
    """How often a handler is called with a sample before that becomes a dead letter."""
    attempt_seconds: float = 0.2

    @property
    def wanted(self) -> int:
        """How many caches must hold a position."""
        return self.acknowledgements if self.caches is None else majority_of(self.caches)


class KeepingNode(Node):
    """A process that reads and writes positions of a consumer, and claims its sources."""

    shares = True
    """Whether others may have its sources meanwhile."""

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        options: MemberOptions,
        kept: Kept,
        keepers: Sequence[SimKeeper],
        writers: dict[SourceId, Writer],
    ) -> None:
        super().__init__(world, network, name)
        self._options, self._kept = options, kept
        self._keepers, self._writers = keepers, writers

    def begin_keeping(self, source: SourceId) -> None:
        """Know nothing."""
        self.writer = Writer(self, source, self._keepers, self._options.wanted)
        self._writers[source] = self.writer
        self._claims = Claims()
        self._held: dict[tuple[SourceId, str | int], Position] = {}
        """By run, what caches acknowledged last."""
        self._lapses = 0
        self._newest_ntp64 = self._fence_read = 0
        self._answered: set[str] | None = None
        self._claims_shown: dict[tuple[str, str], list[Sample]] = {}
        """What each cache showed when positions were read last, by claim."""
        self.read_from: frozenset[str] = frozenset()
        """The caches whose positions this process read last."""

    def run_thread(self, thread: Thread[None]) -> None:
        """Let a thread go on to its next wait, and from there."""
        seconds = next(thread, None)
        if seconds is not None:
            self.later(seconds, partial(self.run_thread, thread))

    def may_crash(self, where: str) -> None:
        """End here, sometimes."""
        if self.world.chance(_CRASHES):
            raise Crash(f"killed {where}")

    # Writing

    def _write(self, positions: Sequence[Position], end_ns: int | None) -> Thread[bool]:
        """Write positions and wait until caches hold them."""
        if self._options.caches is None:
            receipts = [self._put(position, self._stamp()) for position in positions]
            held = yield from self._are_held(receipts, end_ns)
            if held:
                self._held.update({one.run: one for one in positions})
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
        run = position.source, position.epoch, position.rewinds
        shares = self.shares and self._options.caches is None
        writer = self.writer.source if shares else None
        key = position_key(DOMAIN, CONSUMER, *run, writer)
        self._kept.writes(self, key, position, ntp64)
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
                yield WAIT_SECONDS
            self._kept.held(receipt)
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

    def _read_now(self, *, deep: bool = False) -> Thread[list[Position]]:
        heard: list[tuple[str, list[Sample]]] = []
        ended: list[Outcome] = []
        asked = ((one, one.answer_all if deep else one.answer) for one in self._keepers)
        self.network.ask(self, asked, _QUERY_SECONDS, heard.append, ended.append)
        while not ended:
            yield WAIT_SECONDS
        if ended[0].errors or not heard:
            raise StorageUnavailable("positions could not be read")
        self._answered = {name for name, _ in heard}
        self.read_from = frozenset(self._answered)
        self._claims_shown = {}
        found: list[Position] = []
        for name, samples in heard:
            for sample in samples:
                self._newest_ntp64 = max(self._newest_ntp64, sample.ntp64)
                position = decode_position(sample.payload)
                self._fence_read = max(self._fence_read, position.fence)
                if not is_claim_key(DOMAIN, sample.key):
                    found.append(position)
                    continue
                self._claims_shown.setdefault((name, sample.key), []).append(sample)
        if self._options.caches is not None:
            self._check(len(self._answered))
        return join_positions(found)

    def _check(self, answers: int) -> None:
        if answers < majority_of(self._options.caches or 0):
            raise StorageUnavailable("fewer caches than a majority told where it stands")

    def _read_claimed(
        self, sources: Iterable[SourceId], *, met: bool = False
    ) -> Thread[list[Position]]:
        yield from self._read_now(deep=met)
        keys = [claim_key(DOMAIN, CONSUMER, source) for source in sources]
        showed = {key: self._showing(key) for key in keys}
        if not met or any(map(self._is_contested, keys)):
            yield LEASE_SECONDS
        positions = yield from self._read_now()
        for key in keys:
            self._check(len(showed[key] & (self._answered or set())))
        return positions

    def _showing(self, of_key: str) -> set[str]:
        """Return which caches showed a claim of ours as the newest."""
        newest = {
            name: max(claims, key=lambda one: one.ntp64)
            for (name, key), claims in self._claims_shown.items()
            if key == of_key
        }
        own = self.writer.source
        return {
            name
            for name, one in newest.items()
            if one.source == own and self._claims.is_newest(one.ntp64)
        }

    def _is_contested(self, of_key: str) -> bool:
        """Tell whether another member claimed it, who may go on for a lease."""
        shown = (claims for (_, key), claims in self._claims_shown.items() if key == of_key)
        return any(one.source != self.writer.source for claims in shown for one in claims)

    def _claim(self, sources: Iterable[SourceId], fence: int, end_ns: int | None) -> Thread[bool]:
        sent_ns, claimed = self.world.now_ns, sorted(sources)
        self._fence_read = max(self._fence_read, fence)
        ntp64 = self._claims.next_ntp64(self._now_ntp64, self._newest_ntp64)
        receipts = []
        for source in claimed:
            told = Position(KEY_EXPR, source, 0, "", -1, fence=fence, exclusive=True)
            key = claim_key(DOMAIN, CONSUMER, source)
            receipts.append(self.writer.put(key, encode_position(told), ntp64))
        if not (yield from self._are_held(receipts, end_ns)):
            return False
        self._claims.held(claimed, fence, ntp64, sent_ns)
        return True
