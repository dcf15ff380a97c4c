"""How small can a durable backend be? One log file that every handle replays into memory.

The example of docs/contract.md, and the suite's third-party plug-in.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import ClassVar

import msgspec

from durable_cache.errors import (
    Closed,
    StorageCorrupt,
    StorageError,
    StorageLocked,
    StorageUnavailable,
    map_errors,
)
from durable_cache.model.sample import Sample, SampleBatch, Skip
from durable_cache.model.selection import Cursor, Selection
from durable_cache.storage.contract import (
    AppendResult,
    Backend,
    BackendOptions,
    Capabilities,
    Durability,
    Floor,
    Held,
    Page,
    Retention,
    Storage,
    check_storage_name,
)
from durable_cache.storage.memory import MemoryStorage

ERRORS: Mapping[type[BaseException], type[StorageError]] = {
    BlockingIOError: StorageLocked,
    OSError: StorageUnavailable,
    msgspec.DecodeError: StorageCorrupt,
}
LENGTH_BYTES = 8


class Record(msgspec.Struct, array_like=True):
    """One change: what was appended, or the floors below which samples went."""

    samples: tuple[Sample, ...] = ()
    skips: tuple[Skip, ...] = ()
    floors: tuple[Floor, ...] = ()


class ToyStorage(Storage):
    """Writes a record, then applies what the log says: replay and live run are one path."""

    def __init__(self, path: Path, *, writer: bool) -> None:
        self._memory = MemoryStorage()
        self._lock = RLock()
        self._end = 0
        self._writer = writer
        self._subject = f"toy storage {path}"
        with map_errors(ERRORS, self._subject):
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT if writer else os.O_RDONLY)
            if writer:
                self._lock_and_repair()

    def _lock_and_repair(self) -> None:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.descriptor)
            raise
        self._replay()
        os.ftruncate(self.descriptor, self._end)  # a torn record was never acknowledged

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Durability.PROCESS, ordered_reads=False)

    def append(self, batch: SampleBatch, skips: Sequence[Skip] = ()) -> AppendResult:
        return self._write(Record(tuple(batch.samples), tuple(skips)))[0]

    def trim(self, retention: Retention, now_ns: int) -> Sequence[Floor]:
        with self._lock:
            self._current()
            floors = self._memory.floors(retention, now_ns)
            self._write(Record(floors=tuple(floors)))
        return floors

    def purge(self, floors: Iterable[Floor]) -> int:
        return self._write(Record(floors=tuple(floors)))[1]

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        return self._current().read(selection, limit, cursor)

    def held(self) -> Iterator[Held]:
        return self._current().held()

    def skips(self) -> Iterator[Skip]:
        return self._current().skips()

    def close(self) -> None:
        with self._lock, map_errors(ERRORS, self._subject):
            if self.descriptor >= 0:
                os.close(self.descriptor)
                self.descriptor = -1

    def _write(self, record: Record) -> tuple[AppendResult, int]:
        with self._lock, map_errors(ERRORS, self._subject):
            self._current()
            if not self._writer:
                raise StorageLocked(f"{self._subject} was opened for reading only")
            body = msgspec.msgpack.encode(record)
            framed = len(body).to_bytes(LENGTH_BYTES, "little") + body
            written = 0
            while written < len(framed):
                written += os.pwrite(self.descriptor, framed[written:], self._end + written)
            return self._replay()

    def _current(self) -> MemoryStorage:
        """Catch up with what this or another process wrote."""
        with self._lock, map_errors(ERRORS, self._subject):
            if self.descriptor < 0:
                raise Closed(f"{self._subject} is closed")
            self._replay()
        return self._memory

    def _replay(self) -> tuple[AppendResult, int]:
        """Apply the whole records that follow; returns what the last of them did."""
        appended, removed = AppendResult(0), 0
        data = os.pread(self.descriptor, os.fstat(self.descriptor).st_size, self._end)
        at = 0
        while (body_at := at + LENGTH_BYTES) <= len(data):
            following = body_at + int.from_bytes(data[at:body_at], "little")
            if following > len(data):
                break
            record = msgspec.msgpack.decode(data[body_at:following], type=Record)
            appended = self._memory.append(SampleBatch(record.samples), record.skips)
            removed = self._memory.purge(record.floors)
            at = following
        self._end += at
        return appended, removed


class ToyOptions(BackendOptions, frozen=True):
    path: str
    """The directory of the logs; it must exist."""


class ToyBackend(Backend[ToyOptions]):
    """Keeps each storage in one file of `path`."""

    name: ClassVar[str] = "toy"
    options_type: ClassVar[type[BackendOptions]] = ToyOptions

    def open(self, storage: str, options: ToyOptions, *, writer: bool = True) -> Storage:
        check_storage_name(storage)
        return ToyStorage(Path(options.path, f"{storage}.log"), writer=writer)

    def describe(self, options: ToyOptions) -> str:
        return f"logs in {options.path}"
