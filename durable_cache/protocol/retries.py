"""Retries with confirmation and timeout: what at-least-once hands over again (ADR 0192).

Pure: its owner hands samples over, says which were confirmed, and asks at `wake_ns` what is due.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from durable_cache.model.sample import Identity, Sample
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.modes import Mode

_SECOND_NS = 1_000_000_000


class Due(NamedTuple):
    """What nobody confirmed in time."""

    again: Sequence[Sample]
    """To be handed over again, now."""
    given_up: Sequence[Sample]
    """Handed over once and `retries` times more: to be reported."""


class _HandedOver(NamedTuple):
    sample: Sample
    times: int
    due_ns: int


class Retries:
    """What was handed over and is not confirmed, at most `unconfirmed_max`; has one owner."""

    def __init__(self, mode: Mode) -> None:
        self._times_max = mode.retries + 1
        self._unconfirmed_max = mode.unconfirmed_max
        self._timeout_ns = round(mode.confirm_timeout_seconds * _SECOND_NS)
        self._waiting: OrderedDict[Identity, _HandedOver] = OrderedDict()
        """In the order in which they are due: each waits as long as the others."""

    @property
    def unconfirmed(self) -> int:
        """How many samples wait for their confirmation."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more may be handed over."""
        return max(0, self._unconfirmed_max - len(self._waiting))

    def hand_over(self, samples: Iterable[Sample], now_ns: int) -> None:
        """Wait for the confirmations of samples; of those without a number none is awaited."""
        for sample in samples:
            if not is_unnumbered(sample.source):
                waits = _HandedOver(sample, 1, now_ns + self._timeout_ns)
                self._waiting[sample.identity] = waits
                self._waiting.move_to_end(sample.identity)

    def confirm(self, sample: Sample) -> bool:
        """Wait for a sample no more; False where none is awaited, as after a confirmation."""
        return self._waiting.pop(sample.identity, None) is not None

    def due(self, now_ns: int) -> Due:
        """Return what is due; what is handed over again waits anew."""
        again: list[Sample] = []
        given_up: list[Sample] = []
        while self._waiting:
            identity, (sample, times, due_ns) = next(iter(self._waiting.items()))
            if due_ns > now_ns:
                break
            del self._waiting[identity]
            if times >= self._times_max:
                given_up.append(sample)
            else:
                waits = _HandedOver(sample, times + 1, now_ns + self._timeout_ns)
                self._waiting[identity] = waits
                again.append(sample)
        return Due(again, given_up)

    def wake_ns(self) -> int | None:
        """Return the monotonic time at which the first is due, or None."""
        return next((one.due_ns for one in self._waiting.values()), None)
