"""A reliable subscriber on a Zenoh session."""

from __future__ import annotations

from durable_cache.endpoints.subscriber.subscriber import (
    Miss,
    MissListener,
    ReliableSubscriber,
    declare_reliable_subscriber,
)

__all__ = ["Miss", "MissListener", "ReliableSubscriber", "declare_reliable_subscriber"]
