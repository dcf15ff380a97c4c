"""Delta Lake backend: months of history in open tables that Spark, DuckDB and Polars read too."""

from __future__ import annotations

from durable_cache_delta.backend import DeltaBackend
from durable_cache_delta.options import DeltaOptions

__all__ = ["DeltaBackend", "DeltaOptions"]
