"""What the storage asks of a database engine, whichever it is.

Statements are built with SQLAlchemy, compiled once per engine and run as text with bound values.
A read returns whole pages: where the driver would let another thread in between two rows, the
engine packs a page into one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Select, Subquery, TableValuedAlias
from sqlalchemy.sql.expression import Executable

from durable_cache.storage.contract import Durability

Values = Mapping[str, object]
Row = tuple[Any, ...]
Columns = Sequence[Sequence[object]]

SAMPLE_COLUMNS = (
    "stream_id",
    "sn",
    "storage_id",
    "kind",
    "stamped",
    "qos",
    "encoding_id",
    "stamp_id",
    "seconds",
    "fraction",
    "received_ns",
    "digest",
    "payload",
    "attachment",
)
"""The order of the columns that `Database.insert_samples` takes; the last three are bytes."""


class Prepared(NamedTuple):
    """A statement as one engine's text."""

    text: str
    values: Mapping[str, object]
    """What the text binds besides the caller's values."""
    kinds: tuple[type, ...]
    """The Python type of each column it returns."""


class Database(ABC):
    """One open database; any thread may read, one at a time writes."""

    subject: str
    """The database in messages, without secrets."""
    durability: Durability
    engine: Engine
    """Makes the connections that read."""
    lateral: bool
    """Whether the engine knows LATERAL."""
    part_samples_max = 1_000_000
    """Samples of one part of an insert."""

    def __init__(self) -> None:
        self.closed = False
        """Set before connections are closed: what is given back afterwards is closed at once."""
        self.serving = False
        """A storage is open: what the server refuses from now on is no wrong configuration."""
        self._prepared: dict[Hashable, Prepared] = {}

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """Return a snapshot to read from; driver errors leave it as `StorageError`."""

    def glance(self, statement: Prepared, values: Values) -> list[Row]:
        """Run one query that needs no snapshot beyond itself."""
        with self.reading() as connection:
            return self.rows(connection, statement, values)

    @abstractmethod
    def writing(self) -> AbstractContextManager[Connection]:
        """Return a transaction that is durable when its block ends, undone when it fails."""

    @abstractmethod
    def migrating(self) -> AbstractContextManager[Connection]:
        """Return a connection that migrates alone; it commits each migration by itself."""

    def prepare(self, name: Hashable, build: Callable[[], Executable]) -> Prepared:
        """Return the statement called `name`, built and compiled the first time only."""
        found = self._prepared.get(name)
        if found is None:
            found = self._prepared[name] = self._compile(build())
        return found

    @abstractmethod
    def _compile(self, statement: Executable) -> Prepared:
        """Turn a statement into text."""

    @abstractmethod
    def rows(
        self, connection: Connection, statement: Prepared, values: Values | None = None
    ) -> list[Row]:
        """Run a query and return all its rows, in its order."""

    def columns(
        self, connection: Connection, statement: Prepared, values: Values | None = None
    ) -> Columns:
        """Run a query and return its columns; none where it has no rows."""
        return list(zip(*self.rows(connection, statement, values), strict=True))

    def run(self, connection: Connection, statement: Prepared, values: Values | None = None) -> int:
        """Run a statement and return how many rows it changed."""
        bound = {**statement.values, **(values or {})}
        return connection.exec_driver_sql(statement.text, bound).rowcount

    @abstractmethod
    def insert_samples(self, connection: Connection, columns: Columns) -> bool:
        """Insert samples given as `SAMPLE_COLUMNS`; False, and nothing done, when one is held."""

    def insert_parts(self, connection: Connection, parts: Iterable[Columns]) -> bool:
        """Insert samples that come in parts; False when one of them is held."""
        return all(self.insert_samples(connection, columns) for columns in parts)

    @abstractmethod
    def table(self, name: str, *kinds: type) -> Subquery | TableValuedAlias:
        """Return what is bound to `name` as a table with columns c0, c1, … (int, bytes or str)."""

    @abstractmethod
    def bind(self, name: str, kinds: Sequence[type], columns: Columns) -> dict[str, object]:
        """Return the values that `table(name, …)` stands for, given column by column."""

    def given_back(self) -> None:
        """Close what a read gave back that outlived the database: nobody else would."""
        if self.closed:
            self.engine.pool.dispose()

    @abstractmethod
    def close(self) -> None:
        """Close every connection and release the writer's lock; idempotent."""


def kinds_of(statement: Executable) -> tuple[type, ...]:
    """Return the Python types of a query's columns; nothing for other statements."""
    if not isinstance(statement, Select):
        return ()
    return tuple(column.type.python_type for column in statement.selected_columns)
