"""What a cache does with samples that came without a number: which are new, which contradict.

They have the identity of their timestamp (ADR 0160). Nothing is awaited before or between them, so
they pass the windows by. Over two routes a sample comes twice within moments: the digests of the
newest are at hand, and only a repeat of an older one is looked up in the storage.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from durable_cache.model.sample import Identity, Sample, SampleBatch
from durable_cache.model.unnumbered import is_unnumbered
from durable_cache.protocol.cache.events import Found, ReportConflict
from durable_cache.protocol.cache.numbering import EngineCounts
from durable_cache.protocol.cache.questions import Standing


class Judged(NamedTuple):
    """What is to become of a batch; repeats and what was removed are left out."""

    new: list[Sample]
    doubtful: list[Sample]
    """Stored already, under another payload perhaps: to be looked up."""
    conflicts: list[ReportConflict]


def part_unnumbered(batch: SampleBatch) -> tuple[SampleBatch, SampleBatch]:
    """Return the numbered samples of a batch and the others."""
    if not any(map(is_unnumbered, batch.sources)):
        return batch, SampleBatch()
    numbered: list[Sample] = []
    others: list[Sample] = []
    for sample in batch:
        side = others if is_unnumbered(sample.source) else numbered
        side.append(sample)
    return SampleBatch(numbered), SampleBatch(others)


class Unnumbered:
    """Tells new samples from repeats; owned by the core's thread.

    Remembers the digests of the last `remembered_max` samples that were taken.
    """

    def __init__(self, counts: EngineCounts, remembered_max: int) -> None:
        self._counts = counts
        self._remembered_max = remembered_max
        self._digests: OrderedDict[Identity, bytes] = OrderedDict()

    def judge(self, batch: SampleBatch, standings: Iterable[Standing]) -> Judged:
        """Tell what a batch holds, given what the stream index says of each sample."""
        judged = Judged([], [], [])
        fresh: dict[Identity, bytes] = {}
        for sample, digest, standing in zip(batch, batch.digests, standings, strict=True):
            identity = sample.identity
            known = self._digests.get(identity) or fresh.get(identity)
            if known == digest:
                self._counts.repeated(sample.source)
            elif known is not None:
                self._counts.conflicts += 1
                judged.conflicts.append(ReportConflict(sample, None))
            elif standing is Standing.HELD:
                judged.doubtful.append(sample)
            elif standing is Standing.NEW:
                fresh[identity] = digest
                judged.new.append(sample)
        return judged

    def compare(self, found: Iterable[Found]) -> Judged:
        """Tell what a look-up says of samples that the index knows."""
        judged = Judged([], [], [])
        for looked in found:
            if looked.same:
                self._counts.repeated(looked.sample.source)
            elif looked.stored is not None:
                self._counts.conflicts += 1
                judged.conflicts.append(ReportConflict(looked.sample, looked.stored))
            elif not looked.removed:
                judged.new.append(looked.sample)
        return judged

    def took(self, batch: SampleBatch) -> None:
        """Remember what is on its way to the storage."""
        for sample, digest in zip(batch, batch.digests, strict=True):
            self._digests[sample.identity] = digest
        while len(self._digests) > self._remembered_max:
            self._digests.popitem(last=False)

    def forget(self) -> None:
        """An append failed: what was taken may not be stored, and may come in again."""
        self._digests.clear()
