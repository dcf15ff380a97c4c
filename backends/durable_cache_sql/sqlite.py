"""How the tables live in a SQLite file: WAL, one writing connection, pages packed into one row.

The driver hands the interpreter to another thread at every row it inserts or fetches; beside a busy
thread that leaves 200 rows a second. So a batch is few INSERTs of up to 2,048 rows each, all bound,
and a page comes back as one row with a list for each column.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, cast

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    Integer,
    LargeBinary,
    QueuePool,
    Select,
    String,
    Subquery,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy import (
    cast as sql_cast,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.sql.expression import Executable

from durable_cache.errors import StorageLocked, StorageUnavailable
from durable_cache.storage.contract import Durability
from durable_cache_sql.database import (
    SAMPLE_COLUMNS,
    Columns,
    Database,
    Prepared,
    Row,
    Values,
    kinds_of,
)
from durable_cache_sql.errors import sqlite_error
from durable_cache_sql.options import SqlOptions
from durable_cache_sql.tables import samples

_TYPES = {int: Integer, bytes: LargeBinary, str: String}
_PAGE_BYTES = 8192
_WAL_PAGES = 8192
"""64 MiB between checkpoints, which cost two fsyncs more."""
_CACHE_KIB = 65_536
_ROWS_TOGETHER = (2048, 256, 32, 4, 1)
"""Rows of one INSERT: few sizes, so that each is parsed once; SQLite binds up to 32,766 values."""
_COPIED_BYTES_MAX = 16_384
"""Above, a copy costs as much as it spares."""
_json = msgspec.json.Encoder()


class SqliteDatabase(Database):
    """A file; the lock beside it, `<file>.<storage>.lock`, dies with the process."""

    lateral = False
    durability = Durability.DISK

    def __init__(self, path: Path, options: SqlOptions, storage: str, *, writer: bool) -> None:
        super().__init__()
        self.path = path
        self.subject = f"SQLite file {path}"
        self._lock_file = -1
        self._lock = Lock()
        if writer:
            self._prepare_file(storage)
        elif not path.is_file():
            raise StorageUnavailable(f"{self.subject} does not exist yet; a writer creates it")
        self.engine = _engine(path, options, writer=False)
        self._writer = _engine(path, options, writer=True) if writer else None
        try:
            with self.translated(), (self._writer or self.engine).connect():
                pass
        except BaseException:
            self.close()
            raise

    def _prepare_file(self, storage: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_name(f"{self.path.name}.{storage}.lock")
            self._lock_file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock_file, 0)
            os.pwrite(self._lock_file, b"%d\n" % os.getpid(), 0)
        except BlockingIOError as error:
            holder = os.pread(self._lock_file, 32, 0).decode("ascii", "replace").strip()
            self.close()
            raise StorageLocked(
                f"{self.subject}: storage {storage!r} is being written by process "
                f"{holder or 'unknown'}; stop it or choose another file"
            ) from error
        except OSError as error:
            self.close()
            raise StorageUnavailable(
                f"{self.subject}: cannot be written ({error.strerror}); "
                "check the directory and its permissions"
            ) from error

    def sync_directory(self) -> None:
        """Make the file's name as durable as what is in it."""
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        try:
            with self.translated(), self.engine.connect() as connection:
                yield connection
        finally:
            self.given_back()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        if self._writer is None:
            raise StorageLocked(f"{self.subject} is open for reading only")
        with self._lock, self.translated(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        if self._writer is None:
            raise StorageLocked(f"{self.subject} is open for reading only")
        lock = self.path.with_name(f"{self.path.name}.schema.lock")
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with self._lock, self.translated(), self._writer.connect() as connection:
                yield connection
            self.sync_directory()
        finally:
            os.close(handle)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Let no error of the driver's out."""
        try:
            yield
        except DBAPIError as error:
            raise sqlite_error(error.orig or error, self.subject) from error
        except sqlite3.Error as error:
            raise sqlite_error(error, self.subject) from error
        except SQLAlchemyError as error:
            raise StorageUnavailable(f"{self.subject}: {error}") from error

    def _compile(self, statement: Executable) -> Prepared:
        kinds = kinds_of(statement)
        if isinstance(statement, Select):
            statement = _packed(statement, kinds)
        compiled = cast("Any", statement).compile(dialect=self.engine.dialect)
        return Prepared(str(compiled), dict(compiled.params), kinds)

    def rows(
        self, connection: Connection, statement: Prepared, values: Values | None = None
    ) -> list[Row]:
        return list(zip(*self.columns(connection, statement, values), strict=True))

    def columns(
        self, connection: Connection, statement: Prepared, values: Values | None = None
    ) -> Columns:
        if not connection.in_transaction():
            connection.begin()
        bound = {**statement.values, **(values or {})}
        packed = _driver(connection).execute(statement.text, bound).fetchone()
        columns: list[Sequence[object]] = []
        at = 0
        for kind in statement.kinds:
            if kind in (int, bool):
                columns.append(msgspec.json.decode(packed[at]))
                at += 1
            else:
                columns.append(_unpacked(packed[at], msgspec.json.decode(packed[at + 1]), kind))
                at += 2
        return columns

    def insert_samples(self, connection: Connection, columns: Columns) -> bool:
        begin, count = 0, len(columns[0])
        try:
            for size in _ROWS_TOGETHER:
                while count - begin >= size:
                    rows = [column[begin : begin + size] for column in columns]
                    connection.exec_driver_sql(*_insertion(rows))
                    begin += size
        except IntegrityError:
            return False
        return True

    def table(self, name: str, *kinds: type) -> Subquery:
        rows = func.json_each(bindparam(f"{name}_rows")).table_valued("value", name=f"{name}_each")
        blob = bindparam(f"{name}_blob", type_=LargeBinary)
        columns: list[Any] = []
        place = 0

        def number(at: int) -> Any:
            return rows.c.value.op("->>")(literal_column(str(at)))

        for at, kind in enumerate(kinds):
            if kind is bytes:
                piece = func.substr(blob, number(place), number(place + 1))
                place += 2
            else:
                piece = number(place)
                place += 1
            columns.append(type_coerce(piece, _TYPES[kind]()).label(f"c{at}"))
        return select(*columns).select_from(rows).subquery(name)

    def bind(self, name: str, kinds: Sequence[type], columns: Columns) -> dict[str, object]:
        flat: list[Sequence[object]] = []
        pieces: list[bytes] = []
        begin = 1
        for kind, column in zip(kinds, columns, strict=True):
            if kind is not bytes:
                flat.append(column)
                continue
            values = cast("Sequence[bytes | None]", column)
            lengths = [None if value is None else len(value) for value in values]
            ends = list(accumulate([length or 0 for length in lengths], initial=begin))
            begin = ends.pop()
            pieces.extend(value for value in values if value)
            flat.extend((ends, lengths))
        rows = _json.encode(list(zip(*flat, strict=True))).decode()
        return {f"{name}_rows": rows, f"{name}_blob": b"".join(pieces)}

    def close(self) -> None:
        self.closed = True
        for engine in (getattr(self, "engine", None), getattr(self, "_writer", None)):
            if engine is not None:
                engine.pool.dispose()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def _insertion(columns: Columns) -> tuple[str, tuple[object, ...]]:
    """Return one INSERT of rows that are given column by column, and the values it binds."""
    *numbers, digests, payloads, attachments = cast("Sequence[Any]", columns)
    taken = [*numbers, _bound(digests), _bound(payloads)]
    attached = attachments.count(None) < len(attachments)
    if attached:
        taken.append(_bound(attachments))
    values: list[object] = [None] * (len(attachments) * len(taken))
    for at, column in enumerate(taken):
        values[at :: len(taken)] = column
    return _insert_text(len(attachments), attached=attached), tuple(values)


def _bound(column: Sequence[Any]) -> Sequence[bytes | bytearray | None]:
    """Return bytes as they are bound in the least time (ADR 0230).

    The driver asks whether somebody adapts a value: of bytes and None with an exception that it
    raises and drops, which is a third of what a row costs. It does not ask of a bytearray.
    """
    if None not in column and max(map(len, column)) <= _COPIED_BYTES_MAX:
        return list(map(bytearray, column))
    return [
        one if one is None or len(one) > _COPIED_BYTES_MAX else bytearray(one) for one in column
    ]


@cache
def _insert_text(rows: int, *, attached: bool) -> str:
    """Return the INSERT of so many rows, every value bound by its place.

    Where nothing is `attached`, no attachment is bound.
    """
    names = SAMPLE_COLUMNS if attached else SAMPLE_COLUMNS[:-1]
    one = insert(samples).values(
        dict.fromkeys([samples.c[name] for name in names], bindparam(None))
    )
    head, row = str(one.compile(dialect=sqlite.dialect(paramstyle="qmark"))).split(" VALUES ")
    return f"{head} VALUES {', '.join([row] * rows)}"


def _engine(path: Path, options: SqlOptions, *, writer: bool) -> Engine:
    mode = "rwc" if writer else "ro"
    engine = create_engine(
        "sqlite://",
        creator=lambda: _connect(path, mode, options.lock_timeout_seconds),
        paramstyle="named",
        pool_size=1 if writer else options.pool_size,
        max_overflow=0,
        pool_timeout=options.pool_timeout_seconds,
        poolclass=QueuePool,
    )
    begin = "BEGIN IMMEDIATE" if writer else "BEGIN"

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        _driver(connection).execute(begin)

    return engine


def _driver(connection: Connection) -> sqlite3.Connection:
    """Return what SQLAlchemy wraps: of one packed row it would describe every column (ADR 0291)."""
    return cast("sqlite3.Connection", connection.connection.driver_connection)


def _connect(path: Path, mode: str, timeout_seconds: float) -> sqlite3.Connection:
    name = path.absolute().as_uri() + f"?mode={mode}"
    connection = sqlite3.connect(
        name, uri=True, timeout=timeout_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if mode == "ro":
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _packed(statement: Select[Any], kinds: tuple[type, ...]) -> Select[Any]:
    """Return the query whose one row has a list for each column of `statement`."""
    page = statement.subquery("page")
    columns: list[Any] = []
    for kind, column in zip(kinds, page.c, strict=True):
        if kind in (int, bool):
            columns.append(func.json_group_array(column))
        else:
            data = column if kind is bytes else sql_cast(column, LargeBinary)
            columns.append(sql_cast(func.group_concat(data, literal_column("''")), LargeBinary))
            columns.append(func.json_group_array(func.length(data)))
    return select(*columns)


def _unpacked(whole: bytes | None, lengths: list[int | None], kind: type) -> list[object]:
    whole = whole or b""
    ends = list(accumulate([length or 0 for length in lengths]))
    if len(whole) != (ends[-1] if ends else 0):
        raise StorageUnavailable(
            f"SQLite {sqlite3.sqlite_version} does not concatenate bytes whole; use another release"
        )
    cut: list[object] = [
        None if length is None else whole[end - length : end]
        for end, length in zip(ends, lengths, strict=True)
    ]
    return cut if kind is bytes else [cast("bytes", piece).decode() for piece in cut]
