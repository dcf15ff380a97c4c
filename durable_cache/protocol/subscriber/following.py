"""One numbering of a source as a subscriber follows it: what is next, held back, known to be gone.

    next_sn              top
       v                  v
  … 6 [7] x x 10 11 x x 14        delivered | awaited, held back in `pending`

Only `next_sn` is ever delivered. A number that somebody gives is held until its turn comes; one
that caches know to be absent is passed over when its turn comes, in silence (`passed`) or with a
report (`lost`). A source's later numberings wait until the earlier one is at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.run_name import run_of
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import (
    EPOCH_UNKNOWN,
    SOURCE_SN_MODULUS,
    frame_start_ns,
    sn_distance,
)
from durable_cache.model.timestamp import ntp64_from_ns
from durable_cache.protocol.restarts import RESTART_NTP64, SOON_NTP64
from durable_cache.protocol.subscriber.events import AnswerPart, DeliveryOptions, Fetch
from durable_cache.protocol.subscriber.naming import Owns, called_by
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.too_large import TooLarge
from durable_cache.protocol.wire import AbsenceReason, incarnation_after

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.reading import Reading

_SECOND_NS = 1_000_000_000
_SN = attrgetter("sn")
_named = msgspec.structs.replace


@dataclass(slots=True, eq=False)
class Numbering:
    """One (source, epoch); owned by the engine."""

    source: SourceId
    epoch: int
    incarnation: str = ""
    declared_epoch: int | None = None
    """What the publisher's token says; caches may call the same incarnation otherwise."""
    first_sn: int | None = None
    """The first number that was ours to deliver."""
    next_sn: int | None = None
    newest_ntp64: int = 0
    after_ntp64: int = 0
    """All of it was published later: the latest time of the run before, less a bit at a wrap."""
    top: int = -1
    """The highest number known to have been published, where it is not delivered yet."""
    pending: dict[int, Sample] = field(default_factory=dict)
    passed: RangeSet = field(default_factory=RangeSet)
    lost: RangeSet = field(default_factory=RangeSet)
    parked: Sample | None = None
    opened_ns: int | None = None
    due_ns: int = 0
    pause_ns: int = 0
    fetch: Fetch | None = None
    asked_to: int = -1
    """The last number that was asked for."""
    shown_by: int = 0
    """How many numbers before a hole are asked for with it: not 0 once an answerer explained
    missing numbers under an epoch that nothing shows to be this run."""
    known_as: int = 0
    """The epoch by which an answerer last showed this run without a name to go; 0: none did."""
    known_after: int = -1
    """The latest epoch by which an answerer showed a run before this one to go."""
    span: int = 0
    dropped_from: int | None = None
    """The lowest number that came while there was no room to hold it."""
    dropped_ntp64: int = 0  # the latest time of these; higher ones may be passed on by now
    held_to: int = -1
    """No number above it is held back."""
    poll_ns: int = 0
    ending: bool = False
    """A later numbering waits: its end is to be found."""
    end_known: bool = False
    end_told: bool = False
    """By somebody who knows it: not for want of an answer."""
    end_given_up: bool = False
    """Whoever was asked for it did not answer in time."""
    unsure: bool = False
    """Nobody told where the numbering before it ended."""
    resumed: bool = False
    """It was followed in an earlier life: what caches removed since then is a loss."""
    called: int | None = None
    """The epoch that its samples bear, whatever it is called by later; None: as they came."""
    sequences: dict[int, int] | None = None
    """Of one key alone: which subject sequence is which number, of what was held back."""
    gone_from: int | None = None
    """The first of the numbers just before the next one that were not passed on; None: none was."""
    began: tuple[int, int] | None = None
    """The number and the time of the first sample that was passed on."""
    untold: RangeSet = field(default_factory=RangeSet)  # what comes too late, and is not reported
    restarted_at: tuple[int, int] | None = None
    """The number and the time of the sample that showed it to begin, where no token did."""
    declared_ns: int = 0
    """When its token was seen, as Unix time."""
    bears: str = ""
    """The timestamp id of live samples that name it; empty: none did."""
    heartbeat_sn: int = -1
    """What the last heartbeat said, as far as that is asked for."""
    used: bool = True
    duplicates: int = 0
    dropped: int = 0

    @property
    def declared(self) -> bool:
        return self.declared_epoch is not None

    @property
    def is_named(self) -> bool:
        """Whether a token names it, or an answer did."""
        return self.declared or bool(self.incarnation)

    @property
    def steady(self) -> bool:
        """Whether the next number can be passed on without another look.

        Not soon after a restart that times showed: it may be a repeat of the run before.
        """
        waits = self.pending or self.ending or self.unsure or self.gone_from is not None
        _, began_ntp64 = self.restarted_at or self.began or (0, 0)
        if self.after_ntp64 and self.newest_ntp64 < began_ntp64 + SOON_NTP64:
            return False
        return self.next_sn is not None and self.top < self.next_sn and not waits

    @property
    def reached(self) -> int:
        """The highest number that is known; -1 where none is."""
        return max(self.top, (self.next_sn or 0) - 1)

    @property
    def behind_passed_on(self) -> int:
        """The number behind the last that was passed on."""
        return (self.next_sn or 0) if self.gone_from is None else self.gone_from

    @property
    def began_ntp64_min(self) -> int:
        """When its publisher began it at the earliest, as its token says, less one frame."""
        epoch = self.declared_epoch
        return 0 if not epoch else ntp64_from_ns(frame_start_ns(epoch - 1))

    @property
    def is_at_its_first(self) -> bool:
        """Whether nothing of it was passed on, reported or passed over."""
        return self.next_sn == self.first_sn

    def is_beyond(self, sample: Sample, options: DeliveryOptions) -> bool:
        """Tell whether a number is so far ahead that it is confirmed first."""
        begun = self.top >= 0 or self.next_sn != self.first_sn
        return begun and sample.sn > self.reached + options.window_size_samples

    def could_be(self, epoch: int, incarnation: str) -> bool:
        """Tell whether a token may be the one that this numbering's samples were faster than."""
        fits = self.epoch in (EPOCH_UNKNOWN, epoch) and self.incarnation in ("", incarnation)
        return fits and not self.declared

    def is_behind_its_wrap(self, incarnation: str) -> bool:
        """Tell whether all that came of it is of the run that follows its wrap, and has a token."""
        follows = bool(self.incarnation) and incarnation == incarnation_after(self.incarnation)
        return follows and 0 <= self.reached < SOURCE_SN_MODULUS // 2

    def has_come(self, sn: int) -> bool:
        """Tell whether a number was delivered, or is held back."""
        return sn < (self.next_sn or 0) or sn in self.pending

    def take_name(self, epoch: int, incarnation: str) -> None:
        """Be what a token names."""
        self.epoch, self.incarnation, self.declared_epoch = epoch, incarnation, epoch

    def has_hole_for(self, sample: Sample) -> bool:
        """Tell whether a sample lies between two of this run, by its number and by its time."""
        sn, following = sample.sn, self.next_sn
        missing = following is not None and following <= sn and sn not in self.passed
        if not missing or sn in self.pending or sample.stamped:
            return False
        above = min((held for held in self.pending if held > sn), default=None)
        if above is None:
            return False
        below = max((held for held in self.pending if held < sn), default=None)
        since = self.newest_ntp64 if below is None else self.pending[below].ntp64
        until = self.pending[above].ntp64
        return since < sample.ntp64 < until

    def lies_among(self, sample: Sample) -> bool:
        """Tell whether a sample lies among those that were passed on, by its number and time."""
        until_now = sample.stamped or sample.ntp64 <= self.newest_ntp64
        return until_now and self.began_before(sample)

    def has_passed_on(self, sample: Sample) -> bool:
        """Tell whether a sample is one that was passed on, by its publisher's time."""
        is_before = self.began is not None and sample.sn < (self.next_sn or 0)
        return is_before and not sample.stamped and self.lies_among(sample)

    def began_before(self, sample: Sample) -> bool:
        """Tell whether a sample is none of before the first that was passed on."""
        first, since = self.began or (0, 0)
        return first <= sample.sn and (sample.stamped or since - RESTART_NTP64 <= sample.ntp64)

    def began_after(self, sample: Sample) -> bool:
        """Tell whether a sample is older than all of this run."""
        began = self.began_ntp64_min if self.began is None else self.began[1] - RESTART_NTP64
        return not sample.stamped and sample.ntp64 < began

    def could_go_on_to(self, sample: Sample, span: int) -> bool:
        """Tell whether a sample goes on, within a span, behind what was passed on."""
        ahead = sample.sn - (self.next_sn or 0)
        return 0 <= ahead < span and self.newest_ntp64 < sample.ntp64

    def is_called(self, epoch: int, incarnation: str) -> bool:
        """Tell whether somebody means this run: by its name, else by its epoch."""
        if incarnation and self.incarnation:
            return incarnation == self.incarnation
        return epoch == self.epoch

    def heard_before(self, source_sn: int) -> int:
        """Return what the heartbeat before this one said, or where the run stands.

        A heartbeat may overtake its sample within this process. Where nothing is recovered, what
        is missing is given up at once: then the next heartbeat shows it, half a second later.
        """
        before, self.heartbeat_sn = self.heartbeat_sn, source_sn
        return max(before, self.reached)

    @property
    def is_passed_on(self) -> bool:
        """Whether nothing that is known of it is still to come."""
        return not self.pending if self.next_sn is None else self.next_sn > self.top

    def begins_with(self, sample: Sample, options: DeliveryOptions) -> bool:
        """Tell whether a live sample is the lowest that came, and nothing is delivered yet.

        Its run waits for the end of the one before, and the network changes the order. Where no
        token names the run, a lower number may show that another one began.
        """
        first = self.next_sn
        if first is None:
            return True
        waits = self.declared and first == self.first_sn and bool(self.pending)
        return waits and 0 < first - sample.sn <= options.window_size_samples

    def begin(self, sn: int) -> None:
        """Deliver from a number on."""
        self.first_sn = self.next_sn = sn

    def go_on_from(self, before: Numbering) -> None:
        """Go on behind what was passed on, as another one, of the same run."""
        following = before.next_sn or 0
        self.first_sn, self.next_sn = before.first_sn, max(self.next_sn or 0, following)
        self.began, self.untold = before.began, before.untold
        self.unsure, self.called = False, before.called
        self.newest_ntp64 = max(self.newest_ntp64, before.newest_ntp64)
        for sn in [sn for sn in self.pending if sn < following]:
            del self.pending[sn]

    def go_on_behind(self, reading: Reading, epoch: int, ended: Numbering | None) -> None:
        """Go on where history was read to; what follows bears the same epoch as what was read.

        `ended`: the run before, if one was read or followed.
        """
        self.first_sn, self.next_sn = reading.first_sn, reading.next_sn
        self.began, self.untold = reading.began, reading.untold
        self.newest_ntp64 = reading.newest_ntp64
        self.gone_from = reading.gone_from
        self.called = epoch if reading.began else self.called
        began = None if ended is None or ended.is_named or self.is_named else self.began
        if ended is not None and began is not None and ended.newest_ntp64 < began[1]:
            self.after_ntp64 = max(self.after_ntp64, ended.newest_ntp64)

    def name(self, sample: Sample) -> Sample:
        """Return a sample with the epoch that all samples of this numbering bear."""
        if self.called is None:
            self.called = self.epoch
        if sample.epoch == self.called:
            return sample
        return _named(sample, epoch=self.called)

    def is_next(self, sample: Sample) -> bool:
        """Tell whether a live sample is the next of this run, as far as it says."""
        ours = self.bears == sample.timestamp_id or not (self.bears or run_of(sample))
        return ours and sample.sn == self.next_sn

    def next_named(self, sample: Sample) -> Sample:
        """Return the next sample as it is passed on; it is not too large, and nothing waits."""
        self.next_sn, self.used = sample.sn + 1, True
        if sample.ntp64 > self.newest_ntp64:
            self.newest_ntp64 = sample.ntp64
        return self.name(sample)

    def take_next(self, samples: Sequence[Sample]) -> Sequence[Sample] | None:
        """Return samples, the first of its source, as they are passed on, as `next_named` each.

        None, and nothing changes, unless all are its next ones in order, without attachments.
        """
        first, count = samples[0], len(samples)
        if not self.is_next(first) or first.attachment is not None:
            return None
        if count == 1:
            return (self.next_named(first),)
        if [sample.sn for sample in samples] != list(range(first.sn, first.sn + count)):
            return None
        if [sample.source for sample in samples].count(self.source) != count:
            return None
        if [sample.attachment for sample in samples].count(None) != count:
            return None
        if [sample.timestamp_id for sample in samples].count(first.timestamp_id) != count:
            return None
        called = self.called = self.epoch if self.called is None else self.called
        self.next_sn, self.used = first.sn + count, True
        self.newest_ntp64 = max([self.newest_ntp64, *[sample.ntp64 for sample in samples]])
        return [one if one.epoch == called else _named(one, epoch=called) for one in samples]

    def report(self, outputs: Outputs, first: int, last: int) -> None:
        """Report numbers as missed, under the epoch that its samples bear."""
        epoch = self.epoch if self.called is None else self.called
        outputs.report(self.source, epoch, first, last)

    def report_late(self, sample: Sample, outputs: Outputs) -> bool:
        """Report what was not known to belong to it, now at its end; False for a repeat.

        Those before the sample may still come: they are known by its time then. Where nothing of
        it came before, they are not ours.
        """
        if self.next_sn is None:
            self.begin(sample.sn)
        following = self.next_sn or 0
        if sample.sn < following:
            return False
        self.report(outputs, following, sample.sn)
        self.next_sn = sample.sn + 1
        self.newest_ntp64 = max(self.newest_ntp64, sample.ntp64)
        return True

    def hold(self, sample: Sample, samples_max: int) -> None:
        """Keep a sample until its turn comes; the highest go where there is no room."""
        sn = sample.sn
        if self.parked is not None and self.parked.sn == sn:
            self.parked = None
        if (self.next_sn is not None and sn < self.next_sn) or sn in self.pending:
            self.duplicates += 1
            held = self.pending.get(sn)
            if sample.epoch and held is not None and is_one(held, sample):
                self.pending[sn] = sample  # somebody knows of which run it is
            return
        self.top = max(self.top, sn)
        for gone in (self.passed, self.lost):
            if gone:
                gone.remove(sn, sn)
        if len(self.pending) >= samples_max and sn != self.next_sn:
            highest = max(self.pending)
            beyond = sample if sn > highest else self.pending.pop(highest)
            self.dropped += 1
            # What is dropped must be asked for again before it may be given up.
            since = beyond.sn if self.dropped_from is None else self.dropped_from
            self.dropped_from = min(since, beyond.sn)
            self.dropped_ntp64 = max(self.dropped_ntp64, 0 if beyond.stamped else beyond.ntp64)
            if beyond is sample:
                return
        self.pending[sn] = sample
        self.held_to = max(self.held_to, sn)

    def holds(self, sample: Sample) -> bool:
        """Tell whether a copy of a sample is held back."""
        held = filter(None, (self.parked, self.pending.get(sample.sn)))
        return any(is_one(one, sample) for one in held)

    def let_go(self, sample: Sample) -> Sample | None:
        """Hold back a sample no more, and return it; None where it is not held."""
        parked, held = self.parked, self.pending.get(sample.sn)
        if parked is not None and is_one(parked, sample):
            self.parked = None
            return parked
        if held is None or not is_one(held, sample):
            return None
        del self.pending[sample.sn]
        if sample.sn == self.top:
            gone = (self.passed.last or -1, self.lost.last or -1)
            self.top = max((*self.pending, *gone, (self.next_sn or 0) - 1))
        return held

    def wraps_at(self, sn: int, window: int) -> bool:
        """Tell whether a number goes on where the numbers wrap, at most `window` further."""
        if self.reached < SOURCE_SN_MODULUS // 2:
            return False
        return 0 < sn_distance(sn, self.reached % SOURCE_SN_MODULUS) <= window

    def let_go_later(self, sample: Sample) -> list[Sample]:
        """Hold back no more, and return, what was published after a sample of the next run."""
        held = [*filter(None, (*self.pending.values(), self.parked))]
        later = [one for one in held if not one.stamped and one.ntp64 > sample.ntp64]
        later.sort(key=_SN)  # the highest last: behind it the top is looked for
        return [*filter(None, map(self.let_go, later))]

    def advance(self, outputs: Outputs, now_ns: int) -> None:
        """Pass on everything whose turn has come, and open or close the gap."""
        if self.next_sn is None:
            return
        before = self.next_sn
        sn = self._pass_on(before, outputs)
        self.next_sn = sn
        if self.dropped_from is not None and sn > self.dropped_from:
            self.dropped_from = None
        waits = self.top >= sn or (self.ending and not self.end_known)
        if sn == before and self.opened_ns is not None and waits:
            return
        for gone in (self.passed, self.lost):
            if gone and sn:
                gone.remove(0, sn - 1)
        if waits:
            if self.opened_ns is None:
                self.due_ns = now_ns
            self.opened_ns = now_ns
            self.pause_ns = 0
        else:
            self.opened_ns = None
            self.pause_ns = 0

    def _pass_on(self, sn: int, outputs: Outputs) -> int:
        """Pass on what is held from a number on, and report what is not; return the next number."""
        while True:
            sample = self.pending.pop(sn, None)
            if sample is not None:
                if self.unsure:
                    outputs.begin_unsure()
                    self.unsure = False
                if isinstance(sample, TooLarge):
                    self.report(outputs, sn, sn)
                else:
                    outputs.ready.append(self.name(sample))
                self.began = self.began or (sn, sample.ntp64)
                self.newest_ntp64 = max(self.newest_ntp64, sample.ntp64)
                self.gone_from = None
                sn += 1
                continue
            if (run := self.passed.run_at(sn)) is None:
                if (run := self.lost.run_at(sn)) is None:
                    return sn
                self.report(outputs, sn, run.last)
            if self.gone_from is None:
                self.gone_from = sn
            sn = run.last + 1

    def is_due(self, now_ns: int) -> bool:
        """Tell whether what is missing is to be asked for now."""
        waits = self.opened_ns is not None and self.next_sn is not None
        return waits and self.fetch is None and self.due_ns <= now_ns

    def pause(self, options: DeliveryOptions, now_ns: int, *, at_once: bool) -> None:
        """Choose when to ask again: later each time, unless there is more to be had at once."""
        retry_ns = round(options.retry_seconds * _SECOND_NS)
        most_ns = round(options.retry_seconds_max * _SECOND_NS)
        longer_ns = min(self.pause_ns * 2, most_ns) if self.pause_ns else retry_ns
        self.pause_ns = retry_ns if at_once else longer_ns
        self.due_ns = now_ns if at_once else now_ns + self.pause_ns

    def give_up(self, outputs: Outputs, last: int, now_ns: int) -> None:
        """Report the holes at or below `last`, each before what follows it."""
        if self.next_sn is None or self.next_sn > min(last, self.top):
            return
        holes = RangeSet([(self.next_sn, min(last, self.top))])
        self.lost.update(holes.difference(RangeSet.of(self.pending)).difference(self.passed))
        self.advance(outputs, now_ns)

    def give_up_first(self, outputs: Outputs, now_ns: int) -> None:
        """Report the lowest hole, and those asked for with it; the end has its time (ADR 0376)."""
        last = self.asked_to
        if self.dropped_from is not None:
            last = min(last, self.dropped_from - 1)
        self.dropped_from = None
        if self.ending and not self.end_known and (self.next_sn or 0) > self.top:
            self.end_given_up = self.end_known = True
        self.due_ns = now_ns
        self.give_up(outputs, max(last, self.next_sn or 0), now_ns)

    def owns(
        self,
        sample: Sample,
        names: Mapping[tuple[SourceId, int], str],
        *,
        alone: bool,
        of_others: Callable[[Sample], bool],
    ) -> bool:
        """Tell whether a sample that was asked for is of this numbering.

        `names` are the answerer's; `alone`: no other numbering of the source is called so;
        `of_others` tells of one that nobody named whether its time is that of another numbering.
        """
        if sample.source != self.source:
            return False
        run = run_of(sample)
        name = names.get((sample.source, sample.epoch), "") if run is None else run.incarnation
        if name and self.incarnation:
            return name == self.incarnation
        if sample.epoch and sample.epoch == self.epoch and self.is_named:
            return True
        if alone and sample.epoch == self.declared_epoch:
            return True
        if self.declared and sample.epoch:
            return False
        # Epochs that two observers saw begin may differ, and a publisher's own cache knows none;
        # the source's own clock does not differ. What nobody named and is of
        # before the declared run began is left over of an earlier one (ADR 0261).
        low = max(self.newest_ntp64 - RESTART_NTP64, self.after_ntp64 + 1, self.began_ntp64_min)
        fits = not of_others(sample) and not self.contradicts(sample)
        return sample.stamped or (low <= sample.ntp64 and fits)

    def doubts(self, sample: Sample) -> bool:
        """Tell whether a live sample repeats a number, or does not fit those above it."""
        repeats = self.has_come(sample.sn)
        return repeats or (not self.incarnation and self.contradicts(sample))

    def contradicts(self, sample: Sample) -> bool:
        """Tell whether a number below one that is held comes with a later time: of another run."""
        highest = self.pending.get(self.held_to)
        if highest is None and self.pending:  # that was passed on, or let go
            self.held_to = max(self.pending)
            highest = self.pending[self.held_to]
        return (
            highest is not None
            and sample.sn < highest.sn
            and not (sample.stamped or highest.stamped)
            and sample.ntp64 > highest.ntp64 + RESTART_NTP64
        )

    def learn_absent(
        self,
        part: AnswerPart,
        first: int,
        last: int,
        *,
        owns: Owns,
        whole: bool,
        beside: Sequence[AnswerPart],
    ) -> None:
        """Note which numbers within a range a cache says not to have, and why.

        `owns` tells, given an answerer's names, whether a sample is of this numbering. What is held
        is not absent. Removed and skipped numbers count only where everybody was heard, and below
        what found no room: another may have them. Those without an epoch that go on as far as was
        asked may be of an earlier run, which ended far above, and so may any where no sample shows
        the run: they tell of no number beyond ours (ADR 0358).
        Nor does what is removed of a run without a name, where another answerer, `beside`, has
        such a number of another run.
        """
        names = part.names()
        called = called_by(self, part, first, last, owns)
        shown = any(owns(sample, names) for sample in part.samples)
        first = max(first, self.next_sn or 0)
        room = last + 1 if self.dropped_from is None else self.dropped_from
        passed, lost = RangeSet(), RangeSet()
        for absence in part.absent:
            name = names.get((absence.source, absence.epoch), "")
            known = bool(name and self.incarnation)
            same = name == self.incarnation if known else absence.epoch in called
            low, high = max(absence.first, first), min(absence.last, last)
            if absence.source != self.source or not same or low > high:
                continue
            if absence.reason is AbsenceReason.OTHER_KEY:
                passed.add(low, high)
            elif whole and low < room:
                of_another = not (known or absence.epoch) and (high == last or not shown)
                high = min(high, room - 1, self.reached if of_another else high)
                if low <= high:
                    lost.add(low, high)
        for other in beside if lost and not self.incarnation else ():
            others = [one.sn for one in other.samples if one.sn in lost]
            if others and not any(owns(one, other.names()) for one in other.samples):
                for sn in others:
                    lost.remove(sn, sn)
        self.note_absent(passed, lost)

    def note_absent(self, passed: RangeSet, lost: RangeSet) -> None:
        """Pass these numbers over when their turn comes, in silence or with a report."""
        if not passed and not lost:
            return
        held = RangeSet.of(self.pending)
        self.passed.update(passed.difference(held))
        for first, last in self.passed:  # what one cache removed another knows to be another key's
            self.lost.remove(first, last)
        self.lost.update(lost.difference(held).difference(self.passed))
        self.top = max(self.top, passed.last or -1, lost.last or -1)


def is_one(held: Sample, named: Sample) -> bool:
    """Tell whether two are copies of one sample, whatever its run is called; payloads aside."""
    published = held.key, held.sn, held.ntp64
    return not held.stamped and published == (named.key, named.sn, named.ntp64)
