"""What a cache knows of one source: its epochs, their windows, and when a numbering began anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.run_name import RunName, run_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, WRAP_GAP, frame_start_ns
from durable_cache.model.timestamp import ntp64_to_ns
from durable_cache.model.window import Verdict, Window
from durable_cache.protocol.cache.doubts import Doubt
from durable_cache.protocol.cache.epochs import Epochs
from durable_cache.protocol.cache.events import Alias, EngineOptions, Found, NumberingState
from durable_cache.protocol.losses import Losses
from durable_cache.protocol.restarts import (
    RESTART_NTP64,
    SOON_NTP64,
    epoch_of_restart,
    has_wrapped,
    is_later,
    is_restart,
    precedes_wrap,
)
from durable_cache.protocol.wire import incarnation_after

_BARE_RUNS_MAX = 64
"""Runs of one source that are remembered though nothing came of them."""


class Numbering:
    """One epoch of a source: its window, and the far number that waits for confirmation."""

    __slots__ = (
        "declared",
        "epoch",
        "expected",
        "foreign",
        "incarnation",
        "name_lost",
        "named_here",
        "newest_ntp64",
        "parked",
        "rejected",
        "restarted_at",
        "window",
    )

    def __init__(self, epoch: int, options: EngineOptions) -> None:
        self.epoch = epoch
        self.declared = False
        """Its publisher said so; otherwise it was seen to begin, or nothing is known."""
        self.incarnation = ""
        """What its publisher's token calls it."""
        self.name_lost = False
        """A token may have called it something that is not known any more (ADR 0211)."""
        self.expected = ""
        """What its token is to call it: it began where the numbers of a named run wrapped."""
        self.foreign = False
        """Not all of it was heard by this process: what others gave may be another's numbers."""
        self.named_here = False
        """Its epoch may be of our making; otherwise it came with what others gave."""
        self.window = Window(span=options.window_size_samples, runs_max=options.runs_max)
        self.parked: Sample | None = None
        self.newest_ntp64 = 0
        self.restarted_at: tuple[int, int] | None = None
        """The number and the time of the sample that showed it to begin, where no token did."""
        self.rejected = -1
        """The highest number that came and did not become durable."""

    @property
    def named(self) -> bool:
        """Whether tokens say when a run begins: the times its publisher chooses say nothing."""
        return bool(self.incarnation or self.expected)

    def is_of_another(self, incarnation: str) -> bool:
        """Tell whether it has, or is to have, another name than that of a token."""
        if self.incarnation or not incarnation:
            return bool(self.incarnation)
        return self.expected not in ("", incarnation)

    def expect_name(self, before: Numbering, first: int) -> None:
        """Expect the name that a wrap leads to, where it begins with a number behind one."""
        if before.incarnation and before.wrapped(first):
            self.expected = incarnation_after(before.incarnation)

    @property
    def is_bare(self) -> bool:
        """Whether nothing is known of it but its name."""
        nothing_came = self.window.top < 0 and not self.window.start
        return nothing_came and self.parked is None and self.rejected < 0

    @property
    def newest_held(self) -> int:
        """The highest number that has come; a heartbeat may know of higher ones."""
        last = self.window.held.last
        return self.rejected if last is None else max(last, self.rejected)

    def holds(self, sn: int) -> bool:
        """Tell whether a number is held."""
        return self.window.verdict(sn) is Verdict.DUPLICATE

    def are_next(self, samples: Sequence[Sample]) -> bool:
        """Tell whether samples have the numbers behind all that is known, one after the other."""
        if self.window.start is None or not samples:
            return False
        first, last = samples[0].sn, samples[-1].sn
        return (
            first == self.window.top + 1
            and last - first + 1 == len(samples)  # before a range is built of what somebody sent
            and [sample.sn for sample in samples] == list(range(first, last + 1))
        )

    def take_next(self, samples: Sequence[Sample], accepted: list[Sample]) -> None:
        """Take samples that `are_next`."""
        self.window.accept(samples[0].sn, samples[-1].sn)
        self.take(samples, accepted)

    def take(self, samples: Iterable[Sample], accepted: list[Sample]) -> None:
        """Put samples, under this epoch, behind `accepted`."""
        epoch = self.epoch
        newest = self.newest_ntp64
        for sample in samples:
            if not sample.stamped and sample.ntp64 > newest:
                newest = sample.ntp64
            accepted.append(
                sample if sample.epoch == epoch else msgspec.structs.replace(sample, epoch=epoch)
            )
        self.newest_ntp64 = newest

    def wrapped(self, sn: int) -> bool:
        """Tell whether `sn` is the u32 counter beginning again at 0."""
        return has_wrapped(sn, self.window.top, self.window.span)

    def follows_wrap(self, sn: int) -> bool:
        """Tell whether `sn` is of before the u32 counter began again with this numbering."""
        held = bool(self.window.held)
        return held and precedes_wrap(sn, self.newest_held, self.window.span)

    def continued_by(self, sample: Sample) -> bool:
        """Tell whether a sample comes after everything of this numbering, not far after."""
        ahead = sample.sn - self.newest_held
        return (
            0 < ahead <= self.window.span
            and not sample.stamped
            and 0 < self.newest_ntp64 < sample.ntp64
        )

    def is_near(self, sn: int) -> bool:
        """Tell whether a number is within reach of what has come, or of what is known to exist."""
        newest = self.newest_held if self.window.held else self.window.top
        return abs(sn - newest) <= self.window.span

    def doubtful(self, sample: Sample) -> bool:
        """Tell whether a live sample at or below the top must be looked up before it counts."""
        window = self.window
        return (
            window.verdict(sample.sn) is not Verdict.NEW
            or (window.start is not None and sample.sn < window.start)
            or (not self.named and is_later(sample, self.newest_ntp64))
        )

    def outdates(self, found: Found, under_way: RangeSet) -> bool:
        """Tell whether what a look-up found says nothing of its sample any more.

        It is of another run by now, comes behind all of it, or came by another way since and is
        among those `under_way`, which no look-up finds.
        """
        sample = found.sample
        since = found.stored is None and sample.sn in under_way
        return since or sample.epoch != self.epoch or sample.sn > self.newest_held

    def shows_restart(self, sample: Sample) -> bool:
        """Tell whether a sample that a publisher's own cache gave is of a run that began since."""
        began = sample.sn <= self.newest_held and is_later(sample, self.newest_ntp64)
        return not self.named and (began or self.wrapped(sample.sn))

    def restarted(self, sample: Sample, stored: Sample | None) -> bool:
        """Tell whether a doubtful sample begins a new numbering, given what is stored for it.

        Who names its runs says when one begins; the timestamps it chooses may go back meanwhile.
        """
        if self.wrapped(sample.sn):
            return True
        if self.named and stored is None:
            return False
        return is_restart(sample, stored, self.newest_ntp64, self.window.top)


