"""The pure heart of a reliable publisher: what gets which number, and who holds it already.

One `Put` is under way at a time: numbered by `Send`, and only `Sent` makes it part of the history
and uses its number up; `SendFailed` leaves nothing behind. Acknowledgements may come in between.
An ordinary put, of which nothing but `Send` comes, has a shorter way to the same: `number` and
`sent`, without a list for each sample (ADR 0200).

A *numbering* is one run from 0 upwards, named by its incarnation: random at the start, derived from
the one before at a wrap. Its epoch is the time frame it began in, or one above the highest that
caches know of this source. Receipts are of (incarnation, sn), so that a number that comes again
after a wrap, or the acknowledgements of an earlier run of a pinned zid, are never mixed up (ADR
0085).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from durable_cache.errors import LocalProtocolError
from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.run_name import RunName
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Cursor, Selection
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame, next_epoch
from durable_cache.protocol.publisher.events import (
    AckReceived,
    AskEpochs,
    CacheAppeared,
    CacheGone,
    Declare,
    EngineOptions,
    EpochsKnown,
    EpochsUnknown,
    Event,
    Finished,
    Form,
    Full,
    HandedOver,
    Hurry,
    Keep,
    Kept,
    Output,
    Put,
    ResendFailed,
    Resent,
    Send,
    SendFailed,
    Sent,
    Spooled,
    Standing,
    Started,
    Tick,
    TokenDeclared,
    TokenFailed,
)
from durable_cache.protocol.publisher.history import History
from durable_cache.protocol.publisher.numbering import Numbering, Waiting
from durable_cache.protocol.publisher.pacing import Pacing
from durable_cache.protocol.publisher.resending import Resending
from durable_cache.protocol.publisher.subjects import PublisherWindow, open_window
from durable_cache.protocol.subjects import attach
from durable_cache.protocol.wire import (
    ABSENCES_MAX,
    Absence,
    AbsenceReason,
    Ack,
    Incarnation,
    incarnation_after,
)

_SECOND_NS = 1_000_000_000
_EPOCH_MAX = (1 << 29) - 1
_NAMES_MAX = 4
"""The history of a publisher reaches over one wrap, for it is far shorter than 2^32 samples."""


class PublisherEngine:
    """One publisher's decisions; not for two threads at once."""

    def __init__(
        self,
        source: SourceId,
        incarnation: str,
        options: EngineOptions | None = None,
        *,
        next_sn: int = 0,
        spooled: Sequence[Spooled] | None = None,
    ) -> None:
        """`spooled`: what a spool holds, the numbering that it was at last; None where there is
        no spool.
        """
        self._source = source
        self._options = options or EngineOptions()
        self._wanted = self._options.acknowledgements > 0
        self._samples_max = self._options.unacknowledged_max
        self._bytes_max = self._options.unacknowledged_bytes_max
        self._numbering = Numbering(source, 0, incarnation, next_sn)
        self._fresh = self._numbering
        """The numbering that begins where no earlier one goes on."""
        self._former: list[Numbering] = []
        """Earlier numberings some of whose samples are not acknowledged yet."""
        self.timestamp_id = ""
        """What timestamps of its own bear: the name of the run (ADR 0366)."""
        self._form: tuple[Form, Form] | None = None
        """That of the last put, as it was given and with that name."""
        self._names: dict[int, str] = {}
        """The incarnation of each epoch whose samples its own cache may still offer."""
        self._declared = ""
        self._has_spool = spooled is not None
        self._left = tuple(spooled or ())
        """What an earlier process left, until we start."""
        self._left_epoch = 0
        """The highest epoch of our source in that: one that begins is above it."""
        self._kept = False
        """The sample that is being sent is in the spool."""
        self._under_way: Send | None = None
        history = self._options.history
        self._history = None if history is None else History(history)
        self._resending = Resending(self._options)
        self.pacing = Pacing(self._options.acknowledgement_delay_seconds)
        """From which number on a put that may wait does, so that acknowledgements come soon."""
        self.subjects: PublisherWindow | None = open_window(self._options)
        """The last sequence of each key; None where samples bear none."""
        self.unacknowledged = 0
        """Samples that wait for acknowledgements."""
        self.unacknowledged_bytes = 0
        """Bytes of memory they take, near enough."""
        self.unknown = 0
        """Samples whose time was over before as many caches as wanted acknowledged them."""

    @property
    def epoch(self) -> int:
        return self._numbering.epoch

    @property
    def incarnation(self) -> str:
        return self._numbering.incarnation

    @property
    def next_sn(self) -> int:
        """The number the next sample will have, before a wrap."""
        return self._numbering.next_sn

    @property
    def under_way(self) -> Sample | None:
        """The sample that is being sent."""
        sending = self._under_way  # another thread may end it between two looks
        return None if sending is None else sending.sample

    def kept(self) -> list[Sample]:
        """Return the samples that the publisher's own cache offers, oldest first."""
        return [] if self._history is None else self._history.samples()

    def read(
        self, selection: Selection, limit: int, cursor: Cursor | None
    ) -> tuple[list[Sample], Cursor | None]:
        """Return a page of the publisher's own cache, and where it ended if there is more."""
        if self._history is None:
            return [], None
        return self._history.read(selection, limit, cursor)

    def incarnations(self) -> tuple[Incarnation, ...]:
        """Return what the epochs of its samples are, for caches may call one of them otherwise."""
        return tuple(Incarnation(self._source, *named) for named in self._names.items())

    def absences(self, selection: Selection) -> tuple[Absence, ...]:
        """Return which numbers asked for will not come, as they are under other keys.

        Only where numbers of this source are asked for, at most 1,000 runs. What is not kept is not
        called trimmed: a cache may have it.
        """
        of_this = (selection.zid, selection.eid, selection.epoch) == (*self._source, None)
        if self._history is None or not (of_this and selection.asks_numbers):
            return ()
        runs = self._history.other_keys(selection)[:ABSENCES_MAX]
        reason = AbsenceReason.OTHER_KEY
        return tuple(
            Absence(self._source, epoch, run.first, run.last, reason) for epoch, run in runs
        )

    def handle(self, event: Event) -> list[Output]:
        """Take an event; return what is to be done, in this order."""
        match event:
            case Put():
                return self._put(event)
            case Kept():
                self._kept = True
                return []
            case Sent():
                self.sent()
                return []
            case AckReceived():
                return self._acknowledged(event)
            case SendFailed():
                return self._send_failed()
            case Started(now):
                self._take_over(now)
                return [AskEpochs()] if self._options.ask_epochs else self._begin(0, now)
            case EpochsKnown(highest, now):
                return self._begin(highest, now)
            case EpochsUnknown(now):
                return self._begin(0, now)
            case TokenDeclared(incarnation):
                self._declared = incarnation
                return []
            case TokenFailed():
                return []
            case CacheAppeared() | CacheGone() | Resent() | ResendFailed():
                self._caches_changed(event)
                return []
            case Hurry(now):
                self._resending.hurry(now.monotonic_ns)
                return self._tick(now)
            case Tick(now):
                return self._tick(now)
            case _:
                assert_never(event)

    @property
    def has_room(self) -> bool:
        """Whether a further sample may wait for acknowledgements."""
        waiting = self.unacknowledged
        return waiting == 0 or (
            waiting < self._samples_max and self.unacknowledged_bytes < self._bytes_max
        )

    @property
    def last_failure(self) -> str:
        """Why a cache did not take what was sent to it once more, for people; empty where none."""
        return self._resending.last_failure

    @property
    def caches_in_reach(self) -> int:
        """How many caches that could acknowledge are seen."""
        return len(self._resending)

    def waits_since_ns(self) -> int | None:
        """Return since when a sample waits for acknowledgements, on the monotonic clock."""
        oldest = self._oldest()
        return None if oldest is None else oldest.since_ns

    def wake_ns(self) -> int | None:
        """Return the monotonic time at which the next `Tick` is of use, or None."""
        oldest = self._oldest()
        times = [self._resending.wake_ns(oldest)]
        if oldest is not None and (span_ns := self._wait_ns_max) is not None:
            times.append(oldest.since_ns + span_ns)
        return min((time for time in times if time is not None), default=None)

    def _oldest(self) -> Waiting | None:
        waits = (numbering.oldest() for numbering in (*self._former, self._numbering))
        return min(
            (waiting for waiting in waits if waiting is not None),
            key=lambda waiting: waiting.since_ns,
            default=None,
        )

    @property
    def _wait_ns_max(self) -> int | None:
        seconds = self._options.unacknowledged_seconds_max
        return None if seconds is None else round(seconds * _SECOND_NS)

    def _tick(self, now: Moment) -> list[Output]:
        numberings = (*self._former, self._numbering)
        unknown = [
            standing for numbering in numberings for standing in self._expire(numbering, now)
        ]
        outputs: list[Output] = [Finished(tuple(unknown))] if unknown else []
        for numbering in numberings:
            outputs += self._hand_over(numbering)
        return [*outputs, *self._resending.due(numberings, self._under_way, now)]

    def _expire(self, numbering: Numbering, now: Moment) -> list[Standing]:
        """Give up what waited too long; whether caches have it is unknown, and stays so."""
        unknown: list[Standing] = []
        span_ns = self._wait_ns_max
        while span_ns is not None and (waiting := numbering.oldest()) is not None:
            is_sent_now = waiting.send is self._under_way
            if is_sent_now or waiting.since_ns + span_ns > now.monotonic_ns:
                break
            standing = waiting.standing
            standing.unknown = True
            if not standing.caches:
                numbering.is_not_held(standing.sn)
            unknown.append(standing)
            self._settle(numbering, standing.sn)
            self._release(numbering, standing.sn)
        self.unknown += len(unknown)
        return unknown

    def _caches_changed(self, event: CacheAppeared | CacheGone | Resent | ResendFailed) -> None:
        match event:
            case CacheAppeared(cache_id):
                self._resending.appeared(cache_id)
                self.pacing.begin()
            case CacheGone(cache_id):
                self._resending.gone(cache_id)
                self.pacing.begin()
            case Resent() | ResendFailed():
                self._resending.answered(event)
            case _:
                assert_never(event)

    def _take_over(self, now: Moment) -> None:
        """Go on with what an earlier process left, before anything that is put from now on.

        Where the spool was last at our own source, its numbering goes on; not where samples of it
        were lost, for its next number may have been given.
        """
        for at, left in enumerate(self._left, start=1):
            if left.source == self._source:
                self._left_epoch = max(self._left_epoch, left.epoch)
            numbering = Numbering(left.source, left.epoch, left.incarnation, left.next_sn)
            if self.subjects is not None and left.source == self._source:
                self.subjects.go_on_after(left.samples)
            for sample in left.samples:
                standing = Standing(left.incarnation, sample.sn)
                send = Send.again(sample, standing)
                self.unacknowledged_bytes += numbering.wait_for(standing, send, now.monotonic_ns)
                self.unacknowledged += 1
                if self._history is not None and left.source == self._source:
                    self._history.hold(send)
            if left.samples:
                numbering.may_be_unheard(left.samples[0].sn, left.samples[-1].sn)
            if at == len(self._left) and left.source == self._source and left.goes_on:
                self._fresh, self._numbering = self._numbering, numbering
            elif numbering.open:
                self._former.append(numbering)
        self._left = ()
        self._resending.hurry(now.monotonic_ns)

    def _begin(self, highest: int, now: Moment) -> list[Output]:
        numbering = self._numbering
        if numbering.epoch and highest > numbering.epoch:
            # Another run of our source came after the spool's: ours does not go on.
            if numbering.open:
                self._former.append(numbering)
            numbering = self._numbering = self._fresh
        if numbering.epoch:
            self._name(numbering)
            return [Declare(numbering.epoch, numbering.incarnation)]
        known = highest if highest < _EPOCH_MAX else 0  # nothing is above it: no use to follow
        known = max(known, self._left_epoch)
        if self.subjects is not None:
            self.subjects.begin_above(known)
        numbering.epoch = next_epoch(now.unix_ns, known) if known else frame(now.unix_ns)
        self._name(numbering)
        return [Declare(numbering.epoch, numbering.incarnation)]

    def _put(self, event: Put) -> list[Output]:
        if self._under_way is not None:
            raise LocalProtocolError("a put while another is under way")
        if self._wanted and not self.has_room:
            return [Full(self.unacknowledged)]
        if self._numbering.next_sn >= SOURCE_SN_MODULUS:
            self._wrap(event.now)
        numbering = self._numbering
        send = self._number(event.form, event.payload, event.attachment, event.ntp64, event.now)
        outputs: list[Output] = [send]
        if self._has_spool:
            outputs.insert(0, Keep(send.sample, numbering.incarnation))
        if self._declared != numbering.incarnation:
            outputs.insert(0, Declare(numbering.epoch, numbering.incarnation))
        return outputs

    def number(
        self, form: Form, payload: bytes, attachment: bytes | None, stamp: object, now: Moment
    ) -> Send | None:
        """Do what `Put` does where nothing but `Send` comes of it; `stamp` as `Send` has it.

        None where more does, where there is no room or the window is used: nothing changed then,
        and `Put` does it, which knows no window.
        """
        numbering = self._numbering
        if (
            self._under_way is not None
            or numbering.next_sn >= SOURCE_SN_MODULUS
            or (self._has_spool or self._declared != numbering.incarnation)
            or (self._wanted and (not self.has_room or numbering.next_sn >= self.pacing.limit))
        ):
            return None
        return self._number(form, payload, attachment, stamp, now)

    def _number(
        self, form: Form, payload: bytes, attachment: bytes | None, stamp: object, now: Moment
    ) -> Send:
        numbering = self._numbering
        sn = numbering.next_sn
        if not form.timestamp_id:
            form = self._named(form)
        if self.subjects is not None:
            sequence, since = self.subjects.following(form.key, sn, now)
            attachment = attach(attachment, sequence, form.key, sn, since)
        standing = Standing(numbering.incarnation, sn) if self._wanted else None
        send = Send(
            form,
            self._source,
            numbering.epoch,
            sn,
            payload,
            attachment,
            stamp,
            now.unix_ns,
            standing,
        )
        if standing is not None and not self.caches_in_reach:
            numbering.may_be_unheard(sn, sn)
        # Behind `wait_for` nothing is called: Ctrl-C raises where all of this is done, or none.
        if standing is not None:
            self.unacknowledged_bytes += numbering.wait_for(standing, send, now.monotonic_ns)
            self.unacknowledged += 1
        self._under_way = send
        return send

    def _named(self, form: Form) -> Form:
        if self._form is None or self._form[0] is not form:
            named = msgspec.structs.replace(form, timestamp_id=self.timestamp_id)
            self._form = form, named
        return self._form[1]

    def _wrap(self, now: Moment) -> None:
        """Begin a new numbering; what waits for acknowledgements of the old one goes on waiting."""
        old = self._numbering
        if old.open:
            self._former.append(old)
        named = incarnation_after(old.incarnation)
        self._numbering = Numbering(self._source, next_epoch(now.unix_ns, old.epoch), named, 0)
        self._name(self._numbering)
        self.pacing.begin()

    def _name(self, numbering: Numbering) -> None:
        self.timestamp_id = RunName(numbering.epoch, numbering.incarnation).timestamp_id
        self._form = None
        self._names[numbering.epoch] = numbering.incarnation
        while len(self._names) > _NAMES_MAX:
            del self._names[min(self._names)]

    def sent(self) -> None:
        """Do what `Sent` does."""
        send = self._under_way
        if send is None:
            raise LocalProtocolError("nothing is being sent")
        if self.subjects is not None:
            self.subjects.sent()
        if (history := self._history) is not None:
            history.add(send, self._waits if self.unacknowledged else None)
        # At the end: who was ended by Ctrl-C before it does all of this once more.
        self._under_way, self._kept = None, False
        self._numbering.next_sn = send.sn + 1

    def _waits(self, send: Send) -> bool:
        """Tell whether a sample waits for acknowledgements."""
        for numbering in (self._numbering, *self._former):
            if send.epoch == numbering.epoch and send.source == numbering.source:
                return send.sn in numbering.open
        return False

    def _send_failed(self) -> list[Output]:
        if self._kept:
            self.sent()
            return []
        if self._under_way is None:
            raise LocalProtocolError("nothing is being sent")
        sn, self._under_way = self._under_way.sn, None
        numbering = self._numbering
        if sn in numbering.open:
            self._settle(numbering, sn)
        for seen in numbering.seen.values():
            seen.remove(sn, sn)  # nobody can have had it: a true acknowledgement is still to come
        return []

    def _acknowledged(self, event: AckReceived) -> list[Output]:
        ack = event.ack
        for numbering in (self._numbering, *self._former):
            if ack.source != numbering.source:
                continue
            if ack.incarnation == numbering.incarnation:  # never by its epoch (ADR 0332)
                newest = numbering.open.get(ack.runs[-1][1]) if ack.runs else None
                finished = self._take(numbering, ack)
                if newest is not None and newest.standing.done and numbering is self._numbering:
                    self._pace(newest, event.now_ns)
                outputs: list[Output] = [Finished(tuple(finished))] if finished else []
                return outputs + self._hand_over(numbering)
        return []

    def _pace(self, newest: Waiting, now_ns: int) -> None:
        next_sn, sn = self._numbering.next_sn, newest.send.sn
        self.pacing.acknowledged(sn, next_sn, newest.since_ns, now_ns)

    def _take(self, numbering: Numbering, ack: Ack) -> list[Standing]:
        """Count an ack for the open samples that its cache did not acknowledge before."""
        seen = numbering.seen.setdefault((ack.cache_id, ack.level), RangeSet())
        numbering.seen.move_to_end((ack.cache_id, ack.level))
        if len(numbering.seen) > self._options.acknowledgers_max:
            numbering.seen.popitem(last=False)
        # Beyond what was put nobody holds anything, whatever an ack says: those come true later.
        put = numbering.next_sn - 1
        if numbering is self._numbering and self._under_way is not None:
            put += 1
        finished: list[Standing] = []
        for first, last in ack.runs:
            end = min(last, put)
            if end < first:
                continue
            for low, high in seen.gaps(first, end):
                finished += self._reach(numbering, ack.cache_id, ack.level, low, high)
            seen.add(first, end)
        self._resending.acknowledged(ack.cache_id)
        return finished

    def _reach(
        self, numbering: Numbering, cache_id: str, level: int, first: int, last: int
    ) -> list[Standing]:
        """Add a cache to what is known of these numbers; return those it finishes."""
        open_ = numbering.open
        first_answer = {cache_id: level}  # shared: what is known of a sample is never changed
        enough = self._is_enough([level])
        finished: list[Standing] = []
        freed_bytes = 0
        # Whichever is shorter: one sample that nobody ever gets must not make every run long.
        numbers: Iterable[int] = range(first, last + 1)
        if last - first >= len(open_):
            numbers = [sn for sn in open_ if first <= sn <= last]
        others = numbering.refused.get(cache_id)
        if others is not None:  # it has another sample, or none, there
            numbers = [sn for sn in numbers if sn not in others]
        for sn in numbers:
            waiting = open_.get(sn)
            if waiting is None:
                continue
            standing = waiting.standing
            if standing.caches:
                best = max(level, standing.caches.get(cache_id, level))
                standing.caches = {**standing.caches, cache_id: best}
                if not self._is_enough(standing.caches.values()):
                    continue
            else:
                standing.caches = first_answer
                if not enough:
                    continue
            standing.done = True
            del open_[sn]
            freed_bytes += waiting.size
            finished.append(standing)
        if self._history is not None and numbering.source == self._source:
            for standing in finished:
                self._history.release(numbering.epoch, standing.sn)
        self.unacknowledged -= len(finished)
        self.unacknowledged_bytes -= freed_bytes
        return finished

    def _release(self, numbering: Numbering, sn: int) -> None:
        if self._history is not None and numbering.source == self._source:
            self._history.release(numbering.epoch, sn)

    def _settle(self, numbering: Numbering, sn: int) -> None:
        """Wait no more for acknowledgements of a sample."""
        self.unacknowledged_bytes -= numbering.settle(sn)
        self.unacknowledged -= 1

    def _hand_over(self, numbering: Numbering) -> list[Output]:
        """Tell what caches got behind subscribers' backs; let a run go of which nothing waits."""
        unheard = numbering.take_unheard()
        last = None if unheard is None else unheard.last
        if not numbering.open and numbering in self._former:
            self._former.remove(numbering)
            last = numbering.next_sn - 1
        earlier = numbering.source == self._source and numbering is not self._numbering
        if last is None or earlier:  # a number of an earlier run would be taken for one of this
            return []
        return [HandedOver(numbering.source, last, None if unheard is None else unheard.first)]

    def _is_enough(self, levels: Iterable[int]) -> bool:
        """Tell whether caches at these levels are as many as wanted, at the level wanted."""
        reached = sum([level >= self._options.level for level in levels])
        return reached >= self._options.acknowledgements
