"""How history that another backend holds (PostgreSQL, InfluxDB, …) gets into a Delta storage.

Through the storage contract: whatever a backend can read is appended by the delta backend, which
takes each identity once. No JVM takes part, and the delta storage has one writer as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from durable_cache.spark.key_expressions import parse_key_expr
from durable_cache.storage.plugins import open_storage
from durable_cache.storage.transfer import CopyResult, copy_history

Source = tuple[str, str, Mapping[str, object]]
"""A backend's name, a storage's name, and the backend's own options."""


def import_history(
    source: Source,
    volume: str | Path,
    storage: str,
    *,
    key_expr: str = "**",
    progress: Callable[[int], None] = lambda _: None,
) -> CopyResult:
    """Copy what `source` holds and the delta storage in `volume` lacks; repeat it after any error.

    Deduplicated by identity; a copy that was cut off goes on where it was. `progress` is told the
    samples of each page. Raises ConfigError, `StorageLocked` while a service writes the target,
    and what the two storages raise.
    """
    asked = parse_key_expr(key_expr)
    backend, name, options = source
    with open_storage(backend, name, options, writer=False) as held:
        with open_storage("delta", storage, {"path": str(volume)}) as target:
            return copy_history(held, target, asked, progress)
