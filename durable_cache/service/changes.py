"""What of a running service is worth a line in its log: each change once, and never a sample.

Compares what a service reports with what it reported before. Knows no clock and no logger.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from durable_cache.endpoints.status import CacheStatus
from durable_cache.service.piping import PipeReport

_NEIGHBOURS_NAMED_MAX = 8
"""Come or gone at once; of more only the number is told."""
_LINK_SECONDS = 3.0
"""In which a first link comes about where somebody is there: Zenoh tries again after 1 s, 2 s, …"""
_HELD_UP_SECONDS = 10.0
"""For so long a pipe gets nothing through before that is told: a cache may be busy, or restart."""
_QUIET_SECONDS = 10.0
"""Without another refusal for so long, refusing is over: samples come in bursts."""


class Weight(enum.Enum):
    """How much a change matters: WARNING where an operator may have to act."""

    INFO = enum.auto()
    WARNING = enum.auto()


class Change(NamedTuple):
    """One line for the log: a constant sentence and what it is about."""

    weight: Weight
    sentence: str
    about: Mapping[str, object]


@dataclass(slots=True)
class _Known:
    """What was last said of a storage."""

    up: bool = True
    takes: bool = True
    down_since: float = 0.0
    refused: int = 0
    refusing_since: int | None = None
    """Refused before the first refusal that was told of; None while nothing is refused."""
    last_refusal: float = 0.0
    dead_letters: int = 0


@dataclass(slots=True)
class _KnownPipe:
    """What was last said of a pipe."""

    is_running: bool = False
    failure: str = ""
    """Why it did not run."""
    passed: int = 0
    moved: float = 0.0
    """When something got through, or nothing waited."""
    is_held_up: bool = False
    given_up: int = 0


@dataclass(slots=True)
class Changes:
    """Remembers what was told; give it each report in turn. One thread."""

    connecting: Sequence[str] = ()
    """The endpoints to connect to, until a first link is there or was said to be missing."""
    _alone_since: float | None = None
    _storages: dict[str, _Known] = field(default_factory=dict)
    _neighbours: dict[str, str] = field(default_factory=dict)
    _pipes: dict[str, _KnownPipe] = field(default_factory=dict)

    def of(
        self, statuses: Sequence[CacheStatus], neighbours: Mapping[str, str], now: float
    ) -> Iterator[Change]:
        """Yield what changed; `neighbours` are the kinds of other sessions by Zenoh id, `now`
        seconds of any clock that never goes back.
        """
        names = {status.name for status in statuses}
        self._storages = {name: known for name, known in self._storages.items() if name in names}
        for status in statuses:
            known = self._storages.setdefault(status.name, _Known())
            yield from _of_backend(known, status, now)
            yield from _of_journal(known, status)
            yield from _of_refusals(known, status, now)
            yield from _of_samples(known, status)
        yield from self._of_neighbours(neighbours)
        yield from self._of_first_link(now)

    def of_pipes(self, pipes: Sequence[PipeReport], now: float) -> Iterator[Change]:
        """Yield what changed of pipes."""
        for pipe in pipes:
            yield from _of_pipe(self._pipes.setdefault(pipe.name, _KnownPipe()), pipe, now)

    def _of_neighbours(self, neighbours: Mapping[str, str]) -> Iterator[Change]:
        before, self._neighbours = self._neighbours, dict(neighbours)
        come = {zid: kind for zid, kind in neighbours.items() if zid not in before}
        gone = {zid: kind for zid, kind in before.items() if zid not in neighbours}
        yield from _moved(come, "has come", "sessions have come")
        yield from _moved(gone, "is gone", "sessions are gone")

    def _of_first_link(self, now: float) -> Iterator[Change]:
        """Tell once that nobody answers; later on, who is gone is told."""
        if self._neighbours:
            self.connecting = ()
        if not self.connecting:
            return
        if self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= _LINK_SECONDS:
            about = {"connect": ", ".join(self.connecting)}
            self.connecting = ()
            yield Change(Weight.WARNING, "nobody answers yet; connecting is tried again", about)


def _moved(sessions: Mapping[str, str], what: str, many: str) -> Iterator[Change]:
    if len(sessions) > _NEIGHBOURS_NAMED_MAX:
        yield Change(Weight.INFO, many, {"sessions": len(sessions)})
        return
    for zid, kind in sessions.items():
        is_lost = kind == "router" and what == "is gone"
        yield Change(Weight.WARNING if is_lost else Weight.INFO, f"a {kind} {what}", {"zid": zid})


def _of_backend(known: _Known, status: CacheStatus, now: float) -> Iterator[Change]:
    if status.storage_up == known.up:
        return
    known.up = status.storage_up
    about: dict[str, object] = {"storage": status.name, "backend": status.backend}
    if status.storage_up:
        about |= {
            "seconds_away": round(now - known.down_since, 1),
            "waiting_samples": status.journal_samples,
        }
        yield Change(Weight.INFO, "the backend is back", about)
    else:
        known.down_since = now
        yield Change(
            Weight.WARNING,
            "the backend is away, samples wait in the journal",
            {**about, "reason": status.last_error},
        )


def _of_journal(known: _Known, status: CacheStatus) -> Iterator[Change]:
    if status.takes_samples == known.takes:
        return
    known.takes = status.takes_samples
    if status.takes_samples:
        yield Change(Weight.INFO, "samples are made durable again", {"storage": status.name})
    else:
        yield Change(
            Weight.WARNING,
            "samples cannot be made durable and are not acknowledged",
            {"storage": status.name, "reason": status.last_error},
        )


def _of_refusals(known: _Known, status: CacheStatus, now: float) -> Iterator[Change]:
    if status.refused > known.refused:
        if known.refusing_since is None:
            known.refusing_since = known.refused
            reason = status.last_error or "; ".join(status.findings[-1:])
            yield Change(
                Weight.WARNING,
                "samples are refused",
                {"storage": status.name, "reason": reason or "no room, too large, or too many"},
            )
        known.last_refusal, known.refused = now, status.refused
    elif known.refusing_since is not None and now - known.last_refusal >= _QUIET_SECONDS:
        refused = status.refused - known.refusing_since
        known.refusing_since = None
        yield Change(
            Weight.INFO,
            "no sample is refused any more",
            {"storage": status.name, "refused": refused},
        )


def _of_pipe(known: _KnownPipe, pipe: PipeReport, now: float) -> Iterator[Change]:
    about = {"pipe": pipe.name, "between": pipe.between}
    if pipe.is_running and not known.is_running:
        known.is_running, known.failure, known.moved = True, "", now
        known.passed = known.given_up = 0
        yield Change(Weight.INFO, "a pipe carries", {**about, "key_expr": pipe.key_expr})
    elif not pipe.is_running and (known.is_running or pipe.failure != known.failure):
        known.is_running, known.failure, known.is_held_up = False, pipe.failure, False
        why = "a pipe carries nothing; it is tried again"
        yield Change(Weight.WARNING, why, {**about, "reason": pipe.failure})
    if not pipe.is_running or pipe.status is None:
        return
    status = pipe.status
    if status.passed != known.passed or not status.under_way:
        known.passed, known.moved = status.passed, now
        if known.is_held_up:
            known.is_held_up = False
            yield Change(Weight.INFO, "a pipe carries again", about)
    elif not known.is_held_up and pipe.failure and now - known.moved >= _HELD_UP_SECONDS:
        known.is_held_up = True
        waits = {**about, "reason": pipe.failure, "under_way": status.under_way}
        yield Change(Weight.WARNING, "a pipe is held up", waits)
    if status.given_up > known.given_up:
        known.given_up = status.given_up
        gone = {**about, "given_up": status.given_up}
        yield Change(Weight.WARNING, "caches will never take some samples of a pipe", gone)


def _of_samples(known: _Known, status: CacheStatus) -> Iterator[Change]:
    if status.dead_letters > known.dead_letters:
        letters, known.dead_letters = status.dead_letters, status.dead_letters
        yield Change(
            Weight.WARNING,
            "samples that the backend can never take are kept as dead letters",
            {"storage": status.name, "dead_letters": letters},
        )
