"""The pure heart of a reliable publisher: what gets which number, and who holds it already.

One `Put` is under way at a time: numbered by `Send`, and only `Sent` makes it part of the history
and uses its number up; `SendFailed` leaves nothing behind. Acknowledgements may come in between.

A *numbering* is one run from 0 upwards, named by its incarnation: random at the start, derived from
the one before at a wrap. Its epoch is the time frame it began in, or one above the highest that
caches know of this source. Receipts are of (incarnation, sn), so that a number that comes again
after a wrap, or the acknowledgements of an earlier run of a pinned zid, are never mixed up (ADR
0085).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from durable_cache.errors import LocalProtocolError
from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId
from durable_cache.model.selection import Cursor, Selection, SnBounds
from durable_cache.model.sequence import SOURCE_SN_MODULUS, frame, next_epoch
from durable_cache.protocol.publisher.events import (
    AckReceived,
    AskEpochs,
    Declare,
    EngineOptions,
    EpochsKnown,
    EpochsUnknown,
    Event,
    Finished,
    Full,
    Output,
    Put,
    Send,
    SendFailed,
    Sent,
    Standing,
    Started,
    TokenDeclared,
    TokenFailed,
)
from durable_cache.protocol.publisher.history import History
from durable_cache.protocol.wire import (
    ABSENCES_MAX,
    Absence,
    AbsenceReason,
    Ack,
    Incarnation,
    incarnation_after,
)

__all__ = ["PublisherEngine"]

_EPOCH_MAX = (1 << 29) - 1
_NAMES_MAX = 4
"""The history of a publisher reaches over one wrap, for it is far shorter than 2^32 samples."""


class _Numbering:
    """One run of numbers and what is known of its samples that are not acknowledged yet."""

    def __init__(self, epoch: int, incarnation: str, next_sn: int) -> None:
        self.epoch = epoch
        self.incarnation = incarnation
        self.next_sn = next_sn
        self.open: dict[int, Standing] = {}
        self.seen: OrderedDict[tuple[str, int], RangeSet] = OrderedDict()
        """What each cache acknowledged at which level: only what is new in an ack is looked at."""


class PublisherEngine:
    """One publisher's decisions; not for two threads at once."""

    def __init__(
        self,
        source: SourceId,
        incarnation: str,
        options: EngineOptions | None = None,
        *,
        next_sn: int = 0,
    ) -> None:
        self._source = source
        self._options = options or EngineOptions()
        self._numbering = _Numbering(0, incarnation, next_sn)
        self._former: list[_Numbering] = []
        """Earlier numberings some of whose samples are not acknowledged yet."""
        self._names: dict[int, str] = {}
        """The incarnation of each epoch whose samples its own cache may still offer."""
        self._declared = ""
        self._under_way: Send | None = None
        history = self._options.history
        self._history = None if history is None else History(history)
        self.unacknowledged = 0
        """Samples that wait for acknowledgements."""

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
        return None if self._under_way is None else self._under_way.sample

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
        asked = Selection(selection.key_expr, *self._source, sns=selection.sns)
        if self._history is None or replace(selection, order=asked.order) != asked:
            return ()
        if asked.sns == SnBounds():
            return ()
        runs = self._history.other_keys(asked)[:ABSENCES_MAX]
        reason = AbsenceReason.OTHER_KEY
        return tuple(
            Absence(self._source, epoch, run.first, run.last, reason) for epoch, run in runs
        )

    def handle(self, event: Event) -> list[Output]:
        """Take an event; return what is to be done, in this order."""
        match event:
            case Put():
                return self._put(event)
            case Sent():
                return self._sent()
            case AckReceived(ack):
                return self._acknowledged(ack)
            case SendFailed():
                return self._send_failed()
            case Started(now):
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
            case _:
                assert_never(event)

    def _begin(self, highest: int, now: Moment) -> list[Output]:
        numbering = self._numbering
        known = highest if highest < _EPOCH_MAX else 0  # nothing is above it: no use to follow
        numbering.epoch = next_epoch(now.unix_ns, known) if known else frame(now.unix_ns)
        self._name(numbering)
        return [Declare(numbering.epoch, numbering.incarnation)]

    def _put(self, event: Put) -> list[Output]:
        if self._under_way is not None:
            raise LocalProtocolError("a put while another is under way")
        wanted = self._options.acknowledgements > 0
        if wanted and self.unacknowledged >= self._options.unacknowledged_max:
            return [Full(self.unacknowledged)]
        if self._numbering.next_sn >= SOURCE_SN_MODULUS:
            self._wrap(event.now)
        numbering = self._numbering
        sn = numbering.next_sn
        standing = None
        if wanted:
            standing = numbering.open[sn] = Standing(numbering.incarnation, sn)
            self.unacknowledged += 1
        sample = Sample(
            event.key,
            self._source,
            numbering.epoch,
            sn,
            event.payload,
            event.kind,
            event.encoding,
            event.attachment,
            event.ntp64,
            event.timestamp_id,
            False,
            event.qos,
            event.now.unix_ns,
        )
        self._under_way = send = Send(sample, standing)
        if self._declared == numbering.incarnation:
            return [send]
        return [Declare(numbering.epoch, numbering.incarnation), send]

    def _wrap(self, now: Moment) -> None:
        """Begin a new numbering; what waits for acknowledgements of the old one goes on waiting."""
        old = self._numbering
        if old.open:
            self._former.append(old)
        named = incarnation_after(old.incarnation)
        self._numbering = _Numbering(next_epoch(now.unix_ns, old.epoch), named, 0)
        self._name(self._numbering)

    def _name(self, numbering: _Numbering) -> None:
        self._names[numbering.epoch] = numbering.incarnation
        while len(self._names) > _NAMES_MAX:
            del self._names[min(self._names)]

    def _sent(self) -> list[Output]:
        sample = self._take_under_way().sample
        self._numbering.next_sn = sample.sn + 1
        history = self._history
        if history is not None and (left := history.add(sample)) is not None and self._waits(left):
            history.hold(left)
        return []

    def _waits(self, sample: Sample) -> bool:
        """Tell whether a sample waits for acknowledgements."""
        return self.unacknowledged > 0 and any(
            numbering.epoch == sample.epoch and sample.sn in numbering.open
            for numbering in (self._numbering, *self._former)
        )

    def _send_failed(self) -> list[Output]:
        sn = self._take_under_way().sample.sn
        numbering = self._numbering
        if numbering.open.pop(sn, None) is not None:
            self.unacknowledged -= 1
        for seen in numbering.seen.values():
            seen.remove(sn, sn)  # nobody can have had it: a true acknowledgement is still to come
        return []

    def _take_under_way(self) -> Send:
        send, self._under_way = self._under_way, None
        if send is None:
            raise LocalProtocolError("nothing is being sent")
        return send

    def _acknowledged(self, ack: Ack) -> list[Output]:
        if ack.source != self._source:
            return []
        for numbering in (self._numbering, *self._former):
            if ack.incarnation == numbering.incarnation or (
                not ack.incarnation and ack.epoch == numbering.epoch
            ):
                finished = self._take(numbering, ack)
                return [Finished(tuple(finished))] if finished else []
        return []

    def _take(self, numbering: _Numbering, ack: Ack) -> list[Standing]:
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
        self.unacknowledged -= len(finished)
        if not numbering.open and numbering in self._former:
            self._former.remove(numbering)
        return finished

    def _reach(
        self, numbering: _Numbering, cache_id: str, level: int, first: int, last: int
    ) -> list[Standing]:
        """Add a cache to what is known of these numbers; return those it finishes."""
        waiting = numbering.open
        first_answer = {cache_id: level}  # shared: what is known of a sample is never changed
        enough = self._is_enough([level])
        finished = []
        # Whichever is shorter: one sample that nobody ever gets must not make every run long.
        numbers: Iterable[int] = range(first, last + 1)
        if last - first >= len(waiting):
            numbers = [sn for sn in waiting if first <= sn <= last]
        for sn in numbers:
            standing = waiting.get(sn)
            if standing is None:
                continue
            if standing.caches:
                best = max(level, standing.caches.get(cache_id, level))
                standing.caches = {**standing.caches, cache_id: best}
                standing.done = self._is_enough(standing.caches.values())
            else:
                standing.caches, standing.done = first_answer, enough
            if standing.done:
                del waiting[sn]
                finished.append(standing)
                if self._history is not None:
                    self._history.release(numbering.epoch, sn)
        return finished

    def _is_enough(self, levels: Iterable[int]) -> bool:
        """Tell whether caches at these levels are as many as wanted, at the level wanted."""
        reached = sum([level >= self._options.level for level in levels])
        return reached >= self._options.acknowledgements
