"""How far was a journal committed, as a small file beside it says?

SQLite takes a log whose end is missing or damaged for one whose last commits never were, and an
empty file for a new one: a loss shows only from outside. So each commit that is durable is noted
here, by the number of its entry. A note is written into memory that is the file's, without an
fsync: it outlives the process, and the kernel writes it to the disk when it likes. After a power
cut an older note may be found, and never one of a commit that was not durable (ADR 0285).

Two places take the notes in turn, each with a checksum, and lie on pages of their own: whatever
ends the process within a note, the one before it is whole.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

_NOTE = struct.Struct("<8sQ16sQ")
_SUM = struct.Struct("<I")
_MAGIC = b"dcmark1\n"
_PLACE_BYTES = 4096
_PLACES = 2
_FILE_BYTES = _PLACES * _PLACE_BYTES


class Note(NamedTuple):
    """What the file said last."""

    turn: int
    name: str
    """Which journal it is of: sixteen digits that the journal holds, too."""
    last_id: int
    """The last entry that is known to be committed; 0 before the first."""


class DamagedMark(Exception):
    """The file is there and says nothing that can be read."""


def read_mark(path: Path) -> Note | None:
    """Return the last note of a mark; None where there is no file. Raises `DamagedMark`, OSError.

    Where a process or the power ended within a note, the other one counts.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    notes = [] if len(data) != _FILE_BYTES else [_read(data, at) for at in range(_PLACES)]
    found = max((note for note in notes if note is not None), default=None)
    if found is None:
        raise DamagedMark
    return found


def _read(data: bytes, place: int) -> Note | None:
    at = place * _PLACE_BYTES
    (total,) = _SUM.unpack_from(data, at + _NOTE.size)
    if total != crc32(data[at : at + _NOTE.size]):
        return None
    magic, turn, name, last_id = _NOTE.unpack_from(data, at)
    return Note(turn, name.decode("ascii"), last_id) if magic == _MAGIC else None


def make_mark(path: Path, name: str, last_id: int) -> None:
    """Put a new mark in place of whatever is there, durably: the old one or the new is found."""
    data = bytearray(_FILE_BYTES)
    for turn in range(_PLACES):
        _write(data, turn, name.encode("ascii"), last_id)
    made = path.with_name(path.name + ".new")
    with made.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Mark:
    """A mark that is written; not for two threads at once."""

    def __init__(self, path: Path, note: Note) -> None:
        self._turn, self._name = note.turn, note.name.encode("ascii")
        with path.open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), _FILE_BYTES)

    def reached(self, last_id: int) -> None:
        """Note that an entry is durable. Neither a system call nor a wait."""
        self._turn += 1
        _write(self._file, self._turn, self._name, last_id)

    def close(self) -> None:
        """Bring the last note to the disk where that works; idempotent."""
        if not self._file.closed:
            try:
                self._file.flush()
            except OSError:
                pass  # an older note is as true
            finally:
                self._file.close()


def _write(data: bytearray | mmap.mmap, turn: int, name: bytes, last_id: int) -> None:
    packed = _NOTE.pack(_MAGIC, turn, name, last_id)
    summed = packed + _SUM.pack(crc32(packed))
    at = turn % _PLACES * _PLACE_BYTES
    data[at : at + len(summed)] = summed
