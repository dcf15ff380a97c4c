"""Durable history for Eclipse Zenoh: samples that survive, in order, exactly once, or reported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from durable_cache.endpoints.cache import CacheStatus, ReliabilityCache, declare_reliability_cache
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.publisher import (
    PublisherOptions,
    Receipt,
    ReliablePublisher,
    declare_reliable_publisher,
)
from durable_cache.endpoints.session import Origins, open_session
from durable_cache.endpoints.subscriber import (
    Miss,
    ReliableSubscriber,
    declare_reliable_subscriber,
)
from durable_cache.endpoints.subscriber.channels import FifoChannel, RingChannel
from durable_cache.model.sample import Kind, Qos, Sample, SourceId
from durable_cache.storage.contract import Durability, Retention

try:
    __version__ = version("durable-cache")
except PackageNotFoundError:  # used from its sources, without having been installed
    __version__ = "0"

__all__ = [
    "CacheOptions",
    "CacheStatus",
    "Durability",
    "FifoChannel",
    "Kind",
    "Miss",
    "Origins",
    "PublisherOptions",
    "Qos",
    "Receipt",
    "ReliabilityCache",
    "ReliablePublisher",
    "ReliableSubscriber",
    "Retention",
    "RingChannel",
    "Sample",
    "SourceId",
    "declare_reliability_cache",
    "declare_reliable_publisher",
    "declare_reliable_subscriber",
    "open_session",
]
