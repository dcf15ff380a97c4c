"""Which number stands for a key, a source, an encoding or a stream, and the other way round.

Rows of these tables are only ever added. What a transaction added and then lost is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.expression import Executable

from durable_cache.errors import StorageCorrupt
from durable_cache.model.sample import SourceId, Stream, key_bytes, zid_number
from durable_cache_sql.database import Database
from durable_cache_sql.tables import (
    HEAD_BYTES,
    encodings,
    keys,
    sources,
    storages,
    streams,
    zids,
)

DIGEST_BYTES = 16
ZID_BYTES = 16


class Dictionary:
    """The numbers known to one open storage; the caller serialises."""

    def __init__(self, database: Database, streams_max: int) -> None:
        self._database = database
        self._streams_max = streams_max
        self.streams: dict[Stream, int] = {}
        self.encodings: dict[str, int] = {}
        self.zids: dict[str, int] = {}
        self._sources: dict[SourceId, int] = {}
        self._encoding_texts: dict[int, str] = {}
        self._zid_texts: dict[int, str] = {}

    def forget(self) -> None:
        """Drop everything, as after a transaction that failed."""
        self.streams.clear()
        self.encodings.clear()
        self.zids.clear()
        self._sources.clear()

    def make_room(self) -> None:
        """Drop what is beyond the bound; before a batch only, which must find all that it adds."""
        for known in (self.streams, self.encodings, self.zids, self._sources):
            self._bound(known)

    def add_zids(self, connection: Connection, texts: Iterable[str]) -> None:
        """Give every zid or timestamp id a number."""
        new = [text for text in set(texts) if text not in self.zids]
        if not new:
            return
        numbers = [zid_place(text) for text in new]
        kinds = (str, bytes)
        self.insert(connection, zids, ("zid", "number"), kinds, [new, numbers])
        table = self._database.table("new", *kinds)
        statement = self._database.prepare(
            "ids of zids",
            lambda: select(zids.c.id, zids.c.zid).join_from(table, zids, zids.c.zid == table.c.c0),
        )
        found = self._database.rows(
            connection, statement, self._database.bind("new", kinds, [new, numbers])
        )
        self.zids.update((str(text), int(number)) for number, text in found)

    def add_encodings(self, connection: Connection, texts: Iterable[str]) -> None:
        """Give every encoding a number."""
        new = [text for text in set(texts) if text not in self.encodings]
        if not new:
            return
        data = [key_bytes(text) for text in new]
        digests = [digest_of(one) for one in data]
        kinds = (bytes, bytes, str)
        columns: list[list[object]] = [[*digests], [*data], [readable(text) for text in new]]
        self.insert(connection, encodings, ("digest", "encoding", "name"), kinds, columns)
        table = self._database.table("new", bytes)
        statement = self._database.prepare(
            "ids of encodings",
            lambda: select(encodings.c.id, encodings.c.digest).join_from(
                table, encodings, encodings.c.digest == table.c.c0
            ),
        )
        found = self._database.rows(
            connection, statement, self._database.bind("new", (bytes,), [digests])
        )
        by_digest = {bytes(digest): int(number) for number, digest in found}
        self.encodings.update((t, by_digest[d]) for t, d in zip(new, digests, strict=True))

    def add_sources(
        self, connection: Connection, wanted: Iterable[SourceId]
    ) -> dict[SourceId, int]:
        """Return the number of every source, making those that are new."""
        wanted = set(wanted)
        new = [source for source in wanted if source not in self._sources]
        if new:
            self.add_zids(connection, (source.zid for source in new))
            columns = [[self.zids[s.zid] for s in new], [s.eid for s in new]]
            kinds = (int, int)
            self.insert(connection, sources, ("zid_id", "eid"), kinds, columns)
            table = self._database.table("new", *kinds)
            statement = self._database.prepare(
                "ids of sources",
                lambda: select(sources.c.id, sources.c.zid_id, sources.c.eid).join_from(
                    table,
                    sources,
                    (sources.c.zid_id == table.c.c0) & (sources.c.eid == table.c.c1),
                ),
            )
            found = self._database.rows(
                connection, statement, self._database.bind("new", kinds, columns)
            )
            numbers = {(zid, eid): number for number, zid, eid in found}
            self._sources.update((s, numbers[self.zids[s.zid], s.eid]) for s in new)
        return {source: self._sources[source] for source in wanted}

    def add_streams(
        self, connection: Connection, storage_id: int, wanted: Collection[Stream]
    ) -> None:
        """Give every stream a number, its key and source too."""
        new = [stream for stream in wanted if stream not in self.streams]
        if not new:
            return
        by_source = self.add_sources(connection, {stream.source for stream in new})
        by_key = self._add_keys(connection, storage_id, {stream.key for stream in new})
        rows = [(by_key[s.key], by_source[s.source], s.epoch) for s in new]
        key_ids, source_ids, epochs = zip(*rows, strict=True)
        zeros = [0] * len(rows)
        names = ("storage_id", "key_id", "source_id", "epoch", "samples", "bytes")
        columns = [[storage_id] * len(rows), key_ids, source_ids, epochs, zeros, zeros]
        self.insert(connection, streams, names, (int,) * 6, columns)
        table = self._database.table("new", int, int, int)
        statement = self._database.prepare(
            "ids of streams",
            lambda: select(
                streams.c.id, streams.c.key_id, streams.c.source_id, streams.c.epoch
            ).join_from(
                table,
                streams,
                (streams.c.key_id == table.c.c0)
                & (streams.c.source_id == table.c.c1)
                & (streams.c.epoch == table.c.c2),
            ),
        )
        bound = self._database.bind("new", (int,) * 3, [key_ids, source_ids, epochs])
        found = self._database.rows(connection, statement, bound)
        numbers = {(key, source, epoch): number for number, key, source, epoch in found}
        self.streams.update((s, numbers[row]) for s, row in zip(new, rows, strict=True))

    def _add_keys(
        self, connection: Connection, storage_id: int, wanted: Iterable[str]
    ) -> dict[str, int]:
        new = list(wanted)
        data = [key_bytes(key) for key in new]
        digests = [digest_of(one) for one in data]
        storage_ids = [storage_id] * len(new)
        names = ("storage_id", "digest", "head", "key", "name")
        columns: list[list[object]] = [
            [*storage_ids],
            [*digests],
            [one[:HEAD_BYTES] for one in data],
            [*data],
            [readable(key) for key in new],
        ]
        self.insert(connection, keys, names, (int, bytes, bytes, bytes, str), columns)
        table = self._database.table("new", int, bytes)
        statement = self._database.prepare(
            "ids of keys",
            lambda: select(keys.c.id, keys.c.digest).join_from(
                table,
                keys,
                (keys.c.storage_id == table.c.c0) & (keys.c.digest == table.c.c1),
            ),
        )
        bound = self._database.bind("new", (int, bytes), [storage_ids, digests])
        found = self._database.rows(connection, statement, bound)
        by_digest = {bytes(digest): int(number) for number, digest in found}
        return {key: by_digest[digest] for key, digest in zip(new, digests, strict=True)}

    def insert(
        self,
        connection: Connection,
        table: Table,
        names: Sequence[str],
        kinds: Sequence[type],
        columns: Sequence[Sequence[object]],
    ) -> None:
        """Insert rows into a dictionary table; those that are there already stay."""

        def build() -> Executable:
            bound = select(*self._database.table("new", *kinds).c)
            if self._database.engine.dialect.name == "sqlite":
                return (
                    sqlite.insert(table)
                    .from_select(list(names), bound.where(bound.selected_columns[0].is_not(None)))
                    .on_conflict_do_nothing()
                )
            return postgresql.insert(table).from_select(list(names), bound).on_conflict_do_nothing()

        statement = self._database.prepare(("insert", table.name), build)
        self._database.run(connection, statement, self._database.bind("new", kinds, columns))

    def encoding_texts(self, connection: Connection, wanted: set[int]) -> dict[int, str]:
        """Return the text of every number in `wanted`."""
        known = self._encoding_texts
        missing = [number for number in wanted if number not in known]
        if missing:
            table = self._database.table("ids", int)
            statement = self._database.prepare(
                "texts of encodings",
                lambda: select(encodings.c.id, encodings.c.encoding).join_from(
                    table, encodings, encodings.c.id == table.c.c0
                ),
            )
            bound = self._database.bind("ids", (int,), [missing])
            for number, data in self._database.rows(connection, statement, bound):
                known[number] = bytes(data).decode("utf-8", "surrogatepass")
        texts = {number: known[number] for number in wanted}
        self._bound(known)
        return texts

    def zid_texts(self, connection: Connection, wanted: set[int]) -> dict[int, str]:
        """Return the text of every number in `wanted`."""
        known = self._zid_texts
        missing = [number for number in wanted if number not in known]
        if missing:
            table = self._database.table("ids", int)
            statement = self._database.prepare(
                "texts of zids",
                lambda: select(zids.c.id, zids.c.zid).join_from(
                    table, zids, zids.c.id == table.c.c0
                ),
            )
            bound = self._database.bind("ids", (int,), [missing])
            known.update(self._database.rows(connection, statement, bound))
        texts = {number: known[number] for number in wanted}
        self._bound(known)
        return texts

    def known_texts(
        self, encoding_ids: set[int], stamp_ids: set[int]
    ) -> tuple[dict[int, str], dict[int, str]] | None:
        """Return the texts of encodings and zids when all were read before."""
        try:
            return (
                {number: self._encoding_texts[number] for number in encoding_ids},
                {number: self._zid_texts[number] for number in stamp_ids},
            )
        except KeyError:
            return None

    def _bound(self, known: dict[Any, Any]) -> None:
        if len(known) > self._streams_max:
            known.clear()


def find_storage(database: Database, connection: Connection, name: str) -> int | None:
    """Return the number of the storage called `name`, None when there is none yet."""
    table = database.table("name", str)
    statement = database.prepare(
        "storage",
        lambda: select(storages.c.id).join_from(table, storages, storages.c.name == table.c.c0),
    )
    found = database.rows(connection, statement, database.bind("name", (str,), [[name]]))
    return int(found[0][0]) if found else None


def make_storage(
    dictionary: Dictionary, database: Database, connection: Connection, name: str
) -> int:
    """Return the number of the storage called `name`, making it when it is new."""
    dictionary.insert(connection, storages, ("name",), (str,), [[name]])
    found = find_storage(database, connection, name)
    if found is None:
        raise StorageCorrupt(f"{database.subject}: storage {name!r} vanished while it was made")
    return found


def digest_of(data: bytes) -> bytes:
    """Return 16 bytes that stand for a key or an encoding in an index."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def zid_place(text: str) -> bytes:
    """Return a zid as 16 bytes that order as the number it writes."""
    return zid_number(text).to_bytes(ZID_BYTES, "big") if text else bytes(ZID_BYTES)


def readable(text: str) -> str:
    """Return a text for people that every database can show; not reversible."""
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()
