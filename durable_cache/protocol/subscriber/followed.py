"""A source as a subscriber follows it: the numbering that is delivered, those behind it, the last.

What comes is filed under one of them; what a token, an answer or history says of a run makes it
known by its name, whatever each answerer calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import EPOCH_UNKNOWN, SOURCE_SN_MODULUS
from durable_cache.protocol.restarts import RESTART_NTP64
from durable_cache.protocol.subscriber.events import AnswerPart, Declared, DeliveryOptions
from durable_cache.protocol.subscriber.following import Numbering, is_one
from durable_cache.protocol.subscriber.naming import (
    frame_beside,
    is_of_a_later,
    is_of_an_earlier,
)
from durable_cache.protocol.subscriber.outputs import Outputs
from durable_cache.protocol.subscriber.run_names import RunNames
from durable_cache.protocol.subscriber.wrapped import goes_before
from durable_cache.protocol.wire import incarnation_after

_INCARNATIONS_MAX = 16
"""Incarnations of a source that are remembered, so that a token that comes again is known."""
_NAMED_NS = 1 << 63
"""Somebody named the run of an early sample: it waits for that token, however long."""
_EARLY_MAX = 1000
"""Samples kept that came before the token of their numbering; the rest is asked for."""


@dataclass(slots=True, eq=False)
class Followed:
    """A source: the numbering that is delivered, and those that wait behind it."""

    source: SourceId
    numberings: list[Numbering] = field(default_factory=list)
    ended: Numbering | None = None
    """The numbering before the first, delivered to its end: what comes of it comes too late."""
    seen: dict[str, int] = field(default_factory=dict)
    """The incarnations its tokens named, and the epochs that we call them by."""
    given: Numbering | None = None
    """The last that ended and of which something came: `ended`, or one before it."""
    early: list[tuple[int, Sample]] = field(default_factory=list)
    """What looks like the beginning of a numbering whose token is not here yet, and when it is none
    any more: its publisher's clock went back then."""
    shown: str = ""
    """The incarnation whose token is there, as far as it is known."""
    early_last: int = -1
    """The highest number that came so and for which there was no room; -1 where none did."""
    early_until_ns: int = 0
    """When that is of none any more."""
    used: bool = True
    live: bool = False
    """What is published of it is passed on; until then history comes first."""

    @property
    def head(self) -> Numbering | None:
        return self.numberings[0] if self.numberings else None

    def goes_on(self, incarnation: str) -> bool:
        """Tell whether a run is delivered, or waits to be."""
        return any(known.incarnation == incarnation for known in self.numberings)

    @property
    def waits(self) -> bool:
        """Whether something is held back, missing, or asked for and not here."""
        return any(map(_waits, self.numberings))

    @property
    def highest_epoch(self) -> int:
        return max((n.epoch for n in self.numberings), default=EPOCH_UNKNOWN)

    def named(self, incarnation: str) -> Numbering | None:
        """Return the run that goes by a name, also where it has just ended."""
        runs = (*self.numberings, *filter(None, (self.ended,)))
        return next((run for run in runs if run.incarnation == incarnation), None)

    def is_past(self, epoch: int) -> bool:
        """Tell whether a later numbering is delivered already, so that nothing comes in order."""
        head = self.head
        if head is None or head.next_sn is None or epoch >= head.epoch:
            return False
        given = head.next_sn > (head.first_sn or 0) and not head.resumed
        return self.live or given

    def advance(self, numbering: Numbering, outputs: Outputs, now_ns: int) -> None:
        """Pass on what has its turn in a numbering, if that itself has: no earlier one waits."""
        if numbering is self.head:
            numbering.advance(outputs, now_ns)

    def place(self, epoch: int, samples: Sequence[Sample]) -> tuple[int, bool]:
        """Return by which epoch a run without a name goes here, and whether it is over.

        Everybody calls such a run as it likes, and by 0 any. So where the runs that are passed on
        have no name either, numbers and times tell which of them it is.
        """
        head = self.head
        runs = (*reversed(self.numberings), *filter(None, (self.ended,)))
        nameless = not any(run.is_named for run in runs)
        if head is None or head.next_sn is None or not self.live or not nameless:
            return epoch, False
        if epoch and any(run.epoch == epoch for run in runs):
            return epoch, False
        for run in runs:
            if run.next_sn == run.first_sn:  # nothing of it was passed on: what is held shows it
                held = ((run.pending.get(one.sn), one) for one in samples)
                if any(known is not None and is_one(known, one) for known, one in held):
                    return run.epoch, False
            elif is_of_a_later(run, samples):
                break
            elif not is_of_an_earlier(run, samples):
                return run.epoch, False
        over = not is_of_a_later(head, samples)
        taken = {run.epoch for run in runs}
        if epoch in taken:
            epoch = frame_beside(samples[0], taken.__contains__, over=over)
        return epoch, over

    def saw_token(self, token: Declared, now_ns: int) -> None:
        """Note that the token of a run is there, and when it was seen first, as Unix time."""
        self.shown = token.incarnation
        for run in self.numberings:
            if run.incarnation == token.incarnation and not run.declared_ns:
                run.declared_ns = now_ns
                if token.incarnation and not run.declared:  # history brought it
                    run.declared_epoch = token.epoch

    def before(self, numbering: Numbering) -> Numbering | None:
        """Return the run before one, also where that has ended."""
        at = self.numberings.index(numbering)
        return self.numberings[at - 1] if at else self.ended

    def look_for_end(
        self, head: Numbering, options: DeliveryOptions, outputs: Outputs, now_ns: int
    ) -> None:
        """A later numbering has begun: the rest of this one comes first, or is reported."""
        if head.next_sn is None and head.pending:
            return  # an answer begins it (ADR 0298)
        head.ending = True
        if head.next_sn is None or not options.recovery:
            head.end_known = True
            return
        if self.wraps(options):
            head.top, head.end_known = SOURCE_SN_MODULUS - 1, True
            head.end_told = True
        head.advance(outputs, now_ns)

    def give_up_first(self, outputs: Outputs, now_ns: int) -> None:
        """Too many runs wait: report what the first lacks; nobody knows where it ended."""
        head = self.numberings[0]
        if head.next_sn is None and head.pending:
            head.begin(min(head.pending))
        head.ending = head.end_known = head.end_given_up = True
        head.give_up(outputs, head.top, now_ns)

    def doubt_end(self) -> None:
        """Ask once more for the end of a run, where some of it is still to come (ADR 0348)."""
        head = self.head
        if head is not None and head.ending and head.top < SOURCE_SN_MODULUS - 1:
            head.end_known = False

    def begin_anew(
        self, begun: Numbering, sample: Sample, options: DeliveryOptions, *, wraps: bool
    ) -> None:
        """Let a run begin that a sample showed; what was published after that is of it, too."""
        before = self.numberings[-1]
        self.numberings.append(begun)
        if wraps:
            before.top, before.end_known = SOURCE_SN_MODULUS - 1, True
            return
        for one in before.let_go_later(sample):
            begun.hold(one, options.pending_samples_max)
        held = [one.ntp64 for one in before.pending.values() if not one.stamped]
        begun.after_ntp64 = max([begun.after_ntp64, *held])
        begun.restarted_at = sample.sn, sample.ntp64

    def end_first(self) -> Numbering:
        """The first numbering, which is returned, is at its end: the next one is delivered."""
        ended = self.ended = self.numberings.pop(0)
        if not ended.is_at_its_first:
            self.given = ended
        untold = ended.next_sn is not None and not ended.end_told
        self.numberings[0].unsure |= untold or ended.unsure  # that nothing was passed on of
        return ended

    def remember(self, incarnation: str, epoch: int) -> None:
        """Know an incarnation when its token comes again."""
        if incarnation:
            self.seen[incarnation] = epoch
            while len(self.seen) > _INCARNATIONS_MAX:
                del self.seen[next(iter(self.seen))]

    def declare(
        self,
        token: Declared,
        names: RunNames,
        options: DeliveryOptions,
        *,
        fresh: bool,
        maybe_stale: bool,
    ) -> bool:
        """Take what a token says; True where a numbering begins that was not known.

        Another incarnation is another numbering, whatever the clock: where the epoch is taken, also
        by a run that history knows by its name, it is called by the next one. `fresh`: it began in
        our sight; `maybe_stale`: its token may be left over from before the one that is followed.
        """
        epoch, incarnation = token.epoch, token.incarnation
        if incarnation and incarnation in self.seen:
            return False
        self._take_back_restarts(epoch, incarnation, options.pending_samples_max)
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
            if goes_before(self, token):
                return True
            if maybe_stale:
                self.remember(incarnation, epoch)
                return False
            named = highest + 1
        while incarnation and names.is_taken(self.source, named, incarnation):
            named += 1
        begun = Numbering(self.source, named, incarnation, epoch)
        if fresh or (newest is not None and (newest.next_sn is not None or not maybe_stale)):
            begun.begin(0)  # it began while we followed: all of it is ours
        self.numberings.append(begun)
        self.remember(incarnation, named)
        self._let_go_beyond(options.runs_max)
        return True

    def let_follow(
        self, epoch: int, incarnation: str, options: DeliveryOptions, now_ns: int
    ) -> None:
        """Let a run that history names wait behind those that are named, if nobody knew of it.

        It began while they were followed: all of it is ours, and what waits for its token.
        """
        newest = self.numberings[-1] if self.numberings else None
        runs, later = self.numberings, [run for run in self.numberings if run.epoch > epoch]
        before = next((r for r in reversed(runs) if r.reached >= 0 and r.epoch < epoch), newest)
        if newest is None or before is None or not (newest.incarnation and before.incarnation):
            return
        between = before.epoch < epoch and later and all(run.is_at_its_first for run in later)
        behind = newest.next_sn is not None and epoch > self.highest_epoch
        if incarnation in self.seen or not (between or behind):
            return
        begun = Numbering(self.source, epoch, incarnation, epoch)
        begun.begin(0)
        self.remember(incarnation, epoch)
        if between:  # nothing was passed on of those that a token named behind it (seed 1877)
            self.numberings.insert(-len(later), begun)
            return
        self.numberings.append(begun)
        for sample in self.take_early(options, now_ns):
            if not begun.is_beyond(sample, options):
                begun.hold(sample, options.pending_samples_max)

    def _let_go_beyond(self, runs_max: int) -> None:
        """Let go of the oldest runs of which nothing came, where too many wait.

        Nobody asks for them: whether something is missing before the next one, nobody knows.
        """
        while len(self.numberings) > runs_max:
            waiting = enumerate(self.numberings[:-1])
            at = next((at for at, run in waiting if run.is_at_its_first and not _came(run)), None)
            if at is None:
                return
            del self.numberings[at]
            self.numberings[at].unsure = True

    def _take_back_restarts(self, epoch: int, incarnation: str, samples_max: int) -> None:
        """Take back that the numbering began anew, as times showed it before the first token came.

        That token names a run that began before what was taken for the beginning of another was
        published: it is all of that run, whose publisher's clock went back (ADR 0204).
        """
        while incarnation and len(self.numberings) > 1:
            before, begun = self.numberings[-2:]
            nameless = not begun.is_named and begun.is_at_its_first
            if not nameless or epoch >= begun.epoch:
                return
            if not before.could_be(epoch, incarnation):
                return
            self.numberings.pop()
            before.ending = before.end_known = False
            for sample in filter(None, (*begun.pending.values(), begun.parked)):
                before.hold(sample, samples_max)

    def resume(
        self,
        epoch: int,
        incarnation: str,
        called: Mapping[tuple[SourceId, str], int],
        over: Collection[str] = (),
    ) -> Numbering:
        """Follow a numbering whose history was read; what was declared since comes after it.

        What caches call (`called`) by an earlier epoch was declared before, and is `over`.
        """
        numbering = Numbering(self.source, epoch, incarnation)
        before = [
            known
            for known in self.numberings
            if (known.next_sn and known.epoch < epoch)
            or called.get((self.source, known.incarnation), epoch) < epoch
            or known.incarnation in over
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
        behind = epoch
        for known in later:
            behind = known.epoch = max(known.epoch, behind + 1)
            self.remember(known.incarnation, known.epoch)
        for known in before:
            gone = known.next_sn is not None or known.incarnation in over
            self.ended = known if gone else self.ended
        numbering.epoch = epoch
        self.remember(incarnation, epoch)
        self.numberings = [numbering, *later]
        self.live = True
        return numbering

    def learn_names(self, part: AnswerPart, names: RunNames) -> Numbering | None:
        """Call an incarnation by the epoch that caches call it by, unless another run goes by it.

        A cache that did not hear of that one may call this one so: no two go by one here. Returns
        the run that ended last where it was none: what was passed on as it is of the next.
        """
        for source, epoch, incarnation in part.incarnations:
            if source != self.source or self._goes_by(epoch, incarnation):
                continue
            if names.is_taken(source, epoch, incarnation):
                continue
            for numbering in self.numberings:
                if numbering.incarnation == incarnation:
                    if epoch == numbering.declared_epoch:
                        continue  # so the publisher's own cache calls it, which knows no other
                    numbering.epoch = epoch
                elif numbering.incarnation or numbering.epoch != epoch:
                    continue
                numbering.incarnation = incarnation
                self.remember(incarnation, numbering.called or epoch)
        return self._reunite(part)

    def recognise(self, epoch: int, incarnation: str, samples: Sequence[Sample]) -> bool:
        """Name the run that passed one of these samples on without a name; False: none did."""
        if incarnation in self.seen:
            return False
        for run in self.numberings if self.ended is None else (self.ended, *self.numberings):
            if not run.is_named and any(map(run.has_passed_on, samples)):
                run.epoch, run.incarnation = epoch, incarnation
                self.remember(incarnation, epoch)
                return True
        return False

    def _goes_by(self, epoch: int, incarnation: str) -> bool:
        """Tell whether another named run of the source goes by an epoch here."""
        return any(run != incarnation and known == epoch for run, known in self.seen.items())

    def _reunite(self, part: AnswerPart) -> Numbering | None:
        """Go on where a run ended that an answer shows to be the one that is delivered now.

        It was ended by what times showed before a token was here, or what came of it was faster
        than its token by more than is waited for. The sample that was passed on first of it bears
        the name of the run that is delivered: it is no other (ADR 0204).
        """
        ended, head = self.ended, self.head
        if ended is None or head is None or not head.incarnation:
            return None
        names = part.names()
        for sample in part.samples:
            first = sample.source == self.source and (sample.sn, sample.ntp64) == ended.began
            if first and names.get((self.source, sample.epoch)) == head.incarnation:
                self.ended = None
                head.go_on_from(ended)
                return ended
        return None

    def polled(self) -> Iterator[Numbering]:
        """Yield what is asked for now and then: the head, and runs that were declared since.

        Not a run that shares its epoch with one before: a cache that heard of one of them only may
        take the samples of both for its own.
        """
        for numbering in self.numberings:
            if numbering is self.head or numbering.epoch == numbering.declared_epoch:
                yield numbering

    def times_of_others(self, numbering: Numbering) -> Callable[[Sample], bool]:
        """Return what tells whether a sample's time is that of a run before or after this one.

        Of the run before, where both are named: between the first and the newest that was passed on
        of it. A cache that did not hear its token has its samples without a name (ADR 0299).
        """
        until, before = self._until_ntp64(numbering), self.before(numbering)
        name = "" if before is None else before.incarnation
        began = None if before is None or not name else before.began
        wraps = numbering.incarnation in ("", incarnation_after(name))  # numbers tell them apart
        if before is None or began is None or wraps:
            return lambda sample: sample.ntp64 >= until
        first, last = began[1] - RESTART_NTP64, before.newest_ntp64  # or came before that was ours
        return lambda sample: sample.ntp64 >= until or first <= sample.ntp64 <= last

    def _until_ntp64(self, numbering: Numbering) -> int:
        """Return when the run after a numbering began, as far as its samples' times show it.

        Behind a wrap a publisher goes on at once, and the times of its threads overlap; but then
        numbers tell the runs apart.
        """
        if numbering.reached == SOURCE_SN_MODULUS - 1:
            return 1 << 64
        later = self.numberings[self.numberings.index(numbering) + 1 :]
        held = (s for n in later if not n.incarnation for s in n.pending.values() if not s.stamped)
        until = min((sample.ntp64 for sample in held), default=1 << 64)
        return until if until > numbering.newest_ntp64 else 1 << 64

    def keep_early(self, sample: Sample, options: DeliveryOptions, now_ns: int) -> bool:
        """Keep a sample until its numbering's token comes, soon; False where there is no room."""
        if self.early and self.early[0][0] <= now_ns:
            self.early = [early for early in self.early if now_ns < early[0]]
        if now_ns >= self.early_until_ns:
            self.early_last = -1
        return self._keep(sample, now_ns + round(options.token_wait_seconds * 1e9))

    def keep_named(self, sample: Sample) -> None:
        """Keep a sample of a run that somebody named: it waits for that token, however long."""
        self._keep(sample, _NAMED_NS)

    def _keep(self, sample: Sample, until_ns: int) -> bool:
        if len(self.early) >= _EARLY_MAX:
            self.early_last = max(self.early_last, sample.sn)
            self.early_until_ns = max(self.early_until_ns, until_ns)
            return False
        self.early.append((until_ns, sample))
        return True

    def take_early(self, options: DeliveryOptions, now_ns: int) -> list[Sample]:
        """Return what came before the token that is here now; its run reaches what was not kept."""
        early = [sample for until_ns, sample in self.early if now_ns < until_ns]
        last = self.early_last if now_ns < self.early_until_ns else -1
        newest = self.numberings[-1]
        self.early, self.early_last = [], -1
        if newest.next_sn is not None and last <= newest.reached + options.window_size_samples:
            newest.top = max(newest.top, last)
        return early

    def wraps(self, options: DeliveryOptions) -> bool:
        """Tell whether the second numbering goes on where the numbers of the first ended."""
        ended, begun = self.numberings[0], self.numberings[1]
        if ended.incarnation and begun.incarnation:
            return begun.incarnation == incarnation_after(ended.incarnation)
        return ended.reached >= SOURCE_SN_MODULUS - options.window_size_samples


def _came(run: Numbering) -> bool:
    """Tell whether something of a run is held back, or known to have been published."""
    return bool(run.pending) or run.parked is not None or run.top >= (run.next_sn or 0)


def _waits(numbering: Numbering) -> bool:
    if numbering.pending or numbering.opened_ns is not None:
        return True
    fetch, reached = numbering.fetch, numbering.next_sn or 0
    return fetch is not None and (fetch.last is None or fetch.last >= reached)
