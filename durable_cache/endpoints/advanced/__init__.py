"""Reliable publishers and subscribers under zenoh.ext's names; `durable_cache.ext` shows them."""

from __future__ import annotations

from durable_cache.endpoints.advanced.configs import (
    CacheConfig,
    HistoryConfig,
    MissDetectionConfig,
    RecoveryConfig,
    RepliesConfig,
)
from durable_cache.endpoints.advanced.publisher import (
    AdvancedPublisher,
    declare_advanced_publisher,
)
from durable_cache.endpoints.advanced.subscriber import (
    AdvancedSubscriber,
    declare_advanced_subscriber,
)

__all__ = [
    "AdvancedPublisher",
    "AdvancedSubscriber",
    "CacheConfig",
    "HistoryConfig",
    "MissDetectionConfig",
    "RecoveryConfig",
    "RepliesConfig",
    "declare_advanced_publisher",
    "declare_advanced_subscriber",
]
