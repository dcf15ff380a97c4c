"""What does an error of deltalake, pyarrow or the operating system mean to a caller?

Nothing of theirs leaves this package: every door is a `with translated(subject)`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)

from durable_cache.errors import (
    DurableCacheError,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DAMAGED = (errno.ENOENT, errno.EIO, errno.ENOTDIR, errno.EISDIR)
_NETWORK = ("error sending request", "timed out", "timeout", "connection", "dispatch failure")


@contextmanager
def translated(subject: str) -> Iterator[None]:
    """Raise ours for theirs, naming `subject` (a table, without secrets)."""
    try:
        yield
    except DurableCacheError:
        raise
    except Exception as error:
        ours = _ours(error)
        if ours is None:
            raise
        raise ours(f"{subject}: {_one_line(error)}") from error
    except BaseException as error:
        # A panic in Rust arrives as a BaseException of pyo3.
        if type(error).__name__ != "PanicException":
            raise
        raise StorageCorrupt(f"{subject}: deltalake gave up: {_one_line(error)}") from error


def _ours(error: Exception) -> type[StorageError] | None:
    match error:
        case CommitFailedError():
            return StorageUnavailable
        case DeltaProtocolError() | SchemaMismatchError() | TableNotFoundError():
            return StorageCorrupt
        case DeltaError():
            return StorageUnavailable if _is_network(error) else StorageCorrupt
        case pa.ArrowCapacityError() | MemoryError():
            return StorageUnavailable
        case OSError():
            return _of_system(error)
        case pa.ArrowException():
            return StorageCorrupt
        case ValueError() | KeyError() | TypeError() | NotImplementedError():
            return StorageCorrupt
    return None


def _of_system(error: OSError) -> type[StorageError]:
    if error.errno in _FULL:
        return StorageFull
    if _is_network(error):
        return StorageUnavailable
    text = str(error).lower()
    damaged = error.errno in _DAMAGED or "parquet" in text or "not found" in text
    return StorageCorrupt if damaged or "crc" in text else StorageUnavailable


def _is_network(error: Exception) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in _NETWORK)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
