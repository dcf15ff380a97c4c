"""A reliable subscriber on a Zenoh session."""

from __future__ import annotations

from durable_cache.endpoints.subscriber.declaring import declare_reliable_subscriber
from durable_cache.endpoints.subscriber.reader import ReliableReader
from durable_cache.endpoints.subscriber.subscriber import Miss, MissListener, ReliableSubscriber

__all__ = [
    "Miss",
    "MissListener",
    "ReliableReader",
    "ReliableSubscriber",
    "declare_reliable_subscriber",
]
