"""Which publishers a reader knows, which of them are there, and what it says of that."""

from __future__ import annotations

from durable_cache.model.sample import SourceId
from durable_cache.protocol.reader.instances import Writer
from durable_cache.protocol.reader.statuses import LivelinessChanged, SubscriptionMatched


class Writers:
    """The publishers by their source; at most `writers_max` are told apart."""

    def __init__(self, writers_max: int) -> None:
        self._writers_max = writers_max
        self._by_source: dict[SourceId, Writer] = {}
        self._gone: dict[SourceId, None] = {}
        """Those that left, the longest gone first."""
        self._others = Writer(None, alive=True, auto_dispose=False)
        self._matched: set[SourceId] = set()
        """Those that a token shows."""
        self._total = 0
        self._last: SourceId | None = None
        self._told_liveliness = self._told_matched = (0, 0)

    def of(self, source: SourceId) -> Writer:
        """Return who wrote a sample; one without a token counts as alive."""
        writer = self._by_source.get(source)
        return writer or self._add(source, alive=True)

    def find(self, source: SourceId) -> Writer | None:
        return self._by_source.get(source)

    def _add(self, source: SourceId, *, alive: bool) -> Writer:
        if len(self._by_source) >= self._writers_max:
            if not self._gone:
                return self._others
            longest = next(iter(self._gone))
            del self._gone[longest], self._by_source[longest]
        writer = Writer(source, alive=alive, auto_dispose=False)
        self._by_source[source] = writer
        if not alive:
            self._gone[source] = None
        return writer

    def appeared(self, source: SourceId, *, auto_dispose: bool) -> Writer | None:
        """Note a token; returns the writer where it had left and is back."""
        if source in self._matched:
            return None
        writer = self.of(source)
        if writer is self._others:
            return None
        self._matched.add(source)
        self._total += 1
        self._last = source
        self._gone.pop(source, None)
        back, writer.alive, writer.auto_dispose = not writer.alive, True, auto_dispose
        return writer if back else None

    def disappeared(self, source: SourceId) -> Writer | None:
        """Note that a token is gone; returns the writer that left."""
        if source not in self._matched:
            return None
        self._matched.discard(source)
        self._last = source
        writer = self._by_source[source]
        writer.alive = False
        self._gone[source] = None
        return writer

    def absent(self, source: SourceId) -> None:
        """Note a writer that would show a token, were it there."""
        if source not in self._by_source:
            self._add(source, alive=False)

    def take_liveliness(self) -> LivelinessChanged:
        """Return how many writers are there, and the change since this was last asked."""
        now = len(self._matched), len(self._gone)
        was, self._told_liveliness = self._told_liveliness, now
        return LivelinessChanged(*now, now[0] - was[0], now[1] - was[1], self._last)

    def take_matched(self) -> SubscriptionMatched:
        """The same for all that ever were."""
        now = len(self._matched), self._total
        was, self._told_matched = self._told_matched, now
        return SubscriptionMatched(*now, now[0] - was[0], now[1] - was[1], self._last)
