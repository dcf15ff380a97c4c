"""What the aligner hears a little later, so that samples stand under the epoch they will keep."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from durable_cache.model.sample import SampleBatch
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.protocol.alignment import (
    Appended,
    Forgotten,
)
from durable_cache.protocol.cache.epochs import Epochs

__all__ = ["Settling"]

_SECONDS = 2.0
"""A publisher's token may come a little after its first samples: they wait for their epoch."""


class Settling:
    """A queue by time; put in by any thread, taken out by the aligner's."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._waiting: deque[tuple[float, Appended | Forgotten]] = deque()

    def put(self, event: Appended | Forgotten) -> bool:
        """Keep an event until it has settled; False when it need not wait."""
        if isinstance(event, Appended) and not _is_young(event.batch):
            return False
        self._waiting.append((time.monotonic() + _SECONDS, event))
        return True

    def settled(self, now: float) -> Iterator[Appended | Forgotten]:
        """Take what has waited long enough, under the epochs learned meanwhile."""
        while self._waiting and self._waiting[0][0] <= now:
            event = self._waiting.popleft()[1]
            if isinstance(event, Appended):
                event = Appended(self._epochs.canonical_batch(event.batch))
            yield event


def _is_young(batch: SampleBatch) -> bool:
    return any(sample.epoch == EPOCH_UNKNOWN for sample in batch)
