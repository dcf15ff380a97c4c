"""Live samples that go on the run of those before, with nothing in between (ADR 0393).

What is asked of a batch before the engine takes it is of its source and its run: whether that run
is known, and whether a token is awaited. Where no conversation went on since, the answers are those
that they were.
"""

from __future__ import annotations

from durable_cache.model.sample import SampleBatch, SourceId
from durable_cache.runtime.awaiting_tokens import AwaitingTokens


class GoingOn:
    """The known run of which samples came last, where no token of its source is awaited."""

    def __init__(self, awaiting_tokens: AwaitingTokens) -> None:
        self._awaiting_tokens = awaiting_tokens
        self._sources: tuple[SourceId, ...] = ()
        self._ids: frozenset[str] = frozenset()

    def includes(self, batch: SampleBatch) -> bool:
        """Tell whether all of a batch is of that run."""
        return batch.sources == self._sources and batch.timestamp_ids == self._ids

    def begin(self, batch: SampleBatch) -> None:
        """See samples that were taken; the runs that they name are known."""
        sources, ids = batch.sources, batch.timestamp_ids
        if len(sources) == len(ids) == 1 and not self._awaiting_tokens.is_open(*sources):
            self._sources, self._ids = sources, ids

    def ended(self) -> None:
        """See that a conversation goes on: whatever else is known changes in one."""
        self._sources = ()
