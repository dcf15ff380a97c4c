"""What becomes of each sample of a batch: new, repeated, or refused?"""

from __future__ import annotations

from durable_cache.model.sample import SampleBatch, Stream, sample_digest
from durable_cache.storage.contract import AppendResult, Conflict, Refusal

__all__ = ["Outcome"]


class Outcome:
    """What becomes of the samples of one batch, by their places in it."""

    __slots__ = ("batch", "fresh", "held", "refused", "repeated", "streams")

    def __init__(self, batch: SampleBatch) -> None:
        self.batch = batch
        self.streams = [Stream(s.key, s.source, s.epoch) for s in batch.samples]
        self.fresh: list[int] = []
        self.held: list[int] = []
        self.repeated: list[tuple[int, bytes]] = []
        """A sample and the digest of the one that came first."""
        self.refused: dict[int, str] = {}

    def result(self) -> AppendResult:
        samples = self.batch.samples
        offered = {at: sample_digest(samples[at]) for at, _ in self.repeated}
        conflicts = [
            Conflict(samples[at].identity, first, offered[at])
            for at, first in sorted(self.repeated)
            if first != offered[at]
        ]
        new = sum(at not in self.refused for at in self.fresh)
        return AppendResult(
            new,
            len(self.repeated) - len(conflicts),
            tuple(conflicts),
            tuple(Refusal(self.batch.samples[at], why) for at, why in sorted(self.refused.items())),
        )
