"""How a batch becomes rows: once, first wins, all or nothing.

The batch is inserted as if all of it were new, which it nearly always is. Only when a row of it is
held already does a second way look up what is held and sort out duplicates and conflicts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from sqlalchemy import Connection, and_, select, update

from durable_cache.errors import StorageLocked
from durable_cache.model.sample import Kind, Sample, SampleBatch, Skip
from durable_cache.storage.contract import AppendResult, Conflict, Refusal
from durable_cache_sql.database import Database
from durable_cache_sql.dictionary import ZID_BYTES, Dictionary
from durable_cache_sql.skips import write_skips
from durable_cache_sql.tables import samples, streams

STATEMENT_BYTES_MAX = 64 << 20
INTEGER_MAX = (1 << 63) - 1
_HEX = frozenset("0123456789abcdefABCDEF")


class _Offers(NamedTuple):
    """Samples, their digests and the numbers of their streams."""

    samples: Sequence[Sample]
    digests: Sequence[bytes]
    stream_ids: Sequence[int]

    def at(self, places: Iterable[int]) -> _Offers:
        """Return those at the given places."""
        chosen = list(places)
        return _Offers(*([column[at] for at in chosen] for column in self))  # type: ignore[arg-type]

    def part(self, begin: int, end: int) -> _Offers:
        """Return those from `begin` to before `end`."""
        return _Offers(*(column[begin:end] for column in self))  # type: ignore[arg-type]


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
    order: list[int] = []
    stream_ids: list[int] = []
    for stream, places in batch.places.items():
        order += places
        stream_ids += [dictionary.streams[stream]] * len(places)
    if len(batch.places) == 1:
        return _Offers(batch.samples, batch.digests, stream_ids)
    samples, digests = batch.samples, batch.digests
    return _Offers([samples[at] for at in order], [digests[at] for at in order], stream_ids)


def _as_given(batch: SampleBatch, dictionary: Dictionary) -> _Offers:
    stream_ids = [dictionary.streams[sample.stream] for sample in batch]
    return _Offers(batch.samples, batch.digests, stream_ids)


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
    ends = list(accumulate(map(len, [sample.payload for sample in offers.samples]), initial=0))
    begin, count = 0, len(offers.samples)
    while begin < count:
        fitting = bisect_right(ends, ends[begin] + STATEMENT_BYTES_MAX, begin + 1) - 1
        end = min(max(fitting, begin + 1), begin + samples_max)
        yield offers if begin == 0 and end >= count else offers.part(begin, end)
        begin = end


def _columns(dictionary: Dictionary, storage_id: int, offers: _Offers) -> list[Sequence[object]]:
    """Return the batch column by column, as `SAMPLE_COLUMNS` names them."""
    given = offers.samples
    encodings, stamps = dictionary.encodings, dictionary.zids
    put = Kind.PUT
    times = [sample.ntp64 for sample in given]
    return [
        offers.stream_ids,
        [sample.sn for sample in given],
        [storage_id] * len(given),
        [0 if sample.kind is put else 1 for sample in given],
        [1 if sample.stamped else 0 for sample in given],
        [sample.qos for sample in given],
        [encodings[sample.encoding] for sample in given],
        [stamps[sample.timestamp_id] for sample in given],
        [time >> 32 for time in times],
        [time & 0xFFFFFFFF for time in times],
        [sample.received_ns for sample in given],
        offers.digests,
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
    for at, (sample, digest, stream_id) in enumerate(zip(*offers, strict=True)):
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
