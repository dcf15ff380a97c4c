"""Storages of the Delta backend, written by the backend itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from durable_cache.model.sample import Sample, SampleBatch, Skip
from durable_cache_delta import DeltaBackend, DeltaOptions, failpoints
from durable_cache_delta.storage import DeltaStorage


def lake(path: Path | str, **changed: object) -> DeltaOptions:
    """Return options for a volume that nothing looks after in the background."""
    import msgspec

    plain = {"path": str(path), "maintenance_interval_seconds": 0} | changed
    return msgspec.convert(plain, DeltaOptions)


def opened(path: Path | str, storage: str = "fleet", *, writer: bool = True) -> DeltaStorage:
    return DeltaBackend().open(storage, lake(path), writer=writer)


def write(
    path: Path, samples: Iterable[Sample], skips: Sequence[Skip] = (), storage: str = "fleet"
) -> Path:
    """Append one commit to the storage called `storage` below `path`; returns its folder."""
    with opened(path, storage) as written:
        written.append(SampleBatch(samples), skips)
    return path / storage


class Crash(BaseException):
    """Stands for the death of the process: nothing catches it."""


@contextmanager
def crashing_at(point: str, after: int = 0) -> Iterator[None]:
    """Raise `Crash` when a commit has come as far as `point` for the `after + 1`-th time."""
    left = after

    def crash(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left < 0:
                raise Crash(point)

    failpoints.hook = crash
    try:
        yield
    finally:
        failpoints.hook = None
