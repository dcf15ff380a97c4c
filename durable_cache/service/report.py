"""What a service tells about itself, the same value for HTTP, the admin space and the terminal."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from durable_cache.endpoints.status import CacheStatus
from durable_cache.endpoints.subscriber.tables import ConsumerCounts
from durable_cache.protocol.subjects import SubjectCounts
from durable_cache.service.measured import ModeRates
from durable_cache.service.piping import PipeReport


class Event(NamedTuple):
    """One change that an operator may want to see."""

    unix_seconds: float
    storage: str
    gaps_open: int
    missed: int
    refused: int
    up: bool


class SourceEvent(NamedTuple):
    """A source of a storage began to be waited for, or no longer is."""

    unix_seconds: float
    storage: str
    source: str
    awaited: int
    """How many of its numbers; 0 from here on nothing."""


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
    source_events: tuple[SourceEvent, ...] = ()
    """When sources were waited for, oldest first, bounded."""
    subscribers_lost: int = 0
    """Samples that subscribers of the domain say they lost, since the service began."""
    subscribers: tuple[ModeRates, ...] = ()
    """What subscribers of the domain counted, by delivery mode, when the service looked before."""
    pipes: tuple[PipeReport, ...] = ()
    consumers: tuple[ConsumerCounts, ...] = ()
    """What members of durable consumers that run counted, when the service looked before."""
    subjects: SubjectCounts = SubjectCounts()
    """What subscribers counted of subject sequences, when the service looked before."""

    @property
    def ready(self) -> bool:
        """Whether every storage takes samples and reaches its backend."""
        return all(status.storage_up and status.takes_samples for status in self.storages)


def report_values(report: ServiceReport, *, with_events: bool = True) -> dict[str, object]:
    """Return the report as plain values for JSON; the events, which may be many, as asked."""
    plain = dataclasses.replace(report, events=(), source_events=(), pipes=(), consumers=())
    values = dataclasses.asdict(plain)
    values["pipes"] = [pipe.values() for pipe in report.pipes]
    values["consumers"] = [one._asdict() for one in report.consumers]
    values["unix_seconds"] = time.time()
    values["ready"] = report.ready
    values["storages"] = [
        {
            **dataclasses.asdict(status),
            "level": str(status.level),
            "misses": [miss._asdict() for miss in status.misses] if with_events else [],
        }
        for status in report.storages
    ]
    told, of_sources = (report.events, report.source_events) if with_events else ((), ())
    values["events"] = [event._asdict() for event in told]
    values["source_events"] = [event._asdict() for event in of_sources]
    return values


class Timeline:
    """Remembers when gaps opened and closed, samples were missed or a storage went down.

    Holds at most `events_max` changes per service; any thread.
    """

    def __init__(self, events_max: int = 2000) -> None:
        self._events: deque[Event] = deque(maxlen=events_max)
        self._latest: dict[str, Event] = {}
        self._source_events: deque[SourceEvent] = deque(maxlen=events_max)
        self._awaited: dict[str, frozenset[str]] = {}
        self._lock = Lock()

    def note(self, statuses: Sequence[CacheStatus]) -> None:
        """Compare with what was noted last and remember what changed."""
        now = time.time()
        names = {status.name for status in statuses}
        with self._lock:
            self._latest = {name: event for name, event in self._latest.items() if name in names}
            self._awaited = {name: what for name, what in self._awaited.items() if name in names}
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
                self._note_sources(status, now)

    def _note_sources(self, status: CacheStatus, now: float) -> None:
        """Remember which sources began to be waited for, and which are no longer."""
        awaited = dict(status.gaps_by_source)
        before = self._awaited.get(status.name, frozenset())
        self._awaited[status.name] = frozenset(awaited)
        for source in sorted(before ^ awaited.keys()):
            self._source_events.append(
                SourceEvent(now, status.name, source, awaited.get(source, 0))
            )

    def source_events(self) -> tuple[SourceEvent, ...]:
        """Return what is remembered of sources, oldest first."""
        with self._lock:
            return tuple(self._source_events)

    def events(self) -> tuple[Event, ...]:
        """Return what is remembered, oldest first."""
        with self._lock:
            return tuple(self._events)
