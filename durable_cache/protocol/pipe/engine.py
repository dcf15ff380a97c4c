"""The pure heart of a pipe: what goes to which cache of the target network, and what is confirmed.

Samples come from a durable consumer of the source network and go, under their own identity, to each
cache of the target network alone (ADR 0150). What enough of these acknowledge is confirmed to the
consumer, and nothing before: whoever is killed meanwhile, it comes again and is known again.

The runs of one source go one after the other: a run's first sample leaves when enough caches hold
the last of the one before. What is held here is bounded by what the consumer hands out unconfirmed.

In a mode without recovery (ADR 0195) each sample goes to each cache once. What enough of them do
not acknowledge in time is lost, until they do after all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import assert_never

import msgspec

from durable_cache.model.clock import Moment
from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import Sample, SourceId, by_run
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.pipe.events import (
    Claim,
    Claimed,
    ClaimFailed,
    Confirm,
    EngineOptions,
    Event,
    GaveUp,
    Output,
    Positioned,
    Taken,
    Withdraw,
)
from durable_cache.protocol.pipe.runs import Cache, Lane, Run, bounded
from durable_cache.protocol.publisher.events import (
    AckReceived,
    CacheAppeared,
    CacheGone,
    HandedOver,
    Resend,
    ResendFailed,
    Resent,
    Tick,
)
from durable_cache.protocol.resends import RefusalReason, in_words
from durable_cache.protocol.wire import Ack

_SECOND_NS = 1_000_000_000
_TOLD_AGAIN_SECONDS = (1, 3, 10)
"""The pauses after which subscribers are told again what was carried last."""
_LOOKED_AT_MAX = 1_000
"""Runs looked at for one that may be forgotten."""


@dataclass(slots=True)
class _Telling:
    """What subscribers of the target network are told of a run."""

    last_sn: int
    times: int = 0
    due_ns: int | None = None


class PipeEngine:
    """One pipe's decisions; not for two threads at once."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self._options = options or EngineOptions()
        self._retry_ns = round(self._options.retry_seconds * _SECOND_NS)
        self._retry_ns_max = round(self._options.retry_seconds_max * _SECOND_NS)
        self._runs: dict[tuple[SourceId, int], Run] = {}
        self._named: dict[tuple[SourceId, str], Run] = {}
        self._queues: dict[SourceId, deque[Run]] = {}
        """The runs of each source in their order; the first is on its way."""
        self._caches: dict[str, Cache] = {}
        self._sent: dict[str, dict[Run, frozenset[int]]] = {}
        """What was sent to caches that are gone, where nothing is sent again."""
        self._telling: dict[Run, _Telling] = {}
        """How far caches hold what was carried lately; who did not hear it is told again."""
        self._ids = count(1)
        self._now_ns = 0
        """The time of the last event that bore one."""
        self.taken = 0
        """Samples that were handed out."""
        self.passed = 0
        """Samples that enough caches hold."""
        self.given_up = 0
        """Samples that a cache will never take."""
        self.repeated = 0
        """Samples that were sent to a cache again: it may have had them already."""
        self.confirmed = 0
        """Samples that were confirmed to the source network, or in a mode that confirms nothing
        there, that enough caches hold; in either case those given up, too."""
        self.lost = 0
        """Samples sent once that too few caches acknowledged; less those that they did later."""
        self.last_failure = ""
        """Why the last frame was not taken, for people; empty since something was."""

    @property
    def open(self) -> int:
        """How many samples too few caches hold."""
        return sum(len(run.open) for run in self._runs.values())

    @property
    def stored(self) -> int:
        """How many samples enough caches hold, and wait for the consumer to process them."""
        return sum(len(run.stored) for run in self._runs.values())

    @property
    def caches(self) -> int:
        return len(self._caches)

    def has_carried(self, source: SourceId, first: int, last: int) -> bool:
        """Tell whether all these numbers of the run that is on its way were handed out."""
        queue = self._queues.get(source)
        return queue is not None and len(queue) > 0 and not queue[0].taken.gaps(first, last)

    def handle(self, event: Event) -> list[Output]:
        """Take an event; return what is to be done, in this order."""
        match event:
            case Taken(samples, now):
                return self._take(samples, now)
            case Claimed():
                return self._claimed(event)
            case ClaimFailed(source, called, now):
                run = self._runs[source, called]
                run.claiming, run.claim_due_ns = False, now.monotonic_ns + self._retry_ns
                return []
            case Positioned(position):
                return self._positioned(position)
            case AckReceived(ack):
                return self._acknowledged(ack)
            case CacheAppeared(cache_id):
                return self._appeared(cache_id)
            case CacheGone(cache_id):
                self._gone(cache_id)
                return []
            case Resent() | ResendFailed():
                return self._answered(event)
            case Tick(now):
                return self._tick(now)
            case _:
                assert_never(event)

    # What is handed out

    def _take(self, samples: tuple[Sample, ...], now: Moment) -> list[Output]:
        self._now_ns = now.monotonic_ns
        outputs: list[Output] = []
        for (source, called), some in by_run(samples).items():
            run = self._runs.get((source, called))
            if run is None:
                run = self._begin(source, called, outputs)
            fresh = some
            if not self._options.sends_again:
                fresh = self._fresh(run, some, outputs)
            if not fresh:
                continue
            queue = self._queues.setdefault(source, deque())
            if run not in queue:
                queue.append(run)
            sns = run.take(fresh)
            self.taken += len(sns)
            if not self._options.sends_again:
                run.waits.append((self._now_ns, tuple(sns)))
                outputs += self._held_already(run, sns)
            if queue[0] is not run:
                self._next_run(run, outputs)
                continue
            if not run.incarnation:
                self._claim(run, outputs)
                continue
            for cache in self._caches.values():
                lane = self._lane(cache, run)
                lane.unsent.extend(sns)
                cache.make_ready(lane)
        return outputs + self._fill(now.monotonic_ns)

    def _fresh(self, run: Run, samples: Iterable[Sample], outputs: list[Output]) -> list[Sample]:
        """Return what was not taken before, or is lost since: caches hold a repeat already."""
        fresh: dict[int, Sample] = {}
        known: list[Sample] = []
        for sample in samples:
            if sample.sn in fresh or run.is_known(sample.sn):
                known.append(sample)
            else:
                fresh[sample.sn] = sample
        again = [sn for sn in fresh if sn in run.lost]
        for sn in again:
            run.lost.remove(sn, sn)
        self.lost -= len(again)
        self.taken -= len(again)
        if known:
            outputs.append(Confirm(tuple(known)))
        return [*fresh.values()]

    def _held_already(self, run: Run, sns: Iterable[int]) -> list[Output]:
        """Go on with what comes late: caches may hold it, from another pipe or an earlier life."""
        enough = self._options.acknowledgements
        return self._pass(run, [run.open.pop(sn) for sn in sns if run.holders(sn) >= enough])

    def _begin(self, source: SourceId, called: int, outputs: list[Output]) -> Run:
        if len(self._runs) >= self._options.runs_max:
            self._forget_one(outputs)
        run = self._runs[source, called] = Run(source, called)
        return run

    def _forget_one(self, outputs: list[Output]) -> None:
        """Forget the run that was met first, of those of which nothing is under way."""
        for _, (key, run) in zip(range(_LOOKED_AT_MAX), self._runs.items(), strict=False):
            if run.idle:
                del self._runs[key]
                queue = self._queues.get(run.source, deque())
                if run in queue:
                    queue.remove(run)
                if not queue:
                    self._queues.pop(run.source, None)  # a later run may have gone before it
                self._withdraw(run, outputs)
                return

    def _withdraw(self, run: Run, outputs: list[Output]) -> None:
        for cache in self._caches.values():
            cache.lanes.pop(run, None)
        if run.incarnation:
            self._named.pop((run.source, run.incarnation), None)
            outputs.append(Withdraw(run.source, run.incarnation))
            run.incarnation = ""

    # Claims

    def _claim(self, run: Run, outputs: list[Output]) -> None:
        if run.claiming or run.incarnation or not run.open:
            return
        run.claiming = True
        outputs.append(Claim(next(iter(run.open.values())), run.attempts))
        run.attempts += 1

    def _claimed(self, event: Claimed) -> list[Output]:
        run = self._runs[event.source, event.called]
        run.claiming, run.epoch, run.incarnation = False, event.epoch, event.incarnation
        run.since_ns = self._now_ns = event.now.monotonic_ns
        outputs: list[Output] = []
        before = self._named.get((run.source, run.incarnation))
        if before is not None and before is not run:  # one run, called by two epochs
            run.held = before.held
        self._named[run.source, run.incarnation] = run
        for earlier in [one for one in self._runs.values() if one.source == run.source]:
            done = earlier is not run and earlier.idle and earlier not in self._queues[run.source]
            if done and earlier.incarnation != run.incarnation:
                self._withdraw(earlier, outputs)
        for cache in self._caches.values():
            self._send_all(cache, run)
        return outputs + self._fill(event.now.monotonic_ns)

    def _is_first(self, run: Run) -> bool:
        queue = self._queues.get(run.source)
        return queue is not None and len(queue) > 0 and queue[0] is run

    def _next_run(self, run: Run, outputs: list[Output]) -> None:
        """Go on with the source's next run where all of one is held."""
        queue = self._queues[run.source]
        while len(queue) > 1 and not queue[0].open:
            queue.popleft().waits.clear()
            queue[0].since_ns = self._now_ns
            self._claim(queue[0], outputs)
            for cache in self._caches.values() if queue[0].incarnation else ():
                self._send_all(cache, queue[0])

    # Frames

    def _lane(self, cache: Cache, run: Run) -> Lane:
        lane = cache.lanes.get(run)
        if lane is None:
            lane = cache.lanes[run] = Lane(run, pause_ns=self._retry_ns)
        return lane

    def _send_all(self, cache: Cache, run: Run, sent: Container[int] = ()) -> None:
        """Send a cache all that it lacks of a run, but for what was sent to it before."""
        lane = self._lane(cache, run)
        held = run.held.get(cache.cache_id, RangeSet())
        lane.unsent = deque(
            sn
            for sn in run.open
            if not (sn in held or sn in lane.refused or sn in lane.frame or sn in sent)
        )
        cache.make_ready(lane)

    def _appeared(self, cache_id: str) -> list[Output]:
        if cache_id not in self._caches and len(self._caches) >= self._options.caches_max:
            return []
        cache = self._caches[cache_id] = Cache(cache_id)
        sent = self._sent.pop(cache_id, {})
        for queue in self._queues.values():
            if queue and queue[0].incarnation:
                self._send_all(cache, queue[0], sent.get(queue[0], frozenset()))
        return self._fill(0)

    def _gone(self, cache_id: str) -> None:
        cache = self._caches.pop(cache_id, None)
        if cache is None or self._options.sends_again:
            return
        self._sent[cache_id] = {run: lane.sent for run, lane in cache.lanes.items() if run.open}
        if len(self._sent) > self._options.caches_max:
            del self._sent[next(iter(self._sent))]

    def _fill(self, now_ns: int) -> list[Output]:
        """Send what is ready, as far as there is room."""
        outputs: list[Output] = []
        for cache in self._caches.values():
            while cache.ready and len(cache.under_way) < self._options.frames_max:
                lane = cache.ready.popleft()
                lane.is_ready = False
                if lane.frame or lane.due_ns > now_ns > 0:
                    continue  # ready again with its answer, or when it is due
                samples = self._frame(cache, lane)
                if samples:
                    outputs.append(self._send(cache, lane, samples, now_ns))
        return outputs

    def _frame(self, cache: Cache, lane: Lane) -> tuple[Sample, ...]:
        run, unsent = lane.run, lane.unsent
        held = run.held.get(cache.cache_id, RangeSet())
        held_to = -1 if held.last is None else held.last
        samples: list[Sample] = []
        left, count_max = self._options.frame_bytes_max, self._options.frame_samples_max
        while unsent and len(samples) < count_max:
            sn = unsent[0]
            sample = run.open.get(sn)
            if sample is not None and (sn > held_to or sn not in held):
                left -= sample.size
                if samples and left < 0:
                    break
                is_sent_so = sample.epoch == run.epoch and type(sample) is Sample
                samples.append(sample if is_sent_so else _as_sent(sample, run.epoch))
            unsent.popleft()
        return tuple(samples)

    def _send(self, cache: Cache, lane: Lane, samples: tuple[Sample, ...], now_ns: int) -> Resend:
        run, resend_id = lane.run, next(self._ids)
        lane.frame = tuple([sample.sn for sample in samples])
        sent_to = run.sent_to.pop(cache.cache_id, -1)
        if lane.frame[0] <= sent_to and self._options.sends_again:
            self.repeated += sum(sn <= sent_to for sn in lane.frame)
        run.sent_to[cache.cache_id] = max(sent_to, lane.frame[-1])
        if len(run.sent_to) > self._options.caches_max:
            del run.sent_to[next(iter(run.sent_to))]
        lane.asked_ns = max(lane.asked_ns, now_ns)
        cache.under_way[resend_id] = lane
        return Resend(resend_id, cache.cache_id, run.source, run.epoch, run.incarnation, samples)

    def _answered(self, event: Resent | ResendFailed) -> list[Output]:
        now_ns = event.now.monotonic_ns
        for cache in self._caches.values():
            lane = cache.under_way.pop(event.resend_id, None)
            if lane is None:
                continue
            frame, lane.frame, lane.asked_ns = lane.frame, (), now_ns
            outputs: list[Output] = []
            if isinstance(event, ResendFailed):
                self.last_failure = f"cache {cache.cache_id}: {event.reason}"
                self._again(lane, frame, now_ns)
            else:
                outputs = self._refused(cache, lane, frame, event)
            cache.make_ready(lane)
            return outputs + self._fill(now_ns)
        return []

    def _again(self, lane: Lane, sns: Iterable[int], now_ns: int) -> None:
        if not self._options.sends_again:
            return
        lane.put_back(sns)
        lane.due_ns = now_ns + lane.pause_ns
        lane.pause_ns = min(2 * lane.pause_ns, self._retry_ns_max)

    def _refused(
        self, cache: Cache, lane: Lane, frame: tuple[int, ...], event: Resent
    ) -> list[Output]:
        """Take what a cache says of the numbers that it does not store now, or never will."""
        outputs: list[Output] = []
        later: list[int] = []
        gone: list[int] = []
        for first, last, reason in event.refused:
            sns = [sn for sn in frame if first <= sn <= last and sn in lane.run.open]
            if not sns:
                continue
            match reason:
                case RefusalReason.REMOVED:
                    gone += sns  # it was there, and retention or a purge has been at it since
                case RefusalReason.CONFLICT | RefusalReason.EPOCH_TAKEN:
                    outputs += self._give_up(cache, lane.run, sns, reason)
                case RefusalReason.NOT_STORED | RefusalReason.TOO_LARGE:
                    stores = reason == RefusalReason.NOT_STORED
                    why = "does not store their key" if stores else "takes nothing so large"
                    self._failed(cache, sns, why)
                    for sn in sns:
                        lane.refused.add(sn, sn)
                case _:
                    self._failed(cache, sns, f"refused them for now: {in_words(reason)}")
                    later += sns
        if gone:
            outputs += self._hold(lane.run, cache.cache_id, RangeSet.of(gone))
        if later:
            self._again(lane, later, event.now.monotonic_ns)
        return outputs

    def _failed(self, cache: Cache, sns: list[int], reason: str) -> None:
        self.last_failure = f"cache {cache.cache_id}: numbers {sns[0]}..{sns[-1]}: {reason}"

    def _give_up(self, cache: Cache, run: Run, sns: list[int], reason: int) -> list[Output]:
        samples = [run.open.pop(sn) for sn in sns]
        self.given_up += len(samples)
        outputs: list[Output] = [GaveUp(one, cache.cache_id, reason) for one in samples]
        outputs.append(self._confirm(samples))
        self._next_run(run, outputs)
        return outputs

    # Acknowledgements

    def _acknowledged(self, ack: Ack) -> list[Output]:
        run = self._named.get((ack.source, ack.incarnation))
        if run is None:
            return []
        if ack.level < self._options.level:
            self.last_failure = (
                f"cache {ack.cache_id} acknowledges at level {ack.level}, below the one wanted"
            )
            return []
        runs = RangeSet()
        for first, last in ack.runs:
            runs.add(first, min(last, run.taken_to))  # of what follows an ack will come then
        cache = self._caches.get(ack.cache_id)
        if cache is not None and (lane := cache.lanes.get(run)) is not None:
            lane.pause_ns, lane.has_moved = self._retry_ns, True
        return self._hold(run, ack.cache_id, runs)

    def _hold(self, run: Run, cache_id: str, runs: RangeSet) -> list[Output]:
        """Know that a cache holds numbers; go on with what enough of them hold."""
        held = run.held.setdefault(cache_id, RangeSet())
        run.held.move_to_end(cache_id)
        if len(run.held) > self._options.caches_max:
            run.held.popitem(last=False)
        new = [found for first, last in runs for found in held.gaps(first, last)]
        held.update(runs)
        enough = self._options.acknowledgements
        if not self._options.sends_again:
            self._find(run, new)
            run.held[cache_id] = bounded(held)  # the holes in it are as many as samples were lost
        settled = [
            run.open.pop(sn)
            for sn in _within(new, run.open)
            if enough == 1 or run.holders(sn) >= enough
        ]
        return self._pass(run, settled)

    def _pass(self, run: Run, settled: list[Sample]) -> list[Output]:
        """Know that enough caches hold samples."""
        if not settled:
            return []
        self.passed += len(settled)
        self.last_failure = ""
        told = self._telling[run] = _Telling(max([sample.sn for sample in settled]))
        outputs: list[Output] = [HandedOver(run.source, told.last_sn)]
        outputs += self._settle(run, settled)
        self._next_run(run, outputs)
        return outputs

    def _find(self, run: Run, runs: Iterable[tuple[int, int]]) -> None:
        """Count what is acknowledged after it was lost."""
        found = run.find(runs, self._options.acknowledgements)
        self.lost -= found
        self.passed += found
        self.confirmed += found

    def _settle(self, run: Run, settled: list[Sample]) -> Iterator[Output]:
        if self._options.processed:
            run.stored.update((sample.sn, sample) for sample in settled)
            yield from self._processed(run)
        else:
            yield self._confirm(settled)

    def _positioned(self, position: Position) -> list[Output]:
        run = self._named.get((position.source, position.incarnation))
        if run is None:
            return []
        run.position = position
        return list(self._processed(run))

    def _processed(self, run: Run) -> Iterator[Output]:
        done = [sn for sn in run.stored if run.is_processed(sn)]
        if done:
            yield self._confirm([run.stored.pop(sn) for sn in done])

    def _confirm(self, samples: list[Sample]) -> Confirm:
        self.confirmed += len(samples)
        return Confirm(tuple(samples))

    # Time

    def _tick(self, now: Moment) -> list[Output]:
        now_ns = self._now_ns = now.monotonic_ns
        outputs: list[Output] = []
        if not self._options.sends_again:
            self._lose(now_ns - self._retry_ns, outputs)
        for queue in self._queues.values():
            if queue and queue[0].claim_due_ns <= now_ns:
                self._claim(queue[0], outputs)
        for cache in self._caches.values():
            for lane in [lane for lane in cache.lanes.values() if not lane.frame]:
                if lane.unsent:
                    if lane.due_ns <= now_ns:
                        cache.make_ready(lane)
                elif not self._may_lack(lane):
                    lane.asked_ns, lane.has_moved = now_ns, False
                elif now_ns - lane.asked_ns >= lane.pause_ns:
                    self._send_all(cache, lane.run)
                    lane.asked_ns = now_ns
                    lane.pause_ns = min(2 * lane.pause_ns, self._retry_ns_max)
        return [*outputs, *self._tell_again(now_ns), *self._fill(now_ns)]

    def _may_lack(self, lane: Lane) -> bool:
        """Tell whether a cache that has nothing under way is to be sent again what is open."""
        may = lane.run.open and not lane.has_moved and self._options.sends_again
        return bool(may) and self._is_first(lane.run)

    def _lose(self, before_ns: int, outputs: list[Output]) -> None:
        """Give up what was sent before a time and is not acknowledged."""
        for queue in self._queues.values():
            run = queue[0] if queue else None
            if run is None or not run.incarnation or run.since_ns > before_ns:
                continue
            gone = run.lose(before_ns)
            if gone:
                self.lost += len(gone)
                outputs.append(Confirm(tuple(gone)))
                self._next_run(run, outputs)

    def _tell_again(self, now_ns: int) -> Iterator[Output]:
        """Say a few times more what was carried last: a subscriber may have read history then."""
        for run, told in [*self._telling.items()]:
            if told.due_ns is not None and told.due_ns <= now_ns:
                if self._is_first(run):
                    yield HandedOver(run.source, told.last_sn)
                told.times += 1
                told.due_ns = None
            if told.times == len(_TOLD_AGAIN_SECONDS) or not run.incarnation:
                del self._telling[run]
            elif told.due_ns is None:
                told.due_ns = now_ns + _TOLD_AGAIN_SECONDS[told.times] * _SECOND_NS


def _as_sent(sample: Sample, epoch: int) -> Sample:
    """Return a sample as it goes out: by its run's epoch, without what a subscriber said of it."""
    if type(sample) is Sample:
        return msgspec.structs.replace(sample, epoch=epoch)
    fields = {name: getattr(sample, name) for name in Sample.__struct_fields__}
    return Sample(**{**fields, "epoch": epoch})


def _within(runs: Iterable[tuple[int, int]], opened: dict[int, Sample]) -> Iterator[int]:
    """Yield which numbers of runs are open, whichever of the two is shorter to walk through."""
    for first, last in runs:
        if last - first < len(opened):
            yield from [sn for sn in range(first, last + 1) if sn in opened]
        else:
            yield from [sn for sn in opened if first <= sn <= last]
