"""What a service tells about itself, the same value for HTTP, the admin space and the terminal."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from durable_cache.endpoints.cache import CacheStatus

__all__ = ["Event", "ServiceReport", "Timeline", "report_values"]


class Event(NamedTuple):
    """One change that an operator may want to see."""

    unix_seconds: float
    storage: str
    gaps_open: int
    missed: int
    refused: int
    up: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceReport:
    """The whole service at one moment."""

    version: str
    zid: str
    domain: str
    state_dir: str
    listening: tuple[str, ...]
    uptime_seconds: float
    storages: tuple[CacheStatus, ...]
    events: tuple[Event, ...]
    """The changes of the last hours, oldest first, bounded."""
    disk_free_bytes: int = -1
    """Room on the disk of the journals; -1 where it cannot be told."""

    @property
    def ready(self) -> bool:
        """Whether every storage takes samples and reaches its backend."""
        return all(status.storage_up and status.takes_samples for status in self.storages)


def report_values(report: ServiceReport, *, with_events: bool = True) -> dict[str, object]:
    """Return the report as plain values for JSON; the events, which may be many, as asked."""
    events = report.events if with_events else ()
    values = dataclasses.asdict(dataclasses.replace(report, events=()))
    values["ready"] = report.ready
    values["storages"] = [
        {**dataclasses.asdict(status), "level": str(status.level)} for status in report.storages
    ]
    values["events"] = [event._asdict() for event in events]
    return values


class Timeline:
    """Remembers when gaps opened and closed, samples were missed or a storage went down.

    Holds at most `events_max` changes per service; any thread.
    """

    def __init__(self, events_max: int = 2000) -> None:
        self._events: deque[Event] = deque(maxlen=events_max)
        self._latest: dict[str, Event] = {}
        self._lock = Lock()

    def note(self, statuses: Sequence[CacheStatus]) -> None:
        """Compare with what was noted last and remember what changed."""
        now = time.time()
        names = {status.name for status in statuses}
        with self._lock:
            self._latest = {name: event for name, event in self._latest.items() if name in names}
            for status in statuses:
                event = Event(
                    now,
                    status.name,
                    status.gaps_open,
                    status.missed,
                    status.refused,
                    status.storage_up,
                )
                before = self._latest.get(status.name)
                if before is None or before[2:] != event[2:]:
                    self._latest[status.name] = event
                    self._events.append(event)

    def events(self) -> tuple[Event, ...]:
        """Return what is remembered, oldest first."""
        with self._lock:
            return tuple(self._events)
