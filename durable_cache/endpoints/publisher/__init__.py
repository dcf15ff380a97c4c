"""The reliable publisher: a thin shell around its pure engine, on a Zenoh session."""

from __future__ import annotations

from durable_cache.endpoints.publisher.declaring import declare_reliable_publisher
from durable_cache.endpoints.publisher.options import PublisherOptions
from durable_cache.endpoints.publisher.publisher import ReliablePublisher
from durable_cache.endpoints.publisher.receipts import Receipt

__all__ = ["PublisherOptions", "Receipt", "ReliablePublisher", "declare_reliable_publisher"]