class KnownSource:
    """A source's numberings and which of them its live samples belong to."""

    __slots__ = ("_epochs", "_options", "current", "doubt", "numberings", "pins", "source")

    def __init__(self, source: SourceId, options: EngineOptions, epochs: Epochs) -> None:
        self.source = source
        self._options = options
        self._epochs = epochs
        self.numberings: dict[int, Numbering] = {}
        self.current = EPOCH_UNKNOWN
        self.doubt: Doubt | None = None
        """What must be answered before live samples of the source go on."""
        self.pins = 0
        """How many conversations hold on to it: it is not forgotten meanwhile."""

    @property
    def window_size_samples(self) -> int:
        """So far ahead of what came a number of the same run may be."""
        return self._options.window_size_samples

    def canonical(self, epoch: int, sn: int) -> int:
        """Return the epoch that stands for what is stored under `epoch`."""
        return self._epochs.canonical(self.source, epoch, sn)

    def load(self, states: Iterable[NumberingState]) -> None:
        """Take what is stored of the source; once."""
        for state in states:
            first = state.held.first
            numbering = self.numbering(self.canonical(state.epoch, 0 if first is None else first))
            numbering.foreign = numbering.named_here = True
            numbering.newest_ntp64 = max(numbering.newest_ntp64, state.newest_ntp64)
            numbering.incarnation = numbering.incarnation or state.incarnation
            numbering.name_lost |= state.name_lost
            for run in state.held:
                numbering.window.accept(*run)
            for run in state.skipped:
                numbering.window.skip(*run)
            self.current = max(self.current, numbering.epoch)
        for before, after in pairwise(self.numberings[epoch] for epoch in sorted(self.numberings)):
            first = after.window.held.first
            if first is not None and not after.incarnation:  # we ended before its token came
                after.expect_name(before, first)
        for numbering in self.numberings.values():
            for first, last in numbering.window.awaited():
                if last - first > WRAP_GAP:  # two runs, which media brought together
                    # Where its numbers ended at the wrap, the small ones are of the run behind it.
                    numbering.window.skip(0 if self.is_over(numbering) else first, last)

    def standing(self, epoch: int) -> Numbering:
        """Return the numbering that samples count in which were accepted under an epoch."""
        return self.numbering(self.canonical(epoch, 0))

    def numbering(self, epoch: int) -> Numbering:
        """Return the numbering of an epoch, begun when it is not known yet."""
        numbering = self.numberings.get(epoch)
        if numbering is None:
            numbering = self.numberings[epoch] = Numbering(epoch, self._options)
        return numbering

    @property
    def live(self) -> Numbering:
        """The numbering live samples belong to."""
        return self.numbering(self.current)

    @property
    def only_others_named_live(self) -> bool:
        """Whether no token that came here says of which run live samples are.

        Others named that run: what waited for a broken journal is taken after what they gave
        meanwhile, an earlier run's token, and the samples behind it. Or it was stored before, and
        nobody names it: an older copy of a medium may bring back what was moved since.
        """
        live = self.numberings.get(self.current)
        return live is not None and not live.declared and bool(live.incarnation or live.foreign)

    def shows_run(self, first: int) -> int | None:
        """Return the last number here of live samples that no token names, if `first` follows it.

        Its publisher may have begun anew since, and what it gives from `first` on looks like the
        rest of this run; that number with a later time shows that it is not (ADR 0218).
        """
        live = self.numberings.get(self.current)
        newest = None if live is None or live.named or live.declared else live.window.held.last
        near = newest is not None and 0 < first - newest <= self._options.window_size_samples
        return newest if near else None

    def forget_bare(self) -> None:
        """Forget the first of the runs that ended and of which nothing came, where there are many.

        So it is where a publisher is started again and again, and ends before it publishes.
        """
        bare = [e for e, run in self.numberings.items() if e != self.current and run.is_bare]
        for epoch in sorted(bare)[:-_BARE_RUNS_MAX]:
            del self.numberings[epoch]

    def of_incarnation(self, incarnation: str) -> Numbering | None:
        """Return the numbering that a token named so, if one did."""
        if incarnation:
            for numbering in self.numberings.values():  # asked for with every batch
                if numbering.incarnation == incarnation:
                    return numbering
        return None

    def named_by(self, sample: Sample) -> Numbering | None:
        """Return the numbering that a sample says it is of; None where it says none known."""
        run = run_of(sample)
        return None if run is None else self.of_incarnation(run.incarnation)

    def wrapped_into_live(self, sn: int) -> Numbering | None:
        """Return the run that the live one goes on, where a number is of before its wrap."""
        live = self.live
        if not live.incarnation or not precedes_wrap(sn, live.window.top, live.window.span):
            return None
        named = (run for run in self.numberings.values() if run.incarnation)
        return next(
            (r for r in named if incarnation_after(r.incarnation) == live.incarnation), None
        )

    def may_begin(self, run: RunName) -> bool:
        """Tell whether a run that a live sample names is later than all that is known (ADR 0366).

        Else it came and went before, or its publisher's clock was set back: a token tells.
        """
        live = self.numberings.get(self.current)
        return run.epoch > self.current or live is None or not (live.named or live.declared)

    def name(self, epoch: int, incarnation: str) -> None:
        """Take an epoch as that incarnation, unless either is known otherwise.

        Live samples follow it only where nothing later is known, and no token said of which run
        they are.
        """
        live = self.numberings.get(self.current)
        numbering = self.numbering(epoch)
        if numbering.is_of_another(incarnation) or self.of_incarnation(incarnation) is not None:
            return
        numbering.incarnation = incarnation
        if live is None or not live.declared:
            self.current = max(self.current, epoch)

    def epoch_for(self, declared: int, incarnation: str) -> int:
        """Return the epoch of a numbering whose token names an incarnation not known yet.

        It is the declared one, unless that belongs to another incarnation or lies below one: a
        publisher with a pinned Zenoh id may restart within one time frame, or with its clock set
        back, and an epoch is never used twice. What was named here, of samples that came before
        this token, counts for nothing: it is to be called as the others call it. Nor is it an epoch
        that another run left, until that is free. One that wrapped into a run that is known goes
        before that (ADR 0383).
        """
        known = {self.current, *self.numberings}
        if incarnation and self.of_incarnation(incarnation_after(incarnation)) is not None:
            free = (epoch for epoch in range(declared, 0, -1) if not self.is_taken(epoch))
            return next(free, max(known) + 1)
        if self.can_adopt(declared, declared, incarnation):
            known.discard(self.current)
        highest = max(known, default=EPOCH_UNKNOWN)
        numbering = self.numberings.get(declared)
        taken = numbering is not None and numbering.is_of_another(incarnation)
        epoch = highest + 1
        if not incarnation or declared > highest or (declared == highest and not taken):
            epoch = declared
        while incarnation and self.is_left(epoch):
            epoch += 1
        return epoch

    def adopt(self, epoch: int, declared: int, incarnation: str) -> Alias | None:
        """Take the live numbering as `epoch`, whose token came after its first samples.

        None when the live numbering is another incarnation's. What is stored keeps its epoch; the
        alias says which one it is of.
        """
        can_adopt = self.can_adopt(epoch, declared, incarnation)
        return self.merge(self.current, epoch) if can_adopt else None

    def can_adopt(self, epoch: int, declared: int, incarnation: str) -> bool:
        """Tell whether the live numbering may be the one whose token says `declared`.

        `epoch` is the one it gets, perhaps a later one, which says nothing of when it began.
        """
        live = self.numberings.get(self.current)
        if live is None or live.declared or self.current == epoch:
            return False
        if live.is_of_another(incarnation) or live.foreign:
            return False
        return not 0 < ntp64_to_ns(live.newest_ntp64) < frame_start_ns(declared)

    def settle(self, epoch: int, runs: RangeSet) -> None:
        """Wait no longer for numbers that are not let in.

        They do not count as held: what never was durable here is not acknowledged.
        """
        for first, last in runs:
            self.numbering(self.canonical(epoch, first)).window.skip(first, last)

    def merge(self, epoch: int, into: int) -> Alias:
        """Take what is known of an epoch as of another, and what is still to come of it."""
        old, new = self.numberings.pop(epoch, None), self.numbering(into)
        if old is not None:
            for run in old.window.held:
                new.window.accept(*run)
            for run in old.window.skipped:
                new.window.skip(*run)
            if old.window.start is not None:
                new.window.begin(old.window.start)
            new.newest_ntp64 = max(new.newest_ntp64, old.newest_ntp64)
            new.rejected = max(new.rejected, old.rejected)
            new.parked = old.parked or new.parked
            new.incarnation = new.incarnation or old.incarnation
            new.name_lost |= old.name_lost
            new.foreign |= old.foreign
            new.declared = new.declared or old.declared
        if self.current == epoch:
            self.current = into
        alias = Alias(self.source, epoch, 0, into)
        self._epochs.learn(alias)
        return alias

    def refile(self, samples: Iterable[Sample], accepted: list[Sample]) -> None:
        """Take what is stored here, under its new epoch: the window has it from before."""
        for sample in samples:
            numbering = self.numbering(sample.epoch)
            numbering.window.accept(sample.sn, sample.sn)
            numbering.take((sample,), accepted)

    def follow(self, sample: Sample) -> Numbering:
        """Return the numbering a live sample belongs to: perhaps a later one others know of.

        Where another cache saw the source restart and this one did not, its epoch came with what
        it gave; the first live sample that continues it belongs to it.
        """
        live = self.live
        if len(self.numberings) > 1 and not live.declared:
            later = (n for n in self.numberings.values() if n.epoch > self.current)
            for numbering in sorted(later, key=lambda numbering: -numbering.epoch):
                if numbering.continued_by(sample):
                    self.current = numbering.epoch
                    return numbering
        return live

    def left_behind(self, sample: Sample) -> Numbering | None:
        """Return the numbering before the live one where a number is far from this, near to that.

        A token overtakes samples: the last before a wrap come after the token of what follows it.
        Without one they come after what follows them where the network changes the order, or when
        they are asked for; no later time is stamped on them then. Of a foreign source times tell
        what is of the run before, also where its number is near (ADR 0344).
        """
        live, sn = self.live, sample.sn
        if len(self.numberings) == 1:
            return None
        earlier = self.numberings[self._by_time(sample)]
        if earlier is not live and not earlier.named:
            return earlier
        if live.is_near(sn):
            return None
        if not live.declared and is_later(sample, live.newest_ntp64):
            return None
        before = max((epoch for epoch in self.numberings if epoch < self.current), default=None)
        if before is None or not self.numberings[before].is_near(sn):
            return None
        return self.numberings[before]

    def epoch_of(self, sample: Sample) -> int:
        """Return the epoch of a sample that its publisher's own cache gave, as far as it shows.

        An answer of before a restart may come after the first samples of the new run.
        """
        before = self.left_behind(sample)
        if before is not None:
            return before.epoch
        return self._by_time(sample)

    def may_be_later(self, sample: Sample) -> bool:
        """Tell whether a foreign sample may be of a run that others gave before it came live.

        Its publisher's own cache answers for the run that is there now (ADR 0357).
        """
        live = self.live
        if live.named or live.declared or sample.stamped or sample.ntp64 <= live.newest_ntp64:
            return False
        return any(
            one.window.held for epoch, one in self.numberings.items() if epoch > self.current
        )

    def _by_time(self, sample: Sample) -> int:
        """Return the epoch of the run that a foreign sample is of, as far as its time shows it.

        Runs follow each other: what is no later than what came of one is not of the next. Nor is
        what was published so much before the sample that showed it to begin, under a higher number.
        """
        epoch = self.current
        if self.live.named or self.live.declared or sample.stamped:
            return epoch
        first, since_ntp64 = self.live.restarted_at or (sample.sn, 0)
        older = sample.sn > first and sample.ntp64 + RESTART_NTP64 < since_ntp64
        for earlier in sorted((e for e in self.numberings if e < epoch), reverse=True):
            numbering = self.numberings[earlier]
            if since_ntp64 and numbering.newest_ntp64 >= since_ntp64:
                continue  # others gave it meanwhile: it may be the live one
            known = older or sample.ntp64 <= numbering.newest_ntp64
            if not (known and numbering.is_near(sample.sn)):
                break
            epoch, older = earlier, False
        return epoch

    @property
    def began_soon(self) -> bool:
        """Whether a foreign run began so soon that the next number may be of the run before."""
        live = self.live
        since = live.restarted_at
        return since is not None and live.newest_ntp64 < since[1] + SOON_NTP64

    def is_over(self, numbering: Numbering) -> bool:
        """Tell whether a run has a name, and a later one is live: its numbers end where it does.

        What came of the next run before that showed its token is held as its first (ADR 0315).
        """
        return bool(numbering.incarnation) and numbering.epoch < self.current

    def is_moved(self, epoch: int) -> bool:
        """Tell whether nothing is stored any more under an epoch that lost."""
        return self._epochs.moved_to(self.source, epoch) is not None

    def is_left(self, epoch: int) -> bool:
        """Tell whether a run went by an epoch that got another name, and it is not free yet."""
        return epoch not in self.numberings and epoch in self._epochs.lost(self.source)

    def is_taken(self, epoch: int) -> bool:
        """Tell whether a run goes by an epoch, or did until it got another name."""
        return epoch in self.numberings or epoch in self._epochs.lost(self.source)

    def restart(self, sample: Sample, unix_ns: int) -> Numbering:
        """Begin a new epoch at number 0 with `sample`; what came before it in it is awaited.

        An epoch that lost is not used again: what is stored under it counts under another.
        """
        before = self.live
        highest = max((self.current, *self.numberings, *self._epochs.lost(self.source)))
        self.current = epoch_of_restart(sample, unix_ns, highest)
        numbering = self.live
        numbering.named_here, numbering.restarted_at = True, (sample.sn, sample.ntp64)
        numbering.expect_name(before, sample.sn)
        numbering.window.begin(0)
        return numbering


