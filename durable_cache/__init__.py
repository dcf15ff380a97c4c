"""Durable history for Eclipse Zenoh: samples that survive, in order, exactly once, or reported.

A name is imported when it is first used: `durable-cache --help` needs none of them, and a program
that only publishes needs no cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from durable_cache.endpoints.cache import ReliabilityCache, declare_reliability_cache
    from durable_cache.endpoints.options import CacheOptions
    from durable_cache.endpoints.publisher import (
        PublisherOptions,
        Receipt,
        ReliablePublisher,
        declare_reliable_publisher,
    )
    from durable_cache.endpoints.session import Origins, open_session
    from durable_cache.endpoints.status import CacheStatus
    from durable_cache.endpoints.subscriber import (
        Miss,
        ReliableReader,
        ReliableSubscriber,
        declare_reliable_subscriber,
    )
    from durable_cache.endpoints.subscriber.channels import FifoChannel, RingChannel
    from durable_cache.frame.opening import read
    from durable_cache.model.sample import Kind, Qos, Sample, SourceId
    from durable_cache.protocol.reader.profile import Profile
    from durable_cache.storage.contract import Durability, Retention

    __version__: str

__all__ = [
    "CacheOptions",
    "CacheStatus",
    "Durability",
    "FifoChannel",
    "Kind",
    "Miss",
    "Origins",
    "Profile",
    "PublisherOptions",
    "Qos",
    "Receipt",
    "ReliabilityCache",
    "ReliablePublisher",
    "ReliableReader",
    "ReliableSubscriber",
    "Retention",
    "RingChannel",
    "Sample",
    "SourceId",
    "declare_reliability_cache",
    "declare_reliable_publisher",
    "declare_reliable_subscriber",
    "open_session",
    "read",
]

_MODULES = {
    "endpoints.cache": ("CacheStatus", "ReliabilityCache", "declare_reliability_cache"),
    "endpoints.options": ("CacheOptions",),
    "endpoints.publisher": (
        *("PublisherOptions", "Receipt", "ReliablePublisher"),
        "declare_reliable_publisher",
    ),
    "endpoints.session": ("Origins", "open_session"),
    "endpoints.subscriber": (
        *("Miss", "ReliableReader", "ReliableSubscriber"),
        "declare_reliable_subscriber",
    ),
    "endpoints.subscriber.channels": ("FifoChannel", "RingChannel"),
    "frame": ("read",),
    "model.sample": ("Kind", "Qos", "Sample", "SourceId"),
    "protocol.reader.profile": ("Profile",),
    "storage.contract": ("Durability", "Retention"),
}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("durable-cache")
    except PackageNotFoundError:  # used from its sources, without having been installed
        return "0"


if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "__version__":
            value = globals()[name] = _version()
            return value
        for module, names in _MODULES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})
