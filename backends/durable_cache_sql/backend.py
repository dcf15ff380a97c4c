"""How SQL storages are opened, described and brought up to date."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, cast

from sqlalchemy.engine import URL

from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.storage.contract import Backend, BackendOptions
from durable_cache_sql.database import Database
from durable_cache_sql.options import SqlOptions, parse_url, place_of
from durable_cache_sql.schema import NEWEST, check, found_revision, is_empty, migration_sql, upgrade
from durable_cache_sql.sqlite import SqliteDatabase
from durable_cache_sql.storage import SqlStorage

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_MIGRATION = "migration"


class SqlBackend(Backend[SqlOptions]):
    """Storages in a SQLite file or a PostgreSQL database; several names may share one."""

    name: ClassVar[str] = "sql"
    options_type: ClassVar[type[BackendOptions]] = SqlOptions

    def open(self, storage: str, options: SqlOptions, *, writer: bool = True) -> SqlStorage:
        if not _NAME.fullmatch(storage):
            raise ConfigError(
                f"storage name {storage!r}: write 1 to 64 of a-z 0-9 _ -, beginning with a letter"
            )
        database = _open(parse_url(options), options, storage, writer=writer)
        try:
            _bring_up(database, writer=writer)
            return SqlStorage(database, storage, options, writer=writer)
        except BaseException:
            database.close()
            raise

    def describe(self, options: SqlOptions) -> str:
        return place_of(options)

    def check_options(self, options: BackendOptions) -> None:
        """Raise ConfigError on a url that is none of ours, BackendNotInstalled without a driver."""
        parse_url(cast("SqlOptions", options))

    def revisions(self, options: BackendOptions) -> tuple[str, str]:
        """Return the revision (found, needed); found is empty for an empty database."""
        ours = cast("SqlOptions", options)
        url = parse_url(ours)
        if url.drivername == "sqlite" and not Path(str(url.database)).exists():
            return "", NEWEST
        with _database(url, ours, writer=False) as database, database.reading() as connection:
            return found_revision(connection), NEWEST

    def migrate(self, options: BackendOptions, to: str = "head") -> tuple[str, str]:
        """Bring the schema to revision `to`; returns (found, reached). Resumable, idempotent."""
        ours = cast("SqlOptions", options)
        url = parse_url(ours)
        # A file has one writer, whatever it writes; a server has a lock of its own for this.
        with _database(url, ours, writer=url.drivername == "sqlite") as database:
            with database.reading() as connection:
                found = found_revision(connection)
            with database.migrating() as connection:
                upgrade(connection, to)
            with database.reading() as connection:
                return found, found_revision(connection)

    def migration_sql(self, options: BackendOptions, to: str = "head") -> str:
        """Return the statements that bring the schema to revision `to`, without running them."""
        dialect = parse_url(cast("SqlOptions", options)).get_backend_name()
        return migration_sql(dialect, self.revisions(options)[0], to)


def _open(url: URL, options: SqlOptions, storage: str, *, writer: bool) -> Database:
    if url.drivername == "sqlite":
        return SqliteDatabase(Path(str(url.database)), options, storage, writer=writer)
    from durable_cache_sql.postgres import PostgresDatabase

    return PostgresDatabase(url, options, storage, writer=writer)


@contextmanager
def _database(url: URL, options: SqlOptions, *, writer: bool) -> Iterator[Database]:
    database = _open(url, options, _MIGRATION, writer=writer)
    try:
        yield database
    finally:
        database.close()


def _bring_up(database: Database, *, writer: bool) -> None:
    """Make the schema in an empty database; raise `SchemaOutdated` where it is an old one."""
    with database.reading() as connection:
        found = found_revision(connection)
        fresh = not found and is_empty(connection)
    if fresh and writer:
        with database.migrating() as connection:
            upgrade(connection)
    elif fresh:
        raise StorageUnavailable(f"{database.subject} is empty; a writer makes its tables")
    with database.reading() as connection:
        check(connection, database.subject)
