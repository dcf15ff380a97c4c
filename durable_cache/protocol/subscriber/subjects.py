"""The subscriber's window: what came last of each subject, and what a next sequence says.

RaiMS, "Message Loss" and "Subscription sequence window" (ADR 0167). A subject is a key of one
source. What comes here is in the order of the source's numbers, each once: what is missing was
recovered, or was given up. A sequence is compared with the last one of its subject:

| the sequence | means | is |
|---|---|---|
| first of its frame, behind the last | the publisher begins anew | a start |
| of a subject that is not in the window | we joined late | the first received |
| not above the last, and neither is its number | it came before | dropped |
| not above the last, behind it by number | the publisher began anew, unseen | the first received |
| the next one | nothing | |
| any other | those between are lost | passed on, the loss told |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.rotating import RotatingMap, held_size
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.sequence import (
    frame_start_ns,
    pack_sequence,
    unpack_sequence,
)
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.subjects import SubjectCounts, detach, is_start
from durable_cache.protocol.subscriber.events import DeliveryOptions

if TYPE_CHECKING:
    from durable_cache.protocol.subscriber.following import Numbering

_ATTACHMENT = attrgetter("attachment")
_SECOND_NS = 1_000_000_000
_HELD_MAX = 1024
"""Sequences of held samples that are remembered, to know a neighbour."""


class SubjectId(NamedTuple):
    """A subject: what one publisher publishes under one key."""

    source: SourceId
    key: str


class Condition(Enum):
    """What a sequence is to the last one of its subject; RaiMS's five, and the usual one."""

    NEXT = "next"
    START = "start"
    FIRST = "first"
    REPEATED = "repeated"
    SKIPPED = "skipped"
    UNSUBSCRIBED = "unsubscribed"


class SubjectState(msgspec.Struct, gc=False):
    """The last of a subject; replaced in place by the window that owns it."""

    sequence: int
    """Packed: frame and count."""
    place: int
    """The source's own number, packed with the epoch of its run."""
    perhaps_incomplete: bool
    """We joined it when its frame was so young that the network may not have converged: samples
    since the start of the frame may be missing, and nobody can say."""

    @property
    def frame(self) -> int:
        return unpack_sequence(self.sequence)[0]

    @property
    def count(self) -> int:
        """Samples of the frame up to this one."""
        return unpack_sequence(self.sequence)[1] + 1


class SubjectLoss(NamedTuple):
    """So many samples of a subject will not come, before the one that was passed on next."""

    source: SourceId
    key: str
    lost: int
    total: int
    """Of this subject since the subscriber was declared, these included."""
    unix_ns: int


class Verdict(NamedTuple):
    """What a sequence means, and how many samples are missing before it."""

    condition: Condition
    lost: int = 0


