"""What a cache does with what arrives: which samples are new, what is missing, what to say when.

Theory of operation. Every source has numberings, one per epoch, each with a window. A live sample
belongs to its source's current epoch. The next number is the usual case and costs a batch, not a
sample. A number ahead opens a gap; one far ahead is parked until a second sample, a heartbeat or a
cache confirms it, so that one forged number cannot silence a source. A number that the window has
is looked up: it is the same sample, a conflict, or the first sign that the numbering restarted; the
source's later samples wait behind the question (`doubts`).

Persist before messages leave: `SendAck` and `ReportMiss` come only out of `Appended` (a `SendAck`
may be repeated under an epoch learned later, and for what its publisher sent once more), and none
names a number whose `Append` is not answered. At most one `Append` is outstanding; what is accepted
meanwhile goes with the next.
`handle` is total for every order of events; time enters as an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import assert_never

from durable_cache.errors import LocalProtocolError
from durable_cache.model.clock import Moment, earlier
from durable_cache.model.ranges import RangeSet, SnRange
from durable_cache.model.run_name import by_named_run
from durable_cache.model.sample import Sample, SampleBatch, Skip, SourceId, by_run
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.model.window import Verdict
from durable_cache.protocol.cache.appending import Appending, Coming
from durable_cache.protocol.cache.awaited import Awaited
from durable_cache.protocol.cache.doubts import Doubts
from durable_cache.protocol.cache.epochs import Epochs, found_under_any_name
from durable_cache.protocol.cache.events import (
    Append,
    Appended,
    AppendFailed,
    BatchReceived,
    BatchRefused,
    Compared,
    Declared,
    EngineOptions,
    EpochDeclared,
    EpochFreed,
    EpochsAgreed,
    Event,
    FetchEnded,
    Found,
    HeartbeatReceived,
    Learned,
    NumberingNamed,
    Origin,
    Output,
    Removed,
    ReportAbsent,
    ReportConflict,
    ReportMiss,
    SendAck,
    SourceLoaded,
    Tick,
    Verified,
    Verify,
    VerifyFailed,
)
from durable_cache.protocol.cache.gaps import Gap, Gaps
from durable_cache.protocol.cache.numbering import EngineCounts, KnownSource, Numbering

_SECOND_NS = 1_000_000_000


class CacheEngine:
    """The pure heart of a cache: `handle(event)` returns what to do, in order. Owned by one thread.

    A shell carries out the outputs one after the other; each `Append`, `Verify` and `Fetch` has an
    answer and a failure that come back as events, at any time.
    """

    def __init__(
        self, options: EngineOptions | None = None, *, epochs: Epochs | None = None
    ) -> None:
        self._options = options or EngineOptions()
        self.epochs = Epochs() if epochs is None else epochs
        self._sources: OrderedDict[SourceId, KnownSource] = OrderedDict()
        self._gaps = Gaps(self._options, self._shows_run)
        self._awaited = Awaited(self._gaps, self._options)
        self._accepted: list[Sample] = []
        self._coming = Coming()
        self._given_up: tuple[Gap, ...] = ()
        self._appending: Appending | None = None
        self._give_up_from_ns = 0
        self._doubts = Doubts(self._options)
        self.counts = EngineCounts(self._options.losses_max)

    @property
    def gaps(self) -> Gaps:
        return self._gaps

    @property
    def sources(self) -> int:
        """How many sources have their windows in memory."""
        return len(self._sources)

    @property
    def doubted(self) -> set[SourceId]:
        """The sources whose live samples wait for a look-up."""
        return {doubt.source for doubt in self._doubts}

    def holds_up_tokens(self, source: SourceId) -> bool:
        """Tell whether a source's token is to wait until a look-up of its samples is answered."""
        doubt = self.known(source).doubt
        return doubt is not None and doubt.holds_up_tokens

    @property
    def doubtful(self) -> int:
        """How many live samples wait for a look-up; at most `doubtful_samples_max`."""
        return self._doubts.held

    def wake_ns(self) -> int | None:
        """Return the monotonic time at which the next `Tick` is of use, or None."""
        wake = self._gaps.wake_ns()
        if wake is not None and self._give_up_from_ns > wake:
            wake = self._give_up_from_ns
        return earlier(wake, self._doubts.wake_ns())

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
        before = len(self._accepted)
        outputs = self._take(event)
        self._coming.count(event, self._accepted, before)
        return outputs + self._outgoing()

    def _take(self, event: Event) -> list[Output]:
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
            case VerifyFailed(verify_id, now):
                self._doubts.failed(verify_id, now.monotonic_ns)
                return []
            case FetchEnded(fetch_id, now, failed):
                self.counts.unanswered(self._gaps.ended(fetch_id, now.monotonic_ns, failed=failed))
                return []
            case SourceLoaded():
                return self._loaded(event)
            case EpochDeclared():
                return self._declared(event)
            case Compared():
                return self._compared(event)
            case EpochsAgreed() | EpochFreed() | NumberingNamed() | Removed():
                self._learned(event)
                return []
            case HeartbeatReceived(source):
                known = self._sources.get(source)
                return [] if known is None else self._awaited.heard(known, event)
            case BatchRefused():
                return self._refused(event.refused, event.now)
            case _:
                assert_never(event)

    def _outgoing(self) -> list[Output]:
        """Return the next `Append`, then the look-ups that are to see what it makes durable."""
        if self._appending is not None:
            return []
        outputs: list[Output] = []
        if self._accepted or self._given_up:
            outputs.append(self._append())
        for doubt in self._doubts.to_ask():
            samples = self.epochs.with_other_names(doubt.samples)
            outputs.append(Verify(doubt.verify_id, samples))
        return outputs

    def _received(self, event: BatchReceived) -> list[Output]:
        accepted = self._accepted
        if event.origin is Origin.UNNUMBERED:
            accepted += event.batch.samples
            return []
        outputs: list[Output] = []
        for source, samples in event.batch.by_source().items():
            known = self.known(source)
            if event.origin in (Origin.RECOVERED, Origin.ALIGNED):
                self._recovered(known, samples, event)
            elif event.origin is Origin.REFILED:
                known.refile(samples, accepted)
            elif event.origin is Origin.RESENT:
                self._resent(known, samples, event.now)
            elif event.origin is Origin.NATIVE:
                outputs += self._native(known, samples, event)
            else:
                outputs += self._live(known, samples, event.now)
        return outputs

    def _live(self, known: KnownSource, samples: Sequence[Sample], now: Moment) -> list[Output]:
        outputs: list[Output] = []
        for run, ours in by_named_run(samples):
            named = None if run is None else known.of_incarnation(run.incarnation)
            if known.doubt is not None:
                self._doubts.hold_behind(known.doubt, ours)
            elif named is None:
                outputs += self._unnamed(known, ours, now)
            else:
                outputs += self._named(known, named, ours, now)
        return outputs

    def _named(
        self, known: KnownSource, numbering: Numbering, samples: Sequence[Sample], now: Moment
    ) -> list[Output]:
        """Take live samples that say of which run they are: only a repeat is looked up."""
        if numbering.are_next(samples):
            numbering.take_next(samples, self._accepted)
            return []
        outputs: list[Output] = []
        for at, sample in enumerate(samples):
            if sample.sn <= numbering.newest_held and numbering.doubtful(sample):
                known.doubt = self._doubts.begin(known.source, numbering.epoch, samples[at:])
                break
            self._go_on(known.source, numbering, sample, now, outputs)
        return outputs

    def _unnamed(self, known: KnownSource, samples: Sequence[Sample], now: Moment) -> list[Output]:
        numbering = known.live
        # Following the first may show that it goes on a later run, too.
        late = known.began_soon and any(known.left_behind(sample) for sample in samples)
        in_order = numbering.are_next(samples) and not late
        if in_order and known.follow(samples[0]) is numbering:
            numbering.take_next(samples, self._accepted)
            return []
        outputs: list[Output] = []
        for at, sample in enumerate(samples):
            if self._is_doubtful(known, sample, now, outputs):
                known.doubt = self._doubts.begin(known.source, known.live.epoch, samples[at:])
                break
        return outputs

    def _is_doubtful(
        self, known: KnownSource, sample: Sample, now: Moment, outputs: list[Output]
    ) -> bool:
        """Take one live sample, unless it must be looked up before it counts."""
        before = known.left_behind(sample)
        if before is not None:
            if before.window.verdict(sample.sn) is Verdict.NEW:
                self._advance(known.source, before, sample, now)
            else:
                self.counts.repeated(sample.source)
            return False
        numbering = known.follow(sample)
        if numbering.wrapped(sample.sn):
            self.counts.restarts += 1
            numbering = known.restart(sample, now.unix_ns)
        elif sample.sn <= numbering.newest_held:
            if numbering.doubtful(sample):
                return True
        elif numbering.follows_wrap(sample.sn):
            self.counts.beyond += 1  # of a run that nothing here is known of
            return False
        self._go_on(known.source, numbering, sample, now, outputs)
        return False

    def _go_on(
        self,
        source: SourceId,
        numbering: Numbering,
        sample: Sample,
        now: Moment,
        outputs: list[Output],
    ) -> None:
        """Take a number that is new; one far ahead waits until it is confirmed."""
        window, parked = numbering.window, numbering.parked
        if window.verdict(sample.sn) is Verdict.BEYOND:
            if parked is None or not 0 < sample.sn - parked.sn <= window.span:
                self.counts.beyond += 1
                numbering.parked = sample
                outputs.append(self._gaps.single(source, numbering.epoch, sample.sn))
                return
            numbering.parked = None
            self._advance(source, numbering, parked, now)
        self._advance(source, numbering, sample, now)

    def _advance(self, source: SourceId, numbering: Numbering, sample: Sample, now: Moment) -> None:
        window = numbering.window
        if window.start is not None:
            first = max(window.top + 1, window.start)
            self._awaited.numbers(source, numbering, first, sample.sn - 1, now)
        window.accept(sample.sn, sample.sn)
        numbering.take((sample,), self._accepted)

    def _recovered(
        self, known: KnownSource, samples: Sequence[Sample], event: BatchReceived
    ) -> None:
        for sample in sorted(samples, key=lambda sample: (sample.epoch, sample.sn)):
            numbering = known.numbering(known.canonical(sample.epoch, sample.sn))
            if numbering.window.verdict(sample.sn) is Verdict.DUPLICATE:
                self.counts.duplicates += 1
                continue
            if numbering.follows_wrap(sample.sn):
                if not known.is_over(numbering):
                    self.counts.beyond += 1
                    continue
                # What lacks among the small numbers that are here is of the run behind the wrap.
                numbering.window.skip(0, sample.sn - 1)
            numbering.foreign |= event.origin is not Origin.NATIVE
            if numbering.parked is not None and numbering.parked.sn == sample.sn:
                numbering.parked = None
            if event.origin is Origin.ALIGNED:  # a comparison tells what else there is
                numbering.window.accept(sample.sn, sample.sn)
                numbering.take((sample,), self._accepted)
            else:
                self._advance(known.source, numbering, sample, event.now)

    def _native(
        self, known: KnownSource, samples: Sequence[Sample], event: BatchReceived
    ) -> list[Output]:
        """Take what a publisher's own cache gave, which may know of a run that nothing showed yet.

        Then it is judged as live samples are.
        """
        live = known.live
        current = [sample for sample in samples if sample.epoch == live.epoch]
        if not any(live.shows_restart(sample) for sample in current):
            self._recovered(known, samples, event)
            return []
        self._recovered(known, [s for s in samples if s.epoch != live.epoch], event)
        return self._live(known, sorted(current, key=lambda sample: sample.sn), event.now)

    def _resent(self, known: KnownSource, samples: Sequence[Sample], now: Moment) -> None:
        ordered = sorted(samples, key=lambda sample: sample.sn)
        numbering = known.numbering(ordered[0].epoch)
        if numbering.are_next(ordered) and len({sample.epoch for sample in ordered}) == 1:
            numbering.take_next(ordered, self._accepted)
            return
        for sample in ordered:
            numbering = known.numbering(sample.epoch)
            if numbering.window.verdict(sample.sn) is Verdict.NEW:
                self._advance(known.source, numbering, sample, now)

    def _compared(self, event: Compared) -> list[Output]:
        """Acknowledge once more what is stored as it was sent; what is not there is taken."""
        known = self.known(event.source)
        numbering = known.of_incarnation(event.incarnation)
        if numbering is None:
            return []
        under_way = self.under_way(event.source, numbering)
        outputs: list[Output] = []
        same = RangeSet()
        for found in event.found:
            sn = found.sample.sn
            if sn in under_way:
                continue  # acknowledged when it is durable
            if found.same or (found.removed and sn in numbering.window.held):
                same.add(sn, sn)
            outputs += self._judge(numbering, found)
        return [*outputs, self._ack(event.source, numbering, same)] if same else outputs

    def _append(self) -> Append:
        accepted, self._accepted = self._accepted, []
        coming, self._coming = self._coming, Coming()
        gaps, self._given_up = self._given_up, ()
        numberings = [
            (source, self._sources[source].standing(epoch), RangeSet.of([s.sn for s in samples]))
            for (source, epoch), samples in by_run(accepted).items()
            if not is_unnumbered(source)  # nothing awaits them, and nobody is told
        ]
        skips = tuple(
            Skip(gap.source, gap.epoch, first, last)
            for gap in gaps
            for first, last in gap.awaited()
        )
        self._appending = Appending(numberings, gaps)
        batch = SampleBatch(accepted)
        return Append(
            batch, skips, coming.moved, coming.heard, coming.heard_since_ns, coming.unnumbered
        )

    def _appended(self) -> list[Output]:
        done, self._appending = self._appending, None
        if done is None:
            raise LocalProtocolError("Appended without an Append")
        outputs: list[Output] = []
        for source, numbering, runs in done.numberings:
            window = numbering.window
            around = RangeSet([window.run_at(run.first) or run for run in runs])
            outputs.append(self._ack(source, numbering, around))
        for gap in done.gaps:
            missing = gap.awaited()
            gap.window.skip(gap.first, gap.last)
            for first, last in missing:
                self.counts.gave_up(gap.source, last - first + 1)
                outputs.append(ReportMiss(gap.source, gap.epoch, first, last))
        self._gaps.close(done.gaps)
        self._evict()
        return outputs

    def _ack(self, source: SourceId, numbering: Numbering, runs: RangeSet) -> SendAck:
        """Acknowledge what of `runs` is durable: not what was accepted since, or is under way."""
        if self._accepted or self._appending is not None:
            runs = runs.difference(self.under_way(source, numbering))
        # By its epoch alone a run behind a wrap would be taken for one that declared that since.
        name = numbering.incarnation or numbering.expected
        return SendAck(source, numbering.epoch, tuple(runs), name)

    def under_way(self, source: SourceId, numbering: Numbering) -> RangeSet:
        """Return the numbers that were accepted and are not known to be durable yet."""
        under_way = RangeSet.of(s.sn for s in self._accepted if s.source == source)
        for _, appending, sns in self._appending.numberings if self._appending else ():
            if appending is numbering:
                under_way.update(sns)
        return under_way

    def _append_failed(self, now: Moment) -> list[Output]:
        failed, self._appending = self._appending, None
        if failed is None:
            raise LocalProtocolError("AppendFailed without an Append")
        for source, numbering, runs in failed.numberings:
            for first, last in runs:
                numbering.rejected = max(numbering.rejected, last)
                numbering.window.reject(first, last)
                if not self._gaps.covers(numbering.window, first, last):  # it failed before
                    self._awaited.numbers(source, numbering, first, last, now)
        pause_ns = round(self._options.append_retry_seconds * _SECOND_NS)
        self._give_up_from_ns = now.monotonic_ns + pause_ns
        return []

    def _refused(self, refused: Iterable[tuple[SourceId, SnRange]], now: Moment) -> list[Output]:
        outputs: list[Output] = []
        runs: dict[SourceId, list[SnRange]] = {}
        for source, run in refused:
            runs.setdefault(source, []).append(run)
        for source, of_it in runs.items():
            known = self._sources.get(source)
            if known is not None and known.doubt is not None:
                known.doubt.refused.update(RangeSet(of_it))
            elif known is not None:
                outputs += self._awaited.refused(known, of_it, now)
        return outputs

    def _tick(self, now: Moment) -> list[Output]:
        self._doubts.tick(now.monotonic_ns)
        if self._appending is None and now.monotonic_ns >= self._give_up_from_ns:
            self._given_up = tuple(self._gaps.expired(now.monotonic_ns))
        return [*self._gaps.due(now.monotonic_ns, self._given_up)]

    def _verified(self, event: Verified) -> list[Output]:
        doubt = self._doubts.take(event.verify_id)
        if doubt is None:
            return []
        known, now = self.known(doubt.source), event.now
        known.doubt = None
        outputs: list[Output] = []
        again: list[Sample] = []
        for found in found_under_any_name(event.found, len(doubt.samples)):
            sample = found.sample
            named = known.named_by(sample)
            numbering = named or known.live
            under_way = self.under_way(doubt.source, numbering)
            if again or numbering.outdates(found, under_way):
                again.append(sample)
            elif named is None and numbering.restarted(sample, found.stored):
                self.counts.restarts += 1
                known.restart(sample, now.unix_ns)
                again.append(sample)
            else:
                outputs += self._judge(numbering, found)
        again += doubt.behind
        if again:
            outputs += self._live(known, again, now)
        next_doubt = self.known(doubt.source).doubt
        if next_doubt is not None:
            next_doubt.refused.update(doubt.refused)
        else:
            outputs += self._awaited.doubted(known, doubt, now)
        return outputs

    def _judge(self, numbering: Numbering, found: Found) -> list[Output]:
        """Tell what a number that came again means: filled, repeated, contradicted or lost."""
        sample, stored, removed = found
        if stored is not None:
            if found.same:
                self.counts.repeated(sample.source)
                return []
            self.counts.conflicts += 1
            return [ReportConflict(sample, stored)]
        if removed:
            self.counts.repeated(sample.source)
            return []
        held = numbering.window.verdict(sample.sn) is Verdict.DUPLICATE
        numbering.window.accept(sample.sn, sample.sn)
        numbering.take((sample,), self._accepted)
        if not held:
            return []
        self.counts.absent += 1
        return [ReportAbsent(sample)]

    def _loaded(self, event: SourceLoaded) -> list[Output]:
        if event.source in self._sources:
            return []
        known = KnownSource(event.source, self._options, self.epochs)
        self._sources[event.source] = known
        known.load(event.numberings)
        for numbering in known.numberings.values():
            for run in numbering.window.awaited():
                self._awaited.numbers(event.source, numbering, run.first, run.last, event.now)
        return []

    def _declared(self, event: EpochDeclared) -> list[Output]:
        source, incarnation = event.source, event.incarnation
        known = self.known(source)
        outputs: list[Output] = []
        numbering = known.of_incarnation(incarnation)
        fresh = event.fresh
        if numbering is None:
            epoch = known.epoch_for(event.epoch, incarnation)
            before = known.live.window
            alias = known.adopt(epoch, event.epoch, incarnation)
            numbering = known.numbering(epoch)
            if alias is not None:
                self._gaps.move(before, numbering.window, epoch)
                if self._appending is not None:
                    self._appending.rename(before, numbering)
                outputs.append(Learned(alias))
            if incarnation:
                numbering.incarnation = incarnation
                outputs.append(Declared(source, epoch, incarnation))
            if numbering.window.held:
                # The publisher took no acknowledgement of an epoch it does not know: repeat it.
                outputs.append(self._ack(source, numbering, numbering.window.held.copy()))
            # An epoch below or beside one we know is a clock set back, not an old acquaintance.
            fresh = fresh or epoch != event.epoch
        if numbering.epoch < known.current and not known.only_others_named_live:
            return outputs
        if known.doubt is not None and known.live is not numbering:
            outputs += self._awaited.doubted(known, known.doubt, event.now)
        known.current = numbering.epoch
        known.forget_bare()
        numbering.declared = True
        if fresh:
            first = numbering.window.start
            numbering.window.begin(0)
            if first:
                self._awaited.numbers(source, numbering, 0, first - 1, event.now)
        if event.by_sample:  # its token comes, and what follows is asked for then
            return outputs
        top = numbering.window.top
        return [*outputs, self._gaps.tail(source, numbering.epoch, top + 1)]

    def _learned(self, event: EpochsAgreed | EpochFreed | NumberingNamed | Removed) -> None:
        match event:
            case EpochsAgreed(source, loser, winner):
                self._merged(self.known(source), loser, winner)
            case EpochFreed(source, loser):
                self.epochs.free(source, loser)
            case NumberingNamed(source, epoch, incarnation):
                self.known(source).name(epoch, incarnation)
            case Removed(batch):
                for (_, source, epoch), given in batch.summaries.items():
                    self.known(source).settle(epoch, given.runs)

    def _merged(self, known: KnownSource, loser: int, winner: int) -> None:
        before = known.numbering(loser).window
        known.merge(loser, winner)
        numbering = known.numbering(winner)
        self._gaps.move(before, numbering.window, winner)
        if self._appending is not None:
            self._appending.rename(before, numbering)

    def _shows_run(self, source: SourceId, first: int) -> int | None:
        known = self._sources.get(source)
        return None if known is None else known.shows_run(first)

    def _evict(self) -> None:
        """Forget the windows not used for longest; the stream index gives them back."""
        over = len(self._sources) - self._options.sources_max
        if over <= 0:
            return
        needed = {sample.source for sample in self._accepted}
        for known in list(self._sources.values())[:over]:
            windows = [numbering.window for numbering in known.numberings.values()]
            busy = known.doubt is not None or known.pins > 0 or known.source in needed
            if not busy and not any(self._gaps.waits_for(window) for window in windows):
                del self._sources[known.source]
