"""How a batch becomes rows: once, first wins, all or nothing.

The batch is inserted as if all of it were new, which it nearly always is. Only when a row of it is
held already does a second way look up what is held and sort out duplicates and conflicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, select, update

from durable_cache.errors import StorageLocked
from durable_cache.model.sample import Sample, SampleBatch, Skip, sample_digest
from durable_cache.storage.contract import AppendResult, Conflict, Refusal
from durable_cache_sql.database import Database
from durable_cache_sql.dictionary import ZID_BYTES, Dictionary
from durable_cache_sql.skips import write_skips
from durable_cache_sql.tables import samples, streams

__all__ = ["append_batch", "refusals"]

STATEMENT_BYTES_MAX = 64 << 20
INTEGER_MAX = (1 << 63) - 1
_HEX = frozenset("0123456789abcdefABCDEF")


class _Offers(NamedTuple):
    """Samples and the numbers of their streams."""

    samples: Sequence[Sample]
    stream_ids: Sequence[int]

    def at(self, places: Iterable[int]) -> _Offers:
        """Return those at the given places."""
        chosen = list(places)
        return _Offers(*([column[at] for at in chosen] for column in self))  # type: ignore[arg-type]

    def part(self, begin: int, end: int) -> _Offers:
        """Return those from `begin` to before `end`."""
        return _Offers(self.samples[begin:end], self.stream_ids[begin:end])


def append_batch(
    database: Database,
    dictionary: Dictionary,
    connection: Connection,
    storage_id: int,
    batch: SampleBatch,
    given_skips: Sequence[Skip],
) -> AppendResult:
    """Store a batch within the caller's transaction; see `Storage.append`."""
    refused = refusals(batch, dictionary.zids)
    kept = batch
    if refused:
        unwanted = {id(refusal.sample) for refusal in refused}
        kept = SampleBatch(sample for sample in batch if id(sample) not in unwanted)
    dictionary.make_room()
    dictionary.add_zids(connection, {sample.timestamp_id for sample in kept})
    dictionary.add_encodings(connection, {sample.encoding for sample in kept})
    dictionary.add_streams(connection, storage_id, kept.by_stream)
    new, conflicts = _by_stream(kept, dictionary), list[Conflict]()
    if not _insert(database, dictionary, connection, storage_id, new):
        new, conflicts = _sorted_out(database, connection, _as_given(kept, dictionary))
        if not _insert(database, dictionary, connection, storage_id, new):
            raise StorageLocked(f"{database.subject}: another writer appends to this storage")
    stored = kept if len(new.samples) == len(kept) else SampleBatch(new.samples)
    _count(database, connection, stored, dictionary)
    write_skips(database, dictionary, connection, storage_id, stored, given_skips)
    duplicates = len(kept) - len(stored) - len(conflicts)
    return AppendResult(len(stored), duplicates, tuple(conflicts), tuple(refused))


def _by_stream(batch: SampleBatch, dictionary: Dictionary) -> _Offers:
    """Return a batch stream by stream: neighbours in a stream become neighbours on the disk."""
    samples: list[Sample] = []
    stream_ids: list[int] = []
    for stream, group in batch.by_stream.items():
        samples += group
        stream_ids += [dictionary.streams[stream]] * len(group)
    return _Offers(samples, stream_ids)


def _as_given(batch: SampleBatch, dictionary: Dictionary) -> _Offers:
    return _Offers(batch.samples, [dictionary.streams[sample.stream] for sample in batch])


def refusals(batch: SampleBatch, known: Collection[str] = ()) -> list[Refusal]:
    """Return what no table can ever hold; `known` timestamp ids are in a table already."""
    found: list[Refusal] = []
    stamps = {sample.timestamp_id for sample in batch}.difference(known)
    bad = {text for text in stamps if len(text) > 2 * ZID_BYTES or not _HEX.issuperset(text)}
    if bad:
        found += [
            Refusal(sample, f"timestamp id {sample.timestamp_id[:40]!r} is no hex of 32 digits")
            for sample in batch
            if sample.timestamp_id in bad
        ]
    found += [
        Refusal(sample, "sn or received_ns is no 63-bit number")
        for sample in batch
        if not (0 <= sample.sn <= INTEGER_MAX and 0 <= sample.received_ns <= INTEGER_MAX)
        and sample.timestamp_id not in bad
    ]
    return found


def _insert(
    database: Database,
    dictionary: Dictionary,
    connection: Connection,
    storage_id: int,
    offers: _Offers,
) -> bool:
    """Insert all or, when one is held, nothing."""
    with connection.begin_nested() as nested:
        parts = _parts(offers, database.part_samples_max)
        columns = (_columns(dictionary, storage_id, part) for part in parts)
        if not database.insert_parts(connection, columns):
            nested.rollback()
            return False
    return True


def _parts(offers: _Offers, samples_max: int) -> Iterator[_Offers]:
    """Cut so that samples and bytes of one statement stay bounded."""
    begin = size = 0
    for at, sample in enumerate(offers.samples):
        more = len(sample.payload)
        if at > begin and (size + more > STATEMENT_BYTES_MAX or at - begin >= samples_max):
            yield offers.part(begin, at)
            begin, size = at, 0
        size += more
    if offers.samples:
        yield offers.part(begin, len(offers.samples))


def _columns(dictionary: Dictionary, storage_id: int, offers: _Offers) -> list[Sequence[object]]:
    """Return the batch column by column, as `SAMPLE_COLUMNS` names them."""
    given = offers.samples
    encodings, stamps = dictionary.encodings, dictionary.zids
    return [
        offers.stream_ids,
        [sample.sn for sample in given],
        [storage_id] * len(given),
        [sample.kind.value for sample in given],
        [int(sample.stamped) for sample in given],
        [sample.qos for sample in given],
        [encodings[sample.encoding] for sample in given],
        [stamps[sample.timestamp_id] for sample in given],
        [sample.ntp64 >> 32 for sample in given],
        [sample.ntp64 & 0xFFFFFFFF for sample in given],
        [sample.received_ns for sample in given],
        [sample_digest(sample) for sample in given],
        [sample.payload for sample in given],
        [sample.attachment for sample in given],
    ]


def _sorted_out(
    database: Database, connection: Connection, offers: _Offers
) -> tuple[_Offers, list[Conflict]]:
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
    sns = [sample.sn for sample in offers.samples]
    places = sorted(set(zip(offers.stream_ids, sns, strict=True)))
    if not places:
        return offers, []
    bound = database.bind("places", (int, int), list(zip(*places, strict=True)))
    rows = database.rows(connection, statement, bound)
    held = {(stream_id, sn): bytes(digest) for stream_id, sn, digest in rows}
    new: list[int] = []
    conflicts: list[Conflict] = []
    for at, (sample, stream_id) in enumerate(zip(*offers, strict=True)):
        digest = sample_digest(sample)
        first = held.get((stream_id, sample.sn))
        if first is None:
            held[stream_id, sample.sn] = digest
            new.append(at)
        elif first != digest:
            conflicts.append(Conflict(sample.identity, first, digest))
    return offers.at(new), conflicts


def _count(
    database: Database, connection: Connection, stored: SampleBatch, dictionary: Dictionary
) -> None:
    """Add what was stored to each stream's number of samples and bytes."""
    ids = dictionary.streams
    rows = [
        (
            ids[stream],
            len(group),
            sum([len(sample.payload) + len(sample.attachment or b"") for sample in group]),
        )
        for stream, group in stored.by_stream.items()
    ]
    if rows:
        add_counts(database, connection, sorted(rows))


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
