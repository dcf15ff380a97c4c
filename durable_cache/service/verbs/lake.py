"""How Delta tables are looked after: the verbs ``lake status``, ``lake optimize``, ``lake vacuum``.

The work is the backend's own (`durable_cache_delta.maintenance`), reached by name as plug-ins are.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from durable_cache.errors import ConfigError
from durable_cache.service.layers import load_settings
from durable_cache.service.output import Progress, write_json, write_result, write_table
from durable_cache.service.places import Place, find_place
from durable_cache.service.verbs.options import (
    add_config_options,
    add_format_option,
    add_json_option,
    overrides_of,
)
from durable_cache.service.verbs.parsing import Parser, Verbs

_BACKEND = "delta"


class _Vacuumed(Protocol):
    paths: Sequence[str]


class _Optimized(Protocol):
    files_before: int
    files_after: int
    version: int


class _Maintenance(Protocol):
    """The functions this verb needs of the backend's module."""

    def status(self, options: object, storage: str) -> Any: ...

    def optimize(
        self, options: object, storage: str, progress: Callable[[int, int], None]
    ) -> _Optimized: ...

    def vacuum(
        self, options: object, storage: str, retention_hours: float | None, *, dry_run: bool
    ) -> _Vacuumed: ...


def add_lake_verbs(verbs: Verbs) -> None:
    """Add the verbs below ``lake``."""
    status = _verb(verbs, "status", "what a storage's table consists of")
    add_format_option(status)
    status.set_defaults(run=_status)
    optimize = _verb(verbs, "optimize", "merge small files; while no service writes it")
    add_json_option(optimize)
    optimize.set_defaults(run=_optimize)
    vacuum = _verb(verbs, "vacuum", "remove files that no recent version names")
    vacuum.add_argument("--retention-hours", type=float, default=None)
    vacuum.add_argument("--dry-run", action="store_true", help="only show them")
    add_json_option(vacuum)
    vacuum.set_defaults(run=_vacuum)
    for parser in (status, optimize, vacuum):
        parser.add_argument("storage", help="volume/storage, or a configured storage's name")
        add_config_options(parser)


def _verb(verbs: Verbs, name: str, summary: str) -> Parser:
    example = f"durable-cache lake {name} lake/fleet --config fleet.json5"
    return verbs.add_parser(name, help=summary, description=f"{summary}.", examples=(example,))


def _chosen(arguments: argparse.Namespace) -> tuple[Place, _Maintenance]:
    place = find_place(load_settings(overrides_of(arguments)), arguments.storage)
    if place.volume.backend.name != _BACKEND:
        raise ConfigError(
            f"{place}: its backend is {place.volume.backend.name!r}, not {_BACKEND!r}"
        )
    module = importlib.import_module("durable_cache_delta.maintenance")
    return place, cast("_Maintenance", module)


def _status(arguments: argparse.Namespace) -> int:
    place, maintenance = _chosen(arguments)
    found: Mapping[str, object] = dataclasses.asdict(
        maintenance.status(place.volume.options, place.storage)
    )
    if arguments.format == "json":
        write_json(found)
    else:
        rows = [{"what": name, "value": str(value)} for name, value in found.items()]
        write_table(rows, ["what", "value"])
    return 0


def _optimize(arguments: argparse.Namespace) -> int:
    place, maintenance = _chosen(arguments)
    with Progress(f"{place}: files merged") as progress:
        done = 0

        def advance(merged: int, _total: int) -> None:
            nonlocal done
            progress.advance(merged - done)
            done = merged

        report = maintenance.optimize(place.volume.options, place.storage, advance)
    write_result(
        f"{place}: {report.files_before} files -> {report.files_after}, version {report.version}",
        {
            "files_before": report.files_before,
            "files_after": report.files_after,
            "version": report.version,
        },
        as_json=arguments.json,
    )
    return 0


def _vacuum(arguments: argparse.Namespace) -> int:
    hours = arguments.retention_hours
    if hours is not None and not hours >= 0:
        raise ConfigError("--retention-hours: expected a number of hours")
    place, maintenance = _chosen(arguments)
    report = maintenance.vacuum(
        place.volume.options, place.storage, hours, dry_run=arguments.dry_run
    )
    if arguments.json:
        write_json({"paths": list(report.paths)})
        return 0
    for path in report.paths:
        print(path)
    return 0
