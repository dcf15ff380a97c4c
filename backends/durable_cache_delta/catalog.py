"""Which files are live, and what do they hold: the samples table as the storage knows it.

Loaded from the log, from a cache file where it fits, and from the identity columns of files that
the cache does not know. Mutable; the caller holds the storage's lock.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream
from durable_cache_delta.files import DataFile, Numbering, Span, describe
from durable_cache_delta.index import INDEX_COLUMNS, StreamIndex, StreamRows, stream_rows
from durable_cache_delta.log import Added, TableLog
from durable_cache_delta.scanner import Scanner

_log = logging.getLogger(__name__)
_CACHE_FORMAT = 1

_FileRecord = tuple[
    str, int, int, str, tuple[str, str], tuple[int, int], int, list[tuple[str, int, int, int, int]]
]
_StreamRecord = tuple[str, str, int, int, list[tuple[int, int]], int, int]


class _Cache(msgspec.Struct, array_like=True):
    format: int
    table_id: str
    files: list[_FileRecord]
    streams: list[_StreamRecord]


class Catalog:
    """The live files and the stream index of one samples table."""

    def __init__(
        self, log: TableLog, scanner: Scanner, streams_max: int, cache: Path | None
    ) -> None:
        self._log = log
        self._scanner = scanner
        self._streams_max = streams_max
        self._cache = cache
        self._saved_version = -1
        self.files: tuple[DataFile, ...] = ()
        self.index = StreamIndex(streams_max)

    def load(self) -> None:
        """Know the table as its log describes it now."""
        live = {added.path: added for added in self._log.files()}
        known = {file.path: file for file in self.files}
        if not known or not known.keys() <= live.keys():
            self.files, self.index = (), StreamIndex(self._streams_max)
            known = self._load_cache(live)
        missing = [added for path, added in live.items() if path not in known]
        for added in missing:
            file, rows = self._examine(added)
            known[added.path] = file
            for one in rows:
                self.index.check_room([one.stream])
                self.index.add(one)
        self.files = tuple(known[path] for path in sorted(live, key=lambda path: live[path]))

    def _examine(self, added: Added) -> tuple[DataFile, list[StreamRows]]:
        day = added.day or "1970-01-01"
        file = DataFile(added.path, added.size, 0, day, ("", ""), Span(0, 0), 0, {})
        columns: Sequence[str] = INDEX_COLUMNS
        if self._scanner.has_attachments(file):
            columns = (*INDEX_COLUMNS, "attachment")
        rows: pa.Table = self._scanner.read_all(file, columns)
        return describe(added.path, added.size, day, rows), stream_rows(rows)

    def add(self, files: Iterable[DataFile], rows: Iterable[StreamRows]) -> None:
        """Know the files of a commit of our own."""
        self.files = (*self.files, *files)
        for one in rows:
            self.index.add(one)

    def swap(self, removed: Sequence[DataFile], added: Sequence[DataFile]) -> None:
        """Know that files took the place of others; the index is the caller's to change."""
        gone = {file.path for file in removed}
        self.files = (*(file for file in self.files if file.path not in gone), *added)
        self._scanner.forget(removed)

    def save(self) -> None:
        """Write the cache file, so that the next open need not read the history."""
        if self._cache is None or self._saved_version == self._log.version:
            return
        data = msgspec.msgpack.encode(
            _Cache(
                _CACHE_FORMAT,
                self._log.table_id,
                [_file_record(file) for file in self.files],
                [
                    (
                        *_stream_key(stream),
                        [(run.first, run.last) for run in state.runs],
                        state.newest_ntp64,
                        state.newest_received_ns,
                    )
                    for stream, state in self.index.streams.items()
                ],
            )
        )
        draft = self._cache.with_name(f"_{self._cache.name}.new")
        try:
            draft.write_bytes(zlib.crc32(data).to_bytes(4, "big") + data)
            draft.replace(self._cache)
        except OSError:
            # Only the next open is slower.
            _log.warning("the index cache could not be written", extra={"path": str(self._cache)})
            return
        self._saved_version = self._log.version

    def _load_cache(self, live: dict[str, Added]) -> dict[str, DataFile]:
        """Fill the index from the cache file if every file it knows is still live."""
        cache = self._read_cache()
        if cache is None or cache.table_id != self._log.table_id:
            return {}
        files = [_file_of(record) for record in cache.files]
        if not all(file.path in live and live[file.path].size == file.size for file in files):
            return {}
        for key, zid, eid, epoch, runs, ntp64, received_ns in cache.streams:
            stream = Stream(key, SourceId(zid, eid), epoch)
            self.index.add(StreamRows(stream, RangeSet(runs), ntp64, received_ns))
        return {file.path: file for file in files}

    def _read_cache(self) -> _Cache | None:
        if self._cache is None:
            return None
        try:
            data = self._cache.read_bytes()
            if int.from_bytes(data[:4], "big") != zlib.crc32(data[4:]):
                return None
            cache = msgspec.msgpack.decode(data[4:], type=_Cache)
        except (OSError, msgspec.DecodeError):
            return None
        return cache if cache.format == _CACHE_FORMAT else None


def _stream_key(stream: Stream) -> tuple[str, str, int, int]:
    return stream.key, stream.source.zid, stream.source.eid, stream.epoch


def _file_record(file: DataFile) -> _FileRecord:
    return (
        file.path,
        file.size,
        file.rows,
        file.day,
        file.keys,
        (file.ntp64.first, file.ntp64.last),
        file.stored_bytes,
        [(*numbering, *span) for numbering, span in file.numberings.items()],
    )


def _file_of(record: _FileRecord) -> DataFile:
    path, size, rows, day, keys, ntp64, stored, numberings = record
    return DataFile(
        path,
        size,
        rows,
        day,
        keys,
        Span(*ntp64),
        stored,
        {Numbering(z, e, p): Span(first, last) for z, e, p, first, last in numberings},
    )
