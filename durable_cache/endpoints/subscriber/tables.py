"""What the subscribers that run count: their tables of losses, asked for and summed up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from durable_cache.endpoints.session import Decoder, Session, ask, zid_of
from durable_cache.errors import RemoteProtocolError
from durable_cache.protocol.losses import LossTable, decode_rows

TABLE_BYTES_MAX = 64 << 20


class Tables(NamedTuple):
    """What subscribers answered."""

    found: tuple[LossTable, ...]
    errors: tuple[str, ...]
    """Why a table is not among them."""


class ConsumerCounts(NamedTuple):
    """What the members of a durable consumer that run count together."""

    consumer: str
    members: int
    processed_twice: int
    """Samples that one of them processed, and another one too, found when a partition healed."""


def ask_tables(session: Session, selector: str, *, timeout_seconds: float) -> Tables:
    """Ask subscribers for their tables; what cannot be read costs the others nothing."""
    found: list[LossTable] = []
    errors: list[str] = []
    decoder = Decoder(zid_of(session), TABLE_BYTES_MAX)
    for answer in ask(session, selector, timeout_seconds=timeout_seconds, decoder=decoder):
        try:
            if answer.sample is None:
                raise RemoteProtocolError(answer.error)
            found.append(decode_rows(answer.sample.payload))
        except RemoteProtocolError as error:
            errors.append(str(error))
    return Tables(tuple(found), tuple(errors))


def by_consumer(tables: Iterable[LossTable]) -> tuple[ConsumerCounts, ...]:
    """Return the sums of the members of each consumer, by its name."""
    sums: dict[str, ConsumerCounts] = {}
    for table in tables:
        if table.consumer:
            _, members, twice = sums.get(table.consumer, ("", 0, 0))
            counted = ConsumerCounts(table.consumer, members + 1, twice + table.processed_twice)
            sums[table.consumer] = counted
    return tuple(sums[consumer] for consumer in sorted(sums))
