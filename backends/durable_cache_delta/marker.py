"""Which version of a table was acknowledged last? A small file beside the table says it.

A version above the marker was never acknowledged: its journal entries are still there, so a torn
one may be taken back. One at or below it may not.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from durable_cache_delta.places import sync_folder

_BYTES = 64


class Marker:
    """The confirmed version of one table, rewritten in place and flushed at every commit."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        sync_folder(path.parent)
        self.version = self._read()
        """The version acknowledged last; None when the marker does not say."""

    def _read(self) -> int | None:
        text = os.pread(self._file, _BYTES, 0)
        number, _, rest = text.partition(b" ")
        if not number.isdigit() or rest.strip() != b"%08x" % zlib.crc32(number):
            return None
        return int(number)

    def confirm(self, version: int) -> None:
        """Record, durably, that everything up to `version` is."""
        number = b"%d" % version
        line = b"%s %08x" % (number, zlib.crc32(number))
        os.pwrite(self._file, line.ljust(_BYTES - 1) + b"\n", 0)
        os.fsync(self._file)  # macOS has no fdatasync
        self.version = version

    def close(self) -> None:
        """Let go of the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
