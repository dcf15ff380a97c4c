"""What the aligner wants done that takes as long as the storage does: in the pool, in order."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from threading import Lock

from durable_cache.endpoints.alignment.asked import Asked
from durable_cache.endpoints.alignment.counts import AlignmentCounts
from durable_cache.endpoints.alignment.inbox import Inbox
from durable_cache.endpoints.alignment.stored import AlignedStore, in_time
from durable_cache.endpoints.workers import Lane
from durable_cache.errors import DurableCacheError
from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.protocol.alignment import (
    Appended,
    ContentEnded,
    ContentRead,
    Offer,
    RaisePurge,
    ReadSamples,
    Trimmed,
    pull_reply,
    ranges,
)

_log = logging.getLogger(__name__)
_CONTENT_SECONDS = 0.25
"""So long stored samples are read for the content sums at a time, half of it between."""
_RETRY_SECONDS = 5.0
"""The pause after the storage could not be read."""
_COMPARISONS_MAX = 64
"""Pages of samples held here that are still to be compared, while the storage is away, and as many
while their runs have no names."""
_RENAMING_SECONDS = 0.25
"""So long stored samples are renamed at a time; what waits in the lane comes next."""
_RENAMES_MAX = 64
"""Sources whose samples wait to be renamed; beyond it alignment begins anew."""
_NAMED_SECONDS = 330.0
"""After so long no name is to come any more: caches wait 300 s for one (ADR 0048)."""


class Jobs:
    """Reads and takes for one cache's aligner; called in its turns, its tasks run in the pool.

    A lane runs one task at a time. What a full lane does not take is refused: peers ask again, and
    what was offered is pulled again.
    """

    def __init__(
        self, lane: Lane, store: AlignedStore, inbox: Inbox, asked: Asked, counts: AlignmentCounts
    ) -> None:
        self._lane, self._store, self._inbox = lane, store, inbox
        self._asked, self._counts = asked, counts
        self._lock = Lock()
        """Guards the four that follow, and who renames: the aligner's turns and the lane's tasks
        change them."""
        self._content: Iterator[SampleBatch] | None = None
        self._content_due = 0.0
        self._reading = False
        self._beginnings = 0
        self._comparisons: deque[SampleBatch] = deque()
        self._compare_due = 0.0
        self._nameless: deque[tuple[float, SampleBatch]] = deque()
        """What is compared once more, and when."""
        self._nameless_due = 0.0
        self._renames: deque[Iterator[Trimmed | Appended]] = deque()
        self._renaming = False

    def begin(self) -> None:
        """Read every stored sample once, for the content sums, from the start."""
        with self._lock:
            self._beginnings += 1
            self._content, self._content_due = self._store.pages(), 0.0
        self._renames = deque()  # what is stored is known by the names that were learned

    def tick(self, now: float) -> None:
        """Go on with what is done in the background, at `now` of a monotonic clock."""
        self._go_on_renaming()
        if self._comparisons and now >= self._compare_due:
            self._compare_due = now + _RETRY_SECONDS
            self._lane.submit(self._compare_again)
        if self._nameless and now >= self._nameless_due:
            self._nameless_due = now + _RETRY_SECONDS
            self._lane.submit(self._compare_nameless)
        with self._lock:
            pages, beginnings = self._content, self._beginnings
            if pages is None or self._reading or now < self._content_due or self._inbox.crowded:
                return
            self._reading = True
        if not self._lane.submit(partial(self._read_content, pages, beginnings)):
            self._reading = False

    def read(self, job: ReadSamples) -> None:
        """Answer a peer's question for samples."""
        if not self._lane.submit(partial(self._read, job)):
            self._asked.refuse(job.handle, "too many questions for samples; ask again later")

    def take(self, job: Offer) -> None:
        """Offer what a peer gave at the door, and compare what is here already."""
        if not self._lane.submit(partial(self._take, job)):
            self._counts.offers_refused += 1

    def purge(self, job: RaisePurge) -> None:
        """Purge what a peer purged; where that fails, the next comparison says it again."""
        if not self._lane.submit(partial(self._purge, job)):
            self._counts.offers_refused += 1

    def rename(self, source: SourceId) -> None:
        """An epoch was learned late: let what counted under the old one count under the new."""
        if len(self._renames) >= _RENAMES_MAX:
            self._inbox.lost()
            return
        self._renames.append(self._store.renamed(source))
        self._go_on_renaming()

    def _read(self, job: ReadSamples) -> None:
        wanted = ((stream, ranges(runs)) for stream, runs in job.wanted)
        try:
            names = self._store.names(stream.source for stream, _ in job.wanted)
            samples = self._store.to_pull(wanted, names, time.monotonic())
            payload = pull_reply(job, in_time(samples), names)
        except DurableCacheError as error:
            self._asked.refuse(job.handle, str(error))
            return
        except Exception:
            self._asked.refuse(job.handle, "an error of ours, see the log of this cache")
            raise  # the lane logs and counts it
        if self._asked.reply(job.handle, payload):
            self._counts.sent(payload)

    def _take(self, job: Offer) -> None:
        try:
            held = self._store.offer(job.batch, job.held, job.names)
        except DurableCacheError:
            self._counts.offers_refused += 1  # it is pulled again
            return
        self._counts.pulled(job.peer, len(job.batch))
        if len(held):
            self._compare(held)

    def _compare(self, batch: SampleBatch) -> None:
        try:
            nameless = self._store.compare(batch, named=False)
            if len(nameless):
                self._nameless.append((time.monotonic() + _NAMED_SECONDS, nameless))
                if len(self._nameless) > _COMPARISONS_MAX:
                    self._nameless.popleft()
                    self._counts.comparisons_dropped += 1
        except DurableCacheError as error:
            _log.info("a comparison waits for the storage", extra={"reason": str(error)})
            self._comparisons.append(batch)
            if len(self._comparisons) > _COMPARISONS_MAX:
                self._comparisons.popleft()
                self._counts.comparisons_dropped += 1

    def _compare_again(self) -> None:
        for _ in range(len(self._comparisons)):
            self._compare(self._comparisons.popleft())

    def _compare_nameless(self) -> None:
        """Count what contradicts itself though there was time for names."""
        if not self._nameless or time.monotonic() < self._nameless[0][0]:
            return
        _, batch = self._nameless.popleft()
        try:
            self._store.compare(batch)
        except DurableCacheError:
            self._nameless.append((time.monotonic() + _RETRY_SECONDS, batch))

    def _purge(self, job: RaisePurge) -> None:
        try:
            self._store.purge(job)
        except DurableCacheError as error:
            _log.warning("a purge failed, tried again later", extra={"reason": str(error)})

    def _go_on_renaming(self) -> None:
        with self._lock:
            if self._renaming or not self._renames or self._inbox.crowded:
                return
            self._renaming = True
        if not self._lane.submit(self._rename, within_bound=False):
            self._renaming = False

    def _rename(self) -> None:
        """Rename for a moment; what others ask comes before the rest."""
        until = time.monotonic() + _RENAMING_SECONDS
        renames = self._renames
        try:
            while renames and not self._inbox.crowded:
                event = next(renames[0], None)
                if event is None:
                    renames.popleft()
                    continue
                self._inbox.stored(event, time.monotonic())
                if time.monotonic() >= until:
                    break
        except Exception as error:
            renames.clear()
            self._inbox.lost()
            if not isinstance(error, DurableCacheError):
                raise  # the lane logs and counts it
            _log.warning("alignment begins anew", extra={"reason": str(error)})
        finally:
            self._renaming = False
        self._go_on_renaming()

    def _read_content(self, pages: Iterator[SampleBatch], beginnings: int) -> None:
        until = time.monotonic() + _CONTENT_SECONDS
        try:
            while not self._inbox.crowded and time.monotonic() < until:
                page = next(pages, None)
                with self._lock:
                    if beginnings != self._beginnings:
                        return
                    if page is None:
                        self._content = None
                        self._inbox.stored(ContentEnded(), time.monotonic())
                        return
                    self._inbox.stored(ContentRead(page), time.monotonic())
        except Exception as error:
            with self._lock:
                if beginnings == self._beginnings:  # from the start: nothing counts twice
                    self._content = self._store.pages()
                    self._content_due = time.monotonic() + _RETRY_SECONDS
            if not isinstance(error, DurableCacheError):
                raise  # the lane logs and counts it
            reason = {"reason": str(error)}
            _log.warning("content is compared later, the storage cannot be read", extra=reason)
        finally:
            self._reading = False
