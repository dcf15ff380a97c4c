"""Delivery modes: what may be lost and what may come twice, chosen by name.

`declare_reliable_subscriber(session, key_expr, handler, mode="at-most-once")` chooses one.
"""

from __future__ import annotations

from durable_cache.endpoints.subscriber.retrying import RetryingSubscriber
from durable_cache.model.delivery import DeliveryMode, DeliveryRates
from durable_cache.protocol.modes import Deduplication, ModeOptions

__all__ = [
    "Deduplication",
    "DeliveryMode",
    "DeliveryRates",
    "ModeOptions",
    "RetryingSubscriber",
]