class SubscriberWindow:
    """Subject by subject, what came last; owned by one thread."""

    def __init__(self, options: DeliveryOptions) -> None:
        self._convergence_ns = round(options.convergence_seconds * _SECOND_NS)
        self._states: RotatingMap[SubjectId, SubjectState] = RotatingMap(
            *options.sub_window, _size_of
        )
        self.perhaps_incomplete = 0
        self.rotated = 0

    @property
    def bytes(self) -> int:
        """Bytes of memory that the window takes."""
        return self._states.bytes

    def __len__(self) -> int:
        return len(self._states)

    def state(self, subject: SubjectId) -> SubjectState | None:
        """Return what came last of a subject; None where it is not in the window."""
        return self._states.get(subject)

    def states(self) -> Iterable[tuple[SubjectId, SubjectState]]:
        """Yield every subject in the window."""
        return self._states.items()

    def take(self, subject: SubjectId, sequence: int, place: int, now: Moment) -> Verdict:
        """Take a sequence that came under a place of the source's own numbering."""
        state = self._states.get(subject)
        if state is None:
            fresh = SubjectState(sequence, place, self._may_lack(sequence, now))
            self.perhaps_incomplete += fresh.perhaps_incomplete
            self._write(subject, fresh, now)
            return Verdict(Condition.START if is_start(sequence) else Condition.FIRST)
        verdict = _verdict(state, sequence, place)
        if verdict.condition is Condition.REPEATED:
            return verdict
        lacks = state.perhaps_incomplete
        if verdict.condition in (Condition.START, Condition.FIRST):
            lacks = self._may_lack(sequence, now)
        self.perhaps_incomplete += lacks - state.perhaps_incomplete
        state.sequence, state.place, state.perhaps_incomplete = sequence, place, lacks
        self._write(subject, state, now)
        return verdict

    def _may_lack(self, sequence: int, now: Moment) -> bool:
        """Tell whether a frame that is joined began before the network had time to converge.

        It began at the end of its 8.6 s at the latest, and that is what is taken.
        """
        began_ns = frame_start_ns(unpack_sequence(sequence)[0] + 1)
        return not is_start(sequence) and now.unix_ns - began_ns < self._convergence_ns

    def _write(self, subject: SubjectId, state: SubjectState, now: Moment) -> None:
        forgotten = self._states.put(subject, state, now.monotonic_ns)
        self.rotated += len(forgotten)
        if forgotten and self.perhaps_incomplete:
            gone = sum(state.perhaps_incomplete for state in forgotten.values())
            self.perhaps_incomplete -= gone


def _verdict(last: SubjectState, sequence: int, place: int) -> Verdict:
    behind = place > last.place
    if sequence <= last.sequence and not behind:
        return Verdict(Condition.REPEATED)
    if is_start(sequence):
        return Verdict(Condition.START)
    if sequence <= last.sequence:
        return Verdict(Condition.FIRST)
    if sequence == last.sequence + 1:
        return Verdict(Condition.NEXT)
    frame_before, before = unpack_sequence(last.sequence)
    frame, sn = unpack_sequence(sequence)
    # Of another frame we lack what came since its start; how the one before ended, numbers tell.
    return Verdict(Condition.SKIPPED, sn - before - 1 if frame == frame_before else sn)


def _size_of(subject: SubjectId, state: SubjectState) -> int:
    values = (subject, subject.key, state, state.sequence, state.place)
    return sum(held_size(value) for value in values)


