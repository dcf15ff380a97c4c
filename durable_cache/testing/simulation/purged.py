"""Which run goes by an epoch, and of which run a purge was: its epoch may be another's by now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.storage.contract import Floor
from durable_cache.testing.simulation.truth import Numbering


def note_name(named: dict[tuple[SourceId, int], Numbering], sample: Sample, run: Numbering) -> None:
    """Note which run a sample shows; what overtook the token behind a wrap shows none."""
    before = named.get((sample.source, sample.epoch))
    if before is None or not run.wraps or run.at != before.at + 1:
        named[sample.source, sample.epoch] = run


class PurgedRuns:
    """The runs that a cache was told to purge; `named` says by which epochs runs go there."""

    def __init__(self, named: Mapping[tuple[SourceId, int], Numbering]) -> None:
        self._named = named
        self._runs: dict[Floor, Numbering] = {}

    def note(self, floors: Iterable[Floor]) -> None:
        """Note which runs floors are of, where their tokens named them."""
        for floor in floors:
            run = self._named.get(floor.stream[1:])
            if run is not None and run.incarnation and floor.stream.epoch != EPOCH_UNKNOWN:
                self._runs[floor] = run

    def stands(self, floor: Floor) -> Floor:
        """Return a floor under the epoch by which its run goes now."""
        _, source, epoch = floor.stream
        run = self._runs.get(floor)
        if run is None or self._named.get((source, epoch)) is run:
            return floor
        epochs = [at for (of, at), one in self._named.items() if of == source and one is run]
        return floor._replace(stream=floor.stream._replace(epoch=max(epochs, default=epoch)))
