"""What the aligner needs of a cache's storage: reading for peers, taking from them, purging."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from durable_cache.endpoints.ingest import Ingest
from durable_cache.errors import DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream, sample_digest
from durable_cache.model.selection import Selection, SnBounds
from durable_cache.protocol.aligner_events import StreamLoaded
from durable_cache.protocol.events import Origin
from durable_cache.storage.contract import Floor
from durable_cache.storage.journaled import JournaledStorage

__all__ = ["AlignedStore"]

_log = logging.getLogger(__name__)
_PAGE_SAMPLES = 2_000


class AlignedStore:
    """A cache's storage under the epochs that were learned for what is in it; any thread."""

    def __init__(self, store: JournaledStorage, ingest: Ingest) -> None:
        self._store = store
        self._ingest = ingest
        self.pulled = 0
        self.conflicts = 0

    def streams(self) -> tuple[StreamLoaded, ...]:
        """Return what is stored of every stream, the journal's tail included."""
        loaded: dict[Stream, StreamLoaded] = {}
        for info in self._store.index.all_infos():
            stream = self._ingest.epochs.canonical_stream(info.stream)
            known = loaded.get(stream)
            if known is None:
                loaded[stream] = StreamLoaded(stream, info.held, info.floor, info.purged)
            else:
                known.runs.update(info.held)
        for stored, runs in self._store.tail_runs().items():
            stream = self._ingest.epochs.canonical_stream(stored)
            known = loaded.get(stream) or StreamLoaded(stream, RangeSet())
            known.runs.update(runs)
            loaded[stream] = known
        return tuple(loaded.values())

    def pages(self) -> Iterator[SampleBatch]:
        """Yield everything that is stored."""
        cursor = None
        while True:
            page = self._store.read(Selection(), _PAGE_SAMPLES, cursor)
            yield self._ingest.epochs.canonical(page).samples
            cursor = page.cursor
            if cursor is None:
                return

    def renamed(self, source: SourceId) -> Iterator[tuple[Stream, RangeSet]]:
        """Yield the streams of a source whose epoch was learned later, as they are stored."""
        for info in self._store.index.all_infos():
            stream = info.stream
            if stream.source == source and self._ingest.epochs.canonical_stream(stream) != stream:
                yield stream, info.held

    def stored(self, stream: Stream, first: int, last: int) -> Iterator[Sample]:
        """Yield what is stored of a stream, under whichever epoch it was first stored."""
        for epoch in self._ingest.epochs.stored_epochs(stream.source, stream.epoch):
            selection = Selection(
                key_expr=KeyExpression(stream.key),
                zid=stream.source.zid,
                eid=stream.source.eid,
                epoch=epoch,
                sns=SnBounds(first, last),
            )
            cursor = None
            while True:
                page = self._store.read(selection, _PAGE_SAMPLES, cursor)
                yield from self._ingest.epochs.canonical(page).samples
                cursor = page.cursor
                if cursor is None:
                    break

    def offer(self, batch: SampleBatch) -> None:
        """Hand samples to the door; other content under a held identity is a conflict."""
        new: list[Sample] = []
        for stream, samples in batch.by_stream.items():
            runs = RangeSet.of(sample.sn for sample in samples)
            held: dict[int, Sample] = {}
            try:
                for run in runs:
                    held.update((one.sn, one) for one in self.stored(stream, *run))
            except DurableCacheError:
                return  # the storage is away; the next session offers again
            for sample in samples:
                mine = held.get(sample.sn)
                if mine is None:
                    new.append(sample)
                elif sample_digest(mine) != sample_digest(sample):
                    self.conflicts += 1
                    _log.warning("another payload at a peer", extra={"key": repr(sample.key)})
        self.pulled += len(new)
        self._ingest.offer(new, Origin.ALIGNED)

    def purge(self, floors: tuple[tuple[Stream, int], ...]) -> bool:
        """Remove what is below, durably; False when it could not be done now."""
        every = [
            Floor(stream._replace(epoch=epoch), sn)
            for stream, sn in floors
            for epoch in self._ingest.epochs.stored_epochs(stream.source, stream.epoch)
        ]
        try:
            self._store.purge(every)
        except DurableCacheError as error:
            _log.warning("a purge failed", extra={"reason": str(error)})
            return False
        return True
