"""Where a durable consumer's positions lie: read from caches at its start, written as it goes on.

One consumer of a name lives at a time: each shows a liveliness token, and whoever finds another
one's waits until that is gone, or is refused.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock

from durable_cache.endpoints.asking import Asking
from durable_cache.endpoints.publisher.options import PublisherOptions
from durable_cache.endpoints.publisher.publisher import ReliablePublisher
from durable_cache.endpoints.publisher.receipts import Receipt
from durable_cache.endpoints.session import (
    Session,
    Timestamp,
    Token,
    build_timestamp,
    declare_token,
    new_timestamp,
    raw_timestamp,
    tokens_for_certain,
    tokens_now,
    undeclare,
    zid_of,
)
from durable_cache.endpoints.subscriber.claiming import Claiming
from durable_cache.endpoints.subscriber.membership import Membership
from durable_cache.errors import (
    ConfigError,
    Fenced,
    OutcomeUnknown,
    RemoteProtocolError,
    StorageUnavailable,
)
from durable_cache.model.arguments import bounded, check_fields, check_number, refused
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample, SourceId
from durable_cache.protocol.consumers import (
    DeadLetter,
    Position,
    check_consumer,
    claim_key,
    consumer_token,
    consumer_tokens,
    dead_letter_key,
    decode_position,
    encode_dead_letter,
    encode_position,
    is_claim_key,
    kept_key_expr,
    position_key,
    positions_key_expr,
)
from durable_cache.protocol.majority import majority_of
from durable_cache.protocol.resends import RefusalReason
from durable_cache.protocol.subscriber.positions import join_positions
from durable_cache.protocol.wire import parse_history_token, tokens_about
from durable_cache.storage.contract import Durability

_TOKENS_SECONDS_MAX = 1.0
"""How long routers are waited for that say which tokens there are."""
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 0.2
"""How often somebody who waits for an acknowledgement looks whether it still should."""
_GIVEN_UP_SECONDS = 10.0
"""How long what an exclusive consumer writes may wait for a majority; then it is written anew."""
_CLAIMS_READ = 16
"""So many claims to a source that is read alone: the newest may be ours, written again."""
_NTP64_AFTER = 16
"""A few nanoseconds: Zenoh's Python rounds stamps to whole ones."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a durable consumer works; each default carries its reason. Times in seconds."""

    acknowledgements: int = 1
    """Caches that must hold a position; with more it outlives the loss of all but one of them."""
    level: Durability | str = Durability.DISK
    """At which level they must hold it."""
    confirm_seconds: float = 0.1
    """How often positions are written at most; what was confirmed since comes again after a crash.
    """
    unconfirmed_max: int = 10_000
    """Samples that were handed out and are not confirmed; delivery waits while there are so many.
    """
    runs_max: int = 100_000
    """Runs of sources whose positions are remembered: about 60 MB."""
    predecessor_seconds: float = 15.0
    """How long another consumer of the name may take to go: Zenoh notices within 10 s that a
    machine is gone."""
    attempts_max: int | None = None
    """How often a handler is called with a sample before that goes to the dead letters; None: where
    the handler raised, delivery goes on, and the sample comes again at the next start."""
    attempt_seconds: float = 1.0
    """The pause before a handler that raised is called with the sample again."""
    members_max: int = 1
    """How many subscribers of the name may live, and share its sources; each is told this."""
    handover_seconds: float = 5.0
    """How long a source that goes to another member waits for confirmations of what is in hand."""
    positions: tuple[bytes, ...] = ()
    """What the program kept of `consumer.position`; what these say is confirmed, is confirmed."""
    caches_seconds: float = 10.0
    """How long caches that store what is consumed, and its positions, may take to show up."""
    caches: int | None = None
    """With `exclusive`: how many caches store the positions, an odd number; never more may."""

    def checked(self) -> ConsumerOptions:
        """Return the options themselves; ConfigError names what no consumer can work with."""
        check_fields(self)
        if not all(isinstance(value, bytes) for value in self.positions):
            raise refused("positions", self.positions, "the values of consumer.position(sample)")
        for name in ("acknowledgements", "unconfirmed_max", "runs_max", "members_max"):
            check_number(name, getattr(self, name), 1, whole=True)
        if self.attempts_max is not None:
            check_number("attempts_max", self.attempts_max, 1, whole=True)
        if self.caches is not None:
            check_number("caches", self.caches, 1, whole=True)
            if self.caches % 2 == 0:
                raise refused(
                    "caches", self.caches, "an odd number: of four caches two may be away, of three"
                )
        if self.shared and self.positions:
            raise ConfigError(
                "positions: members of a consumer go on where caches say that the others came to; "
                "leave positions out, or members_max"
            )
        for name in (
            *("confirm_seconds", "predecessor_seconds", "attempt_seconds"),
            *("caches_seconds", "handover_seconds"),
        ):
            check_number(name, getattr(self, name), 0, whole=False)
        return bounded(self)

    @property
    def shared(self) -> bool:
        """Whether several subscribers of the name may live: a cut may part any from another."""
        return self.members_max > 1 or self.caches is not None

    @property
    def wanted(self) -> int:
        """How many caches must hold what is written."""
        return max(self.acknowledgements, majority_of(self.caches or 0) if self.caches else 1)


