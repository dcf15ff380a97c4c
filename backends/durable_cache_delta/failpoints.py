"""Where may a process die while it commits? Tests put a hook here; nobody else does."""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "parquet written",
    "parquet synced",
    "before commit",
    "after commit",
    "commit synced",
    "confirmed",
)
"""The steps of one commit, in order."""

hook: Callable[[str], None] | None = None


def reached(point: str) -> None:
    """Tell the hook, if there is one, that a commit has come as far as `point`."""
    if hook is not None:
        hook(point)
