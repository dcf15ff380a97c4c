"""Timestamps ahead of the clock: refused where a program gives one, counted where they arrive.

Zenoh's routers give a put that is more than half a second ahead of their clock another timestamp,
or drop it, as they are configured; nobody replaces that of a delete. So whoever holds the sample in
front of a router and whoever holds it behind one would not agree (ADR 0188).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from operator import attrgetter
from threading import Lock

from durable_cache.endpoints.session import (
    Session,
    Timestamp,
    new_timestamp,
    raw_timestamp,
    read_stamp,
)
from durable_cache.errors import ConfigError
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.timestamp import ntp64_from_ns

_log = logging.getLogger(__name__)
_AHEAD_NTP64 = 1 << 31
"""Half a second: what Zenoh's routers grant a timestamp."""
_NTP64_SECOND = 1 << 32
_SOURCES_TOLD_MAX = 1_000
"""Publishers that the log names; all samples are counted."""
_NTP64 = attrgetter("ntp64")


def read_own_stamp(session: Session, value: object) -> Timestamp | None:
    """Return the timestamp that a program gives a sample; None where it leaves it to the session.

    Raises ConfigError where it is no timestamp, or one that Zenoh's routers would not let pass.
    """
    stamp = read_stamp(value)
    if stamp is None:
        return None
    ahead = raw_timestamp(stamp)[0] - raw_timestamp(new_timestamp(session))[0]
    if ahead > _AHEAD_NTP64:
        raise ConfigError(
            f"timestamp={stamp}: {ahead / _NTP64_SECOND:.1f} s ahead of this session's clock; from "
            "half a second on, Zenoh's routers replace it or drop the sample, so caches would not "
            "agree: give the time of now, or set the clock right"
        )
    return stamp


class TimestampsAhead:
    """Counts samples that are ahead of this clock; any thread."""

    def __init__(self, consequence: str) -> None:
        self.total = 0
        self._consequence = consequence
        self._told: set[SourceId] = set()
        self._lock = Lock()

    def note(self, samples: Sequence[Sample]) -> None:
        """Count those of the future, and log once for each publisher whose clock it is."""
        limit = ntp64_from_ns(time.time_ns()) + _AHEAD_NTP64
        if max(map(_NTP64, samples), default=0) <= limit:
            return
        with self._lock:
            for sample in samples:
                if sample.ntp64 > limit:
                    self.total += 1
                    self._tell(sample, sample.ntp64 - limit + _AHEAD_NTP64)

    def _tell(self, sample: Sample, ahead: int) -> None:
        source = sample.source
        if source in self._told or len(self._told) >= _SOURCES_TOLD_MAX:
            return
        self._told.add(source)
        _log.warning(
            "%s of %s is %.1f s ahead of this clock: %s; set the clocks right",
            sample.key,
            source,
            ahead / _NTP64_SECOND,
            self._consequence,
        )
