"""What state are a storage's tables in, and how does an operator bring them in order?

These are the functions behind ``durable-cache lake status|optimize|vacuum``. `optimize` and
`vacuum` take the writer's lock: where a service runs, it does the same work itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from durable_cache.errors import StorageLocked
from durable_cache_delta.backend import DeltaBackend
from durable_cache_delta.options import DeltaOptions
from durable_cache_delta.storage import DeltaStorage
from durable_cache_delta.upkeep import checkpoint, compact, compactable
from durable_cache_delta.upkeep import vacuum as vacuum_files


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """What one storage's samples table consists of."""

    path: str
    version: int
    rows: int
    files: int
    small_files: int
    """Files below half of `file_bytes_target`."""
    size_bytes: int
    days: int
    first_day: str | None
    last_day: str | None
    streams: int
    skips: int


@dataclass(frozen=True, slots=True)
class OptimizeReport:
    """What a compaction did."""

    files_before: int
    files_after: int
    version: int


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """Which files went, or would go."""

    paths: tuple[str, ...]
    dry_run: bool


def status(options: DeltaOptions, storage: str) -> LakeStatus:
    """Return the state of a storage; takes no lock. Raises what `DeltaBackend.open` raises."""
    with DeltaBackend().open(storage, options, writer=False) as opened:
        files = opened.files()
        days = sorted({file.day for file in files})
        return LakeStatus(
            path=opened.place.uri,
            version=opened.version,
            rows=sum(file.rows for file in files),
            files=len(files),
            small_files=sum(file.size < options.file_bytes_target // 2 for file in files),
            size_bytes=sum(file.size for file in files),
            days=len(days),
            first_day=days[0] if days else None,
            last_day=days[-1] if days else None,
            streams=opened.streams,
            skips=sum(1 for _ in opened.skips()),
        )


def optimize(
    options: DeltaOptions,
    storage: str,
    progress: Callable[[int, int], None] | None = None,
) -> OptimizeReport:
    """Merge the small files of every day and write a checkpoint; idempotent.

    `progress` is told the files merged so far and the files there were. Raises `StorageLocked`
    while a service writes the storage.
    """
    with _writer(options, storage) as opened:
        before = len(opened.files())
        merged = 0
        today = datetime.now(UTC).date().isoformat()
        for group in list(
            compactable(
                opened.files(),
                today,
                bytes_target=options.file_bytes_target,
                bytes_max=options.compact_bytes_max,
                files_min=2,
                rows_max=options.file_rows_max,
            )
        ):
            compact(opened, group)
            merged += len(group)
            if progress is not None:
                progress(merged, before)
        checkpoint(opened)
        return OptimizeReport(before, len(opened.files()), opened.version)


def vacuum(
    options: DeltaOptions,
    storage: str,
    retention_hours: float | None = None,
    *,
    dry_run: bool = False,
) -> VacuumReport:
    """Remove files that no version within the retention names; idempotent.

    A reader that began before, and a Spark job over an older version, may still need them: the
    default is the volume's `vacuum_retention_hours`.
    """
    hours = options.vacuum_retention_hours if retention_hours is None else retention_hours
    with _writer(options, storage) as opened:
        return VacuumReport(tuple(vacuum_files(opened, hours, dry_run=dry_run)), dry_run)


@contextlib.contextmanager
def _writer(options: DeltaOptions, storage: str) -> Iterator[DeltaStorage]:
    # The background has nothing to do while an operator's command does it.
    quiet = msgspec.structs.replace(options, maintenance_interval_seconds=0)
    # A writer would make a table that is not there.
    DeltaBackend().open(storage, quiet, writer=False).close()
    try:
        opened = DeltaBackend().open(storage, quiet)
    except StorageLocked as error:
        raise StorageLocked(f"{error}. {_by_itself(options)}") from error
    with opened:
        yield opened


def _by_itself(options: DeltaOptions) -> str:
    every = options.maintenance_interval_seconds
    if not every:
        return "If it is the service, it does no upkeep: maintenance_interval_seconds is 0"
    return (
        f"If it is the service, it does the same by itself: every {every:g} s it merges the small "
        f"files of past days, and those of today from {options.compact_files_min} on "
        f"(compact_files_min), writes a checkpoint every {options.checkpoint_commits} commits and "
        "vacuums every 6 hours; 'lake status' shows how far it is"
    )
