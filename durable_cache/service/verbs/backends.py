"""Which backends can be used here, and how their schemas are brought up to date."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Protocol, cast

from durable_cache.errors import BackendNotInstalled, ConfigError, DurableCacheError
from durable_cache.service.layers import load_settings
from durable_cache.service.output import say, write_result, write_rows
from durable_cache.service.verbs.options import (
    add_config_options,
    add_format_option,
    add_json_option,
    overrides_of,
)
from durable_cache.service.verbs.parsing import Verbs, add_verb
from durable_cache.service.volumes import Volume, read_volume
from durable_cache.storage.contract import BackendOptions, Migratable
from durable_cache.storage.plugins import find_backend, installed_backends

OUTDATED = 1


class _Scripted(Protocol):
    """A migratable backend that can also say what it would do."""

    def migration_sql(self, options: BackendOptions, to: str = "head") -> str:
        """Return the statements that bring the schema to revision `to`."""


def add_verbs(verbs: Verbs) -> None:
    """Add ``backends`` and ``migrate``."""
    backends = add_verb(verbs, "backends", examples=("durable-cache backends --json",))
    add_format_option(backends)
    backends.set_defaults(run=_backends)
    migrate = add_verb(
        verbs,
        "migrate",
        examples=(
            "durable-cache migrate --config fleet.json5",
            "durable-cache migrate --config fleet.json5 --check",
        ),
    )
    add_config_options(migrate)
    migrate.add_argument("--volume", default="", help="only this volume")
    migrate.add_argument("--to", default="head", metavar="REVISION")
    what = migrate.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="change nothing; exit 1 if outdated")
    what.add_argument("--sql", action="store_true", help="print the statements, run none")
    add_json_option(migrate)
    migrate.set_defaults(run=_migrate)


def _backends(arguments: argparse.Namespace) -> int:
    rows = [_backend_row(name, entry.value) for name, entry in installed_backends().items()]
    write_rows(rows, ["name", "installed", "extra", "where"], arguments.format)
    return 0


def _backend_row(name: str, where: str) -> Mapping[str, object]:
    extra = ""
    try:
        find_backend(name)
        installed = True
    except BackendNotInstalled as error:
        installed, extra = False, error.extra
    except (DurableCacheError, ImportError, AttributeError) as error:
        installed, extra = False, f"broken: {error}"
    return {"name": name, "installed": installed, "extra": extra, "where": where}


def _migrate(arguments: argparse.Namespace) -> int:
    settings = load_settings(overrides_of(arguments))
    names = [arguments.volume] if arguments.volume else list(settings.cache.volumes)
    code = 0
    for name in names:
        if name not in settings.cache.volumes:
            known = ", ".join(settings.cache.volumes)
            raise ConfigError(f"--volume: no volume is called {name!r}; there are: {known}")
        volume = read_volume(name, settings.cache.volumes[name])
        code = max(code, _migrate_volume(volume, arguments))
    return code


def _migrate_volume(volume: Volume, arguments: argparse.Namespace) -> int:
    backend = volume.backend
    if not isinstance(backend, Migratable):
        say(f"{volume.name}: backend {backend.name!r} has no schema to migrate")
        return 0
    if arguments.sql:
        if not hasattr(backend, "migration_sql"):
            raise ConfigError(
                f"{volume.name}: backend {backend.name!r} cannot print its statements"
            )
        print(cast("_Scripted", backend).migration_sql(volume.options, arguments.to))
        return 0
    if arguments.check:
        found, needed = backend.revisions(volume.options)
        write_result(
            f"{volume.name}: {volume.place}: {found or 'empty'} found, {needed} needed",
            {"volume": volume.name, "place": volume.place, "found": found, "needed": needed},
            as_json=arguments.json,
        )
        return 0 if found == needed else OUTDATED
    found, reached = backend.migrate(volume.options, arguments.to)
    write_result(
        f"{volume.name}: {volume.place}: {found or 'empty'} -> {reached}",
        {"volume": volume.name, "place": volume.place, "found": found, "reached": reached},
        as_json=arguments.json,
    )
    return 0
