"""What a running service has to do to become what other settings say, and what it cannot do.

Pure: compares two settings and touches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from durable_cache.errors import ConfigError
from durable_cache.service.config import RetentionSettings, Settings, StorageSettings
from durable_cache.service.sections import SECTION


class Difference(NamedTuple):
    """Names of storages, in the order of the settings."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept_otherwise: tuple[str, ...]
    """Storages whose retention is another."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.kept_otherwise)


def difference_of(now: Settings, new: Settings) -> Difference:
    """Return how storages differ. Raises ConfigError naming all that takes a restart."""
    fixed = [*_fixed_outside(now, new), *_fixed_of_storages(now, new)]
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: can only be changed by a restart")
    before, after = now.cache.storages, new.cache.storages
    return Difference(
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
        tuple(
            name
            for name, storage in after.items()
            if name in before and storage.kept != before[name].kept
        ),
    )


def _fixed_outside(now: Settings, new: Settings) -> Iterator[str]:
    yield from _differing(now.zenoh, new.zenoh)
    for name in ("state_dir", "domain", "http", "rest", "pipes"):
        if getattr(now.cache, name) != getattr(new.cache, name):
            yield f"{SECTION}.{name}"
    for name, volume in new.cache.volumes.items():
        if now.cache.volumes.get(name, volume) != volume:
            yield f"{SECTION}.volumes.{name}"


def _fixed_of_storages(now: Settings, new: Settings) -> Iterator[str]:
    for name, storage in new.cache.storages.items():
        before = now.cache.storages.get(name)
        if before is None:
            continue
        where = f"{SECTION}.storages.{name}"
        for setting in _differing(_fixed(before), _fixed(storage)):
            yield f"{where}.{setting}"
        if storage.alignment.enabled and storage.kept != before.kept:
            yield f"{where}.retention of an aligned storage"


def _fixed(storage: StorageSettings) -> Mapping[str, object]:
    plain = msgspec.structs.replace(storage, retention=RetentionSettings(), history=None)
    return msgspec.structs.asdict(plain)


def _differing(now: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    return [name for name in {**now, **new} if now.get(name) != new.get(name)]
