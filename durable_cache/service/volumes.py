"""Which backend a volume means, with which options, and where those point.

Nothing here opens a storage; a mistake in a backend's own options is named with its full path.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from durable_cache.errors import BackendNotFound, ConfigError
from durable_cache.service.config import SECTION, Settings, VolumeSettings
from durable_cache.service.masking import mask_text, resolve_secrets
from durable_cache.service.strict import check_names, read_model
from durable_cache.storage.contract import Backend, BackendOptions
from durable_cache.storage.plugins import find_backend

__all__ = ["Volume", "read_volume", "read_volumes"]


@dataclass(frozen=True, slots=True)
class Volume:
    """A backend with its options read and its secrets resolved; its repr shows none of them."""

    name: str
    backend: Backend[BackendOptions] = field(repr=False)
    options: BackendOptions = field(repr=False)
    raw: dict[str, object] = field(repr=False)
    """The options as plain values, for `open_storage`."""

    @property
    def place(self) -> str:
        """Where the volume keeps its data, in one line without secrets."""
        return mask_text(self.backend.describe(self.options))


def read_volume(name: str, settings: VolumeSettings) -> Volume:
    """Find the volume's backend and read its options.

    Raises `ConfigError`, `BackendNotFound` or `BackendNotInstalled`, never to be retried as is.
    """
    where = f"{SECTION}.volumes.{name}"
    try:
        backend = find_backend(settings.backend)
    except BackendNotFound as error:
        raise ConfigError(f"{where}.backend: {error}") from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}.backend: cannot be loaded: {error}") from error
    known = {field.encode_name for field in msgspec.structs.fields(backend.options_type)}
    check_names(settings.options, known, where)
    raw = resolve_secrets(settings.options, where)
    return Volume(name, backend, read_model(backend.options_type, raw, where), raw)


def read_volumes(settings: Settings) -> dict[str, Volume]:
    """Read every volume that a storage uses or that is merely named; see `read_volume`."""
    return {name: read_volume(name, volume) for name, volume in settings.cache.volumes.items()}
