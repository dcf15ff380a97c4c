"""The engine of a subscriber that goes on where an earlier life of it stood (ADR 0152).

Every run that is gone on with is known from the start, at rest behind its last confirmed number:
history is passed over up to there, and what caches removed since is a loss that is reported. Where
history brings nothing more of a source, its rest is asked for by number once history is read, so
that a tail that was removed is noticed too.

Caches say from when on they hold something behind the positions, and history is read from there on
(ADR 0155). What a source published earlier by its clock, and numbered higher, is found by number:
between others as every hole is, behind the last one because then each source's rest is asked for.

All samples of a run bear one epoch, by which whoever confirms them names it; `run_of` tells by
which epoch and incarnation the run goes now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.standings import FROM_THE_BEGINNING
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import DeliveryOptions, Event, Output
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.positions import resumed_from
from durable_cache.protocol.subscriber.reading import Seam


class ResumingEngine(SubscriberEngine):
    """Reads all of history from where the positions stand; owned by one thread."""

    def __init__(
        self,
        options: DeliveryOptions | None = None,
        positions: Sequence[Position] = (),
        *,
        earlier: ResumingEngine | None = None,
    ) -> None:
        """`earlier` ends here: no answer to one of its questions is taken for one of ours."""
        self._earlier = earlier
        super().__init__(options, history=True)
        self._earlier = None
        self._resumed: deque[SourceId] = deque()
        """Whose rest is to be asked for once history is read."""
        self.may_begin_later = True
        """No source has two runs to go on with: reading everything tells the order of two."""
        gone_on_with = resumed_from(positions)
        for source, runs in gone_on_with.items():
            self._resumed.append(source)
            self._sources.rest(_standing(source, runs))
            self.may_begin_later &= len(runs) == 1
        self._history.finished = _finished(positions, gone_on_with)

    def begin_at(self, ntp64: int, answerers: int) -> None:
        """Before `start`: what so many answerers hold behind the positions is of then or later."""
        if ntp64 != FROM_THE_BEGINNING and self.may_begin_later:
            sources = frozenset(self._resumed)
            self._history.begin_at = Seam(_place_before(ntp64), sources, answerers)

    def run_of(self, source: SourceId, epoch: int) -> tuple[int, str]:
        """Return by which epoch and incarnation a run goes whose samples bear an epoch."""
        followed = self._sources.get(source)
        if followed is not None:
            for numbering in (*reversed(followed.numberings), followed.ended):
                if numbering is not None and numbering.called == epoch:
                    return numbering.epoch, numbering.incarnation
        return epoch, self._history.names.of((source, epoch))

    def handle(self, event: Event) -> list[Output]:
        """Take what happened and return what is to be done, in order."""
        outputs = super().handle(event)
        if not self._resumed or self.reads_history:
            return outputs
        self._ask_rest(event.now)
        return outputs + self._outputs.take()

    def _ask_rest(self, now: Moment) -> None:
        """Ask for the rest of each source; those that find no room are asked for once there is."""
        from_seam = self._history.seam is not None
        while self._resumed:
            if (followed := self._sources.follow(self._resumed[0])) is None:
                return
            self._resumed.popleft()
            if followed.live and not from_seam:
                continue
            for numbering in followed.numberings:
                if numbering.fetch is None:
                    numbering.fetch = self._ask(numbering, numbering.next_sn or 0, None)
            self._settle(followed, now)


def _place_before(ntp64: int) -> Sample:
    """Return a place behind which there is all that was published at a time or later."""
    return Sample("k", SourceId("1", 1), 0, 0, b"", ntp64=max(0, ntp64 - 1), timestamp_id="1")


def _standing(source: SourceId, runs: Sequence[Position]) -> Followed:
    """Return a source as an earlier life left it."""
    followed = Followed(source)
    for position in runs:
        followed.numberings.append(_numbering(position))
        followed.remember(position.incarnation, position.epoch)
    return followed


def _finished(
    positions: Sequence[Position], gone_on_with: Mapping[SourceId, Sequence[Position]]
) -> Mapping[SourceId, Sequence[Numbering]]:
    """Return the runs before those that are gone on with: all of them was confirmed."""
    finished: dict[SourceId, list[Numbering]] = {}
    for position in positions:
        runs = gone_on_with.get(position.source, ())
        if position.reached >= 0 and position not in runs:
            finished.setdefault(position.source, []).append(_numbering(position))
    return finished


def _numbering(position: Position) -> Numbering:
    name = position.incarnation
    return Numbering(
        position.source,
        position.epoch,
        name,
        declared_epoch=position.epoch if name else None,
        first_sn=0,
        next_sn=position.confirmed_to + 1,
        resumed=True,
        called=position.epoch,
    )
