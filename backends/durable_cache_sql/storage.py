"""How an open SQL storage keeps the contract, on whichever engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

from sqlalchemy import Connection

from durable_cache.errors import Closed, StorageLocked
from durable_cache.model.sample import SampleBatch, Skip
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import (
    AppendResult,
    Capabilities,
    Floor,
    Held,
    Page,
    Refusal,
    Retention,
    Storage,
)
from durable_cache_sql.append import append_batch, refusals
from durable_cache_sql.database import Database
from durable_cache_sql.dictionary import Dictionary, find_storage, make_storage
from durable_cache_sql.gaps import is_gap, read_gap
from durable_cache_sql.held import held_of
from durable_cache_sql.options import SqlOptions
from durable_cache_sql.read import read_page
from durable_cache_sql.skips import read_skips
from durable_cache_sql.snapshot import Snapshot
from durable_cache_sql.trim import floors_of, remove_below, stream_ids_of

UNKNOWN_ID = -1
FLOORS_TOGETHER = 500


class SqlStorage(Storage):
    """A named storage in a database; owns the database's connections."""

    def __init__(self, database: Database, name: str, options: SqlOptions, *, writer: bool) -> None:
        self.name = name
        self._database = database
        self._options = options
        self._writer = writer
        self._closed = False
        self._lock = RLock()
        self._written = Dictionary(database, options.streams_cached_max)
        self._read = Dictionary(database, options.streams_cached_max)
        self._storage_id = UNKNOWN_ID
        if writer:
            with database.writing() as connection:
                self._storage_id = make_storage(self._written, database, connection, name)
        database.serving = True

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(self._database.durability)

    def check(self, batch: SampleBatch) -> Sequence[Refusal]:
        return refusals(batch)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        with self._writing() as connection:
            return append_batch(
                self._database, self._written, connection, self._storage_id, batch, skips
            )

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        self._check()
        if cursor is None and self._database.lateral and is_gap(selection):
            found = read_gap(
                self._database,
                self._read,
                self._storage_id,
                selection,
                limit,
                self._options.page_bytes_max,
            )
            if found is not None:
                return found
        with self._reading() as snapshot:
            return read_page(snapshot, selection, limit, cursor, self._options.page_bytes_max)

    def held(self) -> Iterator[Held]:
        with self._reading() as snapshot:
            yield from held_of(snapshot)

    def skips(self) -> Iterator[Skip]:
        with self._reading() as snapshot:
            found = list(read_skips(self._database, snapshot.connection, snapshot.storage_id))
        return iter(found)

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        self._check(writing=True)
        with self._reading() as snapshot:
            found = floors_of(snapshot, retention, now_ns)
        self._remove([(stream_id, floor.sn) for stream_id, floor in found])
        return [floor for _, floor in found]

    def purge(self, floors: Iterable[Floor]) -> int:
        self._check(writing=True)
        highest: dict[object, Floor] = {}
        for floor in floors:
            known = highest.get(floor.stream)
            if known is None or floor.sn > known.sn:
                highest[floor.stream] = floor
        given = list(highest.values())
        removed = 0
        for begin in range(0, max(1, len(given)), FLOORS_TOGETHER):
            part = given[begin : begin + FLOORS_TOGETHER]
            with self._reading() as snapshot:
                ids = stream_ids_of(snapshot, [floor.stream for floor in part])
            removed += self._remove([(ids[f.stream], f.sn) for f in part if f.stream in ids])
        return removed

    def _remove(self, floors: Sequence[tuple[int, int]]) -> int:
        """Remove below floors by (stream_id, sn), in transactions of bounded size."""
        chunk = self._options.trim_chunk_samples_max
        waiting = list(reversed(floors))
        removed = 0
        while waiting:
            left = chunk
            with self._writing() as connection:
                while waiting and left > 0:
                    gone = remove_below(self._database, connection, *waiting[-1], left)
                    if gone < left:
                        waiting.pop()
                    left -= gone + 1
                    removed += gone
        return removed

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._database.close()

    def _check(self, *, writing: bool = False) -> None:
        if self._closed:
            raise Closed(f"{self._database.subject}: storage {self.name!r} is closed")
        if writing and not self._writer:
            raise StorageLocked(
                f"{self._database.subject}: storage {self.name!r} was opened for reading only"
            )

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        self._check(writing=True)
        with self._lock:
            self._check(writing=True)
            try:
                with self._database.writing() as connection:
                    yield connection
            except BaseException:
                self._written.forget()
                raise

    @contextmanager
    def _reading(self) -> Iterator[Snapshot]:
        self._check()
        with self._database.reading() as connection:
            if self._storage_id == UNKNOWN_ID:
                found = find_storage(self._database, connection, self.name)
                self._storage_id = UNKNOWN_ID if found is None else found
            yield Snapshot(self._database, connection, self._read, self._storage_id)