class Subjects:
    """What a subscriber makes of the sequences in what it passes on; owned by its thread.

    Counts may be read by any thread.
    """

    def __init__(self, options: DeliveryOptions, earlier: Subjects | None = None) -> None:
        """`earlier`: whose counts it goes on with; its window is not, as samples come again."""
        self._window = SubscriberWindow(options)
        self._losses_max, self._strips = options.subject_losses_max, not options.keeps_trailers
        self._losses: OrderedDict[SubjectId, SubjectLoss] = OrderedDict()
        self.untold: list[SubjectLoss] = []
        """Losses since `take_losses`."""
        self._counts = dict.fromkeys(Condition, 0)
        self._lost = self._rotated_before = 0
        self.of_one_key = False
        """The subscriber takes one key and no other; its owner sets it."""
        self.now = Moment(0, 0)
        """When what is taken comes; its owner sets it."""
        if earlier is not None:
            self.of_one_key = earlier.of_one_key
            self._losses, self._counts, self._lost = earlier._losses, earlier._counts, earlier._lost
            self._rotated_before = earlier._rotated_before + earlier._window.rotated

    @property
    def counts(self) -> SubjectCounts:
        """What was counted so far."""
        counts, window = self._counts, self._window
        return SubjectCounts(
            subjects=len(window),
            bytes=window.bytes,
            starts=counts[Condition.START],
            joined=counts[Condition.FIRST],
            perhaps_incomplete=window.perhaps_incomplete,
            repeats=counts[Condition.REPEATED],
            skips=counts[Condition.SKIPPED],
            lost=self._lost,
            unsubscribed=counts[Condition.UNSUBSCRIBED],
            rotated=self._rotated_before + window.rotated,
        )

    def losses(self) -> Sequence[SubjectLoss]:
        """Return the last loss of each subject that had one, the latest last."""
        return tuple(self._losses.values())

    def state(self, source: SourceId, key: str) -> SubjectState | None:
        """Return what came last of a subject; None where it is not in the window."""
        return self._window.state(SubjectId(source, key))

    def take_losses(self) -> Sequence[SubjectLoss]:
        """Return the losses since the last time, each once."""
        untold, self.untold = self.untold, []
        return untold

    def read(self, samples: list[Sample], *, keeps_repeats: bool = False) -> list[Sample]:
        """Return samples with the program's own attachments, in the order they are passed on in.

        Repeats are left out, unless `keeps_repeats`: then they are only counted.
        """
        if not any(map(_ATTACHMENT, samples)):
            return samples
        all_read = [self._read(sample, keeps_repeats=keeps_repeats) for sample in samples]
        return [sample for sample in all_read if sample is not None]

    def pass_over(self, numbering: Numbering, sample: Sample, *, ready: Sequence[Sample]) -> None:
        """Know whose the numbers are between two neighbours of the only key: other keys'.

        So nothing is missing there, and nobody has to be asked. `ready` is what is passed on next.
        """
        if not self.of_one_key or (found := detach(sample)) is None:
            return
        known = numbering.sequences
        if known is None:
            known = numbering.sequences = {}
        known[found.sequence] = sample.sn
        if len(known) > _HELD_MAX:
            for sequence in sorted(known)[: _HELD_MAX // 2]:
                del known[sequence]
        before = known.get(found.sequence - 1)
        if found.since is not None:
            before = found.since - 1
        elif before is None:
            before = self._passed_on(numbering, sample, found.sequence - 1, ready)
        for low, high in ((before, sample.sn), (sample.sn, known.get(found.sequence + 1))):
            if low is not None and high is not None and high > low + 1:
                numbering.note_absent(RangeSet([(low + 1, high - 1)]), RangeSet())

    def _passed_on(
        self, numbering: Numbering, sample: Sample, sequence: int, ready: Sequence[Sample]
    ) -> int | None:
        """Return the number of what was passed on last of a run, where it bears a sequence."""
        last = next((one for one in reversed(ready) if one.source == sample.source), None)
        if last is not None:
            found = detach(last)
            borne, epoch, sn = (found.sequence if found else 0), last.epoch, last.sn
        elif (state := self.state(sample.source, sample.key)) is not None:
            borne, (epoch, sn) = state.sequence, unpack_sequence(state.place)
        else:
            return None
        return sn if (borne, epoch) == (sequence, numbering.called) else None

    def unsubscribed(self, samples: Iterable[Sample]) -> None:
        """Count samples that came when the subscriber was undeclared."""
        for sample in samples:
            if detach(sample) is not None:
                self._counts[Condition.UNSUBSCRIBED] += 1

    def _read(self, sample: Sample, *, keeps_repeats: bool) -> Sample | None:
        found = None if sample.attachment is None else detach(sample)
        if found is None or is_unnumbered(sample.source):
            return sample
        subject = SubjectId(sample.source, sample.key)
        place = pack_sequence(sample.epoch, sample.sn)
        condition, lost = self._window.take(subject, found.sequence, place, self.now)
        self._counts[condition] += 1
        if condition is Condition.REPEATED and not keeps_repeats:
            return None
        if lost:
            self._lose(subject, lost)
        if not self._strips:
            return sample
        return msgspec.structs.replace(sample, attachment=found.attachment)

    def _lose(self, subject: SubjectId, lost: int) -> None:
        before = self._losses.pop(subject, None)
        total = lost + (before.total if before is not None else 0)
        loss = SubjectLoss(*subject, lost, total, self.now.unix_ns)
        self._losses[subject] = loss
        while len(self._losses) > self._losses_max:
            self._losses.popitem(last=False)
        self._lost += lost
        self.untold.append(loss)
