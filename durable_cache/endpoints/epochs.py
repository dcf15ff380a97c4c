"""Under which epoch what is stored counts, where that was learned after it was stored."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from durable_cache.model.sample import SampleBatch, SourceId, Stream
from durable_cache.protocol.cache.events import Alias
from durable_cache.storage.contract import Page

__all__ = ["Epochs"]


class Epochs:
    """The aliases of a cache: few, for only first samples come before their token."""

    def __init__(self, aliases: Iterable[Alias]) -> None:
        self._aliases = {(alias.source, alias.stored): alias for alias in aliases}

    def learn(self, alias: Alias) -> None:
        """Take in what was learned."""
        self._aliases[alias.source, alias.stored] = alias

    def canonical(self, page: Page) -> Page:
        """Give the samples of a page the epochs that were learned for them later."""
        return Page(self.canonical_batch(page.samples), page.cursor) if self._aliases else page

    def canonical_batch(self, batch: SampleBatch) -> SampleBatch:
        """Give samples the epochs that were learned for them later."""
        return SampleBatch(
            sample
            if (epoch := self._epoch(sample.source, sample.epoch, sample.sn)) == sample.epoch
            else msgspec.structs.replace(sample, epoch=epoch)
            for sample in batch
        )

    def canonical_stream(self, stream: Stream) -> Stream:
        """Return a stream under the epoch that was learned for it later."""
        return stream._replace(epoch=self._epoch(stream.source, stream.epoch, 0))

    def stored_epochs(self, source: SourceId, epoch: int) -> list[int]:
        """Return the epochs under which samples of an epoch may be stored."""
        aliases = self._aliases.values()
        return [
            epoch,
            *(a.stored for a in aliases if a.source == source and a.epoch == epoch),
        ]

    def _epoch(self, source: SourceId, epoch: int, sn: int) -> int:
        alias = self._aliases.get((source, epoch))
        return epoch if alias is None or sn < alias.from_sn else alias.epoch
