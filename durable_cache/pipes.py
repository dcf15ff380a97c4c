"""Reliable pipes: samples carried between the caches of two networks, under their own identity.

`declare_reliable_pipe(source_session, target_session, key_expr)` declares one.
"""

from __future__ import annotations

from durable_cache.endpoints.pipe import (
    PipeOptions,
    PipeStatus,
    ReliablePipe,
    declare_reliable_pipe,
)

__all__ = ["PipeOptions", "PipeStatus", "ReliablePipe", "declare_reliable_pipe"]
