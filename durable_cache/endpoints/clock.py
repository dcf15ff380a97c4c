"""What time it is, for rooms that ask no clock."""

from __future__ import annotations

from time import monotonic_ns, time_ns

from durable_cache.model.clock import Moment


def moment_now() -> Moment:
    """Return what both clocks say."""
    return Moment(monotonic_ns(), time_ns())
