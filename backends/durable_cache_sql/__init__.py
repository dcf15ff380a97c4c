"""Storages in SQL databases: SQLite, the embedded default, and PostgreSQL."""

from durable_cache_sql.backend import SqlBackend
from durable_cache_sql.options import SqlOptions

__all__ = ["SqlBackend", "SqlOptions"]
