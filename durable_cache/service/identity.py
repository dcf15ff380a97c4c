"""Which Zenoh id a service has: the one its settings name, or one kept in its state directory.

With a stable id its admin space keeps its address, and what others note of it stays one service.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.service.whole_file import writing_whole

FILE_NAME = "zenoh.id"
"""No storage can be called so: its directory would stand beside this file."""
_ZID = re.compile(r"[1-9a-f][0-9a-f]{0,31}")
_BYTES_MAX = 64


def kept_zid(state_dir: Path) -> str:
    """Return the id kept in a state directory that this process has locked; makes one if needed.

    Raises `ConfigError` for a file that holds no id, `StorageUnavailable` where the directory
    cannot be read or written; try again once it can.
    """
    path = state_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return _made(path)
    except OSError as error:
        raise StorageUnavailable(
            f"{path}: {error.strerror}; let this user read it, or choose another state_dir"
        ) from error
    if not _ZID.fullmatch(text):
        raise ConfigError(
            f"{path}: {text!r} is no Zenoh id; remove the file, and the service makes a new one"
        )
    return text


def _made(path: Path) -> str:
    """Make an id and keep it."""
    zid = secrets.choice("123456789abcdef") + secrets.token_hex(16)[1:]
    try:
        with writing_whole(path) as file:
            file.write(f"{zid}\n".encode())
    except OSError as error:
        raise StorageUnavailable(f"{path}: {error.strerror}") from error
    return zid
