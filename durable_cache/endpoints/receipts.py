"""What a publisher knows of its samples: which caches have each, at which level."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Condition
from types import MappingProxyType

from durable_cache.errors import LocalProtocolError
from durable_cache.model.ranges import RangeSet
from durable_cache.protocol.wire import Ack
from durable_cache.storage.contract import Durability

_NO_CACHES: Mapping[str, Durability] = MappingProxyType({})

__all__ = ["Receipt", "Receipts"]


class Receipt:
    """What became of one `put` or `delete`; any thread may wait on it.

    No answer means *unknown*, never *not stored*.
    """

    __slots__ = ("_callbacks", "_owner", "caches", "sn")

    def __init__(self, owner: Receipts, sn: int) -> None:
        self._owner = owner
        self._callbacks: tuple[Callable[[Receipt], None], ...] = ()
        self.sn = sn
        self.caches: Mapping[str, Durability] = _NO_CACHES
        """The caches known to hold the sample, by cache_id, with the level each named."""

    @property
    def done(self) -> bool:
        """Whether as many caches as were wanted hold the sample at the wanted level."""
        return self._owner.is_enough(self.caches)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until `done`; False when the time is over and the outcome is unknown."""
        with self._owner.changed:
            return self._owner.changed.wait_for(lambda: self.done, timeout_seconds)

    def on_done(self, callback: Callable[[Receipt], None]) -> None:
        """Call `callback(receipt)` once when done, at once if it is; on Zenoh's thread."""
        with self._owner.changed:
            if not self.done:
                self._callbacks = (*self._callbacks, callback)
                return
        callback(self)

    def take_callbacks(self) -> tuple[Callable[[Receipt], None], ...]:
        """Return the callbacks and forget them."""
        callbacks, self._callbacks = self._callbacks, ()
        return callbacks


class Receipts:
    """The receipts of one publisher that are not done; the oldest are forgotten at `bound`."""

    def __init__(self, wanted: int, level: Durability, bound: int) -> None:
        self.wanted = wanted
        self.level = level
        self.changed = Condition()
        self._bound = bound
        self._open: OrderedDict[int, Receipt] = OrderedDict()
        self._seen: dict[str, RangeSet] = {}
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, sn: int) -> Receipt:
        """Begin to wait for the acknowledgements of `sn`."""
        receipt = Receipt(self, sn)
        with self.changed:
            if self._open.setdefault(sn, receipt) is not receipt:
                raise LocalProtocolError(f"sn {sn} is waited for already")
            if len(self._open) > self._bound:
                self._open.popitem(last=False)
                self.forgotten += 1
        return receipt

    def take(self, ack: Ack) -> None:
        """Take an acknowledgement; its runs are unbroken, so only what is new in them counts."""
        level = Durability(min(max(ack.level, 0), int(Durability.DISK)))
        finished: list[Receipt] = []
        with self.changed:
            seen = self._seen.setdefault(ack.cache_id, RangeSet())
            for first, last in ack.runs:
                for low, high in seen.gaps(first, last):
                    finished += self._reach(ack.cache_id, level, low, high)
                seen.add(first, last)
            if finished:
                self.changed.notify_all()
        for receipt in finished:
            for callback in receipt.take_callbacks():
                callback(receipt)

    def _reach(self, cache_id: str, level: Durability, first: int, last: int) -> list[Receipt]:
        oldest = next(iter(self._open), last + 1)
        newest = next(reversed(self._open), first - 1)
        finished = []
        first_answer = {cache_id: level}  # shared: what a receipt knows is never changed in place
        enough = self.is_enough(first_answer)
        for sn in range(max(first, oldest), min(last, newest) + 1):
            receipt = self._open.get(sn)
            if receipt is None:
                continue
            if receipt.caches:
                receipt.caches = {**receipt.caches, **first_answer}
                done = self.is_enough(receipt.caches)
            else:
                receipt.caches = first_answer
                done = enough
            if done:
                del self._open[sn]
                finished.append(receipt)
        return finished

    def is_enough(self, caches: Mapping[str, Durability]) -> bool:
        """Tell whether these caches are as many as wanted, at the level wanted."""
        return sum([level >= self.level for level in caches.values()]) >= self.wanted
