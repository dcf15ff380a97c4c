"""How history is written to Parquet and Arrow files: the columns of a frame, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from durable_cache.frame.columns import COLUMNS, batch_of, schema_of
from durable_cache.model.sample import Sample

_GROUP_ROWS, _GROUP_BYTES = 100_000, 64 << 20
"""A row group that is smaller costs readers more than it saves; it is in memory until written."""


class ParquetFile:
    """A Parquet file, compressed with zstd; holds one row group, at most about 64 MiB."""

    def __init__(self, file: BinaryIO) -> None:
        self._schema = schema_of(COLUMNS, None)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []

    def write(self, samples: Sequence[Sample]) -> None:
        """Add some samples, at least one, to the row group."""
        self._waiting.append(batch_of(samples, self._schema, None))
        rows = sum(batch.num_rows for batch in self._waiting)
        if rows >= _GROUP_ROWS or sum(batch.nbytes for batch in self._waiting) >= _GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        """Write the last row group and the footer."""
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), 1 << 30)
            self._waiting = []


class ArrowFile:
    """An Arrow IPC file, which is Feather too, compressed with zstd; holds one batch."""

    def __init__(self, file: BinaryIO) -> None:
        self._schema = schema_of(COLUMNS, None)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_file(file, self._schema, options=options)

    def write(self, samples: Sequence[Sample]) -> None:
        """Write some samples, at least one, as a record batch."""
        self._writer.write_batch(batch_of(samples, self._schema, None))

    def finish(self) -> None:
        """Write the footer."""
        self._writer.close()
