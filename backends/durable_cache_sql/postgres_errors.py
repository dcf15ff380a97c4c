"""What an error of PostgreSQL's means for the storage, and how it is told to people.

A connection that is refused carries no error code, only the server's words: where those are not
English, a wrong password is taken for a server that is away and tried again.
"""

from __future__ import annotations

import re

from durable_cache.errors import (
    ConfigError,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
)

__all__ = ["our_error"]

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


def our_error(error: BaseException, subject: str) -> StorageError | ConfigError:
    """Return our error for one of the driver's; `subject` names the database."""
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
