"""What of a cache's live events waits for a token, and where it goes (ADR 0111)."""

from __future__ import annotations

from collections.abc import Iterable

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import SnRange
from durable_cache.model.run_name import run_of
from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.protocol.between_runs import BetweenRuns, part
from durable_cache.protocol.cache.engine import CacheEngine
from durable_cache.protocol.cache.events import (
    BatchRefused,
    EngineOptions,
    EpochDeclared,
    HeartbeatReceived,
    Origin,
)
from durable_cache.runtime.effects import Arrived, CoreEvent

_NOTHING = SampleBatch()


class AwaitingTokens:
    """A core's live samples of sources that show no token; at most `doubtful_samples_max`."""

    def __init__(self, engine: CacheEngine, options: EngineOptions) -> None:
        self._engine = engine
        self._between = BetweenRuns(
            options.tokens_max, options.doubtful_samples_max, options.token_wait_seconds
        )

    @property
    def held(self) -> int:
        """How many samples wait."""
        return self._between.held

    def wake_ns(self) -> int | None:
        """Return when the first waits no longer, or None."""
        return self._between.wake_ns()

    def claims(self, source: SourceId) -> frozenset[str]:
        """Return which incarnations of a source live tokens name, as far as they came here."""
        return self._between.shown(source)

    def keep(self, batch: SampleBatch, now: Moment) -> tuple[SampleBatch, SampleBatch]:
        """Keep what must wait of live samples, and return the rest; all sources are loaded.

        It waits from `now` on, not since it came: before, tokens may have waited behind it. What
        says of which run it is waits for no token. It is returned once more by itself.
        """
        waits = set(filter(self.is_open, batch.sources))
        if not waits:
            return batch, _NOTHING
        rest: list[Sample] = []
        named: list[Sample] = []
        for sample in batch:
            if sample.source not in waits:
                rest.append(sample)
            elif run_of(sample) is None:
                self._between.hold(sample.source, (sample,), now.monotonic_ns)
            else:
                rest.append(sample)
                named.append(sample)
        return SampleBatch(rest), SampleBatch(named)

    def keep_refused(self, event: BatchRefused, now: Moment) -> BatchRefused:
        """Keep the numbers of sources that must wait, and return the others."""
        if event.late:
            return event
        rest: list[tuple[SourceId, SnRange]] = []
        for source, run in event.refused:
            if self.is_open(source):
                self._between.hold(source, (run,), now.monotonic_ns)
            else:
                rest.append((source, run))
        return BatchRefused(tuple(rest), event.now)

    def keeps_number(self, event: HeartbeatReceived, now: Moment) -> bool:
        """Keep what a heartbeat says where samples of its source wait; tell whether it waits.

        The next token shows of which run it is, or what waits before it does (ADR 0273).
        """
        source = event.source
        begun = self._engine.known(source).live.window.start is not None
        if not (begun and self.is_open(source)):
            return False
        self._between.tell(source, event.source_sn, now.monotonic_ns)
        return True

    def gone(self, source: SourceId, incarnation: str) -> None:
        """See a token go."""
        self._between.hides(source, incarnation)

    def shown(self, token: EpochDeclared) -> tuple[list[CoreEvent], int]:
        """See a token; return it among what waited for it, in order; nothing: nothing waited.

        And how many samples were left out: nothing shows of which run they are.
        """
        source, now = token.source, token.now
        if not token.by_sample:
            self._between.shows(source, token.incarnation)
        heard = self._between.take(source)
        if not heard:
            return [], 0
        live = self._engine.known(source).live
        if live.incarnation == token.incarnation:
            return [*_late(source, heard, now), token], 0
        samples = [one for one in heard if isinstance(one, Sample)]
        parted = part(samples, live.holds, live.newest_held, live.newest_ntp64)
        events = [*_late(source, parted.before, now), token]
        if parted.begun:
            events.append(Arrived(SampleBatch(parted.begun), Origin.LIVE, now))
        return events, len(parted.unknown)

    def over(self, now: Moment) -> list[CoreEvent]:
        """Return what waited in vain, as of the run before."""
        if self._between.wake_ns() is None:  # asked for with every event
            return []
        expired = self._between.expired(now.monotonic_ns)
        return [event for source, heard in expired for event in _late(source, heard, now)]

    def is_open(self, source: SourceId) -> bool:
        """Tell whether what comes of a source may be of a run that no token names yet."""
        if self._between.shows_one(source):  # asked for with every batch
            return False
        live = self._engine.known(source).live
        return self._between.is_open(source, named=bool(live.incarnation) or live.name_lost)


def _late(source: SourceId, heard: Iterable[Sample | SnRange], now: Moment) -> list[CoreEvent]:
    """Return what says that samples and refused numbers are late ones of the current run."""
    samples = [one for one in heard if isinstance(one, Sample)]
    refused = tuple((source, one) for one in heard if isinstance(one, SnRange))
    events: list[CoreEvent] = []
    if samples:
        events.append(Arrived(SampleBatch(samples), Origin.LATE, now))
    if refused:
        events.append(BatchRefused(refused, now, late=True))
    return events
