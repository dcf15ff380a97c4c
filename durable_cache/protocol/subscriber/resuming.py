"""The engine of a subscriber that goes on where an earlier life of it stood (ADR 0152).

Every run that is gone on with is known from the start, at rest behind its last confirmed number:
history is passed over up to there, and what caches removed since is a loss that is reported. Where
history brings nothing more of a source, its rest is asked for by number once history is read, so
that a tail that was removed is noticed too.

All samples of a run bear one epoch, by which whoever confirms them names it; `run_of` tells by
which epoch and incarnation the run goes now.
"""

from __future__ import annotations

from collections.abc import Sequence

from durable_cache.model.clock import Moment
from durable_cache.model.sample import SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.subscriber.engine import SubscriberEngine
from durable_cache.protocol.subscriber.events import DeliveryOptions
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.positions import resumed_from

__all__ = ["ResumingEngine"]


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
        self._resumed: list[SourceId] = []
        """Whose rest is to be asked for once history is read."""
        for source, runs in resumed_from(positions).items():
            self._resumed.append(source)
            self._sources.rest(_standing(source, runs))

    def run_of(self, source: SourceId, epoch: int) -> tuple[int, str]:
        """Return by which epoch and incarnation a run goes whose samples bear an epoch."""
        followed = self._sources.get(source)
        if followed is not None:
            for numbering in (*reversed(followed.numberings), followed.ended):
                if numbering is not None and numbering.called == epoch:
                    return numbering.epoch, numbering.incarnation
        history = self._history
        return epoch, "" if history is None else history.incarnations.get((source, epoch), "")

    def _after_history(self, now: Moment) -> None:
        super()._after_history(now)
        if self.reads_history:
            return
        resumed, self._resumed = self._resumed, []
        for source in resumed:
            followed = self._sources.follow(source)
            if followed is None or followed.live:
                continue
            for numbering in followed.numberings:
                if numbering.fetch is None:
                    numbering.fetch = self._ask(numbering, numbering.next_sn or 0, None)
            self._settle(followed, now)


def _standing(source: SourceId, runs: Sequence[Position]) -> Followed:
    """Return a source as an earlier life left it."""
    followed = Followed(source)
    for position in runs:
        name = position.incarnation
        numbering = Numbering(
            source,
            position.epoch,
            name,
            declared_epoch=position.epoch if name else None,
            first_sn=0,
            next_sn=position.confirmed_to + 1,
            resumed=True,
            called=position.epoch,
        )
        followed.numberings.append(numbering)
        followed.remember(name, position.epoch)
    return followed
