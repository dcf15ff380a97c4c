"""Durable consumers: subscribers with a name that go on where they stood.

`declare_reliable_subscriber(session, key_expr, handler, consumer="name")` declares one.
"""

from __future__ import annotations

from durable_cache.endpoints.subscriber.asked import Confirm, KeptPosition
from durable_cache.endpoints.subscriber.consumer import ReliableConsumer
from durable_cache.endpoints.subscriber.dead_letters import DeadLetter, read_dead_letters
from durable_cache.endpoints.subscriber.exclusive import ExclusiveConsumer
from durable_cache.endpoints.subscriber.keeping import ConsumerOptions
from durable_cache.endpoints.subscriber.overview import (
    ConsumerStatus,
    RunStatus,
    find_consumers,
    rewind_consumer,
)
from durable_cache.endpoints.subscriber.sharing import SharingConsumer

__all__ = [
    "Confirm",
    "ConsumerOptions",
    "ConsumerStatus",
    "DeadLetter",
    "ExclusiveConsumer",
    "KeptPosition",
    "ReliableConsumer",
    "RunStatus",
    "SharingConsumer",
    "find_consumers",
    "read_dead_letters",
    "rewind_consumer",
]
