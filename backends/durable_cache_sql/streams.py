"""Which streams a selection names, in order, without touching a sample.

Keys are found by the bytes every named key begins with and then checked one by one with the key
expression itself; nothing of the expression becomes SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, select, tuple_

from durable_cache.model.sample import SourceId, Stream, key_bytes, zid_number
from durable_cache.model.selection import Selection
from durable_cache_sql.database import Database, Row
from durable_cache_sql.dictionary import digest_of
from durable_cache_sql.tables import HEAD_BYTES, keys, sources, streams, zids

KEYS_FIRST = 64
KEYS_MAX = 4096
"""A page of keys or streams: the first one is small, for most reads need no second."""


class StreamRow(NamedTuple):
    """A stream that holds something, and how much."""

    order: tuple[bytes, int, int, int]
    stream_id: int
    stream: Stream
    samples: int
    bytes: int


def find_streams(
    database: Database,
    connection: Connection,
    storage_id: int,
    selection: Selection | None,
    from_key: bytes = b"",
) -> Iterator[list[StreamRow]]:
    """Yield the streams of `selection` from the key `from_key` on, whole keys at a time.

    None means every stream, those of verbatim keys too, which ``**`` does not name.

    Ordered by `Stream.order`. Time and sn are not looked at.
    """
    pages: Iterator[list[Row]]
    if selection is None:
        pages = _of_keys(database, connection, storage_id, None, from_key)
    elif selection.key_expr.is_key:
        pages = iter([_of_key(database, connection, storage_id, selection)])
    elif selection.zid is not None:
        pages = _of_source(database, connection, storage_id, selection, from_key)
    else:
        pages = _of_keys(database, connection, storage_id, selection, from_key)
    for rows in pages:
        found = [
            row
            for row in map(_stream_row, rows)
            if row.order[0] >= from_key and (selection is None or selection.names(row.stream))
        ]
        found.sort()
        yield found


def _stream_row(row: Row) -> StreamRow:
    stream_id, key, zid, eid, epoch, samples, size = row
    key = bytes(key)
    source = SourceId(zid, eid)
    stream = Stream(key.decode("utf-8", "surrogatepass"), source, epoch)
    return StreamRow((key, zid_number(zid), eid, epoch), stream_id, stream, samples, size)


def _base() -> Select[Any]:
    return (
        select(
            streams.c.id,
            keys.c.key,
            zids.c.zid,
            sources.c.eid,
            streams.c.epoch,
            streams.c.samples,
            streams.c.bytes,
        )
        .join_from(streams, keys, streams.c.key_id == keys.c.id)
        .join(sources, streams.c.source_id == sources.c.id)
        .join(zids, sources.c.zid_id == zids.c.id)
        .where(streams.c.samples > 0)
    )


def streams_by_id(
    database: Database, connection: Connection, stream_ids: Sequence[int]
) -> dict[int, StreamRow]:
    """Return the streams with the given numbers."""
    statement = database.prepare(
        "streams by id",
        lambda: _base().where(streams.c.id.in_(select(database.table("ids", int).c.c0))),
    )
    rows = database.rows(connection, statement, database.bind("ids", (int,), [stream_ids]))
    return {row.stream_id: row for row in map(_stream_row, rows)}


def _of_key(
    database: Database, connection: Connection, storage_id: int, selection: Selection
) -> list[Row]:
    table = database.table("keys", int, bytes)
    statement = database.prepare(
        "streams of key",
        lambda: _base().join(
            table, and_(keys.c.storage_id == table.c.c0, keys.c.digest == table.c.c1)
        ),
    )
    digest = digest_of(key_bytes(selection.key_expr.text))
    bound = database.bind("keys", (int, bytes), [[storage_id], [digest]])
    return database.rows(connection, statement, bound)


def _of_source(
    database: Database,
    connection: Connection,
    storage_id: int,
    selection: Selection,
    from_key: bytes,
) -> Iterator[list[Row]]:
    """Page through the streams of a source; a page that ends within a key waits for its rest."""
    by_entity, by_epoch = selection.eid is not None, selection.epoch is not None

    def build() -> Select[Any]:
        found = _base().where(
            streams.c.storage_id == bindparam("storage"),
            zids.c.zid == bindparam("zid"),
            tuple_(keys.c.head, keys.c.key) >= tuple_(bindparam("head"), bindparam("key")),
        )
        if by_entity:
            found = found.where(sources.c.eid == bindparam("eid"))
        if by_epoch:
            found = found.where(streams.c.epoch == bindparam("epoch"))
        order = (keys.c.head, keys.c.key, zids.c.number, sources.c.eid, streams.c.epoch)
        return found.order_by(*order).limit(bindparam("n"))

    statement = database.prepare(("streams of source", by_entity, by_epoch), build)
    n = KEYS_MAX
    while True:
        bound = {
            "storage": storage_id,
            "zid": selection.zid,
            "eid": selection.eid,
            "epoch": selection.epoch,
            "head": from_key[:HEAD_BYTES],
            "key": from_key,
            "n": n,
        }
        rows = database.rows(connection, statement, bound)
        if len(rows) < n:
            yield rows
            return
        last = bytes(rows[-1][1])
        whole = [row for row in rows if bytes(row[1]) != last]
        if not whole:
            n *= 2
            continue
        yield whole
        from_key = last


def _of_keys(
    database: Database,
    connection: Connection,
    storage_id: int,
    selection: Selection | None,
    from_key: bytes,
) -> Iterator[list[Row]]:
    find = database.prepare("page of keys", _page_of_keys)
    statement = database.prepare(
        "streams of keys",
        lambda: _base().where(streams.c.key_id.in_(select(database.table("ids", int).c.c0))),
    )
    prefix = b"" if selection is None else key_bytes(selection.key_expr.prefix)
    begin = max(from_key, prefix)
    # UTF-8 has no byte 0xFF: above every key that begins with the prefix, below all others.
    end = prefix[:HEAD_BYTES] + b"\xff"
    after, n = 0, KEYS_FIRST
    while True:
        bound = {
            "storage": storage_id,
            "head": begin[:HEAD_BYTES],
            "key": begin,
            "after": after,
            "end": end,
            "n": n,
        }
        found = database.rows(connection, find, bound)
        wanted = [
            key_id
            for key_id, key in found
            if selection is None
            or selection.key_expr.matches(bytes(key).decode("utf-8", "surrogatepass"))
        ]
        if wanted:
            yield database.rows(connection, statement, database.bind("ids", (int,), [wanted]))
        if len(found) < n:
            return
        after, begin = found[-1][0], bytes(found[-1][1])
        n = min(n * 4, KEYS_MAX)


def _page_of_keys() -> Select[Any]:
    """Keys from `key` on, without the one numbered `after`."""
    return (
        select(keys.c.id, keys.c.key)
        .where(
            keys.c.storage_id == bindparam("storage"),
            keys.c.head >= bindparam("head"),
            keys.c.head < bindparam("end"),
            tuple_(keys.c.head, keys.c.key) >= tuple_(bindparam("head"), bindparam("key")),
            keys.c.id != bindparam("after"),
        )
        .order_by(keys.c.head, keys.c.key)
        .limit(bindparam("n"))
    )
