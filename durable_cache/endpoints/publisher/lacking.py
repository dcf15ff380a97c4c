"""Says that a publisher's samples wait for caches which are not in reach, before its time is over.

Nothing else shows it: a put returns at once, and whoever waits for its receipt waits in silence.
"""

from __future__ import annotations

import logging

from durable_cache.model.key_expression import KeyExpression

_log = logging.getLogger(__name__)
_SILENT_NS = 5_000_000_000
"""A cache that is started again is back by then, and so is a link."""


def too_few(seen: int) -> str:
    """Say how many caches could acknowledge, and why there may be others that cannot."""
    if seen:
        return f"{seen} in reach"
    return "none is in reach; a session with a namespace reaches those of its namespace alone"


class Lacking:
    """One line of the log when caches are too few for what waits, and one when they are enough."""

    def __init__(self, key_expr: KeyExpression, wanted: int) -> None:
        self._key_expr = key_expr
        self._wanted = wanted
        self._since_ns: int | None = None
        self._told = False

    def look(self, seen: int, now_ns: int, *, waits: bool) -> None:
        """See how many caches are in reach; `waits`: something is not acknowledged yet."""
        if seen >= self._wanted or not waits:
            self._since_ns = None
            if self._told and seen >= self._wanted:
                self._told = False
                _log.warning("caches that can acknowledge %s are in reach again", self._key_expr)
            return
        if self._since_ns is None:
            self._since_ns = now_ns
        if not self._told and now_ns - self._since_ns >= _SILENT_NS:
            self._told = True
            _log.warning(
                "samples on %s wait for %d cache%s to acknowledge them: %s",
                self._key_expr,
                self._wanted,
                "" if self._wanted == 1 else "s",
                too_few(seen),
            )
