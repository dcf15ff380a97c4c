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
            return "it is gone or empty, and its log is not"
        return "" if note is None else f"it is gone or empty, and {_had(note)}"
    where = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(where, uri=True, timeout=10)) as database:
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Damage(str(found).splitlines()[-1])
        if database.execute(_TABLES).fetchone() != (2,):  # it ends before they were made
            return "" if note is None else f"nothing is in it, and {_had(note)}"
        (last,) = database.execute(_LAST).fetchone()
        rows, first, highest = database.execute(_ROWS).fetchone()
        if rows and (highest != last or rows != last - first + 1):  # ids have no holes
            raise Damage(f"of its entries {first} to {last} only {rows} are there")
        if note is None:
            return ""
        if database.execute(_NAME).fetchone() != (note.name,):
            return f"it is another one, new or an older copy, and {_had(note)}"
        if last < note.last_id:
            return f"it ends at entry {last}, and {_had(note)}"
    return ""


def _had(note: Note) -> str:
    return f"entry {note.last_id} was committed to it" if note.last_id else "it was begun before"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
