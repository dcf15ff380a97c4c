"""Who may write a storage? On this machine one process at a time, held by a lock on a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from durable_cache.errors import StorageLocked


class WriterLock:
    """A lock that dies with its process; None as folder: an object store, where nobody can lock."""

    def __init__(self, folder: Path | None) -> None:
        self._file = -1
        if folder is None:
            return
        self._file = os.open(folder / "writer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            self.release()
            raise StorageLocked(
                f"storage {folder} is written by process {holder or 'unknown'}; stop it, or open "
                "the storage for reading"
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Let another process in; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
