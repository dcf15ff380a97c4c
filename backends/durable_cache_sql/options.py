"""Which settings the SQL backend takes, and where its password comes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from durable_cache.errors import BackendNotInstalled, ConfigError
from durable_cache.storage.contract import BackendOptions

PASSWORD_VARIABLE = "DURABLE_CACHE_SQL_PASSWORD"  # noqa: S105  # a variable's name
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class SqlOptions(BackendOptions, frozen=True, kw_only=True):
    """Where the database is and what may be spent on it; never shows a password."""

    url: str
    """``sqlite:///relative/path``, ``sqlite:////absolute/path`` or ``postgresql://user@host/db``."""
    password_file: str | None = None
    """A file whose first line is the password; else ``DURABLE_CACHE_SQL_PASSWORD``, else `url`."""
    durability: Literal["disk", "process"] = "disk"
    """What the server must keep; "process" admits ``synchronous_commit=off``, and acks say so."""
    application_name: str = "durable-cache"
    """How the connections are called in ``pg_stat_activity``."""
    pool_size: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 4
    """Connections for reading; the writer has one more of its own."""
    pool_timeout_seconds: Seconds = 30.0
    """How long a read waits for a free connection."""
    connect_timeout_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 10.0
    """How long one attempt to connect may take."""
    reconnect_seconds_max: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    """How long an append keeps trying to reach a server that is gone before it gives up."""
    statement_timeout_seconds: Seconds = 60.0
    """PostgreSQL ends a statement that takes longer."""
    lock_timeout_seconds: Seconds = 10.0
    """How long a statement waits for another's lock, on both engines."""
    page_bytes_max: Annotated[int, msgspec.Meta(ge=1 << 16, le=256 << 20)] = 32 << 20
    """Payload bytes in one page of a read, near enough; one larger sample is still returned."""
    trim_chunk_samples_max: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 10_000
    """Samples removed by one transaction: an append waits no longer than that."""
    streams_cached_max: Annotated[int, msgspec.Meta(ge=1000)] = 200_000
    """Streams whose row the writer remembers, about 300 bytes each."""

    def __repr__(self) -> str:
        return f"SqlOptions({place_of(self)!r})"


def parse_url(options: SqlOptions) -> URL:
    """Return the URL with driver and password filled in; ConfigError says what to write instead."""
    try:
        url = make_url(options.url)
    except ArgumentError:
        raise ConfigError(
            "backend 'sql': the url cannot be read; write sqlite:///path/samples.db or "
            "postgresql://user@host/database"
        ) from None
    match url.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if not url.database or url.database == ":memory:" or url.query:
                raise ConfigError(
                    "backend 'sql': name a file and nothing else, as in sqlite:///samples.db; "
                    "for a storage in memory use the backend 'memory'"
                )
            return url.set(drivername="sqlite")
        case "postgresql" | "postgres" | "postgresql+psycopg":
            _require_psycopg()
            password = _password(options)
            url = url.set(drivername="postgresql+psycopg")
            return url if password is None else url.set(password=password)
    raise ConfigError(
        f"backend 'sql': no driver for {url.drivername!r}; write sqlite:/// or postgresql://"
    )


def place_of(options: SqlOptions) -> str:
    """Return where the options point, for people, without password and query."""
    try:
        url = make_url(options.url)
    except ArgumentError:
        return "sql: an url that cannot be read"
    if url.drivername.startswith("sqlite"):
        return f"sqlite file {url.database}"
    return f"PostgreSQL {url.set(query={}, password=None, drivername='postgresql')}"


def _require_psycopg() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise BackendNotInstalled("sql", "postgres", "psycopg") from error


def _password(options: SqlOptions) -> str | None:
    if options.password_file is not None:
        try:
            return Path(options.password_file).read_text("utf-8").splitlines()[0]
        except (OSError, UnicodeDecodeError, IndexError) as error:
            raise ConfigError(
                f"backend 'sql': password_file {options.password_file} has no first line to read; "
                "put the password there"
            ) from error
    return os.environ.get(PASSWORD_VARIABLE)
