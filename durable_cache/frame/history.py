"""The stream of record batches that `durable_cache.read` returns, and what it can become."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from durable_cache.errors import BackendNotInstalled
from durable_cache.frame.columns import COLUMNS, batch_of, schema_of
from durable_cache.frame.decoding import PayloadDecoder
from durable_cache.model.sample import Sample

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from pandas import DataFrame as PandasFrame  # type: ignore[import-untyped]
    from polars import DataFrame as PolarsFrame


class HistoryFrame:
    """History as Arrow record batches, read anew each time it is asked; holds nothing open.

    Iterating, `to_reader` and `duckdb` hold one page of samples at a time, in order of key, source,
    epoch and number; `to_arrow`, `to_polars` and `to_pandas` hold the whole answer. What is stored
    meanwhile may be in it. Each raises what the storage raises (`StorageError`), and
    `BackendNotInstalled` where the package is missing; a page that failed never ends a frame early.
    Any Arrow library takes it as it is (``__arrow_c_stream__``).
    """

    def __init__(
        self,
        pages: Callable[[], Iterator[Sequence[Sample]]],
        columns: Sequence[str] | None = None,
        decoder: PayloadDecoder | None = None,
    ) -> None:
        self._pages = pages
        self._decoder = decoder
        self.schema: pa.Schema = schema_of(COLUMNS if columns is None else columns, decoder)
        """The columns and their Arrow types; the same for every batch."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for samples in self._pages():
            if samples:
                yield batch_of(samples, self.schema, self._decoder)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a ``pyarrow.RecordBatchReader``, which can be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_arrow(self) -> pa.Table:
        """Return the whole as a ``pyarrow.Table``."""
        return pa.Table.from_batches([*self], schema=self.schema)

    def to_polars(self) -> PolarsFrame:
        """Return the whole as a ``polars.DataFrame``."""
        polars = _imported("polars", "to_polars()")
        frame: PolarsFrame = polars.from_arrow(self.to_arrow())
        return frame

    def to_pandas(self) -> PandasFrame:
        """Return the whole as a ``pandas.DataFrame``."""
        _imported("pandas", "to_pandas()")
        return self.to_arrow().to_pandas()

    def duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """Return a relation of DuckDB on `connection`, or on one in memory of its own.

        Nothing is read until the relation is queried; each query reads the history anew, a page at
        a time. ``frame.duckdb().query("history", "SELECT ...")`` runs SQL. An error of the storage
        comes as DuckDB's own, with its text.
        """
        package = _imported("duckdb", "duckdb()")
        used = package.connect() if connection is None else connection
        relation: DuckDBPyRelation = used.from_arrow(self)
        return relation


def _imported(package: str, wanted_by: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise BackendNotInstalled(wanted_by, "frame", package) from error
