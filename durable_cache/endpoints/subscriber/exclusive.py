"""A durable consumer that processes a source at one place alone, in a network that is cut, too.

As a member that shares (ADR 0156), with a majority of the caches to decide who has a source (ADR
0196). Nothing of a source is handed out unless a majority took something of this member's in that
source a moment ago, a claim or a position. While no majority is in reach, delivery stands still
between two samples. Where another member claimed a source, everything is given up and begun anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from durable_cache.endpoints.session import ZError
from durable_cache.endpoints.subscriber.claiming import Claiming
from durable_cache.endpoints.subscriber.sharing import SharingConsumer
from durable_cache.endpoints.subscriber.subscriber import Miss
from durable_cache.errors import DurableCacheError, Fenced, NoMajority, OutcomeUnknown
from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.consumers import Position
from durable_cache.protocol.majority import LEASE_SECONDS

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.05
"""How often delivery that stands still looks around."""
_RETRY_SECONDS = 0.5
"""The pause after sources could not be claimed."""


class ExclusiveConsumer(SharingConsumer):
    """One member of an exclusive consumer; as a SharingConsumer, where a majority is in reach."""

    stopped: NoMajority | None = None
    """Why nothing is handed out now; None where a majority of the caches is in reach."""
    _unheard = False
    """Caches are in reach and acknowledge nothing."""

    @property
    def _claiming(self) -> Claiming:
        claiming = self._keeping.claiming
        if claiming is None:
            raise AssertionError("who is exclusive has claims")
        return claiming

    def flush(self, timeout_seconds: float | None = None) -> None:
        """As `ReliableConsumer.flush`; NoMajority where the time is over and none is in reach."""
        try:
            super().flush(timeout_seconds)
        except OutcomeUnknown as error:
            if self.stopped is not None:
                raise NoMajority(str(self.stopped)) from error
            raise

    # The thread that delivers

    def _between(self) -> None:
        super()._between()
        while not self._look_for_majority() and not self._halts:
            with self._changed:
                self._changed.wait_for(lambda: self._halts, _LOOK_SECONDS)
            super()._between()

    def _look_for_majority(self) -> bool:
        missing = self._claiming.reach.look()
        if missing is not None:
            self._stop(missing)
        elif not self._unheard:
            self._go_on()
        return missing is None

    def _go_on(self) -> None:
        if self.stopped is not None:
            _log.warning("consumer %r goes on: its caches are back", self.consumer)
        self.stopped, self._unheard = None, False

    def _stop(self, missing: NoMajority) -> None:
        if self.stopped is None:
            _log.error("%s", missing)
        self.stopped = missing

    def _lapse(self) -> None:
        self._claiming.lapse()
        super()._lapse()
        self._takeovers.forget(self._membership.sharing)  # claims decide what was confirmed

    def _take_over(self) -> None:
        if not self._membership.sharing.contenders and self._claiming.is_writing:
            return  # positions of before we gave up: they are on their way, or end soon
        super()._take_over()

    def _read_anew(self) -> tuple[list[Position], int]:
        """Claim what is gained, wait for who had it, then read where it stands."""
        read = self._keeping.read_now(self._query_seconds)
        fence, claimed = 1 + self._keeping.fence_read, set[SourceId]()
        while gained := {one.source for one in read if self._is_gained(one.source)} - claimed:
            claimed |= gained
            if not self._keeping.claim(claimed, fence, self._for_a_while()):
                raise OutcomeUnknown("no majority of the caches acknowledges claims")
            read = self._keeping.read_claimed(claimed, self._query_seconds, self._wait_for_lease)
        return read, fence

    def _wait_for_lease(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ending, LEASE_SECONDS)

    def _compare(self) -> None:
        """Report nothing as processed twice: who was out of reach processed nothing meanwhile."""
        self._takeovers.forget(self._membership.sharing)

    # What is handed out

    def _deliver(self, samples: Sequence[Sample]) -> None:
        self._have({sample.source for sample in samples})
        super()._deliver(samples)

    def _admits(self, sample: Sample) -> bool:
        return self._have((sample.source,))

    def _hand_out(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self._await_room()
            if self._have((sample.source,)):
                super()._hand_out((sample,))

    def _report(self, miss: Miss) -> None:
        if self._have((miss.source,)):
            super()._report(miss)

    def _have(self, sources: Iterable[SourceId]) -> bool:
        """See that a majority takes what this member writes; False where that is not to be."""
        told = False
        while not self._halts:
            owned = [source for source in sources if self.owns(source)]
            due = [source for source in owned if not self._claiming.has(source)]
            if not due:
                return bool(owned)
            try:
                if self._claim(due):
                    self._go_on()
                else:
                    told = self._say_unheld(told=told)
            except Fenced:
                self._lapse()
            except (DurableCacheError, ZError) as error:
                told = self._put_off_claims(str(error), told=told)
            self._between()
        return False

    def _claim(self, due: Sequence[SourceId]) -> bool:
        """Claim sources; of those that are met for the first time, see that nobody had them.

        Who claimed one before, and confirmed nothing of it yet, may go on for a lease.
        """
        with self._lock:
            fence = max(1, self._positions.fence)
        met = [source for source in due if source not in self._claiming]
        may_wait, by_fence = self._for_a_while(), self._claiming.by_fence(due, fence)
        if not all(self._keeping.claim(each, under, may_wait) for under, each in by_fence.items()):
            return False
        try:
            stands = [one for each in met for one in self._stands(each)]
        except BaseException:
            self._claiming.forget(met)
            raise
        if stands:
            self._lapse()  # somebody processed it, and where that stands is read as of any other
        return True

    def _stands(self, source: SourceId) -> list[Position]:
        return self._keeping.read_claimed(
            (source,), self._query_seconds, self._wait_where_contested, alone=source
        )

    def _wait_where_contested(self) -> None:
        if self._claiming.contested:
            self._wait_for_lease()

    def _say_unheld(self, *, told: bool) -> bool:
        missing = NoMajority(
            f"consumer {self.consumer!r} stops: no majority of its caches acknowledges its claims; "
            "it goes on once one does"
        )
        if not told:
            self._unheard = True
            self._stop(missing)
        return True

    def _put_off_claims(self, reason: str, *, told: bool) -> bool:
        if not told:
            about = {"consumer": self.consumer, "reason": reason}
            _log.warning("sources wait to be claimed; tried again", extra=about)
        with self._changed:
            self._changed.wait_for(lambda: self._halts, _RETRY_SECONDS)
        return True
