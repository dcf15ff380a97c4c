"""What of a batch may come in: above the floors, within the limit of streams, under one epoch."""

from __future__ import annotations

from collections.abc import Callable

from durable_cache.endpoints.agreeing import Agreeing
from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.protocol.cache.events import BatchReceived, Origin
from durable_cache.protocol.cache.numbering import KnownSource
from durable_cache.storage.journaled.storage import JournaledStorage

__all__ = ["Door"]

_FROM_OTHERS = (Origin.ALIGNED, Origin.RECOVERED)


class Door:
    """Stands before the engine, in its thread."""

    def __init__(
        self, store: JournaledStorage, agreeing: Agreeing, resources_limit: int | None
    ) -> None:
        self._store = store
        self._agreeing = agreeing
        self._limit = resources_limit
        self._promised: set[Stream] = set()

        self.full = ""
        """What to tell people when a limit refused something."""

    def admit(
        self, event: BatchReceived, known_of: Callable[[SourceId], KnownSource]
    ) -> tuple[BatchReceived, int]:
        """Return what of the event may come in, and how many samples the limit of streams refused.

        Every source in it is loaded.
        """
        batch = event.batch
        if event.origin in _FROM_OTHERS:
            batch = self._agreeing.settle(batch, known_of)
        if event.origin in (*_FROM_OTHERS, Origin.REFILED):
            batch = self._above_floors(batch)
        wanted = len(batch)
        batch = self._store.wildcards.admit(batch)
        if len(batch) < wanted:
            self.full = (
                f"wildcard_updates_max = {self._store.options.wildcard_updates_max} or "
                "wildcard_bytes_max reached; new wildcard updates are refused: raise it under "
                "limits, or purge"
            )
        if self._limit is not None and event.origin is not Origin.REFILED:
            batch = self._within_limit(batch, self._limit, known_of)
        if batch is event.batch:
            return event, 0
        return BatchReceived(batch, event.origin, event.now), wanted - len(batch)

    def _above_floors(self, batch: SampleBatch) -> SampleBatch:
        """Leave out what retention or a purge removed while it was on its way."""
        infos = self._store.index.infos([*batch.by_stream])
        floors = {stream: max(info.floor, info.purged) for stream, info in infos.items()}
        if not any(floors.values()):
            return batch
        return SampleBatch(sample for sample in batch if sample.sn >= floors[sample.stream])

    def _within_limit(
        self, batch: SampleBatch, limit: int, known_of: Callable[[SourceId], KnownSource]
    ) -> SampleBatch:
        """Leave out samples of streams beyond `resources_limit`."""
        index = self._store.index
        epochs = {s.source: known_of(s.source).current for s in batch}
        streams = {(s.key, s.source): Stream(s.key, s.source, epochs[s.source]) for s in batch}
        new = index.unknown([*streams.values()])
        room = limit - index.streams - len(self._promised)
        unknown = [stream for stream in new if stream not in self._promised]
        self._promised.update(unknown[: max(0, room)])
        barred = {(s.key, s.source) for s in unknown[max(0, room) :]}
        if not barred:
            return batch
        self.full = f"resources_limit = {limit} streams reached; new streams are refused"
        return SampleBatch(s for s in batch if (s.key, s.source) not in barred)
