"""Which samples may come in at all: above the floors, within the limit of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from durable_cache.model.sample import Sample, SampleBatch, SourceId, Stream

__all__ = ["Admission", "part_at_floors"]


class Admission:
    """Counts the streams of a cache against `resources_limit`; owned by one thread.

    Knows every stream of the cache, at most as many as the limit says (RFC, "The
    ReliabilityCache", resources limit). Without a limit it knows and refuses nothing.
    """

    def __init__(self, streams_max: int | None, streams: Iterable[Stream] = ()) -> None:
        self.streams_max = streams_max
        self._streams = set(streams) if streams_max is not None else set()

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
            if counted in self._streams:
                continue
            if len(self._streams) < self.streams_max:
                self._streams.add(counted)
            else:
                barred.add(stream)
        if not barred:
            return batch
        kept: list[Sample] = []
        for stream, samples in batch.by_stream.items():
            if stream not in barred:
                kept += samples
        return SampleBatch(kept)

    def forget(self, streams: Iterable[Stream]) -> None:
        """Streams are stored under another epoch now: their places are free."""
        self._streams.difference_update(streams)


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
