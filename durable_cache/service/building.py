"""Which options a storage's settings mean for its cache, limits by their own names.

The names of limits are those of the cache's own options, so that the file and the code cannot
drift apart; a limit that no option has is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.session import Origins, read_config
from durable_cache.endpoints.unnumbered import Unnumbered
from durable_cache.errors import ConfigError
from durable_cache.model.arguments import wrong_at
from durable_cache.protocol.alignment import (
    AlignerOptions,
    MergePolicy,
    SplitBrainOptions,
)
from durable_cache.protocol.cache.events import EngineOptions
from durable_cache.service.config import Settings, StorageSettings
from durable_cache.service.masking import resolve_secrets
from durable_cache.service.piping import note_pipe_mistakes
from durable_cache.service.sections import SECTION
from durable_cache.service.strict import Findings, check_names
from durable_cache.service.volumes import Volume, read_volumes
from durable_cache.storage.journaled.storage import JournalOptions

OptionsT = TypeVar("OptionsT", CacheOptions, EngineOptions, JournalOptions)
_RECOVERY = frozenset(
    {
        "gap_timeout_seconds",
        "recovery_delay_seconds",
        "fetch_timeout_seconds",
        "fetch_retry_seconds_max",
    }
)
SECRET_BYTES_MAX = 64
"""What BLAKE2 takes as a key."""
_ELSEWHERE = _RECOVERY | {"resources_limit", "answer_plain"}


def limit_names() -> dict[str, type]:
    """Return every name that ``limits`` may hold, with int or float."""
    found: dict[str, type] = {}
    for part in (CacheOptions(), EngineOptions(), JournalOptions()):
        for item in dataclasses.fields(part):
            default = getattr(part, item.name)
            if item.name not in _ELSEWHERE and type(default) in (int, float):
                found[item.name] = type(default)
    return dict(sorted(found.items()))


def check_all(settings: Settings) -> tuple[dict[str, Volume], dict[str, CacheOptions]]:
    """Return volumes and options by name, having checked every setting; opens nothing.

    Raises ConfigError, or `Mistakes` where several things are wrong.
    """
    findings = Findings()
    checked = note_mistakes(settings, findings)
    findings.end()
    read_config(settings.zenoh)
    return checked


def note_mistakes(
    settings: Settings, findings: Findings
) -> tuple[dict[str, Volume], dict[str, CacheOptions]]:
    """Note what only backends, caches and Zenoh itself can tell; returns what is right."""
    volumes: dict[str, Volume] = {}
    options: dict[str, CacheOptions] = {}
    with findings.noting():
        volumes = read_volumes(settings)
    for name in settings.cache.storages:
        with findings.noting():
            options[name] = cache_options(settings, name)
    note_pipe_mistakes(settings, findings)
    for name, value in settings.zenoh.items():
        with findings.noting():
            read_config({name: value})
    return volumes, options


def cache_options(settings: Settings, name: str) -> CacheOptions:
    """Return the options of one storage's cache; ConfigError names a wrong limit."""
    storage = settings.cache.storages[name]
    where = f"{SECTION}.storages.{name}"
    findings = Findings()
    limits: dict[str, int | float] = {}
    aligner = AlignerOptions()
    with findings.noting():
        limits = _limits(storage, f"{where}.limits")
    with findings.noting():
        aligner = _aligner(storage, f"{where}.alignment")
    changes = {**limits, **_recovery(storage)}
    options = CacheOptions(
        name=name,
        domain=settings.cache.domain,
        state_dir=Path(settings.cache.state_dir),
        retention=storage.kept,
        acknowledge=storage.level,
        allowed_origin=Origins(storage.allowed_origin),
        unnumbered=Unnumbered(storage.unnumbered),
        resources_limit=storage.resources_limit,
        source=storage.source,
        align=storage.alignment.enabled,
        align_peers=tuple(storage.alignment.peers),
        service_cleanup_delay_seconds=storage.service_cleanup_delay_seconds,
        aligner=aligner,
        split_brain=_split_brain(storage),
        engine=_changed(EngineOptions(), changes),
        journal=_changed(JournalOptions(), changes),
    )
    for check in (options.check_source, options.check_cleanup, options.check_split_brain):
        with findings.noting(), wrong_at(where):
            check()
    findings.end()
    return _changed(options, changes)


def effective_limits(options: CacheOptions) -> dict[str, object]:
    """Return every limit as it will be used."""
    found = {}
    for name in limit_names():
        holder = next(
            part for part in (options, options.engine, options.journal) if hasattr(part, name)
        )
        found[name] = getattr(holder, name)
    return found


def _limits(storage: StorageSettings, where: str) -> dict[str, int | float]:
    known = limit_names()
    findings = Findings()
    with findings.noting():
        check_names(storage.limits, known, where)
    for name, value in storage.limits.items():
        if name not in known:
            continue
        with findings.noting():
            if known[name] is int and not isinstance(value, int):
                raise ConfigError(f"{where}.{name}: expected a whole number, got {value}")
            if not value > 0:
                raise ConfigError(f"{where}.{name}: expected a number above 0, got {value}")
    findings.end()
    return storage.limits


def _recovery(storage: StorageSettings) -> dict[str, int | float]:
    named: Mapping[str, float | None] = msgspec.structs.asdict(storage.recovery)
    return {name: value for name, value in named.items() if value is not None}


def _aligner(storage: StorageSettings, where: str) -> AlignerOptions:
    named: dict[str, Any] = msgspec.structs.asdict(storage.alignment)
    del named["enabled"], named["peers"]
    resolved = resolve_secrets({"secret": named.pop("secret")}, where)
    secret = str(resolved["secret"]).encode()
    if len(secret) > SECRET_BYTES_MAX:
        raise ConfigError(f"{where}.secret: at most {SECRET_BYTES_MAX} bytes")
    changes = {name: value for name, value in named.items() if value is not None}
    return dataclasses.replace(AlignerOptions(), secret=secret, **changes)


def _split_brain(storage: StorageSettings) -> SplitBrainOptions:
    chosen = storage.split_brain
    return SplitBrainOptions(
        MergePolicy(chosen.policy), chosen.master_priority, chosen.remove_history
    )


def _changed(options: OptionsT, changes: Mapping[str, int | float]) -> OptionsT:
    own: dict[str, Any] = {name: value for name, value in changes.items() if hasattr(options, name)}
    return dataclasses.replace(options, **own)
