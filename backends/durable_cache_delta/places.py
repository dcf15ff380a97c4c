"""Where do a table's files lie, and when are they safe there?

On this machine a file is safe after fsync of it and of its folder; on an object store when the
request returns. Both answer the same few questions.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol, cast
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]
from deltalake.fs import DeltaStorageHandler

from durable_cache.errors import StorageCorrupt
from durable_cache.storage.contract import Durability

LOG = "_delta_log"


class FlushFailed(StorageCorrupt):
    """A commit's flush failed: whether the disk has it is unknown; asking again proves nothing."""


class Place(ABC):
    """The folder of one Delta table."""

    uri: str
    storage_options: Mapping[str, str]
    durability: Durability

    @abstractmethod
    def reader(self, path: str) -> pa.NativeFile:
        """Open a data file, named as the log names it, for random access."""

    @abstractmethod
    def write(self, path: str, fill: Callable[[pa.NativeFile], None]) -> int:
        """Make a new data file safe, and the folders that lead to it; returns its bytes."""

    @abstractmethod
    def sync_version(self, version: int) -> None:
        """Make the commit `version` safe."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a data file that no version names; nothing happens when it is gone."""

    @abstractmethod
    def moved(self, version: int) -> bool:
        """Tell whether the log has gone beyond `version`; StorageCorrupt when it is lost."""


class LocalPlace(Place):
    """A folder of this machine."""

    durability = Durability.DISK

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / LOG
        self.uri = str(folder.absolute())
        self.storage_options = {}

    def version_file(self, version: int) -> Path:
        return self.log / f"{version:020}.json"

    def reader(self, path: str) -> pa.NativeFile:
        return pa.memory_map(str(self.folder / inside(path)))

    def write(self, path: str, fill: Callable[[pa.NativeFile], None]) -> int:
        target = self.folder / path
        made = not target.parent.exists()
        target.parent.mkdir(exist_ok=True)
        try:
            with pa.OSFile(str(target), "wb") as sink:
                fill(sink)
            sync_file(target)
            sync_folder(target.parent)
            if made:
                sync_folder(self.folder)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return target.stat().st_size

    def sync_version(self, version: int) -> None:
        try:
            sync_file(self.version_file(version))
            sync_folder(self.log)
        except OSError as error:
            raise FlushFailed(f"{self.version_file(version)}: {error.strerror}") from error

    def remove(self, path: str) -> None:
        (self.folder / inside(path)).unlink(missing_ok=True)

    def moved(self, version: int) -> bool:
        try:
            self.version_file(version).stat()
        except OSError as error:
            raise StorageCorrupt(
                f"table {self.uri}: version {version} of its log has gone "
                f"({error.strerror}); restore the folder or rebuild it from another cache"
            ) from error
        return self.version_file(version + 1).exists()

    def sync_checkpoint(self, version: int) -> None:
        """Make the checkpoint of a version and the hint that names it safe."""
        for path in self.log.glob(f"{version:020}.checkpoint*"):
            sync_file(path)
        sync_file(self.log / "_last_checkpoint")
        sync_folder(self.log)

    def versions(self) -> list[int]:
        """Return the versions whose commits are in the log, rising."""
        if not self.log.is_dir():
            return []
        return sorted(
            int(name[:20])
            for name in os.listdir(self.log)
            if name[20:] == ".json" and _digits(name)
        )

    @contextmanager
    def replacing(self, path: Path) -> Iterator[IO[bytes]]:
        """Write a file of the log anew, whole or not at all, and make it safe."""
        draft = path.with_name(f"_{path.name}.new")
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)


class _Sink(Protocol):
    """What deltalake gives to write an object with; its stubs leave `close` out."""

    def write(self, data: bytes) -> int: ...

    def close(self) -> None: ...


class _Opener(Protocol):
    def open_output_stream(self, path: str, metadata: None) -> _Sink: ...


class RemotePlace(Place):
    """A folder on an object store, reached as deltalake reaches it."""

    durability = Durability.DISK

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self.uri = uri
        self.storage_options = dict(storage_options)
        self._handler = DeltaStorageHandler(uri, self.storage_options)
        self._files = pafs.PyFileSystem(self._handler)

    def reader(self, path: str) -> pa.NativeFile:
        return self._files.open_input_file(inside(path))

    def write(self, path: str, fill: Callable[[pa.NativeFile], None]) -> int:
        buffer = pa.BufferOutputStream()
        fill(buffer)
        data = buffer.getvalue()
        # Through pyarrow it would be given a buffer, which it does not take.
        raw = cast(_Opener, self._handler._handler)
        sink = raw.open_output_stream(path, None)
        sink.write(data.to_pybytes())
        sink.close()
        return cast(int, data.size)

    def sync_version(self, version: int) -> None:
        """Nothing is left to do: the store answered."""

    def remove(self, path: str) -> None:
        self._files.delete_file(inside(path))

    def moved(self, version: int) -> bool:
        info = self._files.get_file_info(f"{LOG}/{version + 1:020}.json")
        return cast(bool, info.type == pafs.FileType.File)


def inside(path: str) -> str:
    """Return a path of the log as a path below the table; StorageCorrupt when it leads out."""
    plain = unquote(path)
    if plain.startswith("/") or "://" in plain or ".." in plain.split("/"):
        raise StorageCorrupt(f"the log names a file outside of its table: {plain[:200]!r}")
    return plain


def _digits(name: str) -> bool:
    return name[:20].isascii() and name[:20].isdigit()


def sync_file(path: Path) -> None:
    """Flush a file's bytes to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Flush a folder's names to the disk."""
    sync_file(path)
