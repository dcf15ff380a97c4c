"""What a subscriber passes on in a mode without recovery: at once, as it arrives, or never.

It asks nobody and holds nothing back; `Arrivals` decide, for each run of a source. What is missing
is reported when a later number shows it. A run that begins anew is told by its publisher's token or
by its samples' own time, as everywhere; a sample of the run before that comes late is judged by
what came of that one.

It is driven as `SubscriberEngine` is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import SnRange
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.unnumbered import identified, is_unnumbered
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.modes import Arrivals, Mode
from durable_cache.protocol.restarts import (
    RESTART_NTP64,
    epoch_of_restart,
    has_wrapped,
    is_later,
    precedes_wrap,
)
from durable_cache.protocol.subscriber.awaiting_tokens import age_of
from durable_cache.protocol.subscriber.events import (
    AnswererAppeared,
    AnswerersGone,
    BeginningTold,
    Declared,
    DeliveryOptions,
    Event,
    Fetched,
    FetchFailed,
    HeartbeatReceived,
    HistoryFailed,
    HistoryPage,
    Output,
    Received,
    TimePassed,
    TokenGone,
)
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.subjects import Subjects
from durable_cache.protocol.wire import incarnation_after


@dataclass(slots=True, eq=False)
class _Run:
    """One run of a source."""

    arrivals: Arrivals
    epoch: int = EPOCH_UNKNOWN
    incarnation: str = ""
    newest_ntp64: int = 0
    began_ntp64: int = 0
    """What a publisher stamped before is of the run before; 0: nothing came of one."""
    before: _Run | None = None
    expected: Declared | None = None
    """The token of the run that follows, none of whose samples came."""


class ArrivingEngine:
    """The pure heart of a subscriber that recovers nothing; owned by one thread.

    `places_max` sources are remembered; one beyond it counts as new when it comes again.
    """

    history_complete = True
    reads_history = False
    gaps_open = 0

    def __init__(self, mode: Mode, options: DeliveryOptions | None = None) -> None:
        self._mode, self._options = mode, options or DeliveryOptions()
        self._runs: OrderedDict[SourceId, _Run] = OrderedDict()
        self.subjects = Subjects(self._options)
        self._outputs = Outputs(self.subjects, keeps_repeats=True)
        self._began_ns = 0
        self.losses = Losses(self._options.losses_max)
        self.duplicates = 0
        """Samples that came and were discarded."""

    @property
    def delivered(self) -> int:
        """How many samples were passed on, repeats too."""
        return self._outputs.delivered

    @property
    def missed(self) -> int:
        """How many numbers were reported; those that came after all are not subtracted."""
        return self._outputs.missed

    def start(self, now: Moment, *, answerers_known: bool = False) -> list[Output]:
        """Begin; there is nothing to ask."""
        self._began_ns = now.unix_ns
        return []

    def handle(self, event: Event) -> list[Output]:
        """Take what happened and return what is to be done, in order."""
        self.losses.now_ns, self.subjects.now = event.now.unix_ns, event.now
        match event:
            case Received(samples, now, oversized):
                self._received(samples, now)
                for sample in oversized:
                    run = self._run_of(sample, now)
                    self._tell(run, sample.source, sample.sn)
            case Declared():
                self._declared(event)
            case HeartbeatReceived(source, source_sn, stored_as=None):
                self._heartbeat(source, source_sn)
            case (
                HeartbeatReceived()
                | TokenGone()
                | AnswererAppeared()
                | AnswerersGone()
                | TimePassed()
            ):
                pass
            case Fetched() | FetchFailed() | HistoryPage() | HistoryFailed() | BeginningTold():
                pass  # nothing is asked
            case _:
                assert_never(event)
        return self._outputs.take()

    def take_next(self, received: Received) -> Sequence[Sample] | None:
        """Return None: every sample is looked at, as its mode has it."""
        return None

    def run_of(self, source: SourceId, epoch: int) -> tuple[int, str]:
        """Return by which epoch and incarnation a run goes whose samples bear an epoch."""
        run = self._runs.get(source)
        while run is not None and run.epoch != epoch:
            run = run.before
        return epoch, "" if run is None else run.incarnation

    def wake_ns(self) -> int | None:
        """Return when there is something to do: never."""
        return None

    def _received(self, samples: Iterable[Sample], now: Moment) -> None:
        for sample in samples:
            if is_unnumbered(sample.source):
                named = None if sample.stamped else identified(sample)
                self._outputs.pass_on(named or sample)
                continue
            run = self._run_of(sample, now)
            arrivals = run.arrivals
            sees_more = arrivals.first is None
            passed, lost = arrivals.take(sample.sn)
            if sees_more:
                self.losses.seen(sample.source)
            run.newest_ntp64 = max(run.newest_ntp64, sample.ntp64)
            if lost is not None:
                self._report(run, sample.source, lost)
            if passed is None:
                self.duplicates += 1
                self.losses.repeated(sample.source)
                continue
            if sample.epoch != run.epoch:
                sample = msgspec.structs.replace(sample, epoch=run.epoch)  # noqa: PLW2901
            self._outputs.pass_on(sample, passed)

    def _report(self, run: _Run, source: SourceId, lost: SnRange) -> None:
        self._outputs.report(source, run.epoch, lost.first, lost.last)

    def _tell(self, run: _Run, source: SourceId, sn: int) -> None:
        """Report what is lost, a number included that was sent and is not passed on."""
        lost = run.arrivals.tell(sn)
        if lost is not None:
            self._report(run, source, lost)

    def _heartbeat(self, source: SourceId, source_sn: int) -> None:
        run = self._runs.get(source)
        if run is None or run.arrivals.first is None or run.expected is not None:
            return
        if 0 < source_sn - run.arrivals.top <= self._options.window_size_samples:
            self._tell(run, source, source_sn)

    # Runs

    def _declared(self, token: Declared) -> None:
        fresh, stale = age_of(token, self._began_ns)
        run = self._runs.get(token.source)
        if run is None:
            arrivals = Arrivals(self._mode, first=0 if fresh else None)
            self._put(token.source, _Run(arrivals, token.epoch, token.incarnation))
            return
        known = (run.incarnation, "" if run.before is None else run.before.incarnation)
        if not token.incarnation or token.incarnation in known:
            return
        if not run.incarnation:
            run.incarnation = token.incarnation  # its samples were faster, and keep their epoch
            return
        if stale:  # both were there before us: what comes is of the later one
            if token.epoch > run.epoch:
                run.epoch, run.incarnation = token.epoch, token.incarnation
        elif run.arrivals.seen < 0:
            epoch = max(token.epoch, run.epoch + 1)
            self._put(token.source, _Run(Arrivals(self._mode, first=0), epoch, token.incarnation))
        else:
            run.expected = token

    def _run_of(self, sample: Sample, now: Moment) -> _Run:
        """Return the run that a sample is of; one that begins with it is the source's from then."""
        run = self._runs.get(sample.source)
        if run is None:
            begun = _Run(Arrivals(self._mode), newest_ntp64=sample.ntp64)
            self._put(sample.source, begun)
            return begun
        sn, seen, span = sample.sn, run.arrivals.seen, self._options.window_size_samples
        if sn == seen + 1 and run.before is None and run.expected is None:
            return run
        if seen < 0:
            return run
        if precedes_wrap(sn, seen, span) or (
            run.before is not None and not sample.stamped and sample.ntp64 < run.began_ntp64
        ):
            run.before = run.before or _Run(Arrivals(self._mode))
            return run.before
        if self._begins(run, sample, span):
            return self._begin(run, sample, now)
        return run

    def _begins(self, run: _Run, sample: Sample, span: int) -> bool:
        """Tell whether a sample begins a new run.

        The first that comes of a declared run may have any number, for those below may be lost. A
        higher one than came of the run before is of the new run if no restart is so fast that it
        could be the old one's next. Across a wrap a publisher pauses as it likes, and numbers tell.
        """
        if sample.sn > run.arrivals.seen:
            token = run.expected
            if token is None or token.incarnation == incarnation_after(run.incarnation):
                return False
            return is_later(sample, run.newest_ntp64)
        if has_wrapped(sample.sn, run.arrivals.seen, span):
            return True
        if run.expected is None:
            return is_later(sample, run.newest_ntp64)
        return sample.stamped or sample.ntp64 > run.newest_ntp64

    def _begin(self, run: _Run, sample: Sample, now: Moment) -> _Run:
        token, source, newest = run.expected, sample.source, run.newest_ntp64
        run.before = run.expected = None
        if token is None:
            epoch = epoch_of_restart(sample, now.unix_ns, run.epoch)
        else:
            epoch = max(token.epoch, run.epoch + 1)
        wrapped = has_wrapped(sample.sn, run.arrivals.seen, self._options.window_size_samples)
        begun = _Run(
            Arrivals(self._mode, first=0 if token is not None or wrapped else None),
            epoch,
            "" if token is None else token.incarnation,
            began_ntp64=0 if sample.stamped else min(sample.ntp64, newest + RESTART_NTP64),
            before=run,
        )
        self._put(source, begun)
        return begun

    def _put(self, source: SourceId, run: _Run) -> None:
        self._runs[source] = run
        self._runs.move_to_end(source)
        if len(self._runs) > self._options.places_max:
            self._runs.popitem(last=False)
