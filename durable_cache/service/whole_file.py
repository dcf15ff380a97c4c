"""A file that stands under its name whole or not at all, also after a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def writing_whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a file beside `path` that takes its place, durably, when the block ends well.

    `mode` is what the umask leaves of the new file's permissions. Where the block raises, what
    `path` held before stays, and nothing is left beside it. Raises OSError.
    """
    part = path.with_name(f"{path.name}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        with os.fdopen(os.open(part, flags, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync_names(path.parent)


def _sync_names(directory: Path) -> None:
    """Make durable which files a directory holds: one without its name is lost in a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
