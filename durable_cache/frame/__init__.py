"""How history becomes an Arrow stream, a frame of Polars or pandas, or a relation of DuckDB.

Nothing here imports pyarrow until it is used. `durable_cache.read` is the way in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from durable_cache.errors import BackendNotInstalled

if TYPE_CHECKING:
    from durable_cache.frame.columns import COLUMNS
    from durable_cache.frame.decoding import PayloadDecoder, cdr_values, decoded_by, json_values
    from durable_cache.frame.history import HistoryFrame
    from durable_cache.frame.opening import read

__all__ = [
    "COLUMNS",
    "HistoryFrame",
    "PayloadDecoder",
    "cdr_values",
    "decoded_by",
    "json_values",
    "read",
]

_HOMES = {
    "COLUMNS": "columns",
    "HistoryFrame": "history",
    "PayloadDecoder": "decoding",
    "cdr_values": "decoding",
    "decoded_by": "decoding",
    "json_values": "decoding",
    "read": "opening",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise BackendNotInstalled("read", "frame", "pyarrow") from error
