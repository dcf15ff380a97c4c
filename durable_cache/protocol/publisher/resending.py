"""To which cache a publisher sends what once more, and when.

Each cache in reach is served by itself: the oldest samples that it did not acknowledge, one frame
at a time. A cache that acknowledges gets the next frame at once; one that does not gets the same
again after a pause that doubles. Plain subscribers see nothing of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import count

from durable_cache.model.clock import Moment
from durable_cache.model.sample import Sample
from durable_cache.protocol.publisher.events import (
    EngineOptions,
    Resend,
    ResendFailed,
    Resent,
    Send,
)
from durable_cache.protocol.publisher.numbering import Numbering, Waiting
from durable_cache.protocol.resends import FOR_GOOD, RESEND_BYTES_MAX, RefusalReason, in_words

_SECOND_NS = 1_000_000_000
_HURRIED_NS = 50_000_000
"""So long an acknowledgement may be on its way though somebody waits for it (ADR 0331)."""
_SAMPLE_BYTES_MAX = RESEND_BYTES_MAX - 65_536
"""Of one sample in a frame; its key takes 32 KiB at most."""


class _Cache:
    """One cache in reach."""

    __slots__ = ("due_ns", "oldest", "pause_ns", "under_way")

    def __init__(self) -> None:
        self.due_ns = 0
        self.pause_ns = 0
        self.under_way: tuple[int, Numbering] | None = None
        """The resend that is not answered yet, and of which numbering its samples are."""
        self.oldest: tuple[Numbering, int] | None = None
        """The first sample of the last resend."""


class Resending:
    """The caches in reach, at most `acknowledgers_max`; what they lack is read from numberings."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._delay_ns = round(options.resend_delay_seconds * _SECOND_NS)
        self._moment_ns = min(_HURRIED_NS, self._delay_ns)
        self._pause_ns_max = round(options.resend_seconds_max * _SECOND_NS)
        self._caches: OrderedDict[str, _Cache] = OrderedDict()
        self._ids = count(1)
        self._hurry_ns = 0
        """What was put before is sent once more without the usual delay."""
        self.last_failure = ""
        """Why the last resend was not taken, for people."""

    def __len__(self) -> int:
        return len(self._caches)

    def appeared(self, cache_id: str) -> None:
        """Serve a cache from now on; one that came anew is served at once."""
        self._caches[cache_id] = _Cache()
        if len(self._caches) > self._options.acknowledgers_max:
            self._caches.popitem(last=False)

    def gone(self, cache_id: str) -> None:
        self._caches.pop(cache_id, None)

    def acknowledged(self, cache_id: str) -> None:
        """A cache said what it holds: is it what it was sent, it gets the next at once."""
        cache = self._caches.get(cache_id)
        if cache is None or cache.oldest is None:
            return
        numbering, sn = cache.oldest
        if numbering.has(cache_id, sn):
            cache.oldest, cache.due_ns, cache.pause_ns = None, 0, 0

    def hurry(self, now_ns: int) -> None:
        """Serve every cache soon, with what was put until now and is not acknowledged by then."""
        self._hurry_ns = now_ns
        for cache in self._caches.values():
            cache.due_ns = cache.pause_ns = 0

    def answered(self, event: Resent | ResendFailed) -> None:
        """A resend is over; what was not taken for good is not sent to that cache again."""
        for cache_id, cache in self._caches.items():
            if cache.under_way is None or cache.under_way[0] != event.resend_id:
                continue
            numbering = cache.under_way[1]
            cache.under_way = None
            if isinstance(event, ResendFailed):
                self.last_failure = f"cache {cache_id}: {event.reason}"
                return
            for first, last, reason in event.refused:
                if reason in FOR_GOOD:
                    numbering.refuse(cache_id, first, last, reason)
                self.last_failure = f"cache {cache_id}: refused {first}..{last}: {in_words(reason)}"
            return

    def wake_ns(self, oldest: Waiting | None) -> int | None:
        """Return when something may be sent once more, given what waits for longest."""
        due = [cache.due_ns for cache in self._caches.values() if cache.under_way is None]
        if oldest is None or not due:
            return None
        delay_ns = self._moment_ns if oldest.since_ns <= self._hurry_ns else self._delay_ns
        return max(oldest.since_ns + delay_ns, min(due))

    def due(
        self, numberings: Iterable[Numbering], sending: Send | None, now: Moment
    ) -> list[Resend]:
        """Return what is to be sent once more now; not what is being sent for the first time."""
        now_ns = now.monotonic_ns
        hurried_ns = min(self._hurry_ns, now_ns - self._moment_ns)
        before_ns = max(now_ns - self._delay_ns, hurried_ns)
        resends = []
        for cache_id, cache in self._caches.items():
            if cache.under_way is not None or cache.due_ns > now_ns:
                continue
            cache.pause_ns = min(max(self._delay_ns, 2 * cache.pause_ns), self._pause_ns_max)
            cache.due_ns = now_ns + cache.pause_ns
            for numbering in numberings:
                lacking = numbering.lacking(cache_id, before_ns)
                if lacking and lacking[-1].send is sending:
                    lacking.pop()
                resend = self._resend(cache_id, cache, numbering, lacking)
                if resend is not None:
                    resends.append(resend)
                    break
            else:
                cache.pause_ns = 0
                if hurried_ns < self._hurry_ns:  # some of it may be on its way still
                    cache.due_ns = now_ns + self._moment_ns
        return resends

    def _resend(
        self, cache_id: str, cache: _Cache, numbering: Numbering, lacking: list[Waiting]
    ) -> Resend | None:
        """Return the oldest samples as one frame; None where there are none that one can hold."""
        samples: list[Sample] = []
        left = self._options.resend_bytes_max
        for waiting in lacking[: self._options.resend_samples_max]:
            if waiting.size > _SAMPLE_BYTES_MAX:  # no cache would read it, nor what is behind it
                self._refused(cache_id, numbering, waiting.send.sn)
                continue
            left -= waiting.size
            if samples and left < 0:
                break
            samples.append(waiting.send.sample)
        if not samples:
            return None
        resend_id = next(self._ids)
        cache.under_way = (resend_id, numbering)
        cache.oldest = (numbering, samples[0].sn)
        numbering.may_be_unheard(samples[0].sn, samples[-1].sn)
        return Resend(
            resend_id,
            cache_id,
            numbering.source,
            numbering.epoch,
            numbering.incarnation,
            tuple(samples),
        )

    def _refused(self, cache_id: str, numbering: Numbering, sn: int) -> None:
        numbering.refuse(cache_id, sn, sn, RefusalReason.TOO_LARGE)
        words = in_words(RefusalReason.TOO_LARGE)
        self.last_failure = f"cache {cache_id}: refused {sn}..{sn}: {words}"
