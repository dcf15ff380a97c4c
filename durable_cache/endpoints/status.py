"""What a cache says of itself: figures for people, metrics and health checks."""

from __future__ import annotations

from dataclasses import dataclass

from durable_cache.storage.contract import Durability

__all__ = ["CacheStatus"]


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """A cache's figures at one moment; counts are since it was declared."""

    name: str
    cache_id: str
    key_exprs: tuple[str, ...]
    level: Durability
    backend: str
    storage_up: bool
    received: int
    appended: int
    duplicates: int
    conflicts: int
    ignored: int
    """Samples without source_info, as the specification wants."""
    refused: int
    """Samples there was no room for, too large, or of a stream beyond `resources_limit`."""
    missed: int
    gaps_open: int
    sources: int
    streams: int
    journal_bytes: int
    journal_samples: int
    drained: int
    dead_letters: int
    queries_ok: int
    queries_failed: int
    acks_sent: int
    append_seconds: float
    """Time spent committing; with `commits`, the mean."""
    commits: int
    last_error: str
