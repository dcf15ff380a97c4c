"""Which backends are installed, and how one is found by name.

In-tree backends use the same door as anyone's: the entry-point group ``durable_cache.backends``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

import msgspec

from durable_cache.errors import BackendNotFound, BackendNotInstalled, ConfigError
from durable_cache.storage.contract import Backend, BackendOptions, Storage

__all__ = ["GROUP", "find_backend", "installed_backends", "open_storage", "parse_options"]

GROUP = "durable_cache.backends"
_EXTRAS = {"memory": "", "sql": "postgres", "influxdb": "influxdb", "delta": "delta"}


def installed_backends() -> dict[str, EntryPoint]:
    """Return the entry point of every backend by name; ConfigError when two claim one name."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        claimed = found.get(entry.name)
        if claimed is not None and claimed.value != entry.value:
            raise ConfigError(
                f"two packages claim the backend name {entry.name!r}: "
                f"{claimed.value} and {entry.value}; uninstall one"
            )
        found[entry.name] = entry
    return dict(sorted(found.items()))


def find_backend(name: str) -> Backend[BackendOptions]:
    """Return the backend called `name`, ready to open storages.

    Raises `BackendNotFound`, or `BackendNotInstalled` with the extra that brings its driver.
    """
    known = installed_backends()
    if name not in known:
        raise BackendNotFound(name, tuple(known))
    entry = known[name]
    try:
        kind = entry.load()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(name) or (entry.dist.name if entry.dist else name)
        raise BackendNotInstalled(name, extra, error.name or "?") from error
    backend = kind()
    if not isinstance(backend, Backend):
        raise ConfigError(f"backend {name!r}: {entry.value} is no durable_cache Backend")
    return backend


def parse_options(backend: Backend[BackendOptions], raw: Mapping[str, object]) -> BackendOptions:
    """Read a volume's settings with the backend's own model; ConfigError names the field."""
    try:
        return msgspec.convert(dict(raw), backend.options_type)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(backend.options_type))
        raise ConfigError(
            f"backend {backend.name!r}: {error}; its options are: {known or 'none'}"
        ) from error


def open_storage(
    backend: str, storage: str, raw: Mapping[str, object] | None = None, *, writer: bool = True
) -> Storage:
    """Open `storage` on the backend called `backend` with raw options."""
    found = find_backend(backend)
    return found.open(storage, parse_options(found, raw or {}), writer=writer)
