"""Which revision a database is at, and how Alembic brings it to the newest.

Every migration is one transaction together with its mark, so that one that is killed is as if it
had not begun. Only one process migrates at a time.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from durable_cache.errors import ConfigError, SchemaOutdated

if TYPE_CHECKING:
    from alembic.config import Config

NEEDED = "0002"
"""The oldest revision this version runs on; `post` migrations after it may wait."""
NEWEST = "0006"
"""The newest revision this version knows; a test compares it with the scripts."""
VERSION_TABLE = "dc_version"


def scripts() -> Path:
    """Return the migrations: beside this module when installed, at the top of a checkout."""
    here = Path(__file__).resolve().parent
    for place in (here / "migrations", here.parents[1] / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise ConfigError("the migrations of durable-cache are missing; install it again")


def found_revision(connection: Connection) -> str:
    """Return the revision a database is at; empty when it has none of our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return ""
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608
    return str(found or "")


def is_empty(connection: Connection) -> bool:
    """Tell whether there is no table at all, ours or another's."""
    return not inspect(connection).get_table_names()


def check(connection: Connection, subject: str) -> None:
    """Raise `SchemaOutdated` unless this version runs on the database's revision."""
    found = found_revision(connection)
    if found < NEEDED:
        raise SchemaOutdated(f"{found or 'none'} in {subject}", NEWEST)
    if found > NEWEST:
        remedy = "a newer durable-cache has made it: update this one"
        raise SchemaOutdated(f"{found} in {subject}", NEWEST, remedy)


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring the database behind `connection` to revision `to`."""
    from alembic import command
    from alembic.util import CommandError

    try:
        command.upgrade(_config(connection), to)
    except CommandError as error:
        raise ConfigError(f"cannot migrate to {to!r}: {error}") from error


def migration_sql(dialect: str, found: str, to: str = "head") -> str:
    """Return the statements from revision `found` to `to`, without a connection."""
    from alembic import command
    from alembic.util import CommandError

    config = _config(None)
    config.attributes["dialect"] = dialect
    written = io.StringIO()
    config.output_buffer = written
    try:
        command.upgrade(config, f"{found or 'base'}:{to}", sql=True)
    except CommandError as error:
        raise ConfigError(f"cannot migrate to {to!r}: {error}") from error
    return written.getvalue()


def _config(connection: Connection | None) -> Config:
    from alembic.config import Config

    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    return config
