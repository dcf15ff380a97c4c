"""Which runs other caches pull again and again: they do not keep them by the name given with them.

Two caches that heard different parts of a foreign publisher's run name it each for itself. Who has
taken one name for the other pulls what the other calls by the name that lost, has it, and pulls it
again at the next comparison (ADR 0355).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from durable_cache.model.ranges import RangeSet
from durable_cache.model.sample import SourceId, Stream
from durable_cache.model.sequence import EPOCH_UNKNOWN
from durable_cache.model.unnumbered import is_unnumbered

_AGAIN_SECONDS = 10.0
"""What was given is stored within that, or waits for a name and is pulled again later."""
_REMEMBERED_SECONDS = 900.0
"""Caches that differ compare within a few minutes."""
_REMEMBERED_MAX = 4096
_RUNS_MAX = 16
"""So many streams of a pull are told of; others are when they are pulled once more."""


class PulledStreams:
    """The last number that was pulled of each stream, and when; owned by one thread at a time."""

    def __init__(self) -> None:
        self._pulled: OrderedDict[tuple[Stream, int], float] = OrderedDict()

    def again(
        self, wanted: Iterable[tuple[Stream, RangeSet]], now_seconds: float
    ) -> list[tuple[SourceId, int]]:
        """Note a pull; return the runs of which a number was pulled before, and long enough ago.

        Those that were told of longest ago come first: none waits for ever behind `_RUNS_MAX`.
        """
        again: list[tuple[float, tuple[Stream, int]]] = []
        for stream, runs in wanted:
            if stream.epoch == EPOCH_UNKNOWN or is_unnumbered(stream.source):
                continue
            number = stream, runs.last or 0
            before = self._pulled.get(number)
            if before is None or now_seconds >= before + _REMEMBERED_SECONDS:
                self._note(number, now_seconds)
            elif now_seconds >= before + _AGAIN_SECONDS:
                again.append((before, number))
        told = [number for _, number in sorted(again, key=lambda one: one[0])[:_RUNS_MAX]]
        for number in told:
            self._note(number, now_seconds)
        return [*dict.fromkeys((stream.source, stream.epoch) for stream, _ in told)]

    def _note(self, number: tuple[Stream, int], now_seconds: float) -> None:
        self._pulled[number] = now_seconds
        self._pulled.move_to_end(number)
        if len(self._pulled) > _REMEMBERED_MAX:
            self._pulled.popitem(last=False)
