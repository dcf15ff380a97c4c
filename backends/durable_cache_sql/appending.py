"""How a batch becomes rows: once, first wins, all or nothing.

The batch is inserted as if all of it were new, which it nearly always is. Only when a row of it is
held already does a second way look up what is held and sort out duplicates and conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, select, update

from durable_cache.errors import StorageLocked
from durable_cache.model.sample import Sample, SampleBatch, Skip
from durable_cache.storage.contract import AppendResult, Conflict, Refusal
from durable_cache_sql.database import Database
from durable_cache_sql.dictionary import ZID_BYTES, Dictionary
from durable_cache_sql.skipping import write_skips
from durable_cache_sql.tables import samples, streams

__all__ = ["append_batch"]

STATEMENT_BYTES_MAX = 64 << 20
INTEGER_MAX = (1 << 63) - 1
_HEX = frozenset("0123456789abcdefABCDEF")


class _Offer(NamedTuple):
    sample: Sample
    digest: bytes
    stream_id: int


def append_batch(
    database: Database,
    dictionary: Dictionary,
    connection: Connection,
    storage_id: int,
    batch: SampleBatch,
    given_skips: Sequence[Skip],
) -> AppendResult:
    """Store a batch within the caller's transaction; see `Storage.append`."""
    refused = _refused(batch, dictionary)
    kept = batch
    if refused:
        unwanted = {id(refusal.sample) for refusal in refused}
        kept = SampleBatch(sample for sample in batch if id(sample) not in unwanted)
    dictionary.add_zids(connection, {sample.timestamp_id for sample in kept})
    dictionary.add_encodings(connection, {sample.encoding for sample in kept})
    dictionary.add_streams(connection, storage_id, kept.by_stream)
    ids = dictionary.streams
    offers = [
        _Offer(sample, digest, ids[sample.key, sample.source, sample.epoch])  # type: ignore[index]
        for sample, digest in zip(kept.samples, kept.digests, strict=True)
    ]
    places = {(offer.stream_id, offer.sample.sn) for offer in offers}
    conflicts: list[Conflict] = []
    new = offers
    whole = len(places) == len(offers)
    if not (whole and _insert(database, dictionary, connection, storage_id, offers)):
        new, conflicts = _sorted_out(database, connection, offers)
        if not _insert(database, dictionary, connection, storage_id, new):
            raise StorageLocked(f"{database.subject}: another writer appends to this storage")
    _count(database, connection, new)
    stored = new if len(new) < len(kept) else None
    write_skips(database, dictionary, connection, storage_id, _runs(kept, stored), given_skips)
    duplicates = len(offers) - len(new) - len(conflicts)
    return AppendResult(len(new), duplicates, tuple(conflicts), tuple(refused))


def _runs(batch: SampleBatch, stored: list[_Offer] | None) -> SampleBatch:
    return batch if stored is None else SampleBatch(offer.sample for offer in stored)


def _refused(batch: SampleBatch, dictionary: Dictionary) -> list[Refusal]:
    known = dictionary.zids
    found: list[Refusal] = []
    for sample in batch:
        text = sample.timestamp_id
        if text not in known and (len(text) > 2 * ZID_BYTES or not _HEX.issuperset(text)):
            found.append(Refusal(sample, f"timestamp id {text[:40]!r} is no hex of 32 digits"))
        elif not (0 <= sample.received_ns <= INTEGER_MAX and 0 <= sample.sn <= INTEGER_MAX):
            found.append(Refusal(sample, "sn or received_ns is no 63-bit number"))
    return found


def _insert(
    database: Database,
    dictionary: Dictionary,
    connection: Connection,
    storage_id: int,
    offers: Sequence[_Offer],
) -> bool:
    """Insert all or, when one is held, nothing."""
    with connection.begin_nested() as nested:
        for part in _parts(offers):
            if not database.insert_samples(connection, _columns(dictionary, storage_id, part)):
                nested.rollback()
                return False
    return True


