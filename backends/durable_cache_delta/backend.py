"""How is a storage on Delta Lake opened: locked, repaired, checked, loaded?"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa  # type: ignore[import-untyped]

from durable_cache.errors import ConfigError, StorageUnavailable
from durable_cache.storage.contract import Backend, BackendOptions
from durable_cache_delta.errors import translated
from durable_cache_delta.log import TableLog
from durable_cache_delta.marker import Marker
from durable_cache_delta.options import DeltaOptions, check_name, is_local, local_folder
from durable_cache_delta.places import LocalPlace, Place, RemotePlace, sync_folder
from durable_cache_delta.repair import repair
from durable_cache_delta.schema import SAMPLES, SKIPS
from durable_cache_delta.storage import DeltaStorage, Parts
from durable_cache_delta.writer_lock import WriterLock

_CACHE = "index.cache"


class DeltaBackend(Backend[DeltaOptions]):
    """Opens storages below the path of a volume."""

    name: ClassVar[str] = "delta"
    options_type: ClassVar[type[BackendOptions]] = DeltaOptions

    def open(self, storage: str, options: DeltaOptions, *, writer: bool = True) -> DeltaStorage:
        check_name(storage)
        local = is_local(options.path)
        folder = local_folder(options.path) / storage if local else None
        with translated(f"storage {storage} at {options.path}"):
            if folder is not None:
                _prepare(folder, writer=writer)
            lock = WriterLock(folder) if writer else None
        tables: list[TableLog] = []
        try:
            for kind, schema in (("samples", SAMPLES), ("skips", SKIPS)):
                tables.append(_open_table(storage, options, kind, schema, writer=writer))
            opened = DeltaStorage(
                Parts(
                    options,
                    tables[0].place,
                    tables[0],
                    tables[1],
                    None if folder is None else folder / _CACHE,
                    lock,
                )
            )
            if writer and options.maintenance_interval_seconds:
                opened.start_upkeep()
            return opened
        except BaseException:
            for table in tables:
                table.close()
            if lock is not None:
                lock.release()
            raise

    def describe(self, options: DeltaOptions) -> str:
        names = ", ".join(sorted(options.storage_options))
        return f"Delta Lake tables in {options.path}" + (f" (with {names})" if names else "")


def _prepare(folder: Path, *, writer: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder for the volume")
    if (folder / "_delta_log").exists() or (folder.parent / "_delta_log").exists():
        raise ConfigError(
            f"{folder} is, or lies in, a Delta table; name a folder above the storages' own tables"
        )
    if writer:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            sync_folder(path.parent)
    elif not folder.is_dir():
        raise StorageUnavailable(f"storage {folder}: there is none yet; the writer makes it")


def _open_table(
    storage: str, options: DeltaOptions, kind: str, schema: pa.Schema, *, writer: bool
) -> TableLog:
    place, marker = _place(storage, options, kind, writer=writer)
    log = TableLog(place, schema, kind, storage, marker)
    try:
        log.open(create=writer)
    except BaseException:
        log.close()
        raise
    return log


def _place(
    storage: str, options: DeltaOptions, kind: str, *, writer: bool
) -> tuple[Place, Marker | None]:
    if not is_local(options.path):
        uri = f"{options.path.rstrip('/')}/{storage}/{kind}"
        with translated(uri):
            return RemotePlace(uri, options.storage_options), None
    folder = local_folder(options.path) / storage
    place = LocalPlace(folder / kind)
    if not writer:
        return place, None
    with translated(f"table {place.uri}"):
        marker = Marker(folder / f"{kind}.confirmed")
        try:
            repair(place, marker)
        except BaseException:
            marker.close()
            raise
    return place, marker
