"""Which backend a volume means, with which options, and where those point.

Nothing here opens a storage; a mistake in a backend's own options is named with its full path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec

from durable_cache.errors import BackendNotFound, ConfigError
from durable_cache.model.arguments import wrong_at
from durable_cache.service.config import Settings, VolumeSettings
from durable_cache.service.masking import mask_text, resolve_secrets
from durable_cache.service.sections import SECTION
from durable_cache.service.strict import Findings, readable_model
from durable_cache.storage.contract import Backend, BackendOptions
from durable_cache.storage.plugins import find_backend


@runtime_checkable
class _Checking(Protocol):
    """A backend that can tell whether options would do, driver and all, without opening them."""

    def check_options(self, options: BackendOptions) -> None:
        """Raise ConfigError or BackendNotInstalled; connect to nothing and make nothing."""


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
    findings = Findings()
    known = {field.encode_name for field in msgspec.structs.fields(backend.options_type)}
    raw: dict[str, object] = {}
    for option, value in settings.options.items():
        raw[option] = value if option not in known or not isinstance(value, Mapping) else ""
        with findings.noting():  # what a reference stands for may be missing: the option is not
            raw |= resolve_secrets({option: value}, where) if option in known else {}
    options = readable_model(backend.options_type, raw, where, findings)
    findings.end()
    if options is None:
        raise AssertionError(f"{where}: where no options can be read, a mistake was noted")
    volume = Volume(name, backend, options, raw)
    if isinstance(backend, _Checking):
        with wrong_at(where):
            backend.check_options(volume.options)
    return volume


def read_volumes(settings: Settings) -> dict[str, Volume]:
    """Read every volume that a storage uses or that is merely named; see `read_volume`."""
    volumes = {}
    findings = Findings()
    for name, volume in settings.cache.volumes.items():
        with findings.noting():
            volumes[name] = read_volume(name, volume)
    findings.end()
    return volumes
