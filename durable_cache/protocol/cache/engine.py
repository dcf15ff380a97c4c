"""What a cache does with what arrives: which samples are new, what is missing, what to say when.

Theory of operation. Every source has numberings, one per epoch, each with a window. A live sample
belongs to its source's current epoch. The next number is the usual case and costs a batch, not a
sample. A number ahead opens a gap; one far ahead is parked until a second sample, a heartbeat or a
cache confirms it, so that one forged number cannot silence a source. A number that the window has
is looked up: it is the same sample, a conflict, or the first sign that the numbering restarted.

Persist before messages leave: `SendAck` and `ReportMiss` come only out of `Appended` (a `SendAck`
may be repeated under an epoch learned later). At most one `Append` is outstanding. `handle` is
total; time enters as an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import assert_never

import msgspec

from durable_cache.errors import LocalProtocolError
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, sample_digest
from durable_cache.model.sequence import SOURCE_SN_MODULUS, sn_distance
from durable_cache.model.window import Verdict
from durable_cache.protocol.cache.events import (
    Append,
    Appended,
    AppendFailed,
    BatchReceived,
    BatchRefused,
    EngineOptions,
    EpochDeclared,
    EpochFreed,
    EpochsAgreed,
    Event,
    FetchEnded,
    HeartbeatReceived,
    Learned,
    Moment,
    Origin,
    Output,
    ReportConflict,
    ReportMiss,
    SendAck,
    SourceLoaded,
    Tick,
    Verified,
    Verify,
)
from durable_cache.protocol.cache.gaps import Gap, Gaps
from durable_cache.protocol.cache.numbering import EngineCounts, KnownSource, Numbering

__all__ = ["CacheEngine"]


class CacheEngine:
    """The pure heart of a cache: `handle(event)` returns what to do. Owned by one thread."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self._options = options or EngineOptions()
        self._sources: OrderedDict[SourceId, KnownSource] = OrderedDict()
        self._gaps = Gaps(self._options)
        self._appending: dict[tuple[SourceId, int], RangeSet] | None = None
        self._skipping: tuple[Gap, ...] = ()
        self.counts = EngineCounts()

    @property
    def gaps_open(self) -> int:
        return len(self._gaps)

    @property
    def sources(self) -> int:
        """How many sources have their windows in memory."""
        return len(self._sources)

    def wake_ns(self) -> int | None:
        """Return the monotonic time at which the next `Tick` is of use, or None."""
        return self._gaps.wake_ns()

    def unknown(self, sources: Iterable[SourceId]) -> list[SourceId]:
        """Return the sources that must be loaded before a batch with them is handed in."""
        return [source for source in dict.fromkeys(sources) if source not in self._sources]

    def known(self, source: SourceId) -> KnownSource:
        """Return what is known of a source that was loaded; to be read only."""
        known = self._sources.get(source)
        if known is None:
            raise LocalProtocolError(f"source {source} was not loaded")
        self._sources.move_to_end(source)
        return known

    def handle(self, event: Event) -> list[Output]:
        """Take one event and return what to do, in order."""
        match event:
            case BatchReceived():
                return self._received(event)
            case Appended():
                return self._appended()
            case AppendFailed():
                return self._append_failed(event.now)
            case Tick():
                return self._tick(event.now)
            case Verified():
                return self._verified(event)
            case FetchEnded():
                self._gaps.ended(event.fetch_id, event.now.monotonic_ns)
                return []
            case SourceLoaded():
                return self._loaded(event)
            case EpochDeclared():
                return self._declared(event)
            case EpochsAgreed():
                return self._agreed(event)
            case EpochFreed(source, loser):
                self.known(source).free(loser)
                return []
            case HeartbeatReceived():
                return self._heartbeat(event)
            case BatchRefused():
                return self._refused(event.refused, event.now)
            case _:
                assert_never(event)

    def _received(self, event: BatchReceived) -> list[Output]:
        accepted: list[Sample] = []
        outputs: list[Output] = []
        groups: dict[SourceId, list[Sample]] = {}
        for sample in event.batch:
            group = groups.get(sample.source)
            if group is None:
                groups[sample.source] = [sample]
            else:
                group.append(sample)
        for source, samples in groups.items():
            known = self.known(source)
            if event.origin in (Origin.RECOVERED, Origin.ALIGNED):
                self._recovered(known, samples, accepted, foreign=True)
            elif event.origin is Origin.REFILED:
                known.refile(samples, accepted)
            elif event.origin is Origin.NATIVE:
                epoch = known.current
                own = [msgspec.structs.replace(sample, epoch=epoch) for sample in samples]
                self._recovered(known, own, accepted, foreign=False)
            else:
                outputs += self._live(source, known, samples, accepted, event.now)
        return self._append(accepted) + outputs

    def _live(
        self,
        source: SourceId,
        known: KnownSource,
        samples: list[Sample],
        accepted: list[Sample],
        now: Moment,
    ) -> list[Output]:
        numbering = known.live
        window = numbering.window
        first, last = samples[0].sn, samples[-1].sn
        if (
            window.start is not None
            and first == window.top + 1
            and [sample.sn for sample in samples] == list(range(first, last + 1))
        ):
            window.accept(first, last)
            numbering.take(samples, accepted)
            return []
        outputs: list[Output] = []
        doubtful: list[Sample] = []
        for sample in samples:
            if doubtful:  # what comes after a restart must not count before it
                doubtful.append(msgspec.structs.replace(sample, epoch=known.current))
            else:
                outputs += self._one_live(source, known, sample, accepted, doubtful, now)
        if doubtful:
            outputs.append(Verify(tuple(doubtful)))
        return outputs

    def _one_live(
        self,
        source: SourceId,
        known: KnownSource,
        sample: Sample,
        accepted: list[Sample],
        doubtful: list[Sample],
        now: Moment,
    ) -> list[Output]:
        numbering = known.follow(sample)
        window = numbering.window
        if sample.sn <= numbering.newest_held:
            if numbering.wrapped(sample.sn):
                self.counts.restarts += 1
                numbering = known.restart(sample, now.unix_ns)
            elif numbering.doubtful(sample):
                doubtful.append(msgspec.structs.replace(sample, epoch=numbering.epoch))
                return []
        elif window.verdict(sample.sn) is Verdict.BEYOND:
            parked = numbering.parked
            if parked is None or not 0 < sample.sn - parked.sn <= window.span:
                self.counts.beyond += 1
                numbering.parked = sample
                return [self._gaps.single(source, numbering.epoch, sample.sn)]
            numbering.parked = None
            self._advance(source, numbering, parked, accepted, now)
        self._advance(source, numbering, sample, accepted, now)
        return []

    def _advance(
        self,
        source: SourceId,
        numbering: Numbering,
        sample: Sample,
        accepted: list[Sample],
        now: Moment,
    ) -> None:
        window = numbering.window
        if window.start is not None:
            self._await(source, numbering, max(window.top + 1, window.start), sample.sn - 1, now)
        window.accept(sample.sn, sample.sn)
        numbering.take((sample,), accepted)

    def _recovered(
        self, known: KnownSource, samples: list[Sample], accepted: list[Sample], *, foreign: bool
    ) -> None:
        for sample in sorted(samples, key=lambda sample: (sample.epoch, sample.sn)):
            numbering = known.numbering(known.canonical(sample.epoch, sample.sn))
            if numbering.window.verdict(sample.sn) is Verdict.DUPLICATE:
                self.counts.duplicates += 1
                continue
            numbering.foreign |= foreign
            if numbering.parked is not None and numbering.parked.sn == sample.sn:
                numbering.parked = None
            numbering.window.accept(sample.sn, sample.sn)
            numbering.take((sample,), accepted)

    def _append(self, accepted: list[Sample], skips: tuple[Skip, ...] = ()) -> list[Output]:
        if not accepted and not skips:
            return []
        if self._appending is not None:
            raise LocalProtocolError("an Append is outstanding; say Appended or AppendFailed first")
        batch = SampleBatch(accepted)
        touched: dict[tuple[SourceId, int], list[int]] = {}
        for (_, source, epoch), samples in batch.by_stream.items():
            touched.setdefault((source, epoch), []).extend([sample.sn for sample in samples])
        self._appending = {numbering: RangeSet.of(sns) for numbering, sns in touched.items()}
        return [Append(batch, skips)]

    def _appended(self) -> list[Output]:
        if self._appending is None:
            raise LocalProtocolError("Appended without an Append")
        outputs: list[Output] = []
        for (source, epoch), runs in self._appending.items():
            window = self._sources[source].numberings[epoch].window
            around = {window.run_at(run.first) or run for run in runs}
            outputs.append(SendAck(source, epoch, tuple(sorted(around))))
        for gap in self._skipping:
            missing = gap.window.held.gaps(gap.first, gap.last)
            gap.window.skip(gap.first, gap.last)
            self._gaps.close(gap)
            for first, last in missing:
                self.counts.missed += last - first + 1
                outputs.append(ReportMiss(gap.source, gap.epoch, first, last))
        self._appending, self._skipping = None, ()
        self._evict()
        return outputs

    def _append_failed(self, now: Moment) -> list[Output]:
        if self._appending is None:
            raise LocalProtocolError("AppendFailed without an Append")
        for (source, epoch), runs in self._appending.items():
            numbering = self._sources[source].numberings[epoch]
            for first, last in runs:
                numbering.window.reject(first, last)
                self._await(source, numbering, first, last, now)
        self._appending, self._skipping = None, ()
        return []

    def _refused(self, refused: Iterable[tuple[SourceId, SnRange]], now: Moment) -> list[Output]:
        for source, (first, last) in refused:
            known = self._sources.get(source)
            if known is None:
                continue
            numbering = known.live
            if numbering.window.verdict(last) in (Verdict.DUPLICATE, Verdict.OLD):
                continue
            numbering.window.begin(first)
            start = max(numbering.window.start or 0, min(numbering.window.top + 1, first))
            numbering.window.expect(last)
            self._await(source, numbering, start, last, now)
        return []

    def _await(
        self, source: SourceId, numbering: Numbering, first: int, last: int, now: Moment
    ) -> None:
        if last < first:
            return
        due_ns = now.monotonic_ns + round(self._options.recovery_delay_seconds * 1e9)
        self._gaps.open(
            Gap(source, numbering.epoch, numbering.window, first, last, now.monotonic_ns, due_ns)
        )

    def _tick(self, now: Moment) -> list[Output]:
        outputs: list[Output] = list(self._gaps.due(now.monotonic_ns))
        expired = tuple(self._gaps.expired(now.monotonic_ns))
        if not expired or self._appending is not None:
            return outputs
        skips = tuple(
            Skip(gap.source, gap.epoch, first, last)
            for gap in expired
            for first, last in gap.window.held.gaps(gap.first, gap.last)
        )
        self._skipping = expired
        return outputs + self._append([], skips)

    def _verified(self, event: Verified) -> list[Output]:
        outputs: list[Output] = []
        accepted: list[Sample] = []
        again: dict[SourceId, list[Sample]] = {}
        for sample, stored in event.samples:
            known = self.known(sample.source)
            numbering = known.live
            if numbering.epoch != sample.epoch or sample.sn > numbering.newest_held:
                again.setdefault(sample.source, []).append(sample)
            elif numbering.restarted(sample, stored):
                self.counts.restarts += 1
                known.restart(sample, event.now.unix_ns)
                again.setdefault(sample.source, []).append(sample)
            elif stored is None and numbering.window.verdict(sample.sn) is not Verdict.DUPLICATE:
                numbering.window.accept(sample.sn, sample.sn)
                numbering.take((sample,), accepted)
            elif stored is None or sample_digest(stored) == sample_digest(sample):
                self.counts.duplicates += 1
            else:
                self.counts.conflicts += 1
                outputs.append(ReportConflict(sample, stored))
        for source, samples in again.items():
            outputs += self._live(source, self.known(source), samples, accepted, event.now)
        return self._append(accepted) + outputs

    def _loaded(self, event: SourceLoaded) -> list[Output]:
        if event.source in self._sources:
            return []
        known = self._sources[event.source] = KnownSource(self._options)
        known.load(event.numberings, event.aliases)
        for numbering in known.numberings.values():
            for run in numbering.window.awaited():
                self._await(event.source, numbering, run.first, run.last, event.now)
        return []

    def _declared(self, event: EpochDeclared) -> list[Output]:
        known = self.known(event.source)
        outputs: list[Output] = []
        before = known.live.window
        alias = known.adopt(event.source, event.epoch)
        if alias is not None:
            known.current = event.epoch
            self._gaps.move(before, known.live.window, event.epoch)
            held = known.live.window.held
            # The publisher took no acknowledgement of an epoch it does not know: repeat it.
            outputs += [Learned(alias), SendAck(event.source, event.epoch, tuple(held))]
        if event.epoch < known.current:
            return outputs
        known.current = event.epoch
        numbering = known.live
        numbering.declared = True
        if event.fresh:
            first = numbering.window.start
            numbering.window.begin(0)
            if first:
                self._await(event.source, numbering, 0, first - 1, event.now)
        return [*outputs, self._gaps.tail(event.source, event.epoch, numbering.window.top + 1)]

    def _agreed(self, event: EpochsAgreed) -> list[Output]:
        known = self.known(event.source)
        before = known.numbering(event.loser).window
        known.merge(event.source, event.loser, event.winner)
        self._gaps.move(before, known.numbering(event.winner).window, event.winner)
        return []

    def _heartbeat(self, event: HeartbeatReceived) -> list[Output]:
        known = self._sources.get(event.source)
        if known is None:
            return []
        numbering = known.live
        window = numbering.window
        ahead = sn_distance(event.source_sn, max(0, window.top) % SOURCE_SN_MODULUS)
        if window.start is None or ahead <= 0:
            return []
        first, last = window.top + 1, max(0, window.top) + ahead
        window.expect(last)
        self._await(event.source, numbering, first, last, event.now)
        return []

    def _evict(self) -> None:
        """Forget the windows not used for longest; the stream index gives them back."""
        for source in list(self._sources)[: max(0, len(self._sources) - self._options.sources_max)]:
            numberings = self._sources[source].numberings.values()
            if not any(self._gaps.waits_for(numbering.window) for numbering in numberings):
                del self._sources[source]