class Keeping:
    """One consumer's name and positions, from its start until `close`."""

    def __init__(
        self,
        session: Session,
        domain: str,
        consumer: str,
        key_expr: KeyExpression | None,
        options: ConsumerOptions,
        query_timeout_seconds: float,
    ) -> None:
        """ConfigError names what is missing or in the way, StorageUnavailable may be retried.

        Without `key_expr` it is the one that the positions name; None where there are none.
        """
        self._session, self._domain, self._options = session, domain, options
        self._consumer, self.key_expr = check_consumer(consumer), key_expr
        self._kept_key_expr = kept_key_expr(domain, consumer)
        self._newest_ntp64 = 0
        self._held: dict[tuple[SourceId, str | int], Position] = {}
        """By run, what caches acknowledged last of a member that shares; at most `runs_max`."""
        self._held_lock = Lock()
        self.fence_read = 0
        """The latest fence of all positions and claims that were read."""
        self.claiming: Claiming | None = None
        """What the claims of an exclusive consumer are, and who holds them."""
        self._token: Token | None = None
        self.membership: Membership | None = None
        """What is shown to other members, and seen of them; None where nobody shares."""
        written = PublisherOptions(
            cache=False,
            acknowledgements=options.wanted,
            unacknowledged_seconds_max=None if options.caches is None else _GIVEN_UP_SECONDS,
            level=options.level,
            domain=domain,
        ).checked()
        deadline = time.monotonic() + options.caches_seconds
        self._await_caches(deadline)
        if options.caches is not None:
            self.claiming = Claiming(session, domain, consumer, options.caches)
            self.claiming.reach.wait(deadline)
        self._publisher: ReliablePublisher[Receipt] = ReliablePublisher(
            session, self._kept_key_expr, written
        )
        if self.claiming is not None:
            self.claiming.own = self._publisher.source
        try:
            if options.shared:
                self.membership = Membership(session, domain, consumer, self._publisher.source)
            self._claim()
            deadline = time.monotonic() + options.caches_seconds
            given = [self._given(value) for value in options.positions]
            read = join_positions(self._read(query_timeout_seconds, deadline))
            self.positions = join_positions([*read, *given])
            """Where the consumer stood at the start."""
            self.unwritten = [one for one in self.positions if one not in read]
            """What the program kept and caches do not: others wait to see it there."""
            self._check_bound(self.positions)
        except BaseException:
            self.close()
            raise

    def write(self, positions: Sequence[Position], may_wait: Callable[[], bool]) -> bool:
        """Write positions and wait until caches hold them; False when `may_wait` says no more.

        Raises what a put raises. Whether they are held is unknown then, as after False; writing
        them again is harmless.
        """
        if self.claiming is None:
            receipts = [self._put(position, self._stamp()) for position in positions]
            held = self._are_held(receipts, may_wait)
            if held and self.membership is not None:
                self._note_held(positions)
            return held
        with self.claiming.writing(may_wait) as goes_on:
            due = self.claiming.due(positions, raw_timestamp(self._now())[0])
            if not all(self.claim(sources, fence, goes_on) for fence, sources in due.items()):
                return False
            sent_ns = time.monotonic_ns()
            stamped = self.claiming.stamped(positions)
            receipts = [self._put(one, self._at(ntp64)) for one, ntp64 in stamped]
            held = self._are_held(receipts, goes_on)
            if held:
                self.claiming.proven(positions, sent_ns)
            return held

    def _note_held(self, positions: Iterable[Position]) -> None:
        with self._held_lock:
            for one in positions:
                self._held[one.run] = one
            while len(self._held) > self._options.runs_max:
                del self._held[next(iter(self._held))]

    def joined(self, read: Iterable[Position]) -> list[Position]:
        """Return where all sources stand, by what was read and what caches once acknowledged."""
        with self._held_lock:
            return join_positions([*read, *self._held.values()])

    def claim(self, sources: Iterable[SourceId], fence: int, may_wait: Callable[[], bool]) -> bool:
        """Claim sources and wait until a majority holds that, as `write` does.

        Raises Fenced where some cache knows such a fence, or a later one, of another member.
        """
        if self.claiming is None or self.key_expr is None:
            raise AssertionError("who is exclusive claims what it consumes")
        sent_ns, now_ntp64 = time.monotonic_ns(), raw_timestamp(self._now())[0]
        self.fence_read = max(self.fence_read, fence)  # where it is refused, the next is above it
        ntp64 = self.claiming.next_ntp64(now_ntp64, self._newest_ntp64)
        claimed, receipts = list(sources), []
        for source in claimed:
            told = Position(str(self.key_expr), source, 0, "", -1, fence=fence, exclusive=True)
            key = claim_key(self._domain, self._consumer, source)
            receipts.append(self._publish(key, told, self._at(ntp64)))
        if not self._are_held(receipts, may_wait):
            return False
        self.claiming.held(claimed, fence, ntp64, sent_ns)
        return True

    def _are_held(self, receipts: Iterable[Receipt], may_wait: Callable[[], bool]) -> bool:
        return all(self._is_held(receipt, may_wait) for receipt in receipts)

    def bury(self, letter: DeadLetter, may_wait: Callable[[], bool]) -> bool:
        """Write a dead letter and wait until caches hold it, as `write` does."""
        key = dead_letter_key(self._domain, self._consumer, letter.sample)
        return self._is_held(self._publisher.put(encode_dead_letter(letter), key=key), may_wait)

    def _is_held(self, receipt: Receipt, may_wait: Callable[[], bool]) -> bool:
        while not receipt.wait(_LOOK_SECONDS):
            if RefusalReason.FENCED in receipt.refused.values():
                raise Fenced(
                    f"consumer {self._consumer!r}: another member has the source by now, and what "
                    "was confirmed here since is processed there, too"
                )
            if receipt.unknown:
                raise OutcomeUnknown(f"fewer than {self._options.wanted} caches acknowledged it")
            if self._publisher.closed or not may_wait():
                return False
        return True

    def close(self) -> None:
        """Give up the name; idempotent."""
        self._withdraw()
        if self.membership is not None:
            self.membership.close()
        if self.claiming is not None:
            self.claiming.close()
        self._publisher.close()

    def read_now(self, timeout_seconds: float, source: SourceId | None = None) -> list[Position]:
        """Return where the consumer stands, in all sources or in one.

        StorageUnavailable, to be tried again, where unknown. Positions that are written from now on
        are stamped later than all of these.
        """
        asking = Asking(self._session, zid_of(self._session), timeout_seconds=timeout_seconds)
        return join_positions(self._read_once(asking, source))

    def read_claimed(
        self,
        sources: Iterable[SourceId],
        timeout_seconds: float,
        pause: Callable[[], object],
        *,
        alone: SourceId | None = None,
    ) -> list[Position]:
        """Return where the consumer stands, once a majority holds our claims to some sources.

        All that it was told to be held is in it, and nothing more will be of earlier claims.
        `pause` is called once these are held; `alone` names the source that is read alone.
        """
        if self.claiming is None:
            raise AssertionError("who is exclusive has claims")
        keys = [claim_key(self._domain, self._consumer, source) for source in sources]
        return self.claiming.read_twice(keys, lambda: self.read_now(timeout_seconds, alone), pause)

    def _put(self, position: Position, timestamp: Timestamp | None) -> Receipt:
        writer = self._publisher.source if self.membership and not self.claiming else None
        run = position.source, position.epoch, position.rewinds
        key = position_key(self._domain, self._consumer, *run, writer)
        return self._publish(key, position, timestamp)

    def _publish(self, key: str, position: Position, timestamp: Timestamp | None) -> Receipt:
        value = encode_position(position)
        return self._publisher.publish(Kind.PUT, value, "zenoh/bytes", None, key, timestamp)

    def _now(self) -> Timestamp:
        return new_timestamp(self._session)

    def _at(self, ntp64: int) -> Timestamp | None:
        return build_timestamp(ntp64, raw_timestamp(self._now())[1])

    def _stamp(self) -> Timestamp | None:
        """Return a time after all positions that were read: their writer's clock may be ahead."""
        stamp = self._now()
        if raw_timestamp(stamp)[0] > self._newest_ntp64:
            return stamp
        self._newest_ntp64 += _NTP64_AFTER
        return self._at(self._newest_ntp64)

    def _await_caches(self, deadline: float) -> None:
        while not self._is_stored(self._kept_key_expr, whole=True):
            if time.monotonic() >= deadline:
                whole = kept_key_expr(self._domain, "*")
                raise ConfigError(
                    f"consumer {self._consumer!r}: no cache in reach stores its positions; give "
                    f'some storage the key expression "{whole}"'
                )
            time.sleep(_PAUSE_SECONDS)
        while self.key_expr is not None and not self._is_stored(self.key_expr, whole=False):
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"consumer {self._consumer!r}: no cache in reach stores anything of "
                    f"{self.key_expr}, so there is nothing to go on from; give some storage that "
                    "key expression, or name another one"
                )
            time.sleep(_PAUSE_SECONDS)

    def _is_stored(self, key_expr: KeyExpression, *, whole: bool) -> bool:
        """Tell whether a cache shows that it stores some of a key expression, or all of it."""
        pattern = tokens_about(self._domain, "history", key_expr)
        for key in tokens_now(self._session, pattern, _TOKENS_SECONDS_MAX):
            token = parse_history_token(key, self._domain)
            if token is None:
                continue
            stored = token.key_expr
            if stored.includes(key_expr) if whole else stored.intersects(key_expr):
                return True
        return False

    def _claim(self) -> None:
        """Show that this consumer lives, once no other one of its name does."""
        deadline = time.monotonic() + self._options.predecessor_seconds
        own = consumer_token(self._domain, self._consumer, self._publisher.source)
        while True:
            others = self._others(own)
            if others is not None and not others:
                if self._token is not None:
                    return
                if self.membership is not None:
                    self.membership.appear()  # first: who lives and shows no more shares nothing
                self._token = declare_token(self._session, own)
                continue  # another one may have looked at the same moment
            self._withdraw()
            if time.monotonic() >= deadline:
                raise self._refused(others)
            time.sleep(random.uniform(_PAUSE_SECONDS, 2 * _PAUSE_SECONDS))  # noqa: S311  # no secret

    def _withdraw(self) -> None:
        if self._token is not None:
            undeclare(self._token)
            self._token = None
        if self.membership is not None:
            self.membership.disappear()

    def _others(self, own: str) -> set[str] | None:
        """Return the tokens of those that leave no place for us; None where that is unknown."""
        pattern = consumer_tokens(self._domain, self._consumer)
        tokens = tokens_for_certain(self._session, pattern, _TOKENS_SECONDS_MAX)
        if tokens is None or self.membership is None:
            return None if tokens is None else tokens - {own}
        members = self.membership.members_now()
        if members is None:
            return None
        others = tokens - {own}
        shares = {consumer_token(self._domain, self._consumer, member) for member in members}
        is_full = len(shares - {own}) >= self._options.members_max
        return others if is_full else others - shares

    def _refused(self, others: Iterable[str] | None) -> ConfigError | StorageUnavailable:
        if others is None:
            return StorageUnavailable(
                f"consumer {self._consumer!r}: whether another one lives is unknown; try again"
            )
        who = ", ".join(sorted(other.rpartition("/")[2] for other in others))
        return ConfigError(
            f"consumer {self._consumer!r} is in use by another subscriber ({who}): close that one, "
            "or choose another name; to share its sources, raise members_max of all of them"
        )

    def _read(self, timeout_seconds: float, deadline: float) -> list[Position]:
        """Return where the consumer stands, from all caches that store its positions."""
        asking = Asking(self._session, zid_of(self._session), timeout_seconds=timeout_seconds)
        while True:
            try:
                return self._read_once(asking)
            except StorageUnavailable:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _read_once(self, asking: Asking, source: SourceId | None = None) -> list[Position]:
        positions = positions_key_expr(self._domain, self._consumer, source)
        found: list[Position] = []
        after: Sample | None = None
        depth = 1
        if self.claiming is not None:
            self.claiming.begin_reading()
            depth = 1 if source is None else _CLAIMS_READ  # behind ours lies who had it before
        while True:
            gathered = asking.page(str(positions), "*", f"_max={depth}", after)
            after = gathered.following(after)
            if gathered.errors or not gathered.answers:
                reason = gathered.errors[0] if gathered.errors else "no cache answered"
                raise StorageUnavailable(
                    f"consumer {self._consumer!r}: its positions could not be read ({reason}); "
                    "try again"
                )
            if self.claiming is not None:
                self.claiming.note(self._domain, gathered)
            for sample in gathered.ordered():
                self._newest_ntp64 = max(self._newest_ntp64, sample.ntp64)
                if sample.kind is Kind.PUT:
                    position = self._position(sample)
                    self.fence_read = max(self.fence_read, position.fence)
                    if not is_claim_key(self._domain, sample.key):
                        found.append(position)
            if after is None or len(found) > 2 * self._options.runs_max:
                found = join_positions(found)
                self._check_bound(found)
            if after is None:
                return found

    def _given(self, value: bytes) -> Position:
        try:
            return self._checked(decode_position(value))
        except RemoteProtocolError as error:
            raise ConfigError(f"positions: one is damaged, or is none: {error}") from error

    def _position(self, sample: Sample) -> Position:
        try:
            return self._checked(decode_position(sample.payload))
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"the position at {sample.key}: {error}") from error

    def _checked(self, position: Position) -> Position:
        if self.key_expr is None:
            self.key_expr = KeyExpression(position.key_expr)
        if position.key_expr != str(self.key_expr):
            raise ConfigError(
                f"consumer {self._consumer!r} consumes {position.key_expr}, not {self.key_expr}: "
                "choose another name for what is consumed here"
            )
        return position

    def _check_bound(self, positions: Sequence[Position]) -> None:
        if len(positions) > self._options.runs_max:
            raise ConfigError(
                f"consumer {self._consumer!r} has positions in {len(positions)} runs of sources: "
                f"raise runs_max, which is {self._options.runs_max}"
            )
