"""How the tables live in PostgreSQL: COPY for the rule, one writer by advisory lock, reconnecting.

The lock belongs to the connection that writes: whoever loses the connection has lost the lock, and
takes it again, or finds who has it now, before the next write.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeVar, cast

import psycopg
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Engine,
    LargeBinary,
    NullPool,
    QueuePool,
    TableValuedAlias,
    Text,
    bindparam,
    column,
    create_engine,
    func,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.sql.expression import Executable

from durable_cache.errors import (
    ConfigError,
    StorageError,
    StorageLocked,
    StorageUnavailable,
)
from durable_cache.storage.contract import Durability
from durable_cache_sql.binary_copy import BEGIN, COPY, END, packed
from durable_cache_sql.database import (
    Columns,
    Database,
    Prepared,
    Row,
    Values,
    kinds_of,
)
from durable_cache_sql.errors import postgres_error
from durable_cache_sql.options import SqlOptions, place_of

_log = logging.getLogger(__name__)

T = TypeVar("T")
_ELEMENTS = {int: BigInteger, bytes: LargeBinary, str: Text}
_PAUSE_FIRST_SECONDS = 0.05
_PAUSE_MAX_SECONDS = 1.0
_SCHEMA_LOCK = "durable-cache schema"
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresDatabase(Database):
    """A database on a server; a connection of its own writes, a pool reads."""

    lateral = True
    part_samples_max = 1_000

    def __init__(self, url: URL, options: SqlOptions, storage: str, *, writer: bool) -> None:
        super().__init__()
        self.subject = place_of(options)
        self.durability = Durability.DISK
        self._options = options
        self._storage = storage
        self._writer = writer
        self._lock = RLock()
        self._connection: Connection | None = None
        self.engine = _engine(url, options, pooled=True)
        self._writing_engine = _engine(url, options, pooled=False)
        if options.durability == "process":
            self.durability = Durability.PROCESS
        try:
            if writer:
                self._connected()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.translated():
            connection, _ = self._first(lambda one: _driver(one).execute(_SNAPSHOT))
            try:
                yield connection
            finally:
                self._give_back(connection)

    def glance(self, statement: Prepared, values: Values) -> list[Row]:
        """Run one query outside any transaction, which makes it one round trip."""
        with self.translated():
            connection, found = self._first(lambda one: self.rows(one, statement, values))
            self._give_back(connection)
            return found

    def _first(self, ask: Callable[[Connection], T]) -> tuple[Connection, T]:
        """Take a connection from the pool with its first answer.

        Connections may have died in the pool, all together, which only asking shows: then the next
        one is asked, until one answers or the server refuses a new one.
        """
        for left in range(self._options.pool_size, -1, -1):
            connection = self.engine.connect()
            try:
                return connection, ask(connection)
            except BaseException as error:
                dead = _driver(connection).closed
                self._give_back(connection)
                if not (left and dead and isinstance(error, psycopg.OperationalError)):
                    raise
        raise AssertionError("the last one either answers or raises")

    def _give_back(self, connection: Connection) -> None:
        if _driver(connection).closed:
            connection.invalidate()
        connection.close()
        self.given_back()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self._lock, self.translated():
            connection = self._connected()
            try:
                with connection.begin():
                    yield connection
            except BaseException:
                self._drop_if_broken(connection)
                raise

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        with self.translated(), self._writing_engine.connect() as connection:
            driver = _driver(connection)
            driver.execute("SET lock_timeout = 0; SET statement_timeout = 0")
            driver.commit()
            self._wait_to_migrate(driver)
            yield connection

    def _wait_to_migrate(self, driver: psycopg.Connection[Any]) -> None:
        """Take the lock under which schemas are migrated, or say who has it."""
        seconds = self._options.lock_timeout_seconds
        deadline = time.monotonic() + seconds
        told = False
        while True:
            taken, number = _try_lock(driver, _SCHEMA_LOCK)
            if taken:
                return
            if time.monotonic() > deadline:
                raise StorageLocked(
                    f"{self.subject}: the schema has been migrated for more than "
                    f"lock_timeout_seconds = {seconds:g} by {_holder(driver, number)}; "
                    "run the command again when that has ended"
                )
            if not told:
                _log.warning("another process migrates the schema; waiting for it to end")
                told = True
            time.sleep(_PAUSE_FIRST_SECONDS)

    def _connected(self) -> Connection:
        """Return the writing connection, made again with growing pauses when it was lost."""
        if self._connection is not None:
            if not _driver(self._connection).closed:
                return self._connection
            self._drop(self._connection)
        if not self._writer:
            raise StorageLocked(f"{self.subject} is open for reading only")
        deadline = time.monotonic() + self._options.reconnect_seconds_max
        pause = _PAUSE_FIRST_SECONDS
        while True:
            try:
                with self.translated():
                    self._connection = self._locked(self._writing_engine.connect())
                return self._connection
            except StorageUnavailable:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_SECONDS)

    def _locked(self, connection: Connection) -> Connection:
        """Take the writer's lock on a new connection, or say who has it."""
        try:
            driver = _driver(connection)
            self._check_durability(driver)
            taken, number = _try_lock(driver, f"durable-cache {self._storage}")
            if not taken:
                raise StorageLocked(
                    f"{self.subject}: storage {self._storage!r} is being written by "
                    f"{_holder(driver, number)}; stop it or choose another storage name"
                )
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        return connection

    def _check_durability(self, driver: psycopg.Connection[Any]) -> None:
        if self.durability < Durability.DISK:
            return
        for name in ("synchronous_commit", "fsync"):
            row = driver.execute("SELECT current_setting(%s)", (name,)).fetchone()
            if row is not None and row[0] == "off":
                raise ConfigError(
                    f'{self.subject}: {name} is off, so nothing reaches level "disk"; set it to on '
                    'there, or write durability: "process" for this volume'
                )

    def _drop_if_broken(self, connection: Connection) -> None:
        if connection.invalidated or _driver(connection).closed:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._connection = None
        try:
            connection.invalidate()
            connection.close()
        except (SQLAlchemyError, psycopg.Error):
            return

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Let no error of the driver's out."""
        try:
            yield
        except DBAPIError as error:
            raise self._ours(error.orig or error) from error
        except psycopg.Error as error:
            raise self._ours(error) from error
        except PoolTimeout as error:
            raise StorageUnavailable(
                f"{self.subject}: no free connection within pool_timeout_seconds; "
                "try again, or raise pool_size"
            ) from error
        except SQLAlchemyError as error:
            raise StorageUnavailable(f"{self.subject}: {error}") from error

    def _ours(self, error: BaseException) -> StorageError | ConfigError:
        ours = postgres_error(error, self.subject)
        if self.serving and isinstance(ours, ConfigError):
            return StorageUnavailable(str(ours))  # it was right once, and may be again
        return ours

    def _compile(self, statement: Executable) -> Prepared:
        compiled = cast("Any", statement).compile(dialect=self.engine.dialect)
        return Prepared(str(compiled), dict(compiled.params), kinds_of(statement))

    def rows(
        self, connection: Connection, statement: Prepared, values: Values | None = None
    ) -> list[Row]:
        bound = {**statement.values, **(values or {})}
        with _driver(connection).cursor(binary=True) as cursor:
            return cursor.execute(statement.text, bound).fetchall()

    def insert_samples(self, connection: Connection, columns: Columns) -> bool:
        return self.insert_parts(connection, [columns])

    def insert_parts(self, connection: Connection, parts: Iterable[Columns]) -> bool:
        """Send one COPY part by part: the server stores a part while the next one is made."""
        with _driver(connection).cursor() as cursor:
            try:
                with cursor.copy(COPY) as copy:
                    copy.write(BEGIN)
                    for columns in parts:
                        copy.write(packed(columns))
                    copy.write(END)
            except psycopg.errors.UniqueViolation:
                return False
        return True

    def table(self, name: str, *kinds: type) -> TableValuedAlias:
        arrays = [
            sql_cast(bindparam(f"{name}_c{at}"), ARRAY(_ELEMENTS[kind]()))
            for at, kind in enumerate(kinds)
        ]
        typed = [column(f"c{at}", _ELEMENTS[kind]()) for at, kind in enumerate(kinds)]
        return func.unnest(*arrays).table_valued(*typed, name=name).render_derived()

    def bind(self, name: str, kinds: Sequence[type], columns: Columns) -> dict[str, object]:
        return {f"{name}_c{at}": list(given) for at, given in enumerate(columns)}

    def close(self) -> None:
        self.closed = True
        with self._lock:
            if self._connection is not None:
                self._drop(self._connection)
        self.engine.pool.dispose()
        self._writing_engine.dispose()
        self._writer = False


