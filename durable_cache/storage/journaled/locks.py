"""Who may use a state directory: one process at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from durable_cache.errors import ConfigError, StorageFull, StorageLocked, StorageUnavailable


class DirectoryLock:
    """A lock on a state directory that dies with its process; made with mode 0700 when missing.

    `called` is what the directory is to people, and `option` what chooses another one.
    """

    def __init__(
        self, directory: Path, called: str = "state directory", option: str = "state_dir"
    ) -> None:
        subject = (
            f"{called} {str(directory)!r}" if "\0" in str(directory) else f"{called} {directory}"
        )
        try:
            import fcntl  # here, so that clients run where there is none
        except ModuleNotFoundError:
            raise StorageUnavailable(
                f"{subject}: a journal needs file locks of a POSIX system; keep it on Linux"
            ) from None
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except ValueError as error:
            raise ConfigError(f"{subject}: {error}; choose another {option}") from error
        except (FileExistsError, NotADirectoryError) as error:
            raise StorageUnavailable(
                f"{subject}: it is, or lies in, a file; choose another {option}"
            ) from error
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StorageFull(f"{subject}: the disk is full; make room") from error
            raise StorageUnavailable(
                f"{subject}: {error.strerror}; choose a {option} where this user may write"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StorageLocked(
                f"{subject} is in use by process {holder or 'unknown'}; stop it or choose another "
                f"{option}"
            ) from error
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            os.close(self._file)
            raise StorageFull(f"{subject}: {error.strerror}; make room") from error

    def release(self) -> None:
        """Let another process in; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
