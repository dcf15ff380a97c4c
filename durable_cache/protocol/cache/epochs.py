"""The one table that says under which epoch stored samples count.

A cache may store samples before it knows their epoch: a publisher's token can come after its first
samples, and two caches can name one restart of a foreign publisher differently. What is learned
later is an alias from the epoch they are stored under to the one that stands (ADR 0002, 0048).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.protocol.cache.events import Alias

__all__ = ["Epochs"]

_Names = dict[SourceId, tuple[Alias, ...]]


class Epochs:
    """The aliases of a cache: few, for only first samples come before their token.

    The owner's thread changes it; any thread reads, without a lock: a change puts a new table in
    place of the old one.
    """

    __slots__ = ("_names",)

    def __init__(self, aliases: Iterable[Alias] = ()) -> None:
        self._names: _Names = {}
        for alias in aliases:
            self.learn(alias)

    def learn(self, alias: Alias) -> None:
        """Take an alias in place of an older one for the same stored epoch."""
        names = self._names.get(alias.source, ())
        kept = tuple(name for name in names if name[1:3] != alias[1:3])
        self._names = {**self._names, alias.source: (*kept, alias)}

    def free(self, source: SourceId, stored: int) -> None:
        """Forget where samples stored under an epoch went: nothing is stored under it any more."""
        kept = tuple(name for name in self._names.get(source, ()) if name.stored != stored)
        names = {**self._names, source: kept}
        if not kept:
            del names[source]
        self._names = names

    def canonical(self, source: SourceId, epoch: int, sn: int = 0) -> int:
        """Return the epoch that stands for a number stored under `epoch`."""
        names = self._names.get(source, ())
        for _ in names:  # a chain is at most as long as there are aliases; a circle ends too
            found = next((n for n in names if n.stored == epoch and sn >= n.from_sn), None)
            if found is None:
                break
            epoch = found.epoch
        return epoch

    def canonical_stream(self, stream: Stream) -> Stream:
        """Return a stream under the epoch that stands for it."""
        epoch = self.canonical(stream.source, stream.epoch)
        return stream if epoch == stream.epoch else stream._replace(epoch=epoch)

    def canonical_batch(self, batch: SampleBatch) -> SampleBatch:
        """Give samples the epochs that stand for those they are stored under."""
        names = self._names
        if not names or not any(sample.source in names for sample in batch):
            return batch
        return SampleBatch(
            sample
            if (epoch := self.canonical(sample.source, sample.epoch, sample.sn)) == sample.epoch
            else msgspec.structs.replace(sample, epoch=epoch)
            for sample in batch
        )

    def stored_epochs(self, source: SourceId, epoch: int) -> list[int]:
        """Return the epochs under which samples that count under `epoch` may be stored."""
        names = self._names.get(source, ())
        others = (name.stored for name in names if self.canonical(source, name.stored) == epoch)
        return [epoch, *(stored for stored in others if stored != epoch)]