class EngineCounts:
    """What the engine has seen since it began; read by the shell, written by the engine."""

    __slots__ = ("absent", "beyond", "conflicts", "duplicates", "losses", "missed", "restarts")

    def __init__(self, losses_max: int) -> None:
        self.losses = Losses(losses_max)
        """Source by source, what came again as it was published, and what was given up."""
        self.duplicates = self.conflicts = self.missed = self.restarts = self.beyond = 0
        self.absent = 0
        """Numbers the windows knew as held and the storage did not have."""

    def repeated(self, source: SourceId) -> None:
        """Count a sample that came as it was published, and is held."""
        self.duplicates += 1
        self.losses.repeated(source)

    def unanswered(self, sources: Iterable[SourceId]) -> None:
        """Count a question about some sources that was not, or not whole, answered."""
        for source in sources:
            self.losses.unanswered(source)

    def gave_up(self, source: SourceId, count: int) -> None:
        """Count numbers that were reported as missed."""
        self.missed += count
        self.losses.lost(source, count)


@contextmanager
def pinned(*sources: KnownSource) -> Iterator[None]:
    """Keep sources in memory: an append may end before an answer, and let go of what is unused."""
    for known in sources:
        known.pins += 1
    try:
        yield
    finally:
        for known in sources:
            known.pins -= 1
