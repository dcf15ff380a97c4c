"""How a cache that stores positions learns, at its start, which fences it stores."""

from __future__ import annotations

import logging

import msgspec

from durable_cache.endpoints.workers import Lane
from durable_cache.errors import StorageError
from durable_cache.model.sample import SampleBatch
from durable_cache.model.selection import Cursor, Selection
from durable_cache.protocol.cache.events import Origin, SendAck
from durable_cache.protocol.consumers import claims_key_expr, positions_key_expr
from durable_cache.protocol.fences import FENCES_MAX, Fences, Known
from durable_cache.storage.journaled.storage import JournaledStorage

_log = logging.getLogger(__name__)
_PAGE_SAMPLES = 2_000
_AS_IT_IS = (Origin.ALIGNED, Origin.REFILED)
"""What other caches store, or this one, is not judged again."""
_CLAIMS_READ = 16
"""Claims to each source that are read: the newest may be of somebody whom no majority heard."""
_AGAIN_SECONDS = 1.0
"""How often what is stored is read again, until it was once."""


class Fencing:
    """Part of a cache that stores positions: leaves out those of earlier owners.

    Until what is stored was read, only what could be read of it and what came since are known: what
    exclusive consumers write is not taken before.
    """

    def __init__(self, store: JournaledStorage, domain: str, lane: Lane) -> None:
        self._store, self._lane, self._domain = store, lane, domain
        self._fences = Fences(domain)
        self._fences.unread = True
        self.refusal = self._fences.refusal
        """Tell why a sample is not taken that its publisher sends; any thread."""
        self._told = self._told_unread = self.has_read = False

    def start(self) -> None:
        """Read what is stored, in the pool; a backend that is away is asked again."""
        self._lane.submit(self._read)
        self._lane.every(_AGAIN_SECONDS, self._read)

    def admit(self, batch: SampleBatch, origin: Origin) -> SampleBatch:
        """Return a batch without positions of earlier owners; on the core's thread."""
        taken = self._fences.admit(batch, judged=origin not in _AS_IT_IS)
        if len(taken) < len(batch) and not self._told:
            self._told = True
            _log.warning("positions are refused: another member has their sources by now")
        return taken

    def acknowledged(self, ack: SendAck) -> SendAck:
        """Return an acknowledgement without what an earlier owner wrote; on the core's thread."""
        runs = tuple(self._fences.acknowledged(ack.source, ack.runs))
        return msgspec.structs.replace(ack, runs=runs)

    def _read_into(self, found: Known, selection: Selection) -> None:
        cursor: Cursor | None = None
        while len(found.weights) < FENCES_MAX:
            page = self._store.read(selection, _PAGE_SAMPLES, cursor)
            self._fences.read_all(page.samples, found)
            cursor = page.cursor
            if cursor is None:
                return

    def _read(self) -> None:
        if self.has_read:
            return
        found = Known({}, {})
        try:
            self._read_into(found, Selection(positions_key_expr(self._domain, "*"), newest=1))
            claims = claims_key_expr(self._domain, "*")
            self._read_into(found, Selection(claims, newest=_CLAIMS_READ))
        except StorageError as error:
            self._fences.stored, self._fences.stored_claims = found
            if not self._told_unread:
                self._told_unread = True
                _log.warning("which positions are stored is read again soon: %s", error)
            return
        self._fences.stored, self._fences.stored_claims = found
        self._fences.unread, self.has_read = False, True
