"""What the subscribers of a domain count: R and UR by mode, subjects, and what was done twice.

Subscribers are asked when somebody looks, and never waited for: what is shown is what they answered
to the look before.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from functools import reduce
from threading import Lock
from typing import NamedTuple

from durable_cache.endpoints.session import Decoder, Replies, Session, ask_later, zid_of
from durable_cache.endpoints.subscriber.tables import (
    TABLE_BYTES_MAX,
    ConsumerCounts,
    ask_tables,
    by_consumer,
)
from durable_cache.errors import Closed, RemoteProtocolError
from durable_cache.protocol.losses import OTHERS, LossRow, LossTable, decode_rows
from durable_cache.protocol.subjects import SubjectCounts
from durable_cache.protocol.wire import own_key

_ASK_SECONDS = 5.0
"""How long an answer may take; so long nobody is asked again."""
_PAUSE_SECONDS = 1.0
_SUBSCRIBERS_MAX = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class ModeRates:
    """What the subscribers in one delivery mode count together."""

    mode: str
    subscribers: int
    delivered: int
    """Samples passed on, each once."""
    repeats: int
    lost: int
    reliability: float | None
    """R; None where nothing was passed on."""
    uniqueness: float | None
    """UR."""


class Told(NamedTuple):
    """What subscribers answered, summed up."""

    subscribers: tuple[ModeRates, ...] = ()
    consumers: tuple[ConsumerCounts, ...] = ()
    subjects: SubjectCounts = SubjectCounts()
    """What they counted of publishers that count each key by itself."""


class Measured:
    """Asks subscribers for their tables; any thread. Zenoh's only leaves the replies here."""

    def __init__(self, session: Session, domain: str) -> None:
        self._session = session
        self._selector = own_key(domain, "loss", "*")
        self._decoder = Decoder(zid_of(session), TABLE_BYTES_MAX)
        self._lock = Lock()
        self._asked_seconds = -_ASK_SECONDS
        self._asking = False
        self._came: Replies | None = None
        self._told = Told()

    def look(self) -> Told:
        """Return what was answered last, and ask again; an unreadable table is left out."""
        with self._lock:
            came, self._came = self._came, None
            if came is not None:
                self._told = _summed_up([*self._tables(came)])
            now = time.monotonic()
            asks = now - self._asked_seconds >= (_ASK_SECONDS if self._asking else _PAUSE_SECONDS)
            if asks:
                self._asked_seconds, self._asking = now, True
            told = self._told
        if asks:
            self._ask()
        return told

    def _ask(self) -> None:
        try:
            ask_later(
                self._session,
                self._selector,
                self._ended,
                timeout_seconds=_ASK_SECONDS,
                replies_max=_SUBSCRIBERS_MAX,
            )
        except Closed:
            return  # so is the service

    def _ended(self, replies: Replies) -> None:
        with self._lock:
            self._came, self._asking = replies, False

    def _tables(self, came: Replies) -> Iterable[LossTable]:
        for answer in came.answers(self._decoder):
            if answer.sample is None:
                continue
            try:
                yield decode_rows(answer.sample.payload)
            except RemoteProtocolError:
                continue


def told_now(session: Session, domain: str) -> tuple[Told, tuple[str, ...]]:
    """Ask the subscribers of a domain, and wait; return why tables could not be read, too."""
    selector = own_key(domain, "loss", "*")
    tables, errors = ask_tables(session, selector, timeout_seconds=_ASK_SECONDS)
    return _summed_up(tables), errors


def _summed_up(tables: Sequence[LossTable]) -> Told:
    subjects = SubjectCounts.summed(table.subjects for table in tables)
    return Told(by_mode(tables), by_consumer(tables), subjects)


def by_mode(tables: Iterable[LossTable]) -> tuple[ModeRates, ...]:
    """Return the sums of all tables of subscribers in the same mode, by its name."""
    found: dict[str, list[LossTable]] = {}
    for table in tables:
        found.setdefault(table.mode, []).append(table)
    return tuple(_summed(mode, found[mode]) for mode in sorted(found))


def _summed(mode: str, tables: list[LossTable]) -> ModeRates:
    rows = (row for table in tables for row in table.rows)
    total = reduce(LossRow.joined, rows, LossRow(None, OTHERS))
    reliability, uniqueness = total.rates or (None, None)
    return ModeRates(
        mode, len(tables), total.delivered, total.repeats, total.lost, reliability, uniqueness
    )
