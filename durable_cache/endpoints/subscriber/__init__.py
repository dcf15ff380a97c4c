"""A reliable subscriber on a Zenoh session."""

from __future__ import annotations

from durable_cache.endpoints.subscriber.consumer import ReliableConsumer
from durable_cache.endpoints.subscriber.declaring import declare_reliable_subscriber
from durable_cache.endpoints.subscriber.keeping import ConsumerOptions
from durable_cache.endpoints.subscriber.reader import ReliableReader
from durable_cache.endpoints.subscriber.subscriber import Miss, MissListener, ReliableSubscriber

__all__ = [
    "ConsumerOptions",
    "Miss",
    "MissListener",
    "ReliableConsumer",
    "ReliableReader",
    "ReliableSubscriber",
    "declare_reliable_subscriber",
]
