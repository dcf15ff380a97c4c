"""Does a journal still hold what was committed to it? Looked at before SQLite may change it.

SQLite opens whatever is left of its files and says nothing of the rest: it drops the log from its
first damaged frame on, deletes it beside an empty file, and writes on behind the hole. So the
file's sizes are looked at first, and what it holds is read through a connection that cannot write.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from durable_cache.storage.journaled.mark import Note

_TABLES = "SELECT count(*) FROM sqlite_master WHERE name IN ('entries', 'kept')"
_FACTS = "SELECT kind, name, value FROM kept"
_STRANGE = (
    "SELECT id FROM entries WHERE typeof(data) != 'blob' OR typeof(samples) != 'integer' LIMIT 1"
)
_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entries'"
_ROWS = "SELECT count(*), coalesce(min(id), 1), coalesce(max(id), 0) FROM entries"
_NAME = "SELECT value FROM kept WHERE kind = 'journal' AND name = 'mark'"


class Damage(Exception):
    """What the file holds is not as it was written; in its words."""


def missing(path: Path, note: Note | None) -> str:
    """Say what is missing of what was committed, "" where nothing is; `note`: what its mark says.

    Raises `Damage` where the file contradicts itself, and sqlite3.Error. Nothing is changed.
    """
    log = path.with_name(f"{path.name}-wal")
    if _size(path) == 0:
        if _size(log) > 0:  # SQLite deletes it
            raise Damage(f"it is gone or empty, and its log {log.name} is not")
        return "" if note is None else f"it is gone or empty, and {_had(note)}"
    try:
        return _read(path, note)
    except UnicodeDecodeError as error:  # in SQLite's own words, too
        raise Damage(f"text that is none ({error.reason})") from error
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_READONLY_ROLLBACK and note is None:
            return ""  # the power went while the file was made: SQLite takes that back
        if code in (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_ERROR):  # or in its tables
            raise Damage(str(error)) from error
        raise


def _read(path: Path, note: Note | None) -> str:
    where = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(where, uri=True, timeout=10)) as database:
        database.text_factory = bytes
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != b"ok":
            raise Damage(str(found, "ascii", "replace").splitlines()[-1])
        if database.execute(_TABLES).fetchone() != (2,):  # it ends before they were made
            return "" if note is None else f"nothing is in it, and {_had(note)}"
        before: list[object] = []
        for fact in database.execute(_FACTS):
            if not all(isinstance(text, bytes) and _is_text(text) for text in fact):
                raise Damage("a fact is no text")
            if before and before >= [*fact[:2]]:  # what is looked up is not found, or another
                raise Damage("facts are not in their order")
            before = [*fact[:2]]
        if strange := database.execute(_STRANGE).fetchone():
            raise Damage(f"entry {strange[0]} is no entry")
        (last,) = database.execute(_LAST).fetchone()
        rows, first, highest = database.execute(_ROWS).fetchone()
        if rows and (highest != last or rows != last - first + 1):  # ids have no holes
            raise Damage(f"of its entries {first} to {last} only {rows} are there")
        if note is None:
            return ""
        if database.execute(_NAME).fetchone() != (note.name.encode(),):
            return f"it is another one, new or an older copy, and {_had(note)}"
        if last < note.last_id:
            return f"it ends at entry {last}, and {_had(note)}"
    return ""


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _had(note: Note) -> str:
    return f"entry {note.last_id} was committed to it" if note.last_id else "it was begun before"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
