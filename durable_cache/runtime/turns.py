"""What others give comes behind the live events of its sources that wait.

A token or a sample that waits for the index or the journal came first, and tells which runs there
are. By what others have meanwhile, a later run, an earlier one would be called behind it, and its
samples would be taken for that one's.
"""

from __future__ import annotations

from collections.abc import Iterable

from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.protocol.cache.events import (
    BatchRefused,
    EpochDeclared,
    HeartbeatReceived,
    TokenGone,
)
from durable_cache.runtime.effects import Arrived, CoreEvent


def in_turn(batch: SampleBatch, before: Iterable[CoreEvent | None]) -> SampleBatch:
    """Return what others gave of sources of which none of the events `before` it tells."""
    waiting = {source for event in before for source in _sources_of(event)}
    if not waiting.intersection(batch.sources):
        return batch
    return SampleBatch(sample for sample in batch if sample.source not in waiting)


def _sources_of(event: CoreEvent | None) -> Iterable[SourceId]:
    match event:
        case Arrived(batch):
            return batch.sources
        case BatchRefused(refused):
            return [source for source, _ in refused]
        case EpochDeclared(source) | TokenGone(source) | HeartbeatReceived(source):
            return (source,)
        case _:
            return ()
