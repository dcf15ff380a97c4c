"""Which samples may come in at all: above the floors, within the limit of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream


class Admission:
    """Counts the streams of a cache against `resources_limit`; owned by one thread.

    Knows every stream of the cache, at most as many as the limit says (RFC, "The
    ReliabilityCache", resources limit). Without a limit it knows and refuses nothing.
    """

    def __init__(self, streams_max: int | None, streams: Iterable[Stream] = ()) -> None:
        self.streams_max = streams_max
        self._count = 0
        self._keys: dict[tuple[SourceId, int], set[str]] = {}
        """Of each run: one that moves is found without a look at all others."""
        for stream in streams if streams_max is not None else ():
            self._add(stream)

    def _add(self, stream: Stream) -> None:
        keys = self._keys.setdefault((stream.source, stream.epoch), set())
        self._count += stream.key not in keys
        keys.add(stream.key)

    def admit(
        self, batch: SampleBatch, epoch_of: Callable[[SourceId], int] | None = None
    ) -> SampleBatch:
        """Return what may come in; new streams beyond the limit may not.

        `epoch_of` gives live samples the epoch they will have; others carry their own.
        """
        if self.streams_max is None:
            return batch
        barred: set[Stream] = set()
        for stream in batch.by_stream:
            counted = stream if epoch_of is None else stream._replace(epoch=epoch_of(stream.source))
            if counted.key in self._keys.get((counted.source, counted.epoch), ()):
                continue
            if self._count < self.streams_max:
                self._add(counted)
            else:
                barred.add(stream)
        if not barred:
            return batch
        kept: list[Sample] = []
        for stream, samples in batch.by_stream.items():
            if stream not in barred:
                kept += samples
        return SampleBatch(kept)

    def moved(self, source: SourceId, stored: int, epoch: int) -> None:
        """Count a source's streams of an epoch that lost under the one that stands; idempotent."""
        lost = self._keys.pop((source, stored), set())
        self._count -= len(lost)
        for key in lost:
            self._add(Stream(key, source, epoch))


def part_at_floors(
    batch: SampleBatch, floors: Mapping[Stream, int]
) -> tuple[SampleBatch, SampleBatch]:
    """Return what may come in, and what retention or a purge removed: it may be on its way here."""
    if not any(floors.values()):
        return batch, SampleBatch()
    above: list[Sample] = []
    below: list[Sample] = []
    for sample in batch:
        side = above if sample.sn >= floors.get(sample.stream, 0) else below
        side.append(sample)
    return SampleBatch(above), SampleBatch(below)
