"""The claims of an exclusive consumer, and which of the caches that must hold them are in reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import msgspec

from durable_cache.endpoints.asking import Gathered
from durable_cache.endpoints.session import (
    Session,
    take_token_changes,
    undeclare,
    watch_tokens_polled,
)
from durable_cache.errors import Fenced, NoMajority, StorageUnavailable
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import Position, is_claim_key, kept_key_expr
from durable_cache.protocol.majority import Claims, majority_of
from durable_cache.protocol.wire import parse_history_token, tokens_about

_PAUSE_SECONDS = 0.05


class Reach:
    """Which caches that store a consumer's positions are in reach; owned by one thread."""

    def __init__(self, session: Session, domain: str, consumer: str, caches: int) -> None:
        self._domain, self._consumer, self._caches = domain, consumer, caches
        self._kept = kept_key_expr(domain, consumer)
        self._tokens: set[str] = set()
        self._watch = watch_tokens_polled(session, tokens_about(domain, "history", self._kept))

    def look(self) -> NoMajority | None:
        """Return why nothing may be processed now; None where a majority is in reach."""
        for key, alive in take_token_changes(self._watch):
            (self._tokens.add if alive else self._tokens.discard)(key)
        tokens = (parse_history_token(key, self._domain) for key in self._tokens)
        caches = {
            token.cache_id
            for token in tokens
            if token is not None and token.key_expr.includes(self._kept)
        }
        about = f"consumer {self._consumer!r} stops: {len(caches)} caches in reach store positions"
        if len(caches) > self._caches:
            return NoMajority(
                f"{about}, {self._caches} are configured: say in ConsumerOptions(caches=...) of "
                "all members how many there are"
            )
        if len(caches) < majority_of(self._caches):
            return NoMajority(
                f"{about}, of {self._caches} {majority_of(self._caches)} must be; it goes on once "
                "they are back"
            )
        return None

    def wait(self, deadline: float) -> None:
        """Wait until a majority is in reach; raises NoMajority when the time is over."""
        while (missing := self.look()) is not None:
            if time.monotonic() >= deadline:
                raise missing
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Look no more; idempotent."""
        undeclare(self._watch)


class Claiming:
    """One member's claims; any thread, but `reach` and what is read."""

    def __init__(self, session: Session, domain: str, consumer: str, caches: int) -> None:
        self.reach = Reach(session, domain, consumer, caches)
        self.own: SourceId | None = None
        """Who writes our claims, once that is known."""
        self._consumer, self._caches = consumer, caches
        self._lock = Lock()
        self._claims = Claims()
        self._lapses = 0
        self._answered: set[str] | None = None
        """Who answered every page that was read; of the thread that delivers, as the next."""
        self._newest: dict[tuple[str, str], Sample] = {}
        """The newest claim that each cache showed, by its id and the claim's key."""
        self.contested = False
        """Whether what was read last shows that another member claimed something of it before."""
        self._writing = 0
        """How many threads write positions."""

    @contextmanager
    def writing(self, may_wait: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
        """Note that positions are written; yields a way to ask whether they still may be."""
        with self._lock:
            lapses = self._lapses
            self._writing += 1
        try:
            yield lambda: lapses == self._lapses and may_wait()
        finally:
            with self._lock:
                self._writing -= 1

    @property
    def is_writing(self) -> bool:
        """Whether positions wait for a majority."""
        return self._writing > 0

    def lapse(self) -> None:
        """Give up all claims; what is being written waits no more."""
        with self._lock:
            self._lapses += 1
            self._claims.forget()

    def __contains__(self, source: SourceId) -> bool:
        with self._lock:
            return source in self._claims

    def due(self, positions: Sequence[Position], now_ntp64: int) -> dict[int, set[SourceId]]:
        """Return what is to be claimed before positions are written, and under which fences."""
        with self._lock:
            due = self._claims.due((one.source for one in positions), now_ntp64)
            return self._claims.by_fence(due, max(one.fence for one in positions)) if due else {}

    def by_fence(self, sources: Iterable[SourceId], fence: int) -> dict[int, set[SourceId]]:
        """Return under which fences to claim some sources: a new one under the one given."""
        with self._lock:
            return self._claims.by_fence(sources, fence)

    def next_ntp64(self, now_ntp64: int, read_ntp64: int) -> int:
        """Return what a claim is stamped with."""
        with self._lock:
            return self._claims.next_ntp64(now_ntp64, read_ntp64)

    def held(self, sources: Iterable[SourceId], fence: int, ntp64: int, sent_ns: int) -> None:
        """A majority holds the claims to some sources."""
        with self._lock:
            self._claims.held(sources, fence, ntp64, sent_ns)

    def proven(self, positions: Sequence[Position], sent_ns: int) -> None:
        """A majority took positions."""
        with self._lock:
            self._claims.proven((one.source for one in positions), sent_ns)

    def has(self, source: SourceId) -> bool:
        """Tell whether samples of a source may be handed out now."""
        with self._lock:
            return self._claims.has(source, time.monotonic_ns())

    def forget(self, sources: Iterable[SourceId]) -> None:
        """Forget the claims to some sources."""
        with self._lock:
            self._claims.forget(sources)

    def stamped(self, positions: Sequence[Position]) -> list[tuple[Position, int]]:
        """Return the next batch of positions, under the fences of their claims, with stamps."""
        claims = self._claims
        with self._lock:
            claims.advance()
            if not all(one.source in claims for one in positions):
                raise Fenced(f"consumer {self._consumer!r} gave its claims up meanwhile")
            return [
                (
                    msgspec.structs.replace(one, exclusive=True, fence=claims.fence_of(one.source)),
                    claims.stamp(one.source),
                )
                for one in positions
            ]

    def begin_reading(self) -> None:
        """Positions are read from the first page on."""
        self._answered, self._newest, self.contested = None, {}, False

    def note(self, domain: str, page: Gathered) -> None:
        """Note who answered, and showed which claims.

        Raises StorageUnavailable where fewer than a majority said what they hold.
        """
        answered = self._answered
        self._answered = page.repliers if answered is None else answered & page.repliers
        self._check(len(self._answered))
        for replier, part in page.parts.items():
            for sample in part.samples:
                if is_claim_key(domain, sample.key):
                    self.contested |= sample.source != self.own
                    before = self._newest.get((replier, sample.key))
                    if before is None or before.ntp64 < sample.ntp64:
                        self._newest[replier, sample.key] = sample

    def _showing(self) -> dict[str, set[str]]:
        """Return who showed a claim of ours as the newest, by its key."""
        showing: dict[str, set[str]] = {}
        for (replier, key), sample in self._newest.items():
            if sample.source == self.own and self._claims.is_newest(sample.ntp64):
                showing.setdefault(key, set()).add(replier)
        return showing

    def read_twice(
        self, keys: Iterable[str], read: Callable[[], list[Position]], pause: Callable[[], object]
    ) -> list[Position]:
        """Read behind claims of ours, at these keys, that a majority holds.

        What is read counts of those alone that showed the claim before: what another member's
        position is acknowledged by from then on is no majority. Raises StorageUnavailable where
        these are too few.
        """
        read()
        showed = self._showing()
        pause()
        positions = read()
        for key in keys:
            self._check(len(showed.get(key, set()) & (self._answered or set())))
        return positions

    def _check(self, answers: int) -> None:
        if answers < majority_of(self._caches):
            raise StorageUnavailable(
                f"consumer {self._consumer!r}: {answers} of {self._caches} caches told where it "
                "stands, fewer than a majority; try again"
            )

    def close(self) -> None:
        """Look at caches no more; idempotent."""
        self.reach.close()
