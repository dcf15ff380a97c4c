"""What a program is told of its puts: which caches have each, at which level."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from threading import Condition
from typing import Any, Protocol

import msgspec

from durable_cache.endpoints.waking import Waiters, wait_for
from durable_cache.errors import OutcomeUnknown
from durable_cache.model.arguments import check_callable, read_timeout
from durable_cache.protocol.publisher.events import Standing
from durable_cache.protocol.resends import RefusalReason
from durable_cache.storage.contract import Durability


class ReceiptOwner(Protocol):
    """The publisher as its receipts know it."""

    changed: Condition
    """Notified when something is acknowledged and when the publisher is closed."""
    closed: bool
    waiters: Waiters[Standing]
    """Tasks that wait for a sample's outcome; woken when there is one, and by the end."""

    def call_when_done(self, receipt: Receipt, callback: Callable[[Receipt], object]) -> None:
        """Call `callback(receipt)` once, on the publisher's thread."""


class Receipt(msgspec.Struct, eq=False, gc=False):
    """What became of one `put` or `delete`; any thread may wait on it.

    No answer means *unknown*, never *not stored*.
    """

    _owner: ReceiptOwner
    _standing: Standing

    def __repr__(self) -> str:
        return f"Receipt(sn={self.sn}, done={self.done}, caches={dict(self.caches)!r})"

    @property
    def sn(self) -> int:
        """The sample's number."""
        return self._standing.sn

    @property
    def incarnation(self) -> str:
        """Which numbering of the publisher the number belongs to."""
        return self._standing.incarnation

    @property
    def caches(self) -> Mapping[str, Durability]:
        """The caches known to hold the sample, by cache_id, with the level each named."""
        return {
            cache_id: Durability(min(max(level, 0), int(Durability.DISK)))
            for cache_id, level in self._standing.caches.items()
        }

    @property
    def refused(self) -> Mapping[str, RefusalReason]:
        """The caches that will never take the sample, by cache_id, with the reason of each."""
        return {
            cache_id: RefusalReason(reason) for cache_id, reason in self._standing.refused.items()
        }

    @property
    def done(self) -> bool:
        """Whether as many caches as were wanted hold the sample at the wanted level."""
        return self._standing.done

    @property
    def unknown(self) -> bool:
        """Whether `unacknowledged_seconds_max` is over: nothing more is done for the sample.

        It may be stored all the same.
        """
        return self._standing.unknown

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until `done`; False when the time is over, or the publisher was closed before.

        The outcome is unknown then.
        """
        timeout_seconds = read_timeout(timeout_seconds)
        standing, owner = self._standing, self._owner
        if standing.done:
            return True
        with owner.changed:
            owner.changed.wait_for(
                lambda: standing.done or standing.unknown or owner.closed, timeout_seconds
            )
        return standing.done

    def result(self, timeout_seconds: float | None = None) -> Mapping[str, Durability]:
        """Wait until `done` and return `caches`.

        Raises OutcomeUnknown when the time is over, or the publisher was closed before: the sample
        may be stored, and is still sent once more unless `unknown`.
        """
        if self.wait(timeout_seconds):
            return self.caches
        raise self._not_known()

    def __await__(self) -> Generator[Any, None, Mapping[str, Durability]]:
        """Wait as `result` does, without holding the event loop up; may be cancelled."""
        return self._outcome().__await__()

    async def _outcome(self) -> Mapping[str, Durability]:
        standing, owner = self._standing, self._owner

        def ended() -> bool | None:
            return standing.done or standing.unknown or owner.closed or None

        await wait_for(ended, standing, owner.waiters, owner.changed)
        if standing.done:
            return self.caches
        raise self._not_known()

    def _not_known(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"sample {self.sn}: {len(self.caches)} caches acknowledged it, fewer than were wanted; "
            "whether others store it is unknown"
        )

    def on_done(self, callback: Callable[[Receipt], object]) -> None:
        """Call `callback(receipt)` once when done or `unknown`, on the publisher's own thread.

        What it raises is logged and counted. A put in it that finds no room raises at once: the
        room is made on the same thread.
        """
        check_callable("callback", callback)
        self._owner.call_when_done(self, callback)