def _engine(url: URL, options: SqlOptions, *, pooled: bool) -> Engine:
    lock_ms = round(options.lock_timeout_seconds * 1000)
    statement_ms = round(options.statement_timeout_seconds * 1000)
    # Compiling a query costs tens of milliseconds; every statement here is short. A client that
    # vanished must not keep its lock for the two hours after which the kernel would notice.
    settings = (
        f"-c jit=off -c lock_timeout={lock_ms} -c statement_timeout={statement_ms} "
        "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
    )
    given = url.query.get("options", "")
    arguments = {
        "connect_timeout": max(1, round(options.connect_timeout_seconds)),
        "application_name": options.application_name,
        "options": f"{settings} {given if isinstance(given, str) else ' '.join(given)}".strip(),
        **dict.fromkeys(("keepalives_idle", "keepalives_interval"), 10),
        "keepalives_count": 3,
    }
    url = url.difference_update_query(["options"])
    if not pooled:
        return create_engine(url, poolclass=NullPool, connect_args=arguments)
    return create_engine(
        url,
        poolclass=QueuePool,
        pool_size=options.pool_size,
        max_overflow=0,
        pool_timeout=options.pool_timeout_seconds,
        isolation_level="AUTOCOMMIT",
        connect_args=arguments,
    )


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    return cast("psycopg.Connection[Any]", connection.connection.driver_connection)


def _try_lock(driver: psycopg.Connection[Any], name: str) -> tuple[bool, int]:
    """Try to take a lock of the connection's, one for each schema; returns its number too."""
    key = "hashtextextended(current_schema() || ' ' || %s, 0)"
    row = driver.execute(f"SELECT pg_try_advisory_lock({key}), {key}", (name, name)).fetchone()
    driver.commit()
    return cast("tuple[bool, int]", row)


def _holder(driver: psycopg.Connection[Any], number: int) -> str:
    unsigned = number & 0xFFFF_FFFF_FFFF_FFFF
    found = driver.execute(
        "SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'a local socket') "
        "FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' "
        "AND l.granted AND l.classid::bigint = %s AND l.objid::bigint = %s",
        (unsigned >> 32, unsigned & 0xFFFF_FFFF),
    ).fetchone()
    if found is None:
        return "a connection that has ended since"
    pid, application, address = found
    return f"{application!r} from {address} (server process {pid})"
