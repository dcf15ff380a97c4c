"""Which of our errors is one of PostgreSQL's or SQLite's?

PostgreSQL refuses a connection without an error code, only in words: where those are not English,
a wrong password is taken for a server that is away and tried again.
"""

from __future__ import annotations

import re
import sqlite3

from durable_cache.errors import (
    ConfigError,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from durable_cache.storage.journaled.journal import sqlite_error as error_of_file

_FULL = ("53100",)
_CORRUPT = ("XX001", "XX002", "58P01", "42P01", "42703")
_REFUSED = ("28000", "28P01", "3D000", "42501", "3F000")
_REFUSED_IN_WORDS = re.compile(
    "authentication failed|no password supplied|no pg_hba.conf entry|not permitted to log in"
    '|permission denied|(database|role) ".*" does not exist|does not support SSL|certificate'
)
_AWAY_IN_WORDS = re.compile("Connection refused|No such file|resolve host|timeout expired")
_PREFIX = re.compile(
    r"^(.*connection to server (at|on socket) .*? failed: |consuming input failed: )?(FATAL: +)?"
)


_BUSY = "another connection holds it; try again"
_NO_TABLE = "no such "


def sqlite_error(error: BaseException, subject: str) -> StorageError:
    """Return our error for one of SQLite's; `subject` names the file."""
    if not isinstance(error, sqlite3.Error):
        return StorageUnavailable(f"{subject}: {error}")
    text = str(error)
    code = getattr(error, "sqlite_errorcode", 0) or 0
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageUnavailable(f"{subject}: {_BUSY}")
    if text.startswith(_NO_TABLE):
        return StorageCorrupt(f"{subject}: {text}; it is no storage of ours or was damaged")
    return error_of_file(error, subject)


def postgres_error(error: BaseException, subject: str) -> StorageError | ConfigError:
    """Return our error for one of psycopg's; `subject` names the database."""
    state = getattr(error, "sqlstate", None) or ""
    said = _said(error)
    if state in _FULL:
        return StorageFull(f"{subject}: the server's disk is full ({said}); make room")
    if state in _CORRUPT:
        return StorageCorrupt(f"{subject}: {said}; restore it")
    if state in _REFUSED or (not state and _REFUSED_IN_WORDS.search(said)):
        return ConfigError(f"{subject}: {said}; correct user, password, database or grants")
    if not state and _AWAY_IN_WORDS.search(said):
        said += "; is the server running there?"
    return StorageUnavailable(f"{subject}: {said}")


def _said(error: BaseException) -> str:
    """Return the line that tells the cause; of several addresses, the last one's."""
    lines = [line for line in str(error).splitlines() if line.strip() and line[0] != "\t"]
    if not lines:
        return type(error).__name__
    line = lines[-1] if "All failures were" in str(error) else lines[0]
    return _PREFIX.sub("", line).strip()
