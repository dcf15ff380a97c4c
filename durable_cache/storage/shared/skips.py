"""Which numbers were given up and not found since, kept in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, Skip, SourceId, Stream
from durable_cache.storage.contract import source_order


class SkipSet:
    """Skips per source and epoch, disjoint and maximal; mutable, owned by one thread.

    Memory goes with the number of runs, which the owner bounds.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[tuple[SourceId, int], RangeSet] = {}

    def add(self, skip: Skip, held: RangeSet) -> None:
        """Take what of `skip` is not `held` under any key."""
        free = RangeSet([(skip.first, skip.last)]).difference(held)
        self._runs.setdefault((skip.source, skip.epoch), RangeSet()).update(free)

    def replace(self, stream: Stream, samples: Iterable[Sample]) -> None:
        """Forget the skips of numbers that were found of a stream."""
        runs = self._runs.get((stream.source, stream.epoch))
        if runs is not None:
            for sample in samples:
                runs.remove(sample.sn, sample.sn)

    def __iter__(self) -> Iterator[Skip]:
        """Yield by zid and eid as numbers, epoch, first."""
        for numbering in sorted(self._runs, key=lambda one: (source_order(one[0]), one[1])):
            for run in self._runs[numbering]:
                yield Skip(*numbering, *run)
