"""Alignment on a Zenoh session: threads, messages and storage of the pure aligner.

This is the door: other modules import from here.
"""

from durable_cache.endpoints.alignment.aligning import Aligning
from durable_cache.endpoints.alignment.counts import Differences

__all__ = ["Aligning", "Differences"]
