"""How samples without a number come in, which pass the windows by (ADR 0160)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.protocol.cache.events import EngineOptions, Output
from durable_cache.protocol.cache.numbering import EngineCounts
from durable_cache.protocol.cache.questions import (
    Conversation,
    Lookup,
    NumbersLooked,
    Standings,
    StandingsFound,
    answer_of,
)
from durable_cache.protocol.cache.unnumbered import Judged, Unnumbered, part_unnumbered
from durable_cache.runtime.talks import Talks


class TakingUnnumbered:
    """Asks what is stored of such samples and hands in what is new; owned by the core's thread.

    `store` takes samples that are new and returns those of them that there is a place for.
    """

    def __init__(
        self,
        counts: EngineCounts,
        options: EngineOptions,
        talks: Talks,
        *,
        put_out: Callable[[Output], None],
        store: Callable[[SampleBatch], SampleBatch],
    ) -> None:
        self._unnumbered = Unnumbered(counts, options.unnumbered_remembered_max)
        self._compared_max = options.doubtful_samples_max
        self._talks, self._put_out, self._store = talks, put_out, store
        self._compared = 0
        """Samples that wait for a look-up."""
        self.refused = 0
        """Samples that could not be compared with what is stored under their identity."""

    def forget(self) -> None:
        """An append failed: what was taken may not be stored."""
        self._unnumbered.forget()

    def take(self, batch: SampleBatch) -> Conversation[SampleBatch]:
        """Take the samples that have no number of a source, and return the others."""
        numbered, others = part_unnumbered(batch)
        if not len(others):
            return numbered
        known = yield from answer_of(Standings(tuple(others)), StandingsFound)
        judged = self._unnumbered.judge(others, known.standings)
        self._take(judged)
        if judged.doubtful:
            self._compare(judged.doubtful)
        return numbered

    def _take(self, judged: Judged) -> None:
        for conflict in judged.conflicts:
            self._put_out(conflict)
        new = self._store(SampleBatch(judged.new))
        if len(new):
            self._unnumbered.took(new)

    def _compare(self, samples: list[Sample]) -> None:
        """Look up what is stored under these, while whatever follows goes on."""
        room = max(0, self._compared_max - self._compared)
        self.refused += len(samples[room:])
        if chosen := tuple(samples[:room]):
            self._compared += len(chosen)
            self._talks.begin(self._look_up(chosen), partial(self._not_compared, len(chosen)))

    def _look_up(self, samples: tuple[Sample, ...]) -> Conversation[None]:
        looked = yield from answer_of(Lookup(samples), NumbersLooked)
        self._compared -= len(samples)
        self._take(self._unnumbered.compare(looked.found))

    def _not_compared(self, count: int) -> None:
        """The index says that they are stored; whether as they came is not known."""
        self._compared -= count
        self.refused += count
