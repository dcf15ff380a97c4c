"""Which runs that an answer calls by different epochs are one, where no token names them.

Caches name the runs of a foreign source themselves, and agree on one name a while after they meet.
Until then one sample may come under two epochs. It was published once: the same key, number and
time show that its runs are one, unless another number has two. They go by the epoch under which
something was delivered already, else by the lower one; 0 says nothing and never stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from durable_cache.model.sample import Sample, SourceId
from durable_cache.protocol.subscriber.events import AnswerPart

__all__ = ["Key", "Twins"]

Key = tuple[SourceId, int]


class Twins:
    """The runs that were seen to be one; at most `runs_max`, the oldest is forgotten."""

    def __init__(self, runs_max: int, is_delivered: Callable[[Key], bool]) -> None:
        self._runs_max, self._is_delivered = runs_max, is_delivered
        self.stand: dict[Key, int] = {}
        """The epochs that stand for others."""

    def names(self, key: Key) -> set[Key]:
        """Return what else a run is called that goes by a name."""
        return {other for other, epoch in self.stand.items() if (other[0], epoch) == key}

    def learn(self, parts: Sequence[AnswerPart]) -> None:
        """Look for samples that came under two epochs."""
        called: dict[SourceId, set[int]] = {}
        for part in parts:
            named = part.names()
            for key in {(sample.source, sample.epoch) for sample in part.samples}:
                if key not in named:
                    called.setdefault(key[0], set()).add(key[1])
        doubtful = {source for source, epochs in called.items() if len(epochs) > 1}
        if doubtful:
            self._compare(s for part in parts for s in part.samples if s.source in doubtful)

    def _compare(self, samples: Iterable[Sample]) -> None:
        published: dict[SourceId, dict[int, dict[int, tuple[str, int]]]] = {}
        for sample in samples:
            if sample.ntp64 and not sample.stamped:
                source = sample.source
                epoch = self.stand.get((source, sample.epoch), sample.epoch)
                run = published.setdefault(source, {}).setdefault(epoch, {})
                run[sample.sn] = sample.key, sample.ntp64
        for source, runs in published.items():
            for one, two in combinations([*runs], 2):
                same = [runs[one][sn] == runs[two][sn] for sn in runs[one].keys() & runs[two]]
                if same and all(same):  # a number with two times is of two runs, of which one errs
                    self._unite(source, one, two)

    def _unite(self, source: SourceId, one: int, two: int) -> None:
        """Let two epochs of a source be one."""

        def rank(epoch: int) -> tuple[bool, bool, int]:
            return not self._is_delivered((source, epoch)), epoch == 0, epoch

        one, two = self.stand.get((source, one), one), self.stand.get((source, two), two)
        if one == two:
            return
        stands, falls = sorted((one, two), key=rank)
        for key in [key for key, epoch in self.stand.items() if key[0] == source]:
            if self.stand[key] == falls:
                self.stand[key] = stands
        self.stand[source, falls] = stands
        while len(self.stand) > self._runs_max:
            del self.stand[next(iter(self.stand))]
