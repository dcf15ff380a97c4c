"""By which epoch a named run goes here, whatever each answerer calls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.events import AnswerPart

__all__ = ["RunNames", "shorten", "under"]

_Key = tuple[SourceId, int]
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class RunNames:
    """The runs that answers named; of each table the oldest beyond `places_max` are forgotten."""

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self.incarnations: dict[_Key, str] = {}
        """The name of each run, by source and the epoch by which it goes here."""
        self.called: dict[tuple[SourceId, str], int] = {}
        """The epoch by which each named run goes here."""

    def of(self, key: _Key) -> str:
        """Return the name of a run; empty where no answer named it."""
        return self.incarnations.get(key, "")

    def agree(self, parts: Iterable[AnswerPart]) -> None:
        """Choose how runs are called: as whoever knows most calls them, and no two alike.

        A publisher's own cache knows of no run before, and may call its run as a cache calls that.
        """
        fresh: dict[tuple[SourceId, str], int] = {}
        told: Counter[tuple[SourceId, str]] = Counter()
        for part in parts:
            runs = Counter(source for source, _, _ in part.incarnations)
            for source, epoch, name in part.incarnations:
                fresh[source, name] = max(epoch, fresh.get((source, name), epoch))
                told[source, name] = max(runs[source], told[source, name])
        for run in sorted(fresh, key=lambda run: -told[run]):
            source, name = run
            if run not in self.called:
                epoch = fresh[run]
                if self.incarnations.get((source, epoch), name) != name:
                    epoch = 1 + max(taken for of, taken in self.incarnations if of == source)
                self.called[run] = epoch
            self.incarnations[source, self.called[run]] = name
        shorten(self.called, self._places_max)
        shorten(self.incarnations, self._places_max)

    def renamed(
        self, part: AnswerPart, samples: Sequence[Sample], stand: Mapping[_Key, int]
    ) -> Iterable[Sample]:
        """Return samples of a part under the epochs by which their runs go here.

        `stand`: by which epochs runs without a name go.
        """
        named = part.names()
        epochs = {key: epoch for key, epoch in stand.items() if key not in named}
        for key, name in named.items():
            epoch = self.called.get((key[0], name), key[1])
            if epoch != key[1]:
                epochs[key] = epoch
        if not epochs:
            return samples
        return (
            under(sample, epochs.get((sample.source, sample.epoch), sample.epoch))
            for sample in samples
        )


def shorten(table: dict[KeyT, ValueT], places_max: int) -> None:
    """Forget the oldest entries beyond a bound."""
    while len(table) > places_max:
        del table[next(iter(table))]


def under(sample: Sample, epoch: int) -> Sample:
    """Return a sample under an epoch: itself, where it bears that."""
    return sample if sample.epoch == epoch else msgspec.structs.replace(sample, epoch=epoch)
