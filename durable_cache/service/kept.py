"""What was changed of a service's storages while it ran, kept in its state directory.

It is laid over the configuration's storages at every start, so that a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.service.whole_file import writing_whole

FILE_NAME = "changes.json"
"""No storage can be called so: its directory would stand beside this file."""
NAMES_MAX = 1024
_BYTES_MAX = 16 << 20


class KeptChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Storages put and removed, and retention put, by the storages' names, as they were written."""

    storages: dict[str, dict[str, object] | None] = {}
    """None stands for a storage that was removed."""
    retention: dict[str, dict[str, object]] = {}

    @property
    def names(self) -> list[str]:
        """The storages that are other ones than the configuration says."""
        return sorted({*self.storages, *self.retention})

    def with_storage(self, name: str, raw: Mapping[str, object] | None) -> KeptChanges:
        """Return these changes with a storage put, or removed where `raw` is None."""
        storages = {**self.storages, name: None if raw is None else dict(raw)}
        if len(storages) > NAMES_MAX:
            raise ConfigError(
                f"{NAMES_MAX} storages were changed while the service ran; write them into the "
                f"configuration, stop the service, remove {FILE_NAME} from its state_dir"
            )
        retention = {other: kept for other, kept in self.retention.items() if other != name}
        return KeptChanges(storages, retention)

    def with_retention(self, name: str, raw: Mapping[str, object]) -> KeptChanges:
        """Return these changes with another retention of a storage."""
        storage = self.storages.get(name)
        if storage is not None:
            return self.with_storage(name, _keeping(storage, raw))
        return KeptChanges(self.storages, {**self.retention, name: dict(raw)})

    def over(self, storages: Mapping[str, object]) -> dict[str, object]:
        """Return a configuration's storages as they are with these changes."""
        changed: dict[str, object] = {**storages, **self.storages}
        for name, retention in self.retention.items():
            storage = changed.get(name)
            if isinstance(storage, Mapping):
                changed[name] = _keeping(storage, retention)
        removed = {name for name, raw in self.storages.items() if raw is None}
        return {name: raw for name, raw in changed.items() if name not in removed}


def _keeping(storage: Mapping[str, object], retention: Mapping[str, object]) -> dict[str, object]:
    """Return a storage's settings with another retention, under whichever name it had one."""
    left = {name: value for name, value in storage.items() if name != "history"}
    return {**left, "retention": dict(retention)}


def read_kept(state_dir: Path) -> KeptChanges:
    """Return what is kept in a state directory; nothing where there is none.

    Raises `ConfigError` naming the file where it cannot be read.
    """
    path = state_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return KeptChanges()
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; let this user read it, or choose another state_dir"
        ) from error
    try:
        return msgspec.json.decode(text, type=KeptChanges)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path}: {error}; remove the file, and storages are those of the configuration"
        ) from error


def keep_changes(state_dir: Path, kept: KeptChanges) -> None:
    """Write what is to be kept, whole or not at all, and make it durable.

    Raises `StorageUnavailable`; what was kept before is then kept still.
    """
    path = state_dir / FILE_NAME
    try:
        with writing_whole(path, 0o600) as file:
            file.write(msgspec.json.format(msgspec.json.encode(kept)))
    except OSError as error:
        raise StorageUnavailable(f"{path}: {error.strerror}") from error
