"""One numbering of a source as a subscriber follows it: what is next, held back, known to be gone.

    next_sn              top
       v                  v
  … 6 [7] x x 10 11 x x 14        delivered | awaited, held back in `pending`

Only `next_sn` is ever delivered. A number that somebody gives is held until its turn comes; one
that caches know to be absent is passed over when its turn comes, in silence (`passed`) or with a
report (`lost`). A source's later numberings wait until the earlier one is at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS
from durable_cache.protocol.subscriber.events import AnswerPart, DeliveryOptions, Fetch
from durable_cache.protocol.subscriber.naming import Owns, called_by
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.wire import AbsenceReason, incarnation_after

__all__ = ["RESTART_NTP64", "Followed", "Numbering"]

_SECOND_NS = 1_000_000_000
RESTART_NTP64 = (1 << 32) // 10
"""A tenth of a second: a clock ahead of all that came by so much shows another numbering."""
_INCARNATIONS_MAX = 16
"""Incarnations of a source that are remembered, so that a token that comes again is known."""
_EARLY_MAX = 1000
"""Samples kept that came before the token of their numbering; the rest is asked for."""


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
    """The latest time of the run before: all of this one was published later."""
    top: int = -1
    """The highest number known to have been published, where it is not delivered yet."""
    pending: dict[int, Sample] = field(default_factory=dict)
    passed: RangeSet = field(default_factory=RangeSet)
    lost: RangeSet = field(default_factory=RangeSet)
    too_large: RangeSet = field(default_factory=RangeSet)
    """Those of them that came and are too large for us."""
    parked: Sample | None = None
    opened_ns: int | None = None
    due_ns: int = 0
    pause_ns: int = 0
    fetch: Fetch | None = None
    asked_to: int = -1
    """The last number that was asked for."""
    called_otherwise: bool = False
    """Perhaps: an answerer explained missing numbers under an epoch that nothing shows to be it."""
    span: int = 0
    dropped_from: int | None = None
    """The lowest number that came while there was no room to hold it."""
    poll_ns: int = 0
    ending: bool = False
    """A later numbering waits: its end is to be found."""
    end_known: bool = False
    end_told: bool = False
    """By somebody who knows it: not for want of an answer."""
    unsure: bool = False
    """Nobody told where the numbering before it ended."""
    resumed: bool = False
    """It was followed in an earlier life: what caches removed since then is a loss."""
    called: int | None = None
    """The epoch that its samples bear, whatever it is called by later; None: as they came."""
    used: bool = True
    duplicates: int = 0
    dropped: int = 0

    @property
    def declared(self) -> bool:
        return self.declared_epoch is not None

    @property
    def steady(self) -> bool:
        """Whether the next number can be passed on without another look."""
        waits = self.pending or self.ending or self.unsure
        return self.next_sn is not None and self.top < self.next_sn and not waits

    @property
    def reached(self) -> int:
        """The highest number that is known; -1 where none is."""
        return max(self.top, (self.next_sn or 0) - 1)

    def is_beyond(self, sample: Sample, options: DeliveryOptions) -> bool:
        """Tell whether a number is so far ahead that it is confirmed first."""
        begun = self.top >= 0 or self.next_sn != self.first_sn
        return begun and sample.sn > self.reached + options.window_size_samples

    def could_be(self, epoch: int, incarnation: str) -> bool:
        """Tell whether a token may be the one that this numbering's samples were faster than."""
        return (
            not self.declared
            and self.epoch in (EPOCH_UNKNOWN, epoch)
            and self.incarnation in ("", incarnation)
        )

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

    def is_called(self, epoch: int, incarnation: str) -> bool:
        """Tell whether somebody means this run: by its name, else by its epoch."""
        if incarnation and self.incarnation:
            return incarnation == self.incarnation
        return epoch == self.epoch

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

    def name(self, sample: Sample) -> Sample:
        """Return a sample with the epoch that all samples of this numbering bear."""
        if self.called is None:
            self.called = self.epoch
        if sample.epoch == self.called:
            return sample
        return msgspec.structs.replace(sample, epoch=self.called)

    def report(self, outputs: Outputs, first: int, last: int) -> None:
        """Report numbers as missed, under the epoch that its samples bear."""
        epoch = self.epoch if self.called is None else self.called
        outputs.report(self.source, epoch, first, last)

    def report_late(self, sn: int, outputs: Outputs) -> bool:
        """Report what was not known to belong to it, now at its end; False for a repeat."""
        following = self.next_sn or 0
        if sn < following:
            return False
        self.report(outputs, following, sn)
        self.next_sn = sn + 1
        return True

    def hold(self, sample: Sample, samples_max: int) -> None:
        """Keep a sample until its turn comes; the highest go where there is no room."""
        sn = sample.sn
        if self.parked is not None and self.parked.sn == sn:
            self.parked = None
        if (self.next_sn is not None and sn < self.next_sn) or sn in self.pending:
            self.duplicates += 1
            return
        self.top = max(self.top, sn)
        if len(self.pending) >= samples_max and sn != self.next_sn:
            highest = max(self.pending)
            self.dropped += 1
            # What is dropped must be asked for again before it may be given up.
            dropped = max(highest, sn)
            self.dropped_from = min(
                dropped if self.dropped_from is None else self.dropped_from, dropped
            )
            if sn > highest:
                return
            del self.pending[highest]
        self.pending[sn] = sample
        for gone in (self.passed, self.lost):
            if gone:
                gone.remove(sn, sn)

    def let_go(self, sample: Sample) -> Sample | None:
        """Hold back a sample no more, and return it; None where it is not held."""
        parked, held = self.parked, self.pending.get(sample.sn)
        if parked is not None and _is_one(parked, sample):
            self.parked = None
            return parked
        if held is None or not _is_one(held, sample):
            return None
        del self.pending[sample.sn]
        if sample.sn == self.top:
            gone = (self.passed.last or -1, self.lost.last or -1)
            self.top = max((*self.pending, *gone, (self.next_sn or 0) - 1))
        return held

    def advance(self, outputs: Outputs, now_ns: int) -> None:
        """Pass on everything whose turn has come, and open or close the gap."""
        if self.next_sn is None:
            return
        before = sn = self.next_sn
        ready, pending = outputs.ready, self.pending
        while True:
            sample = pending.pop(sn, None)
            if sample is not None:
                if self.unsure:
                    outputs.begin_unsure()
                    self.unsure = False
                ready.append(self.name(sample))
                self.newest_ntp64 = max(self.newest_ntp64, sample.ntp64)
                sn += 1
            elif (run := self.passed.run_at(sn)) is not None:
                sn = run.last + 1
            elif (run := self.lost.run_at(sn)) is not None:
                self.report(outputs, sn, run.last)
                sn = run.last + 1
            else:
                break
        self.next_sn = sn
        if self.dropped_from is not None and sn > self.dropped_from:
            self.dropped_from = None
        waits = self.top >= sn or (self.ending and not self.end_known)
        if sn == before and self.opened_ns is not None and waits:
            return
        for gone in (self.passed, self.lost, self.too_large):
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
        """Report the lowest hole, and those asked for with it; deliver what follows."""
        last = self.asked_to
        if self.dropped_from is not None:
            last = min(last, self.dropped_from - 1)
        self.dropped_from = None
        self.end_known = self.ending
        self.due_ns = now_ns
        self.give_up(outputs, max(last, self.next_sn or 0), now_ns)

    def leave_out(self, sample: Sample, options: DeliveryOptions, *, alone: bool) -> None:
        """Count a number as lost whose sample came and is too large.

        Unless `alone`, the first that come may be of the run before, and where runs are declared of
        the next, whose token is not here yet: then somebody else tells.
        """
        begins = self.next_sn is None or self.next_sn == self.first_sn
        if (begins and (self.declared or not alone)) or self.is_beyond(sample, options):
            return
        if self.next_sn is None:
            self.begin(sample.sn)
        if sample.sn == self.next_sn:  # those before it that are missing are compared by time
            self.newest_ntp64 = max(self.newest_ntp64, sample.ntp64)
        if sample.sn >= (self.next_sn or 0):
            self.too_large.add(sample.sn, sample.sn)
            self.note_absent(RangeSet(), RangeSet([(sample.sn, sample.sn)]))

    def owns(
        self,
        sample: Sample,
        names: Mapping[tuple[SourceId, int], str],
        *,
        alone: bool,
        until_ntp64: int,
    ) -> bool:
        """Tell whether a sample that was asked for is of this numbering.

        `names` are the answerer's; `alone`: no other numbering of the source is called so;
        `until_ntp64`: when the next one began, at the latest.
        """
        if sample.source != self.source:
            return False
        name = names.get((sample.source, sample.epoch), "")
        if name and self.incarnation:
            return name == self.incarnation
        if sample.epoch and sample.epoch == self.epoch and (self.declared or self.incarnation):
            return True
        if alone and sample.epoch == self.declared_epoch:
            return True
        if self.declared and sample.epoch:
            return False
        # Epochs that two observers saw begin may differ, and a publisher's own cache knows none;
        # the source's own clock does not differ.
        low = max(self.newest_ntp64 - RESTART_NTP64, self.after_ntp64 + 1)
        early_enough = sample.ntp64 < until_ntp64 and not self.contradicts(sample)
        return sample.stamped or (low <= sample.ntp64 and early_enough)

    def doubts(self, sample: Sample) -> bool:
        """Tell whether a live sample repeats a number, or does not fit those above it."""
        repeats = self.has_come(sample.sn)
        return repeats or (not self.incarnation and self.contradicts(sample))

    def contradicts(self, sample: Sample) -> bool:
        """Tell whether a number below one that is held comes with a later time: of another run."""
        highest = self.pending.get(self.top)
        return (
            highest is not None
            and sample.sn < self.top
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
    ) -> None:
        """Note which numbers within a range a cache says not to have, and why.

        `owns` tells, given an answerer's names, whether a sample is of this numbering. What is held
        is not absent. Removed and skipped numbers count only where everybody was heard: another may
        have them. What is too large is so everywhere.
        """
        names = part.names()
        called = called_by(self, part, first, last, owns)
        first = max(first, self.next_sn or 0)
        oversized = (sample for sample in part.oversized if owns(sample, names))
        passed, lost = RangeSet(), RangeSet.of(s.sn for s in oversized if first <= s.sn <= last)
        self.too_large.update(lost)
        for absence in part.absent:
            name = names.get((absence.source, absence.epoch), "")
            known = bool(name and self.incarnation)
            same = name == self.incarnation if known else absence.epoch in called
            low, high = max(absence.first, first), min(absence.last, last)
            if absence.source != self.source or not same or low > high:
                continue
            if absence.reason is AbsenceReason.OTHER_KEY:
                passed.add(low, high)
            elif whole:
                lost.add(low, high)
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


