"""Where a durable consumer's positions lie: read from caches at its start, written as it goes on.

One consumer of a name lives at a time: each shows a liveliness token, and whoever finds another
one's waits until that is gone, or is refused.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
from durable_cache.errors import ConfigError, RemoteProtocolError, StorageUnavailable
from durable_cache.model.arguments import check_fields, check_number, refused
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Kind, Sample
from durable_cache.protocol.consumers import (
    DeadLetter,
    Position,
    check_consumer,
    consumer_token,
    consumer_tokens,
    dead_letter_key,
    decode_position,
    encode_dead_letter,
    encode_position,
    kept_key_expr,
    position_key,
    positions_key_expr,
)
from durable_cache.protocol.subscriber.positions import join_positions
from durable_cache.protocol.wire import parse_history_token, tokens_about
from durable_cache.storage.contract import Durability

__all__ = ["ConsumerOptions", "Keeping"]

_TOKENS_SECONDS_MAX = 1.0
"""How long routers are waited for that say which tokens there are."""
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 0.2
"""How often somebody who waits for an acknowledgement looks whether it still should."""
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
    positions: tuple[bytes, ...] = ()
    """What the program kept of `consumer.position`; what these say is confirmed, is confirmed."""
    caches_seconds: float = 10.0
    """How long caches that store what is consumed, and its positions, may take to show up."""

    def checked(self) -> ConsumerOptions:
        """Return the options themselves; ConfigError names what no consumer can work with."""
        check_fields(self)
        if not all(isinstance(value, bytes) for value in self.positions):
            raise refused("positions", self.positions, "the values of consumer.position(sample)")
        for name in ("acknowledgements", "unconfirmed_max", "runs_max"):
            check_number(name, getattr(self, name), 1, whole=True)
        if self.attempts_max is not None:
            check_number("attempts_max", self.attempts_max, 1, whole=True)
        for name in ("confirm_seconds", "predecessor_seconds", "attempt_seconds", "caches_seconds"):
            check_number(name, getattr(self, name), 0, whole=False)
        return self


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
        self._token: Token | None = None
        written = PublisherOptions(
            cache=False,
            acknowledgements=options.acknowledgements,
            level=options.level,
            domain=domain,
        ).checked()
        deadline = time.monotonic() + options.caches_seconds
        self._await_caches(deadline)
        self._publisher: ReliablePublisher[Receipt] = ReliablePublisher(
            session, self._kept_key_expr, written
        )
        try:
            self._claim()
            deadline = time.monotonic() + options.caches_seconds
            given = [self._given(value) for value in options.positions]
            read = self._read(query_timeout_seconds, deadline)
            self.positions = join_positions([*read, *given])
            self._check_bound(self.positions)
        except BaseException:
            self.close()
            raise

    def write(self, positions: Sequence[Position], may_wait: Callable[[], bool]) -> bool:
        """Write positions and wait until caches hold them; False when `may_wait` says no more.

        Raises what a put raises. Whether they are held is unknown then, as after False; writing
        them again is harmless.
        """
        receipts = [self._put(position) for position in positions]
        return all(self._is_held(receipt, may_wait) for receipt in receipts)

    def bury(self, letter: DeadLetter, may_wait: Callable[[], bool]) -> bool:
        """Write a dead letter and wait until caches hold it, as `write` does."""
        key = dead_letter_key(self._domain, self._consumer, letter.sample)
        return self._is_held(self._publisher.put(encode_dead_letter(letter), key=key), may_wait)

    def _is_held(self, receipt: Receipt, may_wait: Callable[[], bool]) -> bool:
        while not receipt.wait(_LOOK_SECONDS):
            if self._publisher.closed or not may_wait():
                return False
        return True

    def close(self) -> None:
        """Give up the name; idempotent."""
        if self._token is not None:
            undeclare(self._token)
        self._publisher.close()

    def _put(self, position: Position) -> Receipt:
        key = position_key(self._domain, self._consumer, position.source, position.epoch)
        return self._publisher.put(encode_position(position), key=key, timestamp=self._stamp())

    def _stamp(self) -> Timestamp | None:
        """Return a time after all positions that were read: their writer's clock may be ahead."""
        stamp = new_timestamp(self._session)
        ntp64, stamp_id = raw_timestamp(stamp)
        if ntp64 > self._newest_ntp64:
            return stamp
        self._newest_ntp64 += _NTP64_AFTER
        return build_timestamp(self._newest_ntp64, stamp_id)

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
                    f"{self.key_expr}, so there is nothing to resume from; start one, or leave "
                    "consumer out"
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
        pattern = consumer_tokens(self._domain, self._consumer)
        own = consumer_token(self._domain, self._consumer, self._publisher.source)
        while True:
            tokens = tokens_for_certain(self._session, pattern, _TOKENS_SECONDS_MAX)
            others = None if tokens is None else tokens - {own}
            if others is not None and not others:
                if self._token is not None:
                    return
                self._token = declare_token(self._session, own)
                continue  # another one may have looked at the same moment
            if self._token is not None:
                undeclare(self._token)
                self._token = None
            if time.monotonic() >= deadline:
                raise self._refused(others)
            time.sleep(random.uniform(_PAUSE_SECONDS, 2 * _PAUSE_SECONDS))  # noqa: S311  # no secret

    def _refused(self, others: Iterable[str] | None) -> ConfigError | StorageUnavailable:
        if others is None:
            return StorageUnavailable(
                f"consumer {self._consumer!r}: whether another one lives is unknown; try again"
            )
        who = ", ".join(sorted(other.rpartition("/")[2] for other in others))
        return ConfigError(
            f"consumer {self._consumer!r} is in use by another subscriber ({who}): close that one, "
            "or choose another name"
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

    def _read_once(self, asking: Asking) -> list[Position]:
        positions = positions_key_expr(self._domain, self._consumer)
        found: list[Position] = []
        after: Sample | None = None
        while True:
            gathered = asking.page(str(positions), "*", "_max=1", after)
            after = gathered.following(after)
            if gathered.errors or not gathered.answers:
                reason = gathered.errors[0] if gathered.errors else "no cache answered"
                raise StorageUnavailable(
                    f"consumer {self._consumer!r}: its positions could not be read ({reason}); "
                    "try again"
                )
            for sample in gathered.ordered():
                self._newest_ntp64 = max(self._newest_ntp64, sample.ntp64)
                if sample.kind is Kind.PUT:
                    found.append(self._position(sample))
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
