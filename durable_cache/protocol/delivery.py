"""What a reliable subscriber passes on, when it asks for what is missing, and what it gives up.

Theory of operation (RFC, "The ReliableSubscriber"). The first sample of a source is passed on; then
each number follows the one before. A number ahead is held back and the hole is asked for, again and
again with growing pauses, until it is filled or its time is over; then the loss is reported and
what was held back is passed on. A number far ahead is held until a second sample or an answer
confirms it. While history is awaited, everything is held back. Exactly once and in source order
follow from one rule: only the next number of a (source, epoch) is ever delivered.

Pure: time is an argument in monotonic nanoseconds, beside Unix nanoseconds where epochs need them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from durable_cache.model.sample import Sample, SampleBatch, SourceId
from durable_cache.model.sequence import (
    EPOCH_UNKNOWN,
    SOURCE_SN_MODULUS,
    next_epoch,
    sn_distance,
)
from durable_cache.protocol.requests import Deliver, DeliveryOptions, Missed, Output, Request

__all__ = ["Delivery"]

_SN = attrgetter("sn")
_SECOND_NS = 1_000_000_000
_RESTART_NTP64 = (1 << 32) // 10


@dataclass(slots=True)
class _Following:
    """One (source, epoch) that is being delivered."""

    source: SourceId
    epoch: int
    declared: bool = False
    next_sn: int | None = None
    newest_ntp64: int = 0
    first_digest: bytes = b""
    top: int = -1
    """The highest number known to have been published."""
    pending: dict[int, Sample] = field(default_factory=dict)
    parked: Sample | None = None
    opened_ns: int | None = None
    due_ns: int = 0
    pause_ns: int = 0
    asking: int | None = None
    asked_to: int = -1
    """The last number that was asked for."""
    dropped_from: int | None = None
    """The lowest number that came while there was no room to hold it."""
    poll_ns: int = 0


def _follows(one: _Following, samples: list[Sample]) -> bool:
    """Tell whether samples, without a hole, are the first that comes of a source."""
    first = samples[0].sn
    return (
        one.top < 0
        and one.next_sn == first
        and [sample.sn for sample in samples] == list(range(first, first + len(samples)))
    )


class Delivery:
    """The pure heart of a reliable subscriber; owned by one thread."""

    def __init__(
        self, options: DeliveryOptions | None = None, *, awaiting_history: bool = False
    ) -> None:
        self._options = options or DeliveryOptions()
        self._following: dict[SourceId, _Following] = {}
        self._requests: dict[int, _Following] = {}
        self._ids = count(1)
        self._awaiting_history = awaiting_history
        self._held: list[Sample] = []
        self._unheld: dict[SourceId, Sample] = {}
        self._epochs: dict[SourceId, int] = {}
        self.duplicates = self.missed = self.delivered = self.beyond = self.dropped = 0

    @property
    def gaps_open(self) -> int:
        """How many sources wait for something missing."""
        return sum(1 for one in self._following.values() if one.opened_ns is not None)

    def declared(self, source: SourceId, epoch: int) -> list[Output]:
        """A publisher's token says its epoch."""
        if epoch < self._epochs.get(source, EPOCH_UNKNOWN):
            return []
        self._epochs[source] = epoch
        one = self._following.get(source)
        if one is not None and one.epoch == EPOCH_UNKNOWN and not one.declared:
            one.epoch, one.declared = epoch, True  # its samples were faster than its token
        while len(self._epochs) > 2 * self._options.sources_max:
            self._epochs.pop(next(iter(self._epochs)))
        return []

    def live(self, samples: Iterable[Sample], now_ns: int, unix_ns: int) -> list[Output]:
        """Take samples as they were published."""
        if self._awaiting_history:
            for sample in samples:
                if len(self._held) < self._options.pending_samples_max:
                    self._held.append(sample)
                else:
                    self._unheld[sample.source] = sample
            return []
        ready: list[Sample] = []
        outputs: list[Output] = []
        for sample in samples:
            one = self._following.get(sample.source)
            if (
                one is not None
                and sample.sn == one.next_sn
                and not one.pending
                and one.epoch == self._epochs.get(sample.source, one.epoch)
            ):
                one.next_sn += 1
                one.top = max(one.top, sample.sn)
                one.newest_ntp64 = max(one.newest_ntp64, sample.ntp64)
                ready.append(sample)
                continue
            outputs += self._slow(sample, ready, now_ns, unix_ns)
        if ready:
            outputs.append(self._deliver(ready))
        return outputs

    def recovered(self, request_id: int, samples: Iterable[Sample], now_ns: int) -> list[Output]:
        """Take the answer to a request; samples that do not belong to it are left out."""
        one = self._requests.get(request_id)
        if one is None:
            return []
        before = one.next_sn
        low = one.newest_ntp64 - _RESTART_NTP64
        high = _RESTART_NTP64 + max((s.ntp64 for s in one.pending.values()), default=1 << 64)
        for sample in samples:
            same = sample.epoch == one.epoch or (
                # Epochs that two observers saw begin may differ; the source's own clock does not.
                not (one.declared and sample.epoch)
                and (sample.stamped or low <= sample.ntp64 <= high)
            )
            if sample.source == one.source and same:
                self._hold(one, sample)
        ready: list[Sample] = []
        self._flush(one, ready, now_ns)
        if one.next_sn != before:
            one.opened_ns = None if one.opened_ns is None else now_ns
            one.pause_ns = 0
        return [self._deliver(ready)] if ready else []

    def ended(self, request_id: int, more: bool, now_ns: int) -> list[Output]:
        """A request is over, answered or not."""
        one = self._requests.pop(request_id, None)
        if one is None or one.asking != request_id:
            return []
        one.asking = None
        retry_ns = round(self._options.retry_seconds * _SECOND_NS)
        most_ns = round(self._options.retry_seconds_max * _SECOND_NS)
        if more or one.pause_ns == 0:
            one.pause_ns = retry_ns
            one.due_ns = now_ns if more else now_ns + retry_ns
        else:
            one.pause_ns = min(one.pause_ns * 2, most_ns)
            one.due_ns = now_ns + one.pause_ns
        return self._ask(one, now_ns)

    def history(self, samples: Iterable[Sample], now_ns: int, unix_ns: int) -> list[Output]:
        """The historical query is over: deliver what it brought, then what was held back."""
        self._awaiting_history = False
        outputs: list[Output] = []
        held, self._held = self._held, []
        numberings: dict[tuple[SourceId, int], list[Sample]] = {}
        for (_, source, epoch), group in SampleBatch(samples).by_stream.items():
            numberings.setdefault((source, epoch), []).extend(group)
        ready: list[Sample] = []
        for source, epoch in sorted(numberings):
            one = self._following.get(source)
            if one is not None and epoch > one.epoch:
                outputs += self._give_up_all(one, ready)
            old = sorted(numberings[source, epoch], key=_SN)
            if one is None or epoch > one.epoch:
                one = self._follow(source, epoch)
                one.next_sn = old[0].sn
            if _follows(one, old):
                ready += old
                one.next_sn, one.top = old[-1].sn + 1, old[-1].sn
                one.newest_ntp64 = max([sample.ntp64 for sample in old])
                continue
            for sample in old:
                self._hold(one, sample)
                self._flush(one, ready, now_ns)
        if ready:
            outputs.append(self._deliver(ready))
        for one in list(self._following.values()):
            outputs += self._ask(one, now_ns)
        # What there was no room to hold: its last sample shows how far to ask caches.
        held += self._unheld.values()
        self._unheld.clear()
        return outputs + self.live(held, now_ns, unix_ns)

    def tick(self, now_ns: int) -> list[Output]:
        """Let time pass: ask again, give up, ask for tails."""
        outputs: list[Output] = []
        for one in list(self._following.values()):
            outputs += self._expire(one, now_ns)
            outputs += self._ask(one, now_ns)
            period = self._options.periodic_queries_seconds
            if period is not None and one.asking is None and one.opened_ns is None:
                if now_ns >= one.poll_ns > 0 and one.next_sn is not None:
                    outputs.append(self._request(one, one.next_sn, None))
                if now_ns >= one.poll_ns:
                    one.poll_ns = now_ns + round(period * _SECOND_NS)
        return outputs

    def wake_ns(self) -> int | None:
        """Return the monotonic time of the next thing to do, or None."""
        timeout_ns = round(self._options.gap_timeout_seconds * _SECOND_NS)
        times = []
        for one in self._following.values():
            if one.opened_ns is not None:
                times.append(one.opened_ns + timeout_ns)
                if one.asking is None:
                    times.append(one.due_ns)
            elif self._options.periodic_queries_seconds is not None and one.asking is None:
                times.append(one.poll_ns)
        return min(times, default=None)

    def _slow(self, sample: Sample, ready: list[Sample], now_ns: int, unix_ns: int) -> list[Output]:
        one = self._following.get(sample.source)
        epoch = self._epochs.get(sample.source, EPOCH_UNKNOWN)
        outputs: list[Output] = []
        if one is not None and epoch > one.epoch:
            outputs += self._give_up_all(one, ready)
            one = self._follow(sample.source, epoch)
            one.next_sn = 0  # the numbering began while we followed: all of it is ours
        if one is None:
            one = self._follow(sample.source, epoch)
            one.next_sn = sample.sn
        elif one.next_sn is not None and sample.sn < one.next_sn:
            if not self._restarted(one, sample):
                self.duplicates += 1
                return outputs
            outputs += self._give_up_all(one, ready)
            one = self._follow(sample.source, next_epoch(unix_ns, one.epoch))
            one.next_sn = 0
        if self._beyond(one, sample):
            parked = one.parked
            if parked is None or not 0 < sample.sn - parked.sn <= self._options.window_size_samples:
                self.beyond += 1
                one.parked = sample
                request_id = next(self._ids)
                self._requests[request_id] = one
                confirm = Request(request_id, one.source, one.epoch, sample.sn, sample.sn)
                return [*outputs, confirm]
            one.parked = None
            self._hold(one, parked)
        self._hold(one, sample)
        self._flush(one, ready, now_ns)
        if one.opened_ns is not None and not self._options.recovery:
            return outputs + self._give_up_first(one, ready, now_ns)
        return outputs + self._ask(one, now_ns)

    def _beyond(self, one: _Following, sample: Sample) -> bool:
        reach = max(one.top, (one.next_sn or 0) - 1) + self._options.window_size_samples
        return one.top >= 0 and sample.sn > reach

    def _restarted(self, one: _Following, sample: Sample) -> bool:
        """Tell whether a number that was delivered already comes from a numbering begun anew."""
        if one.declared:
            return False
        if one.top >= SOURCE_SN_MODULUS // 2:
            ahead = sn_distance(sample.sn, one.top % SOURCE_SN_MODULUS)
            if 0 < ahead <= self._options.window_size_samples:
                return True
        return not sample.stamped and sample.ntp64 > one.newest_ntp64 + _RESTART_NTP64 > 0

    def _follow(self, source: SourceId, epoch: int) -> _Following:
        declared = self._epochs.get(source) == epoch and epoch != EPOCH_UNKNOWN
        one = _Following(source, epoch, declared)
        self._following.pop(source, None)
        self._following[source] = one
        while len(self._following) > self._options.sources_max:
            self._following.pop(next(iter(self._following)))
        return one

    def _hold(self, one: _Following, sample: Sample) -> None:
        if one.parked is not None and one.parked.sn == sample.sn:
            one.parked = None
        if (one.next_sn is not None and sample.sn < one.next_sn) or sample.sn in one.pending:
            self.duplicates += 1
            return
        one.top = max(one.top, sample.sn)
        if len(one.pending) >= self._options.pending_samples_max and sample.sn != one.next_sn:
            highest = max(one.pending)
            self.dropped += 1
            # What is dropped must be asked for again before it may be given up.
            dropped = max(highest, sample.sn)
            one.dropped_from = min(one.dropped_from or dropped, dropped)
            if sample.sn > highest:
                return
            del one.pending[highest]
        one.pending[sample.sn] = sample

    def _flush(self, one: _Following, ready: list[Sample], now_ns: int) -> None:
        sn = one.next_sn
        if sn is None:
            return
        while (sample := one.pending.pop(sn, None)) is not None:
            ready.append(sample)
            one.newest_ntp64 = max(one.newest_ntp64, sample.ntp64)
            sn += 1
        one.next_sn = sn
        if sn > one.top:
            one.opened_ns = None
            one.pause_ns = 0
        elif one.opened_ns is None:
            one.opened_ns = one.due_ns = now_ns

    def _ask(self, one: _Following, now_ns: int) -> list[Output]:
        if (
            one.opened_ns is None
            or one.asking is not None
            or one.due_ns > now_ns
            or one.next_sn is None
            or not self._options.recovery
        ):
            return []
        return [self._request(one, one.next_sn, self._last_hole(one))]

    def _last_hole(self, one: _Following) -> int:
        """Return where the last hole within one request's span ends."""
        first = one.next_sn or 0
        last = min(one.top, first + self._options.request_samples_max - 1)
        while last > first and last in one.pending:
            last -= 1
        return last

    def _request(self, one: _Following, first: int, last: int | None) -> Request:
        request_id = next(self._ids)
        self._requests[request_id] = one
        one.asking = request_id
        one.asked_to = one.top if last is None else last
        return Request(request_id, one.source, one.epoch, first, last)

    def _expire(self, one: _Following, now_ns: int) -> list[Output]:
        timeout_ns = round(self._options.gap_timeout_seconds * _SECOND_NS)
        if one.opened_ns is None or now_ns - one.opened_ns < timeout_ns:
            return []
        if one.asking is not None and now_ns - one.opened_ns < 2 * timeout_ns:
            return []  # a slow answer is not a loss
        ready: list[Sample] = []
        return self._give_up_first(one, ready, now_ns)

    def _give_up_first(self, one: _Following, ready: list[Sample], now_ns: int) -> list[Output]:
        """Report the lowest hole, and those asked for with it; deliver what follows."""
        last = one.asked_to if one.dropped_from is None else one.dropped_from - 1
        last = max(min(last, one.asked_to), one.next_sn or 0)
        one.dropped_from = None
        outputs = self._give_up(one, ready, last)
        if one.next_sn is not None and one.next_sn <= one.top:
            one.opened_ns = one.due_ns = now_ns
        return outputs + self._ask(one, now_ns)

    def _give_up_all(self, one: _Following, ready: list[Sample]) -> list[Output]:
        """The numbering ended: report every hole, deliver the rest."""
        self._requests = {at: other for at, other in self._requests.items() if other is not one}
        return self._give_up(one, ready, one.top)

    def _give_up(self, one: _Following, ready: list[Sample], last: int) -> list[Output]:
        """Report the holes that begin at or below `last`, each before what follows it."""
        outputs: list[Output] = [self._deliver(ready)] if ready else []
        ready.clear()
        while one.next_sn is not None and one.next_sn <= min(last, one.top):
            after = min((sn for sn in one.pending if sn > one.next_sn), default=one.top + 1)
            after = min(after, last + 1)
            outputs.append(Missed(one.source, one.epoch, one.next_sn, after - 1))
            self.missed += after - one.next_sn
            one.next_sn = after
            rest: list[Sample] = []
            self._flush(one, rest, 0)
            if rest:
                outputs.append(self._deliver(rest))
        one.opened_ns = None
        return outputs

    def _deliver(self, samples: list[Sample]) -> Deliver:
        self.delivered += len(samples)
        return Deliver(tuple(samples))