@dataclass(slots=True, eq=False)
class Followed:
    """A source: the numbering that is delivered, and those that wait behind it."""

    source: SourceId
    numberings: list[Numbering] = field(default_factory=list)
    ended: Numbering | None = None
    """The numbering before the first, delivered to its end: what comes of it comes too late."""
    seen: dict[str, int] = field(default_factory=dict)
    """The incarnations its tokens named, and the epochs that we call them by."""
    early: list[Sample] = field(default_factory=list)
    """What looks like the beginning of a numbering whose token is not here yet."""
    early_last: int = -1
    """The highest number that came so and for which there was no room; -1 where none did."""
    used: bool = True
    live: bool = False
    """What is published of it is passed on; until then history comes first."""

    @property
    def head(self) -> Numbering | None:
        return self.numberings[0] if self.numberings else None

    @property
    def waits(self) -> bool:
        """Whether something is held back or missing."""
        return any(n.pending or n.opened_ns is not None for n in self.numberings)

    @property
    def highest_epoch(self) -> int:
        return max((n.epoch for n in self.numberings), default=EPOCH_UNKNOWN)

    def is_past(self, epoch: int) -> bool:
        """Tell whether a later numbering is delivered already, so that nothing comes in order."""
        head = self.head
        return self.live and head is not None and head.next_sn is not None and epoch < head.epoch

    def end_first(self) -> None:
        """The first numbering is at its end: the next one is delivered."""
        ended = self.ended = self.numberings.pop(0)
        self.numberings[0].unsure = ended.next_sn is not None and not ended.end_told

    def remember(self, incarnation: str, epoch: int) -> None:
        """Know an incarnation when its token comes again."""
        if incarnation:
            self.seen[incarnation] = epoch
            while len(self.seen) > _INCARNATIONS_MAX:
                del self.seen[next(iter(self.seen))]

    def declare(self, epoch: int, incarnation: str, *, fresh: bool, maybe_stale: bool) -> bool:
        """Take what a token says; True where a numbering begins that was not known.

        Another incarnation is another numbering, whatever the clock: where the epoch is taken, it
        is called by the next one. `fresh`: it began in our sight; `maybe_stale`: the token may be
        left over from a run that ended before the one that is followed, if that has a token too.
        """
        if incarnation and incarnation in self.seen:
            return False
        newest = self.numberings[-1] if self.numberings else None
        if newest is not None and newest.could_be(epoch, incarnation):
            # Its samples were faster than its token, or caches gave them.
            newest.take_name(epoch, incarnation)
            self.remember(incarnation, epoch)
            return False
        if newest is not None and newest.is_behind_its_wrap(incarnation):
            newest.take_name(max(epoch, newest.epoch + 1), incarnation)
            self.remember(incarnation, newest.epoch)
            return False
        highest = self.highest_epoch
        named = epoch
        if newest is not None and epoch <= highest:
            if not incarnation:
                return False
            if maybe_stale and newest.declared:
                self.remember(incarnation, epoch)
                return False
            named = highest + 1
        begun = Numbering(self.source, named, incarnation, epoch)
        if fresh or (newest is not None and newest.next_sn is not None):
            begun.begin(0)  # it began while we followed: all of it is ours
        self.numberings.append(begun)
        self.remember(incarnation, named)
        return True

    def resume(
        self, epoch: int, incarnation: str, called: Mapping[tuple[SourceId, str], int]
    ) -> Numbering:
        """Follow a numbering whose history was read; what was declared since comes after it.

        What caches call (`called`) by an earlier epoch was declared before, and is over.
        """
        numbering = Numbering(self.source, epoch, incarnation)
        before = [
            known
            for known in self.numberings
            if (known.next_sn and known.epoch < epoch)
            or called.get((self.source, known.incarnation), epoch) < epoch
        ]
        later = [known for known in self.numberings if known not in before]
        for at, known in enumerate(self.numberings):
            if known.is_called(epoch, incarnation):
                numbering = known
                before, later = self.numberings[:at], self.numberings[at + 1 :]
                for begun in later:
                    if begun.declared and begun.next_sn is None:
                        begun.begin(0)  # its token came after that of the run before: all is ours
        later = [known for known in later if known.declared]
        for known in later:
            known.epoch = max(known.epoch, epoch + 1)
        self.ended = next((known for known in reversed(before) if known.next_sn), self.ended)
        numbering.epoch = epoch
        self.remember(incarnation, epoch)
        self.numberings = [numbering, *later]
        self.live = True
        return numbering

    def learn_names(self, part: AnswerPart) -> None:
        """Call an incarnation by the epoch that caches call it by."""
        for source, epoch, incarnation in part.incarnations:
            for numbering in self.numberings if source == self.source else ():
                if numbering.incarnation == incarnation:
                    if epoch == numbering.declared_epoch:
                        continue  # so the publisher's own cache calls it, which knows no other
                    numbering.epoch = epoch
                elif numbering.incarnation or numbering.epoch != epoch:
                    continue
                numbering.incarnation = incarnation
                self.remember(incarnation, epoch)

    def put_right(self, part: AnswerPart, samples_max: int) -> None:
        """Move what is held to the run that an answerer says it is of.

        A number that comes soon after a token may be the last of the run before, one that comes
        before a token may be the first of the next: nothing on the wire says which.
        """
        named = {epoch: name for source, epoch, name in part.incarnations if source == self.source}
        doubtful = [n for n in self.numberings if n.incarnation and (n.pending or n.parked)]
        if not self.early and not any(n.incarnation != x for n in doubtful for x in named.values()):
            return
        for sample in (*part.samples, *part.oversized):
            name = named.get(sample.epoch, "") if sample.source == self.source else ""
            if not name:
                continue
            held = [n.let_go(sample) for n in doubtful if n.incarnation != name]
            if name in self.seen:
                held += [one for one in self.early if _is_one(one, sample)]
                self.early = [one for one in self.early if not _is_one(one, sample)]
            right = next((n for n in self.numberings if n.incarnation == name), None)
            for one in filter(None, held):
                if right is not None:
                    right.hold(one, samples_max)
                elif name not in self.seen:
                    self.keep_early(one)

    def polled(self) -> Iterator[Numbering]:
        """Yield what is asked for now and then: the head, and runs that were declared since.

        Not a run that shares its epoch with one before: a cache that heard of one of them only may
        take the samples of both for its own.
        """
        for numbering in self.numberings:
            if numbering is self.head or numbering.epoch == numbering.declared_epoch:
                yield numbering

    def until_ntp64(self, numbering: Numbering) -> int:
        """Return when the run after a numbering began, as far as its samples' times show it."""
        later = self.numberings[self.numberings.index(numbering) + 1 :]
        held = (s for n in later if not n.incarnation for s in n.pending.values() if not s.stamped)
        until = min((sample.ntp64 for sample in held), default=1 << 64)
        return until if until > numbering.newest_ntp64 else 1 << 64

    def keep_early(self, sample: Sample) -> bool:
        """Keep a sample until its numbering's token comes; False where there is no room."""
        if len(self.early) >= _EARLY_MAX:
            self.early_last = max(self.early_last, sample.sn)
            return False
        self.early.append(sample)
        return True

    def take_early(self, options: DeliveryOptions) -> list[Sample]:
        """Return what came before the token that is here now; its run reaches what was not kept."""
        early, last, newest = self.early, self.early_last, self.numberings[-1]
        self.early, self.early_last = [], -1
        if newest.next_sn is not None and last <= newest.reached + options.window_size_samples:
            newest.top = max(newest.top, last)
        return early

    def numbering_of(self, sample: Sample, options: DeliveryOptions) -> Numbering:
        """Return the numbering a live sample is taken to be of: the newest, but near a wrap.

        Nothing on the wire says whose a number is that comes soon after a token. One that is the
        last of the run before waits with the newest until an answer names its run (`put_right`).
        """
        newest = self.numberings[-1]
        before = self.numberings[-2] if len(self.numberings) > 1 else self.ended
        if before is None or before.next_sn is None:
            return newest
        window = options.window_size_samples
        far = sample.sn - max(newest.top, newest.next_sn or 0) > window
        if far and abs(sample.sn - before.reached) <= window:
            return before  # as after a wrap: near the one, far from the other
        return newest

    def leave_out(self, sample: Sample, options: DeliveryOptions, *, may_begin: bool) -> None:
        """Count a number as lost whose sample came and is too large; `may_begin`: as the first."""
        self.used = self.live = True
        if not self.numberings:
            self.numberings.append(Numbering(self.source, EPOCH_UNKNOWN))
        numbering = self.numbering_of(sample, options)
        alone = self.ended is None and numbering is self.head
        if may_begin or numbering.next_sn is not None:
            numbering.leave_out(sample, options, alone=alone)

    def wraps(self, options: DeliveryOptions) -> bool:
        """Tell whether the second numbering goes on where the numbers of the first ended."""
        ended, begun = self.numberings[0], self.numberings[1]
        if ended.incarnation and begun.incarnation:
            return begun.incarnation == incarnation_after(ended.incarnation)
        return ended.reached >= SOURCE_SN_MODULUS - options.window_size_samples


def _is_one(held: Sample, named: Sample) -> bool:
    """Tell whether two are copies of one sample, whatever its run is called; payloads aside."""
    published = held.key, held.sn, held.ntp64
    return not held.stamped and published == (named.key, named.sn, named.ntp64)
