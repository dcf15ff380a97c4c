"""One run of a source on its way through a pipe, and what one cache lacks of it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import Position

_TAKEN_RUNS_MAX = 10_000


@dataclass(slots=True, eq=False)
class Run:
    """One run; owned by the engine.

    handed out -> open -> held by as many caches as wanted -> (stored -> processed) -> confirmed
    """

    source: SourceId
    called: int
    """The epoch that its samples bear as they are handed out."""
    epoch: int = 0
    incarnation: str = ""
    """Its name in the target network; empty until it is claimed."""
    open: dict[int, Sample] = field(default_factory=dict)
    """What too few caches hold, by number, as it is sent."""
    stored: dict[int, Sample] = field(default_factory=dict)
    """What enough caches hold, and no consumer has processed yet."""
    held: OrderedDict[str, RangeSet] = field(default_factory=OrderedDict)
    """What each cache holds at the level wanted."""
    sent_to: dict[str, int] = field(default_factory=dict)
    """The highest number that was sent to each cache, in reach or not."""
    taken_to: int = -1
    """The highest number that was handed out."""
    taken: RangeSet = field(default_factory=RangeSet)
    """What was handed out, the latest runs of it."""
    position: Position | None = None
    claiming: bool = False
    attempts: int = 0
    claim_due_ns: int = 0
    since_ns: int = 0
    """When it was claimed, or became the first of its source: nothing of it was sent before."""
    waits: deque[tuple[int, tuple[int, ...]]] = field(default_factory=deque)
    """When which numbers were taken that are sent once, and not given up."""
    lost: RangeSet = field(default_factory=RangeSet)
    """What nobody acknowledged in time, the latest runs of it."""

    @property
    def idle(self) -> bool:
        return not (self.open or self.stored or self.claiming)

    def take(self, samples: Sequence[Sample]) -> list[int]:
        """Have samples that too few caches hold; return their numbers."""
        sns = [sample.sn for sample in samples]
        self.open.update(zip(sns, samples, strict=True))
        self.taken_to = max(self.taken_to, *sns)
        self.taken.update(RangeSet.of(sns))
        self.taken = bounded(self.taken)
        return sns

    def is_known(self, sn: int) -> bool:
        """Tell whether a number was handed out before, and is under way, or not lost."""
        return sn in self.taken and sn not in self.lost

    def lose(self, before_ns: int) -> list[Sample]:
        """Give up what was taken before a time and is open; return it."""
        gone: list[Sample] = []
        while self.waits and self.waits[0][0] <= before_ns:
            _, sns = self.waits.popleft()
            gone += [self.open.pop(sn) for sn in sns if sn in self.open]
        if gone:
            self.lost.update(RangeSet.of(sorted({sample.sn for sample in gone})))
            self.lost = bounded(self.lost)
        return gone

    def find(self, runs: Iterable[tuple[int, int]], enough: int) -> int:
        """Return how many lost numbers of some runs enough caches hold, and were not lost."""
        if not self.lost:
            return 0
        came = self.lost.intersection(RangeSet(runs))
        if enough > 1:
            every = (sn for first, last in came for sn in range(first, last + 1))
            came = RangeSet.of(sn for sn in every if self.holders(sn) >= enough)
        for first, last in came:
            self.lost.remove(first, last)
        return came.count

    def holders(self, sn: int) -> int:
        """Return how many caches hold a number."""
        return sum([sn in held for held in self.held.values()])

    def is_processed(self, sn: int) -> bool:
        """Tell whether the consumer's position covers a number."""
        position = self.position
        return (
            position is not None
            and sn <= position.reached
            and not any(first <= sn <= last for first, last in position.open)
        )


def bounded(runs: RangeSet) -> RangeSet:
    """Return runs of numbers, or the later half of so many that they are too many."""
    if len(runs) <= _TAKEN_RUNS_MAX:
        return runs
    return RangeSet.of_runs(runs.flat()[_TAKEN_RUNS_MAX:])


@dataclass(slots=True, eq=False)
class Lane:
    """One run on its way to one cache: one frame at a time, so that its order is kept."""

    run: Run
    unsent: deque[int] = field(default_factory=deque)
    frame: tuple[int, ...] = ()
    """The numbers that are under way."""
    refused: RangeSet = field(default_factory=RangeSet)
    """What this cache does not store."""
    due_ns: int = 0
    """Nothing is sent before."""
    asked_ns: int = 0
    """When it was last heard from, or sent to."""
    pause_ns: int = 0
    has_moved: bool = False
    """It acknowledged something since it was looked at."""
    is_ready: bool = False

    @property
    def sent(self) -> frozenset[int]:
        """The open numbers of its run that were sent."""
        return frozenset(self.run.open.keys() - set(self.unsent))

    def put_back(self, sns: Iterable[int]) -> None:
        """Send numbers again before all others."""
        self.unsent.extendleft(reversed([sn for sn in sns if sn in self.run.open]))


@dataclass(slots=True, eq=False)
class Cache:
    """A cache of the target network in reach."""

    cache_id: str
    lanes: dict[Run, Lane] = field(default_factory=dict)
    ready: deque[Lane] = field(default_factory=deque)
    under_way: dict[int, Lane] = field(default_factory=dict)

    def make_ready(self, lane: Lane) -> None:
        if not lane.is_ready and lane.unsent:
            lane.is_ready = True
            self.ready.append(lane)
