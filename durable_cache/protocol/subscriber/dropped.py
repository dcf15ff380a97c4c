"""What found no room: of each source what shows the most, in order with what tokens did (ADR 0398).

The highest number of a source shows what is missing. Where a lower one came behind it, that is
late, or its publisher began anew: it is kept, too, so at most two of each source are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from durable_cache.model.sample import Sample, SourceId

_TokenT = TypeVar("_TokenT")
TOKENS_MAX = 16_384
"""Changes of tokens that are kept behind samples: the newest, as where nobody takes them."""


class Dropped(Generic[_TokenT]):
    """Batches that found no room; owned by whoever may not be interrupted."""

    def __init__(self) -> None:
        self._batches: deque[tuple[list[_TokenT], list[Sample]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, tokens: Sequence[_TokenT], samples: Sequence[Sample]) -> None:
        """Keep what shows the most of some samples, behind what tokens did before they came."""
        new: dict[SourceId, list[Sample]] = {}
        for sample in samples:
            _keep(new.setdefault(sample.source, []), sample)
        highest: set[SourceId] = set()
        batches: deque[tuple[list[_TokenT], list[Sample]]] = deque()
        told: list[_TokenT] = []
        for before, kept in self._batches:
            told += before
            left = [sample for sample in kept if _still_shows(sample, new, highest)]
            if left:
                batches.append((told, left))
                told = []
        for source in highest:
            del new[source][:-1]
        last = {id(sample) for kept in new.values() for sample in kept}
        batches.append(([*told, *tokens], [one for one in samples if id(one) in last]))
        self._batches = batches
        beyond = sum(len(told) for told, _ in batches) - TOKENS_MAX
        for told, _ in batches if beyond > 0 else ():
            gone = min(beyond, len(told))
            del told[:gone]
            beyond -= gone

    @property
    def first(self) -> tuple[list[_TokenT], list[Sample]]:
        """What tokens did before what was dropped first, and that; where something was."""
        return self._batches[0]

    def take_tokens(self) -> Sequence[_TokenT]:
        """Return and forget what tokens did before what was dropped first, which stays."""
        if not self._batches:
            return ()
        tokens, samples = self._batches[0]
        self._batches[0] = [], samples
        return tokens

    def take(self) -> tuple[list[_TokenT], list[Sample]]:
        """Return and forget that."""
        return self._batches.popleft()


def _keep(kept: list[Sample], sample: Sample) -> None:
    while kept and kept[-1].sn <= sample.sn:
        kept.pop()
    kept.append(sample)
    del kept[1:-1]


def _still_shows(
    sample: Sample, new: Mapping[SourceId, Sequence[Sample]], highest: set[SourceId]
) -> bool:
    """Tell whether a sample is the highest of its source, and note so; what came last is new."""
    behind = new.get(sample.source, ())
    if behind and (sample.source in highest or sample.sn <= behind[0].sn):
        return False
    if behind:
        highest.add(sample.source)
    return True
