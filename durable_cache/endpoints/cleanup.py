"""Purges instances that were disposed and unregistered, when their delay is over (ADR 0145).

A pass looks at the instances that are due: is the disposal still the newest sample? Where the cache
aligns, the aligner is asked which of the named caches do not know all streams of the instance yet;
one that anybody lacks waits for the next pass. All of it runs in one lane of the cache's pool, but
for noting what was committed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from durable_cache.endpoints.alignment import Aligning
from durable_cache.endpoints.options import CacheOptions
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.disposals import Disposals, is_disposal
from durable_cache.storage.contract import Floor, Page
from durable_cache.storage.journaled.index_pages import streams_of
from durable_cache.storage.journaled.storage import JournaledStorage
from durable_cache.storage.sized_pages import pages

_log = logging.getLogger(__name__)
_SECOND_NS = 1_000_000_000
_DELAY_SECONDS_MAX = 1e9
"""Longer than any clock here runs."""
_INSTANCES_AT_ONCE = 1_000
_PAGE_SAMPLES = 1_000
_STREAMS_MAX = 100_000
"""An instance of more streams, one for each run of a writer, is left as it is."""
_KEYS_TOLD_MAX = 5


class _Cache(Protocol):
    """What a cleanup needs of its cache."""

    store: JournaledStorage
    options: CacheOptions
    aligning: Aligning | None

    def read(self, selection: Selection, limit: int, cursor: Cursor | None = None) -> Page:
        """Return a page of what is stored."""

    def purge(self, floors: Sequence[Floor]) -> int:
        """Remove what is below, here and in the caches it is aligned with."""


class Cleanup:
    """One cache's cleanup of disposed instances; figures may be read by any thread."""

    def __init__(self, cache: _Cache, delay_seconds: float, lane: Lane) -> None:
        self._cache = cache
        self._delay_ns = round(min(delay_seconds, _DELAY_SECONDS_MAX) * _SECOND_NS)
        self._lane = lane
        self._disposals = Disposals(cache.options.disposals_max)
        self._heard: deque[Sample] = deque(maxlen=cache.options.disposals_max)
        """Disposals that were committed since the last pass; a full one pushes its oldest out."""
        self._looked_through = False
        """Whether every disposal that is stored is known here."""
        self._begun: dict[str, list[Floor]] = {}
        """Instances whose purge is begun and, where the backend is away, not over."""
        self._lacking: frozenset[str] = frozenset()
        self.error = ""
        """Why the last pass failed; empty when it did not."""
        self.instances = 0
        """Instances purged."""
        self.samples = 0
        """Their samples."""

    @property
    def waiting(self) -> int:
        """How many disposed instances are known that were not purged yet."""
        return len(self._disposals) + len(self._heard)

    def start(self) -> None:
        """Look after disposed instances from now on, until the lane is closed."""
        self._lane.every(self._cache.options.retention_seconds, self._pass)

    def committed(self, batch: SampleBatch) -> None:
        """Note disposals that became durable; in the thread that commits."""
        found = [sample for sample in batch if is_disposal(sample)]
        if len(self._heard) + len(found) > self._cache.options.disposals_max:
            self._looked_through = False
        self._heard.extend(found)

    def _pass(self) -> None:
        try:
            self._look()
            self._choose()
        except DurableCacheError as error:
            self._failed(error)

    def _failed(self, error: DurableCacheError) -> None:
        self.error = f"cleanup: {error}"
        _log.warning("disposed instances are purged later", extra={"reason": str(error)})

    def _look(self) -> None:
        """Know the disposals that were committed, and at first, or after too many, all others."""
        heard = [self._heard.popleft() for _ in range(len(self._heard))]
        room = self._disposals.note(heard)
        if not self._looked_through:
            self._looked_through = True  # from here on what is committed is heard
            try:
                room = self._look_through() and room
            except BaseException:
                self._looked_through = False
                raise
        if not room:
            self._looked_through = False
        self.error = ""

    def _look_through(self) -> bool:
        """Take the disposals that are stored; False where there was no room for one."""
        room = True
        for page in pages(self._cache.read, Selection(newest=1), _PAGE_SAMPLES):
            room = self._disposals.note(page) and room
        return room

    def _choose(self) -> None:
        """Find what is due, and purge what every named cache knows."""
        due = self._disposals.due(time.time_ns() - self._delay_ns, _INSTANCES_AT_ONCE)
        floors = {key: self._floors(key) for key in due}
        aligning = self._cache.aligning
        self._purge(floors if aligning is None else {})
        if aligning is not None and floors:
            streams = {key: [floor.stream for floor in of] for key, of in floors.items()}
            aligning.ask_lacking(streams, partial(self._asked, floors))

    def _floors(self, key: str) -> list[Floor]:
        """Return above which number each stream of an instance has nothing, the journal included.

        A newer sample is above them or in a stream that is not among them.
        """
        recent = self._cache.store.backlog.runs(Selection(key_expr=KeyExpression(key)))
        lasts = {stream: runs.last for stream, runs in recent.items() if runs.last is not None}
        for look in streams_of(self._cache.store.index, key, _STREAMS_MAX + 1):
            if look.samples:
                lasts[look.stream] = max(look.last, lasts.get(look.stream, 0))
        return [Floor(stream, last + 1) for stream, last in lasts.items()]

    def _asked(self, floors: dict[str, list[Floor]], lacking: dict[str, list[str]]) -> None:
        """Hear who lacks what, between two turns of the aligner; the purge is for the own lane."""
        ready = {key: of for key, of in floors.items() if not lacking.get(key)}
        self._tell_lacking(frozenset(peer for peers in lacking.values() for peer in peers))
        if ready:
            self._lane.submit(partial(self._purge_later, ready), within_bound=False)

    def _tell_lacking(self, lacking: frozenset[str]) -> None:
        if lacking and lacking != self._lacking:
            about = {"storage": self._cache.options.name, "caches": ", ".join(sorted(lacking))}
            _log.info("disposed instances wait until other caches have seen it", extra=about)
        self._lacking = lacking

    def _purge_later(self, floors: dict[str, list[Floor]]) -> None:
        try:
            # What came since is not known to be known to everybody.
            self._purge({key: of for key, of in floors.items() if self._floors(key) == of})
        except DurableCacheError as error:
            self._failed(error)

    def _purge(self, floors: dict[str, list[Floor]]) -> None:
        """Purge the instances whose newest sample still is a disposal that is old enough."""
        self._begun |= {key: of for key, of in floors.items() if self._is_over(key)}
        if not self._begun:
            return
        self.samples += self._cache.purge([each for of in self._begun.values() for each in of])
        ready, self._begun = [*self._begun], {}
        self.instances += len(ready)
        for key in ready:
            self._disposals.forget(key)
        _log.info(
            "disposed instances were purged",
            extra={
                "storage": self._cache.options.name,
                "instances": len(ready),
                "keys": ", ".join(ready[:_KEYS_TOLD_MAX]),
            },
        )

    def _is_over(self, key: str) -> bool:
        """Tell whether an instance is disposed and its delay over; let go of what is not.

        To be asked after its floors were read: what comes in between is above them.
        """
        found = self._cache.read(Selection(key_expr=KeyExpression(key), newest=1), 1).samples
        newest = next(iter(found), None)
        if newest is None or not is_disposal(newest):
            self._disposals.forget(key)
            return False
        self._disposals.note([newest])
        return newest.received_ns <= time.time_ns() - self._delay_ns
