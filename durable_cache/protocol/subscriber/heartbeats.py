"""What a subscriber makes of the number that a publisher, or a cache, says was published last."""

from __future__ import annotations

from collections.abc import Callable

from durable_cache.model.clock import Moment
from durable_cache.protocol.restarts import precedes_wrap
from durable_cache.protocol.subscriber.answerers import Answerers
from durable_cache.protocol.subscriber.awaiting_tokens import AwaitingTokens
from durable_cache.protocol.subscriber.events import DeliveryOptions, Fetch, HeartbeatReceived
from durable_cache.protocol.subscriber.followed import Followed
from durable_cache.protocol.subscriber.following import Numbering
from durable_cache.protocol.subscriber.history import History
from durable_cache.protocol.subscriber.places import Sources


class Heartbeats:
    """Lets runs reach as far as their publishers say.

    `ask(numbering, first, last)` asks everybody for numbers; `settle` does what follows of a source
    that has come further.
    """

    def __init__(
        self,
        options: DeliveryOptions,
        sources: Sources,
        history: History,
        answerers: Answerers,
        awaiting: AwaitingTokens,
        ask: Callable[[Numbering, int, int | None], Fetch],
        settle: Callable[[Followed, Moment], None],
    ) -> None:
        self._options, self._sources, self._history = options, sources, history
        self._answerers, self._awaiting = answerers, awaiting
        self._ask, self._settle = ask, settle

    def heard(self, event: HeartbeatReceived) -> None:
        """Take a heartbeat."""
        if event.stored_as is not None:
            self._answerers.stored(event.source, event.stored_as, event.source_sn, event.now)
            return
        recovery = self._options.recovery
        if recovery and not self._history.active:
            self._sources.begin_with(event.source, event.first_sn)
        followed = self._sources.known(event.source)
        if followed is None and self._sources.rests(event.source):
            self._answerers.doubt(event.source, event.now.monotonic_ns)  # until there is room
        if followed is None or not followed.numberings:
            return
        numbering = followed.numberings[-1]
        self._history.hear_of(numbering, event.source_sn, event.now.monotonic_ns)
        source_sn = event.source_sn if recovery else numbering.heard_before(event.source_sn)
        if numbering.next_sn is None or (self._history.active and not followed.live):
            return
        followed.live = True
        if self._awaiting.keeps_number(followed, source_sn, event.now.monotonic_ns):
            return
        ahead, window = source_sn - numbering.reached, self._options.window_size_samples
        overtaken = precedes_wrap(source_sn, numbering.reached, window)
        if 0 < ahead <= window:
            numbering.top = source_sn
            self._settle(followed, event.now)
        elif ahead > 0 and not overtaken and numbering.fetch is None and recovery:
            self._ask(numbering, source_sn, source_sn)  # an answer confirms it
