"""How do many small files become few large ones, and the log short, while samples keep coming?

A compaction reads and writes beside the ingest and takes the storage's lock only to commit; it
changes no data, so that streams in Spark deliver nothing twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from threading import Event, Thread

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable

from durable_cache.errors import DurableCacheError
from durable_cache_delta.errors import translated
from durable_cache_delta.file_writer import discard, sorted_rows, write_rows
from durable_cache_delta.files import DataFile
from durable_cache_delta.places import LocalPlace, sync_folder
from durable_cache_delta.schema import SAMPLES_IN_FILES
from durable_cache_delta.storage import DeltaStorage

_log = logging.getLogger(__name__)


def compactable(
    files: Iterable[DataFile],
    today: str,
    *,
    bytes_target: int,
    bytes_max: int,
    files_min: int,
    rows_max: int,
) -> Iterator[Sequence[DataFile]]:
    """Yield groups of one day's small files that are worth merging, each within the bounds.

    A file is small below half the target. A past day is worth it from two files on.
    """
    days: dict[str, list[DataFile]] = {}
    for file in files:
        if file.size < bytes_target // 2:
            days.setdefault(file.day, []).append(file)
    for day in sorted(days):
        least = files_min if day >= today else 2
        # Files next to each other in time stay so: a gap, or a time range, then meets few of them.
        in_time = sorted(days[day], key=lambda file: (file.ntp64.first, file.path))
        for group in _packed(in_time, min(bytes_max, bytes_target), rows_max):
            if len(group) >= least:
                yield group


def _packed(
    files: Sequence[DataFile], bytes_max: int, rows_max: int
) -> Iterator[Sequence[DataFile]]:
    group: list[DataFile] = []
    size = rows = 0
    for file in files:
        if group and (size + file.size > bytes_max or rows + file.rows > rows_max):
            yield group
            group, size, rows = [], 0, 0
        group.append(file)
        size += file.size
        rows += file.rows
    if group:
        yield group


def compact(storage: DeltaStorage, group: Sequence[DataFile]) -> bool:
    """Put one sorted file in the place of a group's; False when something else came between."""
    options, place = storage.options, storage.place
    with translated(f"table {place.uri}"):
        # A file that another engine wrote may say of every column that it can be null.
        rows = pa.concat_tables(
            [
                storage.scanner.read_all(file, SAMPLES_IN_FILES.names).cast(SAMPLES_IN_FILES)
                for file in group
            ]
        )
        merged = sorted_rows(rows)
        del rows
    written = [write_rows(place, options, merged, group[0].day, new=False)]
    # After a commit whose outcome is unknown the file stays: if nothing names it, vacuum takes it.
    if storage.swap_if_live(group, written):
        return True
    discard(place, written)
    return False


def checkpoint(storage: DeltaStorage) -> None:
    """Write a checkpoint of the log and make it safe, then drop log files that it made useless."""
    place = storage.place
    with translated(f"table {place.uri}"):
        table = DeltaTable(place.uri, storage_options=dict(place.storage_options) or None)
        table.create_checkpoint()
        if isinstance(place, LocalPlace):
            place.sync_checkpoint(table.version())
        table.cleanup_metadata()
        if isinstance(place, LocalPlace):
            sync_folder(place.log)


def vacuum(storage: DeltaStorage, retention_hours: float, *, dry_run: bool = False) -> list[str]:
    """Remove files that no version within the retention names; returns their paths."""
    place = storage.place
    with translated(f"table {place.uri}"):
        table = DeltaTable(place.uri, storage_options=dict(place.storage_options) or None)
        return table.vacuum(
            retention_hours=int(retention_hours),
            dry_run=dry_run,
            enforce_retention_duration=False,
            full=True,
        )


class Upkeep:
    """The thread that looks after one open storage; ends with `close`."""

    def __init__(self, storage: DeltaStorage) -> None:
        self._storage = storage
        self._stop = Event()
        self._checkpoint_version = storage.version
        self._vacuumed = time.monotonic()
        self._thread = Thread(target=self._run, name="dc-delta-upkeep", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._storage.options.maintenance_interval_seconds):
            try:
                self.work()
            except DurableCacheError as error:
                _log.warning("the upkeep of a table failed", extra={"error": str(error)})
            except Exception:
                # The next round tries again: a table that nobody merges slows every reader down.
                _log.exception("the upkeep of a table failed")

    def work(self) -> None:
        """Do what is worth doing now, ending early when the storage closes."""
        storage, options = self._storage, self._storage.options
        while not self._stop.is_set():
            group = next(
                compactable(
                    storage.files(),
                    datetime.now(UTC).date().isoformat(),
                    bytes_target=options.file_bytes_target,
                    bytes_max=options.compact_bytes_max,
                    files_min=options.compact_files_min,
                    rows_max=options.file_rows_max,
                ),
                None,
            )
            if group is None or not compact(storage, group):
                break
        if storage.version - self._checkpoint_version >= options.checkpoint_commits:
            version = storage.version
            checkpoint(storage)
            self._checkpoint_version = version
        if time.monotonic() - self._vacuumed > _VACUUM_SECONDS:
            vacuum(storage, options.vacuum_retention_hours)
            self._vacuumed = time.monotonic()

    def close(self) -> None:
        """Stop and wait for the thread; idempotent."""
        self._stop.set()
        self._thread.join()


_VACUUM_SECONDS = 6 * 3600.0
