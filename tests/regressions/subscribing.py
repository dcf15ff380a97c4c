"""What the regression tests of the subscriber share."""

from __future__ import annotations

import sys
import time
from typing import Any

import zenoh

from durable_cache import Kind, Sample, SourceId, declare_reliable_subscriber
from durable_cache.endpoints.session import source_of
from tests.servers.zenoh_sources import Numbered

SOURCE = SourceId("ab12", 7)


def delivery_options(**chosen: Any) -> Any:
    """Return what `options=` takes, wherever it is defined."""
    return sys.modules[declare_reliable_subscriber.__module__].DeliveryOptions(**chosen)


def old_sample(sn: int, at_seconds: float, source: SourceId = SOURCE, key: str = "a/b") -> Sample:
    """Return a stored sample of `at_seconds` after some time in the past."""
    ntp64 = (1_700_000_000 << 32) + round(at_seconds * (1 << 32))
    return Sample(key, source, 0, sn, b"%d" % sn, Kind.PUT, ntp64=ntp64)


def frame_now() -> int:
    """Return the epoch of a run whose first sample is put now; no token of it names a later one."""
    return time.time_ns() >> 33


def token_of(numbered: Numbered, epoch: int | None = None) -> zenoh.LivelinessToken:
    """Declare what a publisher of ours declares before its first sample."""
    chosen = frame_now() if epoch is None else epoch
    source = source_of(numbered.publisher)
    key = f"@durable/v1/default/pub/{source}/{chosen}/{numbered.key}"
    return numbered.session.liveliness().declare_token(key)
