"""Moves what is stored under an epoch that lost an agreement to the one that won.

Samples go through the door once more and are stored anew; only when the backend has all of them is
the old numbering removed. A crash in between repeats work and loses nothing: the agreement is
durable, and what it moves is looked for at every start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event

import msgspec

from durable_cache.endpoints.agreeing import are_twins
from durable_cache.errors import DurableCacheError
from durable_cache.model.sample import Sample, Stream
from durable_cache.model.selection import Selection
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.cache.events import Alias, Origin
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled.storage import JournaledStorage

__all__ = ["Refiling"]

_log = logging.getLogger(__name__)
_PAGE_SAMPLES = 2_000
_QUEUED_BYTES_MAX = 8 << 20
"""Live samples have most of the queue to themselves."""
_PASS_SECONDS = 30.0
_RETRY_SECONDS = 5.0


class Refiling:
    """Does one agreement after the other, in a thread of its own."""

    def __init__(
        self,
        store: JournaledStorage,
        offer: Callable[[list[Sample], Origin], None],
        queued_bytes: Callable[[], int],
        moved: Callable[[Alias, bool], None],
    ) -> None:
        self._store = store
        self._offer = offer
        self._queued_bytes = queued_bytes
        self._told_moved = moved
        self._agreed: SimpleQueue[Alias | None] = SimpleQueue()
        self._stopped = Event()
        self.on_purged: list[Callable[[Sequence[Floor]], None]] = []
        self.on_forgotten: list[Callable[[Sequence[Stream]], None]] = []

    def move(self, agreement: Alias) -> None:
        """Move what is stored under an epoch, soon."""
        source, loser, _, winner = agreement
        about = {"source": str(source), "epoch": winner, "instead_of": loser}
        _log.info("two epochs are one", extra=about)
        self._agreed.put(agreement)

    def stop(self) -> None:
        """End `run` where it is; idempotent."""
        self._stopped.set()
        self._agreed.put(None)

    def run(self) -> None:
        """Do what was left by the last process, then what is agreed on, until `stop`."""
        # One epoch may go to another that goes to a third: then it goes first.
        every = self._store.index.agreements()
        for left in sorted(every, key=lambda one: (one.stored != EPOCH_UNKNOWN, -one.stored)):
            numbering = left.source, left.stored
            some = self._store.index.infos_of(*numbering) or not self._store.drained_of(*numbering)
            if some or left.stored == EPOCH_UNKNOWN:
                self.move(left)
        while (agreement := self._agreed.get()) is not None:
            while not self._stopped.is_set():
                try:
                    if self._moved(agreement):
                        break
                except DurableCacheError as error:
                    _log.warning("epochs are not one yet", extra={"reason": str(error)})
                    self._stopped.wait(_RETRY_SECONDS)

    def _moved(self, agreement: Alias) -> bool:
        for renamed in self._renamed(agreement):
            self._offer(renamed, Origin.REFILED)
            while self._queued_bytes() > _QUEUED_BYTES_MAX and not self._stopped.wait(0.05):
                pass
            if self._stopped.is_set():
                return False
        deadline = time.monotonic() + _PASS_SECONDS
        while not self._store.moved(agreement):
            self._store.backlog.flush_soon()
            if self._stopped.wait(0.2) or time.monotonic() > deadline:
                return False
        right = self._all_the_same(agreement)
        if right:
            self._let_go(agreement)
        else:
            _log.warning("two epochs are two after all", extra={"source": str(agreement.source)})
        self._told_moved(agreement, right)
        return True

    def _all_the_same(self, agreement: Alias) -> bool:
        """Tell whether nothing would be lost: no number has another content under the other."""
        return all(
            stored is None or are_twins(sample, stored)
            for renamed in self._renamed(agreement)
            for sample, stored in self._store.find(renamed)
        )

    def _renamed(self, agreement: Alias) -> Iterator[list[Sample]]:
        """Yield what is stored under the epoch that lost, page by page, under the other."""
        source, loser, _, winner = agreement
        selection = Selection(zid=source.zid, eid=source.eid, epoch=loser)
        for page in self._store.pages(selection, _PAGE_SAMPLES):
            yield [msgspec.structs.replace(sample, epoch=winner) for sample in page]

    def _let_go(self, agreement: Alias) -> None:
        source, loser, _, winner = agreement
        purged = [
            Floor(info.stream._replace(epoch=winner), info.purged)
            for info in self._store.index.infos_of(source, loser)
            if info.purged
        ]
        if purged:
            self._store.purge(purged)
            for told_floors in self.on_purged:
                told_floors(purged)
        streams = self._store.forget(source, loser)
        for told in self.on_forgotten:
            told(streams)
