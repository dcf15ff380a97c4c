"""How history in Delta tables is queried with Spark: sessions, DataFrames, SQL views, jobs.

Nothing here imports pyspark until it is used, so that the command line works without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from durable_cache.errors import BackendNotInstalled

if TYPE_CHECKING:
    from durable_cache.spark.decoding import register_decoder, with_value
    from durable_cache.spark.reading import history
    from durable_cache.spark.session import spark_options, spark_session
    from durable_cache.spark.views import register_views

__all__ = [
    "history",
    "register_decoder",
    "register_views",
    "spark_options",
    "spark_session",
    "with_value",
]

_HOMES = {
    "history": "reading",
    "register_decoder": "decoding",
    "register_views": "views",
    "spark_options": "session",
    "spark_session": "session",
    "with_value": "decoding",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pyspark", "delta", "py4j"):
            raise
        raise BackendNotInstalled("spark", "spark", error.name) from error
