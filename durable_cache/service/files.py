"""In which formats samples are written, to a file of their own or to stdout.

What a format needs is imported when it is chosen: the command line alone needs none of it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, cast

from durable_cache.errors import BackendNotInstalled, ConfigError
from durable_cache.model.sample import Sample
from durable_cache.model.selection import Order
from durable_cache.service.samples import SampleWriter
from durable_cache.service.whole_file import writing_whole


class SampleFile(Protocol):
    """A file that samples are written into, some at a time, in bounded memory."""

    def write(self, samples: Sequence[Sample]) -> None:
        """Write some samples; raises what the file raises."""

    def finish(self) -> None:
        """Write what belongs at the end; a file that was not finished cannot be read."""


class _Binary(NamedTuple):
    """Where a format's writer is, and which extra brings what it needs."""

    module: str
    name: str
    extra: str


BINARY: Mapping[str, _Binary] = {
    "parquet": _Binary("durable_cache.frame.files", "ParquetFile", "frame"),
    "arrow": _Binary("durable_cache.frame.files", "ArrowFile", "frame"),
    "mcap": _Binary("durable_cache.service.recording", "McapFile", "mcap"),
}
"""The formats that are no text."""
_SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".mcap": "mcap",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
}


def format_of(form: str, file: str, otherwise: str) -> str:
    """Return the format that was asked for, or that a file's name says.

    Raises ConfigError where the name's ending stands for no format.
    """
    suffix = Path(file).suffix.lower()
    if not form and suffix and suffix not in _SUFFIXES:
        raise ConfigError(
            f"{file}: no format ends in {suffix}; end it in {', '.join(_SUFFIXES)}, or name one "
            "with --format"
        )
    return form or _SUFFIXES.get(suffix, otherwise)


def order_of(form: str) -> Order:
    """Return in which order a format wants its samples: a recording is played in order of time."""
    return Order.TIME if form == "mcap" else Order.IDENTITY


@contextmanager
def samples_to(form: str, file: str) -> Iterator[SampleFile]:
    """Yield what writes samples in a format into a file, or to stdout where none is named.

    A block that raises leaves no file; on stdout, bytes without their end, which no reader takes.
    Raises OSError, and BackendNotInstalled naming an extra.
    """
    if not file:
        samples = (
            _writer(form)(cast("BinaryIO", _Forward(sys.stdout.buffer)))
            if form in BINARY
            else SampleWriter(form)
        )
        yield samples
        samples.finish()
        return
    with writing_whole(Path(file)) as made:
        if form in BINARY:
            samples = _writer(form)(made)
            yield samples
            samples.finish()
            return
        text = io.TextIOWrapper(made, encoding="utf-8", newline="")
        try:
            yield SampleWriter(form, text)
        finally:
            text.detach()


def _writer(form: str) -> Callable[[BinaryIO], SampleFile]:
    found = BINARY[form]
    try:
        made: Callable[[BinaryIO], SampleFile] = getattr(import_module(found.module), found.name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("durable_cache"):
            raise
        package = error.name.partition(".")[0]
        raise BackendNotInstalled(f"--format {form}", found.extra, package) from error
    return made


def check_output(form: str, file: str) -> None:
    """Raise ConfigError or BackendNotInstalled where nothing can be written, before any work."""
    if file and Path(file).exists():
        raise ConfigError(f"{file} exists; name a new file")
    if file and not Path(file).parent.is_dir():
        raise ConfigError(f"{file}: there is no such folder")
    if form not in BINARY:
        return
    if not file and sys.stdout.isatty():
        raise ConfigError(
            f"--format {form}: its bytes are nothing for a terminal; name a file with --output"
        )
    _writer(form)


class _Forward(io.BufferedIOBase):
    """Bytes that go out one after the other, counted, as formats note where their parts are."""

    def __init__(self, to: BinaryIO) -> None:
        self._to = to
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # any buffer
        self._to.write(data)
        self._written += memoryview(data).nbytes
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        self._to.flush()
