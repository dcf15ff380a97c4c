"""Which backends are installed, and how one is found by name.

In-tree backends use the same door as anyone's: the entry-point group ``durable_cache.backends``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract

import msgspec

from durable_cache.errors import BackendNotFound, BackendNotInstalled, ConfigError
from durable_cache.storage.contract import Backend, BackendOptions, Storage

GROUP = "durable_cache.backends"
_EXTRAS = {"memory": "", "sql": "postgres", "influxdb": "influxdb", "delta": "delta"}
_OURS = "durable-cache"


def installed_backends() -> dict[str, EntryPoint]:
    """Return the entry point of every backend by name; ConfigError when two claim one name."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        claimed = found.get(entry.name)
        if claimed is not None and claimed.value != entry.value:
            raise ConfigError(
                f"two packages claim the backend name {entry.name!r}: {_origin(claimed)} and "
                f"{_origin(entry)}; uninstall one"
            )
        found[entry.name] = entry
    return dict(sorted(found.items()))


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} ({entry.value})" if entry.dist else entry.value


def find_backend(name: str) -> Backend[BackendOptions]:
    """Return the backend called `name`, ready to open storages.

    Raises `BackendNotFound`, `BackendNotInstalled` with the extra that brings its driver, or
    `ConfigError` when what is installed under that name is no backend.
    """
    known = installed_backends()
    if name not in known:
        raise BackendNotFound(name, tuple(known))
    entry = known[name]
    try:
        kind = entry.load()
    except ModuleNotFoundError as error:
        raise _not_installed(entry, error.name or "?") from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"backend {name!r}: {_origin(entry)} cannot be loaded: {error}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Backend)) or isabstract(kind):
        raise ConfigError(f"backend {name!r}: {_origin(entry)} is no durable_cache Backend")
    backend: Backend[BackendOptions] = kind()
    return backend


def _not_installed(entry: EntryPoint, missing: str) -> BackendNotInstalled:
    distribution = entry.dist.name if entry.dist else _OURS
    if distribution == _OURS:
        return BackendNotInstalled(entry.name, _EXTRAS.get(entry.name, ""), missing)
    wanted = _normal(missing.partition(".")[0])
    for requirement in (entry.dist.requires if entry.dist else None) or ():
        package = re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        if _normal(package) == wanted and extra is not None:
            return BackendNotInstalled(entry.name, extra[1], missing, distribution)
    return BackendNotInstalled(entry.name, "", missing, distribution)


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


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
