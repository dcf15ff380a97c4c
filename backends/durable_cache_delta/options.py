"""Which settings does the Delta backend take, and what bounds does each of them set?"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from durable_cache.errors import ConfigError
from durable_cache.storage.contract import BackendOptions

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


class DeltaOptions(BackendOptions, frozen=True):
    """A volume on Delta Lake; each default carries its reason."""

    path: str
    """A folder, or the URI of one on an object store (``s3://bucket/folder``)."""
    storage_options: dict[str, str] = msgspec.field(default_factory=dict)
    """Given to deltalake as they are, for object stores: endpoint, region, credentials."""
    file_bytes_target: int = 128 << 20
    """Size that compaction aims at: few files to plan over, each a fair task for Spark."""
    file_rows_max: int = 2_000_000
    """Rows of one file, so that one can be sorted in memory."""
    row_group_rows: int = 8192
    """What is decoded to answer a gap of ten; larger ones are a little faster to scan in Spark."""
    compact_files_min: int = 16
    """Small files of one day that are worth a compaction; past days are compacted from two."""
    compact_bytes_max: int = 512 << 20
    """Files merged in one go: the memory that a compaction may take is a few times this."""
    maintenance_interval_seconds: float = 60.0
    """How often the background looks for something to do; 0 leaves it to an operator."""
    checkpoint_commits: int = 100
    """Commits between checkpoints of the log: what opening the table has to replay."""
    vacuum_retention_hours: float = 168.0
    """How long a replaced file stays for readers that began before."""
    streams_max: int = 1_000_000
    """Streams held in the index in memory, about 1 KiB each."""
    skips_max: int = 1_000_000
    """Ranges of given-up numbers held in memory."""
    footers_max: int = 256
    """Parquet footers kept in memory, so that a small read opens no file twice."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path: name a folder or the URI of one")
        if self.path.startswith("~"):
            raise ValueError("path: '~' is not expanded; write the whole path")
        if "://" in self.path and urlsplit(self.path).scheme not in (*_SCHEMES, "file"):
            known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
            raise ValueError(f"path: {self.path.split('://')[0]!r} is no store; known: {known}")
        for name in ("file_bytes_target", "file_rows_max", "row_group_rows", "compact_bytes_max"):
            _at_least(self, name, 1024)
        for name in ("checkpoint_commits", "streams_max", "skips_max", "footers_max"):
            _at_least(self, name, 1)
        _at_least(self, "compact_files_min", 2)
        _at_least(self, "maintenance_interval_seconds", 0)
        _at_least(self, "vacuum_retention_hours", 0)


def _at_least(options: DeltaOptions, name: str, least: int) -> None:
    if getattr(options, name) < least:
        raise ValueError(f"{name} is {getattr(options, name)}; the least is {least}")


def is_local(path: str) -> bool:
    """Tell whether a volume's path is on this machine, where fsync and locks mean something."""
    return "://" not in path or urlsplit(path).scheme == "file"


def local_folder(path: str) -> Path:
    """Return a local volume's folder."""
    return Path(path.removeprefix("file://"))


def check_name(storage: str) -> None:
    """Raise ConfigError when `storage` is no name for one: it becomes a folder's name."""
    if not _NAME.match(storage):
        raise ConfigError(
            f"storage {storage[:80]!r}: a name is 1 to 64 of a-z 0-9 _ - and begins with a letter"
        )
