"""What of a source waits until the storage has said whether a number was there before.

A live number at or below the top may be a repeat, a conflict, or the first sign that the numbering
began anew. What follows it must not be counted before that is known: it would be joined to the old
run. So the source's live samples are held back, within a bound, until the look-up is answered; one
that fails is tried again with growing pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.run_name import run_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.cache.events import EngineOptions

_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class Doubt:
    """One look-up under way and the live samples of its source behind it."""

    verify_id: int
    source: SourceId
    samples: tuple[Sample, ...]
    """What is looked up, each under the epoch that was current then."""
    behind: list[Sample] = field(default_factory=list)
    refused: RangeSet = field(default_factory=RangeSet)
    """Numbers that came while there was no room to hold them: awaited afterwards."""
    asked: bool = False
    due_ns: int = 0
    pause_ns: int = 0

    @property
    def held(self) -> int:
        """How many samples wait."""
        return len(self.samples) + len(self.behind)

    @property
    def holds_up_tokens(self) -> bool:
        """Whether of which run something is depends on what is looked up: it does not say so."""
        return not all(map(run_of, (*self.samples, *self.behind)))


class Doubts:
    """The look-ups of a cache; together they hold at most `doubtful_samples_max` samples."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._doubts: dict[int, Doubt] = {}
        self._ids = count(1)
        self.held = 0
        """How many live samples wait."""

    def __iter__(self) -> Iterator[Doubt]:
        return iter(self._doubts.values())

    def wake_ns(self) -> int | None:
        """Return the monotonic time of the next look-up that is tried again, or None."""
        if not self._doubts:  # asked for with every batch
            return None
        return min((doubt.due_ns for doubt in self if not doubt.asked), default=None)

    def begin(self, source: SourceId, epoch: int, samples: Sequence[Sample]) -> Doubt:
        """Hold a number that may be a repeat, and what follows it, until it is looked up."""
        room = max(1, self._options.doubtful_samples_max - self.held)
        looked_up = tuple(msgspec.structs.replace(s, epoch=epoch) for s in samples[:room])
        doubt = Doubt(next(self._ids), source, looked_up)
        doubt.refused.update(RangeSet.of(sample.sn for sample in samples[room:]))
        self._doubts[doubt.verify_id] = doubt
        self.held += doubt.held
        return doubt

    def hold_behind(self, doubt: Doubt, samples: Sequence[Sample]) -> None:
        """Hold what came after it, as far as there is room."""
        room = max(0, self._options.doubtful_samples_max - self.held)
        doubt.behind += samples[:room]
        self.held += min(room, len(samples))
        doubt.refused.update(RangeSet.of(sample.sn for sample in samples[room:]))

    def to_ask(self) -> list[Doubt]:
        """Return the look-ups to begin now."""
        if not self._doubts:  # asked for with every batch
            return []
        due = [doubt for doubt in self if not doubt.asked and not doubt.due_ns]
        for doubt in due:
            doubt.asked = True
        return due

    def tick(self, now_ns: int) -> None:
        """Let those be tried again whose pause is over."""
        for doubt in self:
            if not doubt.asked and 0 < doubt.due_ns <= now_ns:
                doubt.due_ns = 0

    def failed(self, verify_id: int, now_ns: int) -> None:
        """Try a look-up again after a pause that grows."""
        doubt = self._doubts.get(verify_id)
        if doubt is not None:
            first_ns = round(self._options.verify_retry_seconds * _SECOND_NS)
            most_ns = round(self._options.fetch_retry_seconds_max * _SECOND_NS)
            doubt.pause_ns = min(max(first_ns, 2 * doubt.pause_ns), most_ns)
            doubt.asked, doubt.due_ns = False, now_ns + doubt.pause_ns

    def take(self, verify_id: int) -> Doubt | None:
        """Return a look-up that was answered; None where it is none of ours."""
        doubt = self._doubts.pop(verify_id, None)
        if doubt is not None:
            self.held -= doubt.held
        return doubt
