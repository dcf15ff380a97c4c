"""Numbers that were published, as something shows, and did not come: they become gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS, sn_distance
from durable_cache.model.window import Verdict
from durable_cache.protocol.cache.doubts import Doubt
from durable_cache.protocol.cache.events import EngineOptions, HeartbeatReceived, Output
from durable_cache.protocol.cache.gaps import Gap, Gaps
from durable_cache.protocol.cache.numbering import KnownSource, Numbering

_SECOND_NS = 1_000_000_000


class Awaited:
    """Opens the gaps of a cache's engine."""

    def __init__(self, gaps: Gaps, options: EngineOptions) -> None:
        self._gaps, self._options = gaps, options

    def refused(self, known: KnownSource, runs: Iterable[SnRange], now: Moment) -> Iterator[Output]:
        """Await live numbers that were seen and could not be kept."""
        for run in _as_published(runs):
            yield from self._run_refused(known, run, now)

    def _run_refused(self, known: KnownSource, run: SnRange, now: Moment) -> list[Output]:
        first, last = run
        numbering = known.wrapped_into_live(last) or known.live
        window = numbering.window
        verdict = window.verdict(last)
        if verdict in (Verdict.DUPLICATE, Verdict.OLD):
            return []
        if verdict is Verdict.BEYOND or numbering.wrapped(last):
            # One far number moves nothing, and without its time one behind a wrap begins nothing:
            # does anybody know it?
            return [self._gaps.single(known.source, numbering.epoch, last)]
        window.begin(first)
        start = max(window.start or 0, min(window.top + 1, first))
        window.expect(last)
        self.numbers(known.source, numbering, start, last, now)
        return []

    def doubted(self, known: KnownSource, doubt: Doubt, now: Moment) -> list[Output]:
        """Await what found no room behind a look-up as of the run that is live now.

        One that begins before it is answered is not theirs: so it is done before, too (ADR 0375).
        """
        refused, doubt.refused = doubt.refused, RangeSet()
        return [*self.refused(known, refused, now)]

    def numbers(
        self, source: SourceId, numbering: Numbering, first: int, last: int, now: Moment
    ) -> None:
        """Await numbers of a run from now on; where the last is below the first, none."""
        if last < first:
            return
        due_ns = now.monotonic_ns + round(self._options.recovery_delay_seconds * _SECOND_NS)
        epoch, window, now_ns = numbering.epoch, numbering.window, now.monotonic_ns
        overlaps = epoch != EPOCH_UNKNOWN and not (numbering.named or numbering.declared)
        self._gaps.open(Gap(source, epoch, window, first, last, now_ns, due_ns, overlaps))

    def heard(self, known: KnownSource, event: HeartbeatReceived) -> list[Output]:
        """Await what a publisher says it has published."""
        if known.doubt is not None:  # of which run it is shows with what is looked up
            known.doubt.refused.add(event.source_sn, event.source_sn)
            return []
        numbering = known.live
        window = numbering.window
        ahead = sn_distance(event.source_sn, max(0, window.top) % SOURCE_SN_MODULUS)
        if window.start is None or ahead <= 0:
            return []
        first, last = window.top + 1, max(0, window.top) + ahead
        if window.verdict(last) is Verdict.BEYOND:  # four forged bytes must not raise a window
            return [self._gaps.single(event.source, numbering.epoch, event.source_sn)]
        outputs: list[Output] = []
        if last >= SOURCE_SN_MODULUS:  # it began again at 0: what it gives shows when
            outputs.append(self._gaps.single(event.source, numbering.epoch, event.source_sn))
            last = SOURCE_SN_MODULUS - 1
        window.expect(last)
        self.numbers(event.source, numbering, first, last, event.now)
        return outputs


def _as_published(runs: Iterable[SnRange]) -> list[SnRange]:
    """Return runs of one source in their order: those before a wrap come first.

    Where nobody knows yet where the source stands, they were a hole of billions behind the others.
    """
    ordered = sorted(runs)
    if ordered and ordered[-1].last - ordered[0].first > SOURCE_SN_MODULUS // 2:
        ordered.sort(key=lambda run: run.last < SOURCE_SN_MODULUS // 2)
    return ordered
