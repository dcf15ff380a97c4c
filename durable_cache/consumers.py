"""Durable consumers: subscribers with a name that go on where they stood.

`declare_reliable_subscriber(session, key_expr, handler, consumer="name")` declares one.
"""

from __future__ import annotations

from durable_cache.endpoints.subscriber.consumer import Confirm, ReliableConsumer
from durable_cache.endpoints.subscriber.dead_letters import DeadLetter, read_dead_letters
from durable_cache.endpoints.subscriber.keeping import ConsumerOptions

__all__ = ["Confirm", "ConsumerOptions", "DeadLetter", "ReliableConsumer", "read_dead_letters"]
