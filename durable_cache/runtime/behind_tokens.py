"""What waits behind a token: a source's later events, while its earlier samples are looked up.

A token begins a run. It waits for the look-up of the samples before it, for those are of the run
before. What comes after it belongs to the new run and must not be judged by the old one's window.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.cache.events import (
    BatchRefused,
    EpochDeclared,
    HeartbeatReceived,
    Origin,
    TokenGone,
)
from durable_cache.runtime.effects import Arrived, CoreEvent


@dataclass(slots=True)
class _Since:
    """What came since a token was seen, or since it went: then it waits for the next."""

    seen: EpochDeclared | TokenGone
    samples: list[Sample] = field(default_factory=list)
    refused: RangeSet = field(default_factory=RangeSet)
    heartbeat: HeartbeatReceived | None = None

    @property
    def shown(self) -> bool:
        return bool(self.samples or self.refused)

    def events(self, now: Moment) -> list[CoreEvent]:
        events: list[CoreEvent] = [self.seen]
        if self.samples:
            events.append(Arrived(SampleBatch(self.samples), Origin.LIVE, now))
        if self.refused:
            source = self.seen.source
            events.append(BatchRefused(tuple((source, run) for run in self.refused), now))
        if self.heartbeat is not None:
            events.append(self.heartbeat)
        return events


class BehindTokens:
    """The tokens that wait, by source, with the live events behind each; at most `samples_max`.

    Samples beyond it are let go, their numbers awaited. A token counts as a sample, and so does
    that it went; where there is no room, one behind which nothing came gives its place to the next,
    but for what says that a token went which waits.
    """

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._waiting: dict[SourceId, list[_Since]] = {}
        self.held = 0
        """How many samples and tokens wait here."""

    def begin(self, seen: EpochDeclared | TokenGone) -> None:
        """Let a token wait, or that it went, behind those of its source that wait already."""
        waiting = self._waiting.setdefault(seen.source, [])
        full = self.held >= self._samples_max
        if full and waiting and not waiting[-1].shown and not _ends_one(waiting):
            waiting[-1].seen = seen
        else:
            waiting.append(_Since(seen))
            self.held += 1

    def hold_back(self, event: CoreEvent) -> CoreEvent | None:
        """Keep what of a live event comes behind a token; return the rest, None: nothing is left.

        What a publisher's own cache gave passes: while its run is not known it is left out anyway.
        """
        if not self._waiting:
            return event
        match event:
            case Arrived(batch, Origin.LIVE, now, names):
                rest = [sample for sample in batch if not self._keeps(sample)]
                return Arrived(SampleBatch(rest), Origin.LIVE, now, names) if rest else None
            case BatchRefused(refused, now, late):
                left = tuple(run for run in refused if not self._awaits(*run))
                return BatchRefused(left, now, late) if left else None
            case EpochDeclared(source) if source in self._waiting:
                self.begin(event)
                return None
            case TokenGone(source, incarnation) if source in self._waiting:
                if all(one.seen.incarnation != incarnation for one in self._waiting[source]):
                    return event
                self.begin(event)
                return None
            case HeartbeatReceived(source) if source in self._waiting:
                self._waiting[source][-1].heartbeat = event
                return None
            case _:
                return event

    def released(self, doubted: Container[SourceId], now: Moment) -> list[CoreEvent]:
        """Take out, in their order, the events of sources that are not `doubted` any more."""
        released: list[CoreEvent] = []
        for source in [source for source in self._waiting if source not in doubted]:
            for since in self._waiting.pop(source):
                self.held -= 1 + len(since.samples)
                released += since.events(now)
        return released

    def _keeps(self, sample: Sample) -> bool:
        waiting = self._waiting.get(sample.source)
        if waiting is None:
            return False
        if self.held < self._samples_max:
            waiting[-1].samples.append(sample)
            self.held += 1
        else:
            waiting[-1].refused.add(sample.sn, sample.sn)
        return True

    def _awaits(self, source: SourceId, refused: SnRange) -> bool:
        waiting = self._waiting.get(source)
        if waiting is None:
            return False
        waiting[-1].refused.add(*refused)
        return True


def _ends_one(waiting: list[_Since]) -> bool:
    """Tell whether the last that waits says that a token went which waits before it."""
    last = waiting[-1].seen
    before = (one.seen.incarnation for one in waiting[:-1])
    return isinstance(last, TokenGone) and last.incarnation in before
