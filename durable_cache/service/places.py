"""Which storage a command line means by ``volume/storage``, and what surrounds it on this machine.

A storage that a service serves has a journal and a stream index beside its backend: what the
journal has not handed over belongs to its history too, and the index must follow what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from durable_cache.errors import ConfigError, StorageLocked, StorageUnavailable
from durable_cache.service.config import Settings
from durable_cache.service.output import say
from durable_cache.service.volumes import Volume, read_volume
from durable_cache.storage.contract import Floor, Storage
from durable_cache.storage.journaled.index import StreamIndex
from durable_cache.storage.journaled.locks import DirectoryLock
from durable_cache.storage.journaled.storage import JournaledStorage

_DRAIN_SECONDS_MAX = 600.0


class Place(NamedTuple):
    """One storage on one volume."""

    volume: Volume
    storage: str
    directory: Path | None
    """Where a service keeps the storage's journal and index; None when none ever did."""

    def open(self, *, writer: bool) -> Storage:
        """Open the storage itself; the caller closes it."""
        return self.volume.backend.open(self.storage, self.volume.options, writer=writer)

    def __str__(self) -> str:
        return f"{self.volume.name}/{self.storage}"


def find_place(settings: Settings, text: str) -> Place:
    """Read ``volume/storage``, or a configured storage's name alone; ConfigError otherwise."""
    volume, slash, storage = text.rpartition("/")
    configured = settings.cache.storages.get(storage)
    if not slash and configured is not None:
        volume = configured.volume
    if volume not in settings.cache.volumes:
        volumes = ", ".join(settings.cache.volumes)
        storages = ", ".join(settings.cache.storages)
        raise ConfigError(
            f"{text!r}: write volume/storage; volumes: {volumes}; configured storages: {storages}"
        )
    served = configured is not None and configured.volume == volume
    directory = Path(settings.cache.state_dir) / storage
    return Place(
        read_volume(volume, settings.cache.volumes[volume]),
        storage,
        directory if served and directory.is_dir() else None,
    )


@contextmanager
def reading(place: Place, tell: Callable[[str], None] = say) -> Iterator[Storage]:
    """Open a storage to be read, its journal drained into it where no service is at it.

    `tell` is called with a line for people where something is left out.
    """
    if place.directory is not None:
        _drain(place, place.directory, tell)
    with place.open(writer=False) as storage:
        yield storage


def _drain(place: Place, directory: Path, tell: Callable[[str], None]) -> None:
    try:
        stored = JournaledStorage(place.open(writer=True), directory)
    except StorageLocked:
        tell(f"{place}: a service is at it; what its journal still holds is left out")
        return
    try:
        if not stored.drain_all(_DRAIN_SECONDS_MAX):
            raise StorageUnavailable(f"{place}: {stored.backend_error or 'draining took too long'}")
    finally:
        stored.close()


@contextmanager
def writing(place: Place) -> Iterator[Storage]:
    """Open a storage to be written while no service is at it, and bring its index up to date."""
    lock = DirectoryLock(place.directory) if place.directory is not None else None
    try:
        with place.open(writer=True) as storage:
            yield storage
            if place.directory is not None:
                _reindex(storage, place.directory)
    finally:
        if lock is not None:
            lock.release()


def _reindex(storage: Storage, directory: Path) -> None:
    """Read the stream index anew from the backend, keeping what was trimmed and purged."""
    index = StreamIndex(directory / "index.db")
    try:
        infos = [info for info in index.all_infos() if info.floor or info.purged]
        index.rebuild(storage)
        index.trimmed([Floor(info.stream, info.floor) for info in infos if info.floor])
        index.trimmed(
            [Floor(info.stream, info.purged) for info in infos if info.purged], purged=True
        )
    finally:
        index.close()
