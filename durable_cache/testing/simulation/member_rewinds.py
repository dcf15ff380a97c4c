"""Rewinds of simulated consumers: where to, what they take back, and an operator who asks for one.

A rewind takes a run from one level to the next: of positions the one of the higher level stands
alone (ADR 0153). What was confirmed at an earlier level counts at a later one where every rewind
between them left it alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from durable_cache.errors import DurableCacheError, OutcomeUnknown
from durable_cache.model.sample import SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.subscriber.positions import Point, rewound
from durable_cache.testing.simulation.keepers import SimKeeper, Writer
from durable_cache.testing.simulation.member_keeping import (
    KeepingNode,
    MemberOptions,
    Thread,
)
from durable_cache.testing.simulation.network import Network, Token
from durable_cache.testing.simulation.truth import Publication
from durable_cache.testing.simulation.world import SECOND_NS, World

if TYPE_CHECKING:
    from durable_cache.testing.simulation.member_promises import MemberPromise

Points = Mapping[SourceId, Point] | None
_Rows = Mapping[SourceId, Sequence[Publication]]
_ASKING_SECONDS, _RESET_SECONDS = 0.5, 10.0


class Rewound(NamedTuple):
    """What a rewind takes back of one run: everything from a number on."""

    source: SourceId
    epoch: int
    level: int
    first: int


class Rewinds:
    """All rewinds of a consumer that were ever in force somewhere, by run."""

    def __init__(self) -> None:
        self._by_run: dict[tuple[SourceId, int], list[Rewound]] = defaultdict(list)

    def note(self, moved: Iterable[Position], points: Points) -> list[Rewound]:
        """Hear of a rewind, as the positions stand after it."""
        found = []
        for position in moved:
            point = None if points is None else points[position.source]
            first = 0 if point is None or position.epoch > point.epoch else point.sn
            one = Rewound(position.source, position.epoch, position.rewinds, first)
            self._by_run[one.source, one.epoch].append(one)
            found.append(one)
        return found

    def take_back(self, publication: Publication, low: int, high: int) -> bool:
        """Tell whether one above a level, up to another one, takes a publication back."""
        return any(
            low < one.level <= high and publication.sample.sn >= one.first
            for one in self._of(publication)
        )

    def keep(self, publication: Publication, low: int, high: int) -> bool:
        """Tell whether what was confirmed at a level may count at a later one."""
        sn, known = publication.sample.sn, self._of(publication)
        kept = {one.level for one in known if sn < one.first}
        return all(level in kept for level in range(low + 1, high + 1))

    def _of(self, publication: Publication) -> Sequence[Rewound]:
        return self._by_run.get((publication.sample.source, publication.sample.epoch), ())


def chosen_points(random: Random, known: Sequence[Position], rows: _Rows) -> Points:
    """Return from where on a rewind is to deliver again, by what caches keep of known runs."""
    runs = {(one.source, one.epoch): one for one in known}
    kept = [
        publication
        for source, row in sorted(rows.items())
        for publication in row
        if (source, publication.sample.epoch) in runs
    ]
    reached = [
        one for one in kept if one.sample.sn <= runs[one.sample.source, one.sample.epoch].reached
    ]
    if not reached or random.random() < 0.2:
        return None
    sample = random.choice(reached).sample
    if random.random() < 0.6:
        return {sample.source: Point(sample.epoch, sample.sn)}
    points: dict[SourceId, Point] = {}
    for one in kept:
        if one.sample.ntp64 >= sample.ntp64:
            point = Point(one.sample.epoch, one.sample.sn)
            points[one.sample.source] = min(point, points.get(one.sample.source, point))
    return points


class SimOperator(KeepingNode):
    """Who rewinds a consumer of which no member is seen: `rewind_consumer`, played."""

    shares = False

    def __init__(
        self,
        world: World,
        network: Network,
        options: MemberOptions,
        promise: MemberPromise,
        keepers: Sequence[SimKeeper],
        writers: dict[SourceId, Writer],
    ) -> None:
        super().__init__(world, network, "operator", options, promise, keepers, writers)
        self._promise = promise
        self._seen: set[str] = set()

    def start(self) -> None:
        """Begin a process."""
        if self.running:
            return
        self.life += 1
        self.running, self.since_ns = True, self.world.now_ns
        self._seen.clear()
        self.begin_keeping(SourceId("ef", 9 + self.life))
        self.network.show_all(self.name)
        self.later(0.0, partial(self.run_thread, self._reset_thread()))

    def died(self, how: str) -> None:
        if self.running:
            self.running, self.since_ns = False, self.world.now_ns
            self.life += 1

    def token_changed(self, token: Token, alive: bool) -> None:
        if isinstance(token.value, tuple):
            (self._seen.add if alive else self._seen.discard)(token.owner)

    def _reset_thread(self) -> Thread[None]:
        yield 1.01 * self.network.conditions.delay_seconds
        try:
            if not self._seen:
                yield from self._reset()
        except DurableCacheError as error:
            self.world.occur(f"reset put off: {type(error).__name__}")
        self.died("left")

    def _reset(self) -> Thread[None]:
        read = yield from self._read_now()
        if self._options.caches is not None:
            read = yield from self._read_in_claims(read)
        points = chosen_points(self.world.random, read, self._promise.rows)
        yield self.world.random.random() * _ASKING_SECONDS
        moved = rewound(read, points)
        if not moved:
            return
        self.may_crash("before a reset is written")
        taken_back = self._promise.reset(moved, points)
        if (yield from self._write(moved, self._end_ns)):
            self.world.occur("reset")
            self._promise.rewind_held(taken_back)

    def _read_in_claims(self, read: list[Position]) -> Thread[list[Position]]:
        fence, claimed = 1 + self._fence_read, set[SourceId]()
        while gained := {one.source for one in read} - claimed:
            claimed |= gained
            if not (yield from self._claim(gained, fence, self._end_ns)):
                raise OutcomeUnknown("no majority of the caches acknowledges claims")
            read = yield from self._read_claimed(claimed)
        return [msgspec.structs.replace(one, fence=fence) for one in read]

    @property
    def _end_ns(self) -> int:
        return self.world.now_ns + round(_RESET_SECONDS * SECOND_NS)