def _parts(offers: Sequence[_Offer]) -> Iterator[Sequence[_Offer]]:
    """Cut so that the bytes of one statement stay bounded."""
    total = sum(len(offer.sample.payload) for offer in offers)
    if total <= STATEMENT_BYTES_MAX:
        if offers:
            yield offers
        return
    begin = size = 0
    for at, offer in enumerate(offers):
        more = len(offer.sample.payload)
        if size + more > STATEMENT_BYTES_MAX and at > begin:
            yield offers[begin:at]
            begin, size = at, 0
        size += more
    yield offers[begin:]


def _columns(
    dictionary: Dictionary, storage_id: int, offers: Sequence[_Offer]
) -> list[Sequence[object]]:
    """Return the batch column by column, as `SAMPLE_COLUMNS` names them."""
    given = [offer.sample for offer in offers]
    encodings, stamps = dictionary.encodings, dictionary.zids
    return [
        [offer.stream_id for offer in offers],
        [sample.sn for sample in given],
        [storage_id] * len(given),
        [int(sample.kind) for sample in given],
        [int(sample.stamped) for sample in given],
        [sample.qos for sample in given],
        [encodings[sample.encoding] for sample in given],
        [stamps[sample.timestamp_id] for sample in given],
        [sample.ntp64 >> 32 for sample in given],
        [sample.ntp64 & 0xFFFFFFFF for sample in given],
        [sample.received_ns for sample in given],
        [offer.digest for offer in offers],
        [sample.payload for sample in given],
        [sample.attachment for sample in given],
    ]


def _sorted_out(
    database: Database, connection: Connection, offers: Sequence[_Offer]
) -> tuple[list[_Offer], list[Conflict]]:
    """Tell new samples from conflicts; the rest are duplicates."""
    table = database.table("places", int, int)
    statement = database.prepare(
        "held digests",
        lambda: select(samples.c.stream_id, samples.c.sn, samples.c.digest).join_from(
            table,
            samples,
            and_(samples.c.stream_id == table.c.c0, samples.c.sn == table.c.c1),
        ),
    )
    places = sorted({(offer.stream_id, offer.sample.sn) for offer in offers})
    bound = database.bind("places", (int, int), list(zip(*places, strict=True)))
    rows = database.rows(connection, statement, bound)
    held = {(stream_id, sn): bytes(digest) for stream_id, sn, digest in rows}
    new: list[_Offer] = []
    conflicts: list[Conflict] = []
    for offer in offers:
        place = (offer.stream_id, offer.sample.sn)
        first = held.get(place)
        if first is None:
            held[place] = offer.digest
            new.append(offer)
        elif first != offer.digest:
            conflicts.append(Conflict(offer.sample.identity, first, offer.digest))
    return new, conflicts


def _count(database: Database, connection: Connection, new: Sequence[_Offer]) -> None:
    """Add what was stored to each stream's number of samples and bytes."""
    counts: dict[int, list[int]] = {}
    for offer in new:
        sample = offer.sample
        size = len(sample.payload) + len(sample.attachment or b"")
        count = counts.get(offer.stream_id)
        if count is None:
            counts[offer.stream_id] = [1, size]
        else:
            count[0] += 1
            count[1] += size
    if counts:
        rows = [(stream_id, n, size) for stream_id, (n, size) in sorted(counts.items())]
        add_counts(database, connection, rows)


def add_counts(
    database: Database, connection: Connection, rows: Sequence[tuple[int, int, int]]
) -> None:
    """Change the counters of streams by (stream_id, samples, bytes)."""
    table = database.table("counts", int, int, int)
    statement = database.prepare(
        "count",
        lambda: (
            update(streams)
            .values(samples=streams.c.samples + table.c.c1, bytes=streams.c.bytes + table.c.c2)
            .where(streams.c.id == table.c.c0)
        ),
    )
    bound = database.bind("counts", (int,) * 3, list(zip(*rows, strict=True)))
    database.run(connection, statement, bound)
